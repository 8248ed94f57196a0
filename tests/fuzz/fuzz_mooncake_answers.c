/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile engine with Mooncake that answers the initiator. The input is a script: transfers begin and are stopped, their memory goes,
 * the engine reads requests and answers them in any order with statuses and bytes that are nearly right, closes connections, and time
 * passes. Each request must lie within one buffer of the engine and, for a write, have the bytes of the client at that address; each
 * transfer must end exactly once; only bytes that a READ asked for may change; and nothing may be left when the engine is given up.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/model/mooncake_buffers.h"
#include "agent/model/mooncake_message.h"
#include "agent/model/ranges.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"
#include "tests/unit/account.h"

/* The client's region: what WRITEs send, then what READs fill. */
#define TARGET 32768u
#define REGION (2 * TARGET)
#define PIECE 8192u
#define EXTENTS (REGION / PIECE)
/* Byte `at` of the region is byte BASE + at of the engine. */
#define BASE UINT64_C(0x7f0000000000)
#define HANDLE(i) ((dray_handle)1 << 32 | (i))
#define TRANSFERS_MAX 32u
#define CONNS_MAX 12u
#define ASKED_MAX 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
	const uint8_t *p, *end;
};

/* The engine's end of a connection. */
struct conn {
	int fd; /* -1: closed */
	uint8_t head[MOONCAKE_REQUEST_BYTES];
	unsigned head_n;
	uint64_t payload_at, payload_left; /* of a WRITE that is being read */
};

struct asked {
	struct mooncake_request request;
	unsigned conn;
};

static const struct {
	uint64_t start, end; /* behind BASE */
} spans[] = { { 0, 5000 }, { 5000, 9000 }, { 10000, TARGET } };

static struct {
	struct core core; /* first */
	struct data_counters counters;
	void *state;
	struct xfer_session session;
	struct session_shared shared;
	struct quota group;
	struct region_view *region;
	uint8_t *memory, *agent_memory; /* two mappings of memfd */
	uint8_t image[REGION];          /* what is in the region at first */
	int memfd, listener;
	struct remote_view remote;
	struct mooncake_link link;
	struct conn conns[CONNS_MAX];
	struct asked asked[ASKED_MAX];
	unsigned n_conns, n_asked, n_transfers;
	bool ended[TRANSFERS_MAX];
	bool lost, gone, deaf;
	bool read_of[TARGET]; /* some READ has asked for this byte */
} lab;

static uint64_t take(struct script *s, unsigned bytes)
{
	uint64_t v = 0;

	while (bytes-- && s->p < s->end)
		v = v << 8 | *s->p++;
	return v;
}

/* --- the agent's side ----------------------------------------------------------------------------- */

static void xfer_ended(struct core *c, struct xfer *x)
{
	(void)c;
	dray_assert(x->request_id < lab.n_transfers && !lab.ended[x->request_id]);
	lab.ended[x->request_id] = true;
}

static void notify(struct core *c, struct xfer *x)
{
	(void)c;
	dray_assert(!x);
}

static void event(struct core *c, const struct event *ev)
{
	(void)c;
	if (ev->type == EVENT_SESSION_FAULT)
		return;
	dray_assert(ev->type == EVENT_TRANSPORT && ev->message.peer == lab.link.link.peer);
	dray_assert(ev->message.type == MOONCAKE_ENGINE_LOST ? !lab.lost : !lab.gone);
	if (ev->message.type == MOONCAKE_ENGINE_LOST)
		lab.lost = true;
	else
		lab.gone = true;
}

static const struct core_upcalls upcalls = {
	.xfer_ended = xfer_ended,
	.notify = notify,
	.event = event,
	.release_buffers = slice_release_buffers,
	.flush_rdma = gpu_flush_rdma,
};

static uint8_t content(uint64_t at)
{
	return (uint8_t)(at * 31 + (at >> 8) * 7 + 1);
}

/* Where the byte is in a mapping. Extents are not in the order of their addresses within each half. */
static uint64_t place_of(uint64_t at)
{
	uint64_t half = at / TARGET, i = at % TARGET / PIECE;

	return half * TARGET + (TARGET / PIECE - 1 - i) * PIECE + at % PIECE;
}

