/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes of engines with Mooncake over RDMA, whose answers wait for registrations. The rails are the test's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/mooncake/internal.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/net_rig.h"

static struct {
	bool ready;
	unsigned buffers;
	uint64_t changes;
} now;

/* --- rails ---------------------------------------------------------------------------------------- */

bool rails_guest_ready(const struct rails *r)
{
	return now.ready;
}

uint64_t rails_guest_changes(const struct rails *r)
{
	return now.changes;
}

unsigned rails_guest_devices(const struct rails *r, struct rails_guest_device ret[RAILS_MAX])
{
	ret[0] = (struct rails_guest_device){ .name = "dev0" };
	return 1;
}

void rails_guest_buffers(const struct rails *r,
			 void (*fn)(void *arg, uint64_t address, uint64_t length,
				    const uint32_t *keys, unsigned n),
			 void *arg)
{
	static const uint32_t key = 77;

	for (unsigned i = 0; i < now.buffers; i++)
		fn(arg, (i + 1) << 20, 4096, &key, 1);
}

uint64_t rails_guest_connect(struct rails *r, const struct rails_guest_request *request,
			     void (*done)(void *arg, const struct rails_guest_reply *reply),
			     void *arg)
{
	return 0;
}

void rails_guest_forget(struct rails *r, uint64_t id)
{
}

void rails_guests_end(struct rails *r,
		      bool (*keep)(void *arg, const struct rails_guest_request *guest), void *arg,
		      const char *why)
{
}

uint64_t regions_mooncake_changes(const struct regions *r)
{
	return 0;
}

void regions_mooncake_each(struct regions *r, void (*fn)(void *arg, const struct grant_view *grant),
			   void *arg)
{
}

void regions_mooncake_open(struct regions *r, uint32_t max, bool rdma)
{
}

/* --- tests ---------------------------------------------------------------------------------------- */

struct rig {
	struct mooncake_server server;
	struct dray_config cfg;
	struct rails *rails;
	sd_event *event;
	int fd;
	char answer[4096];
	size_t n;
	bool ended;
};

static struct rig *rig_new(int64_t stall_ns)
{
	static const uint8_t request[] = { 3, 0, 0, 0, 0, 0, 0, 0, MOONCAKE_METADATA, '{', '}' };
	struct rig *r = calloc(1, sizeof(*r));
	struct dray_addr from;
	int pair[2];

	assert_non_null(r);
	memset(&now, 0, sizeof(now));
	assert_true(sd_event_new(&r->event) >= 0);
	assert_int_equal(dray_addr_parse("127.0.0.1:5", &from), 0);
	r->cfg.mooncake.stall_timeout = stall_ns;
	r->server.cfg = &r->cfg;
	r->server.deps.event = r->event;
	r->server.deps.rails = &r->rails;
	r->server.rdma = true;
	snprintf(r->server.name, sizeof(r->server.name), "10.0.0.1:15000");
	assert_int_equal(handshakes_init(&r->server) >= 0, 1);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
			 0);
	r->fd = pair[0];
	handshake_add(&r->server, pair[1], &from);
	assert_int_equal(send(r->fd, request, sizeof(request), MSG_NOSIGNAL), sizeof(request));
	return r;
}

/* Takes what has come. True: the answer is complete, or the connection has ended. */
static bool hear(struct rig *r)
{
	ssize_t n;

	while ((n = recv(r->fd, r->answer + r->n, sizeof(r->answer) - 1 - r->n, MSG_DONTWAIT)) > 0)
		r->n += (size_t)n;
	r->ended |= n == 0;
	return r->ended;
}

static void rig_free(struct rig *r)
{
	handshakes_deinit(&r->server);
	free(r->server.descriptor.text);
	close(r->fd);
	sd_event_unref(r->event);
	free(r);
}

static unsigned buffers_told(const struct rig *r)
{
	unsigned n = 0;

	for (const char *p = r->answer + MOONCAKE_FRAME_HEAD; (p = strstr(p, "\"addr\"")); p++)
		n++;
	return n;
}

/* A registration that takes too long: the engine is told the buffers that are ready, in time to read them. */
static void test_not_ready(void **state)
{
	struct rig *r = rig_new(400 * DRAY_NS_PER_MS);

	now.buffers = 1;
	assert_true(net_until(r->event, hear(r)));
	assert_true(r->n > MOONCAKE_FRAME_HEAD && r->answer[8] == MOONCAKE_METADATA);
	assert_int_equal(buffers_told(r), 1);
	assert_int_equal(r->server.totals.handshakes, 1);
	rig_free(r);
}

/* All buffers are told as soon as they are ready. */
static void test_ready_later(void **state)
{
	struct rig *r = rig_new(3600 * DRAY_NS_PER_SEC);

	assert_true(sd_event_run(r->event, 1000000) > 0);
	assert_false(hear(r));
	now.ready = true;
	now.buffers = 2;
	now.changes++;
	handshakes_resume(&r->server);
	assert_true(net_until(r->event, hear(r)));
	assert_int_equal(buffers_told(r), 2);
	rig_free(r);
}

/* The engine goes away while its answer waits. */
static void test_gone(void **state)
{
	struct rig *r = rig_new(3600 * DRAY_NS_PER_SEC);

	assert_true(sd_event_run(r->event, 1000000) > 0);
	shutdown(r->fd, SHUT_RDWR);
	assert_true(net_until(r->event, r->server.n_handshakes == 0));
	assert_int_equal(r->server.totals.handshakes_refused, 1);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_ready),
		cmocka_unit_test(test_ready_later),
		cmocka_unit_test(test_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
