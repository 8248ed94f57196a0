/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that close a data connection to which the agent sends: the engine's end is the test's, and the worker looks when it says. */
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/model/mooncake_buffers.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define BYTES 65536u
#define PIECE 4096u
#define BASE UINT64_C(0x7f0000000000)
#define CALL (MOONCAKE_REQUEST_BYTES + PIECE)
#define SESSION 5
#define HANDLE(i) ((dray_handle)1 << 32 | (i))

struct lab {
	struct rig rig;
	struct rig_session session;
	struct rig_region region;
	struct remote_view remote;
	struct mooncake_buffers *buffers;
	struct mooncake_link link;
	struct mooncake *m;
	int listener;
};

static struct lab *lab;

static void remote_init(void)
{
	struct mooncake_buffers *b = calloc(1, sizeof(*b) + sizeof(b->v[0]));
	uint8_t wire[DMSG_RANGE_SIZE];

	assert_non_null(b);
	b->n = 1;
	b->v[0] = (struct mooncake_buffer){ BASE, BASE + BYTES };
	dmsg_range_put(wire, &(struct dmsg_range){ .offset = BASE, .length = BYTES, .count = 1 });
	lab->remote.o = (struct object_view){ OBJECT_REMOTE, HANDLE(2),    77,
					      SESSION,       BASE + BYTES, DMSG_ACCESS_ALL };
	lab->remote.peer = lab->link.link.peer;
	lab->remote.mooncake = lab->buffers = b;
	assert_int_equal(ranges_new(&lab->remote.ranges, wire, 1, UINT64_MAX, NULL), 0);
	object_publish(&lab->rig.core, &lab->remote.o);
}

static void listener_init(void)
{
	struct dray_addr *at = &lab->link.link.addr;

	at->in = (struct sockaddr_in){ .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	at->len = sizeof(at->in);
	lab->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(lab->listener, &at->sa, at->len), 0);
	assert_int_equal(listen(lab->listener, 8), 0);
	assert_int_equal(getsockname(lab->listener, &at->sa, &at->len), 0);
}

static void begin(bool with_status)
{
	struct core *c;

	lab = calloc(1, sizeof(*lab));
	assert_non_null(lab);
	c = &lab->rig.core;
	rig_init(&lab->rig);
	c->cfg.tcp_slices_in_flight = 64;
	c->cfg.mooncake_streams = 2;
	c->cfg.connect_timeout_ns = DRAY_NS_PER_SEC;
	assert_int_equal(transport_mooncake.init(c, &c->transport_state[1]), 0);
	c->transports[c->n_transports++] = &transport_mooncake;
	lab->m = c->transport_state[1];
	rig_session_init(&lab->rig, &lab->session, SESSION);
	rig_region_init(&lab->rig, &lab->region, HANDLE(1), SESSION, BYTES, 1);
	memset(lab->region.memory, 7, BYTES);
	lab->link.link.peer = HANDLE(4);
	lab->link.with_status = with_status;
	listener_init();
	remote_init();
	transport_mooncake.message(c, lab->m,
				   &(struct transport_message){ .type = MOONCAKE_ENGINE_UP,
								.peer = lab->link.link.peer,
								.arg = &lab->link });
}

static void end(void)
{
	struct core *c = &lab->rig.core;

	transport_mooncake.deinit(c, lab->m);
	xfer_session_deinit(&lab->session.xs);
	close(lab->listener);
	rig_deinit(&lab->rig);
	rig_region_deinit(&lab->region);
	free(lab->remote.ranges);
	free(lab->buffers);
	free(lab);
}

/* Sockets tell the worker nothing. */
static void work(void)
{
	struct core *c = &lab->rig.core;

	while (transport_mooncake.progress(c, lab->m))
		continue;
	xfers_tick(c);
	transport_mooncake.tick(c, lab->m);
}

static void look(void)
{
	while (loop_turn(&lab->rig.core.loop, 0) > 0)
		continue;
}