static void region_init(void)
{
	lab.memfd = dray_memfd_new("lab", REGION, false);
	dray_assert(lab.memfd >= 0);
	lab.memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, lab.memfd, 0);
	lab.agent_memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, lab.memfd, 0);
	lab.region = calloc(1, sizeof(*lab.region) + EXTENTS * sizeof(struct extent_view));
	dray_assert(lab.memory != MAP_FAILED && lab.agent_memory != MAP_FAILED && lab.region);
	lab.region->o = (struct object_view){ .kind = OBJECT_REGION,
					      .handle = HANDLE(1),
					      .group = 77,
					      .session = HANDLE(5),
					      .length = REGION,
					      .access = DMSG_ACCESS_ALL };
	lab.region->fault_guarded = fault_guard_memory(lab.agent_memory, REGION);
	lab.region->n_extents = EXTENTS;
	for (unsigned i = 0; i < EXTENTS; i++)
		lab.region->extents[i] =
			(struct extent_view){ .start = i * PIECE,
					      .length = PIECE,
					      .base = lab.agent_memory + place_of(i * PIECE),
					      .node = -1 };
	object_publish(&lab.core, &lab.region->o);
	memset(lab.image, 0xee, REGION);
	for (uint64_t at = 0; at < TARGET; at++)
		lab.image[place_of(at)] = content(at);
}

static void remote_init(void)
{
	uint8_t wire[DRAY_ARRAY_SIZE(spans) * DMSG_RANGE_SIZE];
	struct mooncake_buffers *b = calloc(1, sizeof(*b) + sizeof(spans));
	struct ranges *ranges = NULL;

	dray_assert(b);
	b->n = DRAY_ARRAY_SIZE(spans);
	for (unsigned i = 0; i < b->n; i++) {
		b->v[i] = (struct mooncake_buffer){ BASE + spans[i].start, BASE + spans[i].end };
		dmsg_range_put(wire + i * DMSG_RANGE_SIZE,
			       &(struct dmsg_range){ .offset = b->v[i].start,
						     .length = b->v[i].end - b->v[i].start,
						     .count = 1 });
	}
	dray_assert(ranges_new(&ranges, wire, b->n, UINT64_MAX, NULL) == 0);
	lab.remote.o = (struct object_view){ .kind = OBJECT_REMOTE,
					     .handle = HANDLE(2),
					     .group = 77,
					     .session = HANDLE(5),
					     .length = BASE + TARGET,
					     .access = DMSG_ACCESS_ALL };
	lab.remote.peer = lab.link.link.peer;
	lab.remote.ranges = ranges;
	lab.remote.mooncake = b;
	object_publish(&lab.core, &lab.remote.o);
}

/* A socket of this machine is refused and reset as one of TCP is, and needs no ports. */
static void listener_init(void)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	socklen_t n = sizeof(un);

	lab.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* the kernel chooses an abstract name */
	dray_assert(lab.listener >= 0 &&
		    bind(lab.listener, (struct sockaddr *)&un, sizeof(sa_family_t)) == 0 &&
		    listen(lab.listener, 64) == 0 &&
		    getsockname(lab.listener, (struct sockaddr *)&un, &n) == 0);
	memcpy(&lab.link.link.addr.ss, &un, n);
	lab.link.link.addr.len = n;
}

static void start(void)
{
	struct core *c = &lab.core;

	c->up = &upcalls;
	c->counters = &lab.counters;
	c->now_ns = DRAY_NS_PER_SEC;
	c->cfg = (struct data_config){ .slice_size = 16384,
				       .slice_timeout_ns = 5 * DRAY_NS_PER_SEC,
				       .deadline_ns = 60 * DRAY_NS_PER_SEC,
				       .slices_per_session = 64,
				       .tcp_slices_in_flight = 64,
				       .mooncake_streams = 2,
				       .connect_timeout_ns = 5 * DRAY_NS_PER_SEC,
				       .backoff_min_ns = 50 * DRAY_NS_PER_MS,
				       .backoff_max_ns = DRAY_NS_PER_SEC };
	c->transports[0] = &transport_mooncake;
	c->n_transports = 1;
	dray_assert(fault_init() == 0 && loop_init(&c->loop) == 0 && objects_init(c) == 0 &&
		    xfers_init(c, TRANSFERS_MAX) == 0);
	lab.link.link.peer = HANDLE(4);
	lab.group.transfers_max = TRANSFERS_MAX;
	lab.shared.session = HANDLE(5);
	lab.shared.group = 77;
	lab.shared.own.transfers_max = TRANSFERS_MAX;
	lab.shared.group_quota = &lab.group;
	lab.shared.account = account_without_limits();
	lab.shared.ops_max = 1000;
	dray_assert(xfer_session_init(c, &lab.session, HANDLE(5), &lab.shared) == 0);
	region_init();
	remote_init();
	listener_init();
}

