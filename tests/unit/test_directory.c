/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the directory when the agent has no memory for a command. */
#include "agent/control/directory/directory.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/directory/internal.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"
#include "tests/unit/store_rig.h"

static const char *const spaces[] = { "kv=t:1" };

static struct rig {
	struct store_rig s;
	struct directory *d;
	struct dray_config cfg;
	char url[64];
	/* the server */
	int listener, fd;
	sd_event_source *on_accept, *on_bytes;
	unsigned accepted;
	unsigned failing; /* batches for which there is no memory */
	enum directory_state state;
} rig;

struct batch *__real_batch_new(struct server *s, struct directory_find *find, const char *segment);
struct batch *__wrap_batch_new(struct server *s, struct directory_find *find, const char *segment);

struct batch *__wrap_batch_new(struct server *s, struct directory_find *find, const char *segment)
{
	if (!rig.failing)
		return __real_batch_new(s, find, segment);
	rig.failing--;
	return NULL;
}

/* --- the server ------------------------------------------------------------------------------------- */

static void server_close(void)
{
	rig.on_bytes = sd_event_source_disable_unref(rig.on_bytes);
	rig.fd = dray_close(rig.fd);
}

static void answer(const char *command)
{
	const char *text = !strcmp(command, "TIME") ? "*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n" :
			   !strcmp(command, "SET")  ? "+OK\r\n" :
			   !strcmp(command, "GET")  ? "$1\r\n1\r\n" :
						      NULL;

	if (text)
		assert_int_equal(send(rig.fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static int on_bytes(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	char got[1000], *at = got, *word;
	ssize_t n = recv(fd, got, sizeof(got) - 1, 0);

	if (n <= 0) {
		server_close();
		return 0;
	}
	got[n] = '\0';
	while ((word = strsep(&at, "\r\n")))
		answer(word);
	return 0;
}

static int on_accept(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	server_close();
	rig.accepted++;
	rig.fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(rig.fd >= 0);
	assert_true(sd_event_add_io(rig.s.event, &rig.on_bytes, rig.fd, EPOLLIN, on_bytes, NULL) >=
		    0);
	return 0;
}

static void server_start(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);

	rig.fd = -1;
	rig.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_return_code(bind(rig.listener, (struct sockaddr *)&a, n), 0);
	assert_return_code(listen(rig.listener, 8), 0);
	assert_return_code(getsockname(rig.listener, (struct sockaddr *)&a, &n), 0);
	snprintf(rig.url, sizeof(rig.url), "redis://127.0.0.1:%u", ntohs(a.sin_port));
	assert_true(sd_event_add_io(rig.s.event, &rig.on_accept, rig.listener, EPOLLIN, on_accept,
				    NULL) >= 0);
}

/* --- tests ------------------------------------------------------------------------------------------ */

static void on_state(void *arg, enum directory_state s, const struct dray_err *why)
{
	rig.state = s;
}

static int set_up(void **state)
{
	static char empty[] = "", prefix[] = "dray";
	struct dray_err err = DRAY_ERR_NULL;

	memset(&rig, 0, sizeof(rig));
	store_rig_make(&rig.s, store_rig_config(spaces, 1));
	server_start();
	rig.cfg.store.directory = rig.url;
	rig.cfg.store.directory_prefix = prefix;
	rig.cfg.store.directory_password_file = empty;
	rig.cfg.store.directory_timeout = DRAY_NS_PER_SEC;
	rig.cfg.store.directory_expiry = 3600 * DRAY_NS_PER_SEC;
	assert_int_equal(directory_new(&rig.d,
				       &(struct directory_deps){ .event = rig.s.event,
								 .cfg = &rig.cfg,
								 .store = rig.s.store,
								 .segment = "",
								 .changed = on_state },
				       &err),
			 0);
	return 0;
}

static int tear_down(void **state)
{
	directory_free(rig.d);
	server_close();
	sd_event_source_disable_unref(rig.on_accept);
	dray_close(rig.listener);
	store_rig_end(&rig.s);
	return 0;
}

/* The agent cannot ask its first question over a connection. It does so over another one, and the directory is used. */
static void test_no_memory_for_the_first_question(void **state)
{
	rig.failing = 1;
	assert_true(net_until(rig.s.event, rig.state == DIRECTORY_OK));
	assert_int_equal(rig.failing, 0);
	assert_int_equal(rig.accepted, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_no_memory_for_the_first_question, set_up,
						tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