static void write_piece(uint64_t id, enum dmsg_class class)
{
	struct xfer_request r = { .request_id = id,
				  .spec = { .local = HANDLE(1),
					    .remote = HANDLE(2),
					    .class = class,
					    .direction = DMSG_DIRECTION_WRITE } };
	const uint64_t op[1][3] = { { 0, BASE, PIECE } };

	assert_int_equal(rig_submit(&lab->rig, &lab->session, &r, op, 1, NULL), 0);
}

static bool has_connection(void)
{
	return poll(&(struct pollfd){ .fd = lab->listener, .events = POLLIN }, 1, 0) > 0;
}

static int take_connection(void)
{
	int fd;

	while (!has_connection()) {
		look();
		work();
	}
	fd = accept4(lab->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void wait_for(int fd, short events)
{
	assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = events }, 1, -1), 1);
}

/* The whole call is read, and answered. */
static void serve(int fd, bool with_status)
{
	uint8_t bytes[CALL], status[MOONCAKE_STATUS_BYTES];
	size_t n = 0;

	while (n < CALL) {
		ssize_t got;

		look();
		work();
		got = recv(fd, bytes + n, CALL - n, MSG_DONTWAIT);
		n += (size_t)dray_max(got, (ssize_t)0);
	}
	assert_int_equal(bytes[CALL - 1], 7);
	mooncake_status_put(status, MOONCAKE_STATUS_OK);
	if (with_status)
		assert_int_equal(send(fd, status, sizeof(status), 0), sizeof(status));
	else
		close(fd);
}

static void until_ended(unsigned n)
{
	while (lab->rig.n_ended < n) {
		look();
		work();
	}
}

static struct mooncake_stream *stream(enum dmsg_class class)
{
	struct mooncake_engine *e =
		dray_list_first(&lab->m->engines, struct mooncake_engine, engines_link);

	return dray_list_first(&e->channels[class].streams, struct mooncake_stream, link);
}

/* One WRITE has ended, and a stream without work is left, which the engine has closed. Returns the agent's end. */
static struct mooncake_stream *closed_stream(bool with_status, enum dmsg_class class)
{
	int used, idle;

	write_piece(1, class);
	used = take_connection();
	/* the second one opens beside the first WRITE */
	idle = class == DMSG_CLASS_BULK ? take_connection() : -1;
	serve(used, with_status);
	until_ended(1);
	assert_int_equal(lab->rig.ended[0].code, 0);
	while (stream(class)->state != MOONCAKE_OPEN) {
		look();
		work();
	}
	close(idle >= 0 ? idle : used);
	wait_for(stream(class)->fd, POLLRDHUP);
	return stream(class);
}

/* Version 1: the engine's close shows only that it has read what came before. */
static void test_bytes_behind_close(void **state)
{
	struct mooncake_stream *s;

	begin(false);
	s = closed_stream(false, DMSG_CLASS_BULK);
	write_piece(2, DMSG_CLASS_BULK);
	work();
	assert_int_equal(s->calls.sent, 1);
	until_ended(2);
	assert_int_equal(lab->rig.ended[1].code, DRAY_E_PEER_LOST);
	end();
}

/* The worker knows of the close: the WRITE goes over another stream. */
static void close_is_known(bool with_status, enum dmsg_class class)
{
	int fd;

	begin(with_status);
	closed_stream(with_status, class);
	look();
	write_piece(2, class);
	fd = take_connection();
	serve(fd, with_status);
	until_ended(2);
	assert_int_equal(lab->rig.ended[1].code, 0);
	end();
	if (with_status)
		close(fd);
}

static void test_known_close(void **state)
{
	close_is_known(false, DMSG_CLASS_BULK);
}

/* There is no other stream, and the end of this one makes one. */
static void test_last_stream(void **state)
{
	close_is_known(true, DMSG_CLASS_LATENCY);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_behind_close),
		cmocka_unit_test(test_known_close),
		cmocka_unit_test(test_last_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
