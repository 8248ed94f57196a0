/* SPDX-License-Identifier: Apache-2.0 */
/* The directory when the agent has no memory for a command, and with a cluster that names servers which its map lacks. */
#include "agent/control/directory/directory.h"

#include <arpa/inet.h>
#include <sched.h>
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

#define OBJECTS 20

static const char *const spaces[] = { "kv=t:1" };

static struct rig {
	struct store_rig s;
	struct store_member *member;
	struct directory *d;
	struct dray_config cfg;
	char url[64];
	/* the server */
	int listener, fd;
	sd_event_source *on_accept, *on_bytes;
	unsigned accepted, entries, maps; /* connections, and commands ZADD and CLUSTER */
	unsigned other;   /* the port of a server that has all keys, and does not listen */
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

static void server_send(const char *text)
{
	assert_int_equal(send(rig.fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* The key is at the other server, as MOVED says for each of them. CLUSTER NODES lacks that one. */
static void answer(const char *command)
{
	char moved[64];

	snprintf(moved, sizeof(moved), "-MOVED 0 127.0.0.1:%u\r\n", rig.other);
	if (!strcmp(command, "TIME")) {
		server_send("*2\r\n$10\r\n1795000000\r\n$1\r\n0\r\n");
	} else if (!strcmp(command, "SET")) {
		server_send("+OK\r\n");
	} else if (!strcmp(command, "GET")) {
		server_send("$1\r\n1\r\n");
	} else if (!strcmp(command, "ZADD")) {
		rig.entries++;
		server_send(moved);
	} else if (!strcmp(command, "PEXPIRE") || !strcmp(command, "ZREMRANGEBYSCORE")) {
		server_send(":1\r\n");
	} else if (!strcmp(command, "CLUSTER")) {
		rig.maps++;
		server_send("$44\r\nid 127.0.0.1:1@2 master - 0 0 1 connected 1\n\r\n");
	}
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

static int set_up_with(const char *segment)
{
	static char empty[] = "", prefix[] = "dray";
	struct dray_err err = DRAY_ERR_NULL;

	memset(&rig, 0, sizeof(rig));
	store_rig_make(&rig.s, store_rig_config(spaces, 1));
	server_start();
	rig.cfg.store.lend = true;
	rig.cfg.store.directory = rig.url;
	rig.cfg.store.directory_prefix = prefix;
	rig.cfg.store.directory_password_file = empty;
	rig.cfg.store.directory_timeout = DRAY_NS_PER_SEC;
	rig.cfg.store.directory_expiry = 3600 * DRAY_NS_PER_SEC;
	assert_int_equal(directory_new(&rig.d,
				       &(struct directory_deps){ .event = rig.s.event,
								 .cfg = &rig.cfg,
								 .store = rig.s.store,
								 .segment = segment,
								 .changed = on_state },
				       &err),
			 0);
	return 0;
}

static int set_up(void **state)
{
	return set_up_with("");
}

static int set_up_with_entries(void **state)
{
	return set_up_with("10.0.0.1:7411");
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

static void put(const char *text)
{
	struct store_key key = { (const uint8_t *)text, (uint32_t)strlen(text) };
	struct store_object *o;

	while (rig_put_begin(rig.member, key, 64, 1, &o) == DMSG_STORE_STATUS_BUSY)
		sched_yield();
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
}

/* What the server says again and again is no reason to enter all objects again. */
static void test_map_without_a_server(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof(a);

	assert_return_code(bind(fd, (struct sockaddr *)&a, n), 0);
	assert_return_code(getsockname(fd, (struct sockaddr *)&a, &n), 0);
	rig.other = ntohs(a.sin_port);
	store_rig_user(&rig.s);
	rig.member = store_rig_join(&rig.s, "kv");
	for (unsigned i = 0; i < OBJECTS; i++) {
		char key[12];

		snprintf(key, sizeof(key), "%u", i);
		put(key);
	}
	assert_true(net_until(rig.s.event, rig.maps == 2));
	put("another");
	assert_true(net_until(rig.s.event, rig.maps == 5));
	close(fd);
	/* the first listing, that of the first map, and one more if this took long */
	assert_in_range(rig.entries, OBJECTS + 1, 3 * OBJECTS + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_no_memory_for_the_first_question, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_map_without_a_server, set_up_with_entries,
						tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