static void transfer(struct script *s)
{
	struct xfer_request r = { .request_id = lab.n_transfers,
				  .spec.local = HANDLE(1),
				  .spec.remote = HANDLE(2) };
	uint64_t how = take(s, 1), n = 1 + (how >> 2) % 8;
	uint8_t wire[8 * DMSG_OP_SIZE];

	if (lab.n_transfers == TRANSFERS_MAX || lab.lost)
		return;
	r.spec.direction = how & 1 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE;
	r.spec.class = how & 2 ? DMSG_CLASS_LATENCY : DMSG_CLASS_BULK;
	for (unsigned i = 0; i < n; i++) {
		uint64_t at = take(s, 2) % TARGET, length = 1 + take(s, how & 128 ? 2 : 1);

		if (at >= spans[1].end && at < spans[2].start)
			at = spans[2].start;
		length = dray_min(length, (at < spans[1].end ? spans[1].end : TARGET) - at);
		dmsg_op_put(wire + i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ how & 1 ? TARGET + at : at, BASE + at, length });
		if (how & 1)
			memset(lab.read_of + at, 1, length);
	}
	r.ops = wire;
	r.n_ops = (uint32_t)n;
	lab.n_transfers++;
	dray_assert(xfer_start(&lab.core, &lab.session, &r, NULL) == 0);
	while (lab.session.read)
		xfer_read(&lab.core, &lab.session);
}

static void stop(uint64_t id, uint32_t code, bool urgent)
{
	dray_list_for_each(&lab.session.xfers, x, struct xfer, session_link)
		if (x->request_id == id) {
			xfer_stop(&lab.core, x, code, NULL, urgent);
			return;
		}
}

/* --- the engine ----------------------------------------------------------------------------------- */

static void conn_close(unsigned k)
{
	if (k < lab.n_conns)
		lab.conns[k].fd = dray_close(lab.conns[k].fd);
}

static void take_request(struct conn *c)
{
	struct mooncake_request r;
	bool inside = false;

	dray_assert(mooncake_request_get(c->head, &r) == 0 && r.length &&
		    r.with_status == lab.link.with_status);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(spans); i++)
		inside |= r.address >= BASE + spans[i].start && r.address < BASE + spans[i].end &&
			  r.length <= BASE + spans[i].end - r.address;
	dray_assert(inside);
	c->head_n = 0;
	c->payload_at = r.address - BASE;
	c->payload_left = r.write ? r.length : 0;
	if (lab.n_asked < ASKED_MAX)
		lab.asked[lab.n_asked++] = (struct asked){ r, (unsigned)(c - lab.conns) };
}

/* Reads at most n bytes of requests. */
static void hear(struct conn *c, uint64_t n)
{
	static uint8_t buf[TARGET];

	while (n && c->fd >= 0) {
		uint64_t want = c->payload_left ? dray_min(c->payload_left, sizeof(buf)) :
						  MOONCAKE_REQUEST_BYTES - c->head_n;
		ssize_t got = recv(c->fd, c->payload_left ? buf : c->head + c->head_n,
				   dray_min(want, n), MSG_DONTWAIT);

		if (got <= 0)
			return;
		n -= (uint64_t)got;
		if (c->payload_left) {
			for (ssize_t i = 0; i < got; i++)
				dray_assert(buf[i] == content(c->payload_at + (uint64_t)i));
			c->payload_at += (uint64_t)got;
			c->payload_left -= (uint64_t)got;
			continue;
		}
		c->head_n += (unsigned)got;
		if (c->head_n == MOONCAKE_REQUEST_BYTES)
			take_request(c);
	}
}

