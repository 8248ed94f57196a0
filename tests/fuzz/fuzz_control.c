/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients of a fake agent's control socket: bytes before, during and after the authentication, and
 * messages of every kind. The input is a script. When the client has closed, the connection and its pending calls
 * must end, whatever the script did.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/control/bus/internal.h"
#include "tests/unit/control_fake.h"

/* First byte of the script. */
#define FLAG_AUTHENTICATE 1 /* the client authenticates first */
#define FLAG_STRANGER 2     /* the client may not make changes */
/* Then a sequence of: N up to BYTES_MAX and N bytes that the client sends, or one of the words. */
#define BYTES_MAX 252
#define WORD_ANSWER 253 /* the workers answer pending requests */
#define WORD_SIGNAL 254 /* a state changes, which sends a signal */
#define WORD_READ 255   /* the client reads */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void turn(void)
{
	while (sd_event_run(fake.agent.event, 0) > 0)
		;
}

static int connect_client(bool stranger)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	memcpy(sa.sun_path, fake.path, strlen(fake.path));
	check(fd >= 0 && connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0);
	turn();
	dray_list_for_each(&fake.agent.bus->conns, c, struct bus_conn, link) {
		if (!stranger)
			continue;
		c->who.may_change = false;
		c->server->n_readers++;
	}
	return fd;
}

static void authenticate(int fd)
{
	static const char words[] = "\0AUTH EXTERNAL\r\nDATA\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n";

	check(send(fd, words, sizeof(words) - 1, MSG_NOSIGNAL) > 0);
	turn();
}

static void drink(int fd)
{
	char buf[65536];

	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		turn();
}

static void change(void)
{
	agent_resume(&fake.agent);
	signal_emit(DRAY_DBUS_SIGNAL_SESSION_CLOSED, "tss", (uint64_t)7, "caf\xc3\xa9 \xff",
		    "why \xc0");
	signal_emit(DRAY_DBUS_SIGNAL_RAIL_CHANGED, "susss", "rxe0", 1, "up", "down", "gone");
	signal_emit(DRAY_DBUS_SIGNAL_PEER_CHANGED, "tssss", (uint64_t)1, "10.0.0.1:7411", "ready",
		    "closed", "\xff");
	signal_emit(DRAY_DBUS_SIGNAL_EVENT_ADDED, "t",
		    history_add(fake.agent.history, "rail", NULL, "\xff", "a", "b", "\xf0"));
}

static void play(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		size_t take = *p;

		p++;
		n--;
		if (take == WORD_ANSWER) {
			listing_answer();
		} else if (take == WORD_SIGNAL) {
			change();
		} else if (take == WORD_READ) {
			drink(fd);
		} else {
			take = dray_min(take, n);
			if (take && send(fd, p, take, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
				return;
			p += take;
			n -= take;
		}
		turn();
	}
}

static char dir[] = "/tmp/fuzz-control-XXXXXX";

static void end(void)
{
	fake_close();
	unlink(fake.path);
	rmdir(dir);
}

static void start(void)
{
	dray_log_set_level(DRAY_LOG_ERROR);
	check(mkdtemp(dir) != NULL);
	snprintf(fake.path, sizeof(fake.path), "%s/c", dir);
	check(fake_open() == 0);
	fake.hold = true;
	atexit(end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool started;
	int fd;

	if (!size)
		return 0;
	if (!started)
		start();
	started = true;
	fd = connect_client(data[0] & FLAG_STRANGER);
	if (data[0] & FLAG_AUTHENTICATE)
		authenticate(fd);
	play(fd, data + 1, size - 1);
	close(fd);
	turn();
	/* the workers' answers to the client's calls have no receiver any more */
	listing_answer();
	turn();
	check(fake.agent.bus->n_conns == 0 && fake.agent.bus->n_readers == 0);
	agent_resume(&fake.agent);
	fake.agent.stay = false;
	dray_log_set_level(DRAY_LOG_ERROR);
	return 0;
}