static void feed(unsigned k, const void *p, uint64_t n)
{
	/* bytes that the socket does not accept are lost, as with a real engine that gives up */
	if (k < lab.n_conns && lab.conns[k].fd >= 0 && n &&
	    send(lab.conns[k].fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		dray_assert(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

static void answer(struct script *s)
{
	static const uint8_t payload[TARGET];
	uint64_t how = take(s, 1), which = how & 1 ? take(s, 1) : 0, n;
	uint8_t status[MOONCAKE_STATUS_BYTES];
	struct asked a;

	if (!lab.n_asked)
		return;
	which %= lab.n_asked;
	a = lab.asked[which];
	if (!(how & 2)) {
		lab.n_asked--;
		memmove(lab.asked + which, lab.asked + which + 1,
			(lab.n_asked - which) * sizeof(a));
	}
	if (how & 4)
		a.conn = (unsigned)take(s, 1) % lab.n_conns;
	mooncake_status_put(status, how & 8 ? MOONCAKE_STATUS_REFUSED : MOONCAKE_STATUS_OK);
	if (how & 16)
		status[take(s, 1) % sizeof(status)] ^= (uint8_t)take(s, 1);
	if (lab.link.with_status)
		feed(a.conn, status, how & 32 ? take(s, 1) % sizeof(status) : sizeof(status));
	n = a.request.write ? 0 : a.request.length;
	feed(a.conn, payload, how & 64 ? dray_min(take(s, 2), (uint64_t)sizeof(payload)) : n);
	/* version 1: the end is the answer to a WRITE */
	if (!lab.link.with_status && !(how & 128))
		conn_close(a.conn);
}

/* --- scripts -------------------------------------------------------------------------------------- */

static void turn(void)
{
	struct core *c = &lab.core;
	int fd;

	while (loop_turn(&c->loop, 0) > 0)
		continue;
	for (unsigned i = 0; transport_mooncake.progress(c, lab.state) && i < 20; i++)
		continue;
	xfers_tick(c);
	transport_mooncake.tick(c, lab.state);
	while (lab.n_conns < CONNS_MAX &&
	       (fd = accept4(lab.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		lab.conns[lab.n_conns++] = (struct conn){ .fd = fd };
	for (unsigned k = 0; k < lab.n_conns && !lab.deaf; k++)
		hear(&lab.conns[k], UINT64_MAX);
}

static void step(struct script *s)
{
	uint64_t n;

	switch (take(s, 1) % 11) {
	case 0:
	case 1:
		transfer(s);
		break;
	case 2:
		n = take(s, 1);
		stop(n % TRANSFERS_MAX, DRAY_E_CANCELLED, n & 64);
		break;
	case 3:
	case 4:
		answer(s);
		break;
	case 5:
		n = take(s, 1);
		feed((unsigned)(n % CONNS_MAX), s->p, dray_min(n >> 4, (uint64_t)(s->end - s->p)));
		s->p += dray_min(n >> 4, (uint64_t)(s->end - s->p));
		break;
	case 6:
		n = take(s, 1);
		if (n & 64 && n % 64 < lab.n_conns && lab.conns[n % 64].fd >= 0)
			shutdown(lab.conns[n % 64].fd, SHUT_WR);
		else
			conn_close((unsigned)n % 64);
		break;
	case 7:
		lab.core.now_ns += (int64_t)take(s, 1) * 16 * DRAY_NS_PER_MS;
		break;
	case 8:
		turn();
		break;
	case 9:
		lab.deaf = !lab.deaf;
		for (unsigned k = 0; k < lab.n_conns && lab.deaf; k++)
			hear(&lab.conns[k], take(s, 1));
		break;
	case 10:
		/* the client takes memory away that READs fill */
		dray_assert(fallocate(lab.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				      TARGET + (off_t)(take(s, 1) % 8) * 4096, 4096) == 0);
		break;
	}
}

static void finish(void)
{
	lab.deaf = false;
	for (unsigned i = 0; i < lab.n_transfers; i++)
		stop(i, DRAY_E_CANCELLED, false);
	for (unsigned i = 0; !dray_list_empty(&lab.session.xfers); i++) {
		dray_assert(i < 1000);
		for (unsigned k = 0; k < lab.n_conns; k++)
			conn_close(k);
		lab.n_conns = 0;
		turn();
		lab.core.now_ns += 100 * DRAY_NS_PER_MS;
	}
	for (unsigned i = 0; i < lab.n_transfers; i++)
		dray_assert(lab.ended[i]);
	transport_mooncake.message(&lab.core, lab.state,
				   &(struct transport_message){ .type = MOONCAKE_ENGINE_DOWN,
								.peer = lab.link.link.peer });
	dray_assert(lab.gone && !lab.core.awaited && !atomic_load(&lab.link.link.streams) &&
		    !atomic_load(&lab.counters.v[DRAY_METRIC_MOONCAKE_STREAMS]));
	turn();
	transport_mooncake.deinit(&lab.core, lab.state);
	for (unsigned k = 0; k < lab.n_conns; k++)
		conn_close(k);
}

static void check_memory(void)
{
	dray_assert(!memcmp(lab.memory, lab.image, TARGET));
	for (uint64_t at = 0; at < TARGET; at += PIECE) {
		const uint8_t *p = lab.memory + place_of(TARGET + at);

		if (!memcmp(p, lab.image + TARGET, PIECE))
			continue;
		/* 0: it was taken away */
		for (uint64_t i = 0; i < PIECE; i++)
			dray_assert(lab.read_of[at + i] || p[i] == 0xee || !p[i]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, data + size };
	int fd;

	if (!lab.memory)
		start();
	/* those that the input before has left behind */
	while ((fd = accept4(lab.listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(fd);
	memcpy(lab.memory, lab.image, REGION);
	memset(lab.read_of, 0, sizeof(lab.read_of));
	memset(lab.ended, 0, sizeof(lab.ended));
	lab.n_conns = lab.n_asked = lab.n_transfers = 0;
	lab.lost = lab.gone = lab.deaf = false;
	lab.link.with_status = take(&s, 1) % 4;
	dray_assert(transport_mooncake.init(&lab.core, &lab.state) == 0);
	lab.core.transport_state[0] = lab.state;
	transport_mooncake.message(&lab.core, lab.state,
				   &(struct transport_message){ .type = MOONCAKE_ENGINE_UP,
								.peer = lab.link.link.peer,
								.arg = &lab.link });
	while (s.p < s.end)
		step(&s);
	finish();
	check_memory();
	return 0;
}
