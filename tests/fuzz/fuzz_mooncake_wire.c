/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of engines with Mooncake linked in. The first byte chooses between a handshake, whose request arrives in pieces, the JSON of
 * a request for queue pairs, and the script of a data connection: raw bytes, requests that are nearly valid, payload, turns of the worker, drops of buffers and of
 * the region, time. Bytes outside of the buffers that may be written must not change, objects may be held only while a
 * request is carried out, a drop ends at once, and answers must be well-formed.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/mooncake/internal.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/data/transfer/xfer.h"
#include "agent/model/mooncake_message.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
	const uint8_t *p, *end;
};

static uint64_t take(struct script *s, unsigned bytes)
{
	uint64_t v = 0;

	while (bytes-- && s->p < s->end)
		v = v << 8 | *s->p++;
	return v;
}

/* --- data connections ----------------------------------------------------------------------------- */

#define REGION 16384u
#define EXTENTS 4u
#define PIECE (REGION / EXTENTS)
#define BASE UINT64_C(0x7f0000000000)
#define BUFFERS 3u
#define HANDLE(i) ((dray_handle)1 << 24 | (i))

/* In the region; what lies between them belongs to no buffer. */
static const struct {
	uint32_t offset, length;
	uint16_t access;
} ranges[BUFFERS] = {
	{ 250, 7500, DMSG_ACCESS_ALL },
	{ 7750, 1250, DMSG_ACCESS_READ },
	{ 10000, 5000, DMSG_ACCESS_WRITE },
};

static struct target {
	struct core core; /* first */
	struct data_counters counters;
	void *state;
	struct region_view *region;
	struct grant_view grants[BUFFERS];
	uint8_t *memory;
	unsigned n_dropped, n_closed;
	uint64_t generation, conn;
	int fd;
} target;

static void on_event(struct core *c, const struct event *ev)
{
	target.n_dropped += ev->type == EVENT_DROPPED;
	target.n_closed += ev->type == EVENT_TRANSPORT && ev->message.type == MOONCAKE_CLOSED;
}

static const struct core_upcalls upcalls = { .event = on_event };

static void publish(const struct object_view *view)
{
	object_publish(&target.core, view);
	transport_mooncake.publish(&target.core, target.state, view);
}

static void publish_grant(unsigned i)
{
	/* a new generation each time, as with real handles */
	target.grants[i] = (struct grant_view){
		.o = { .kind = OBJECT_GRANT,
		       .handle = HANDLE(i) + (++target.generation << 32),
		       .length = ranges[i].length,
		       .access = ranges[i].access },
		.peer = MOONCAKE_PEER,
		.region = target.region->o.handle,
		.offset = ranges[i].offset,
		.mooncake = BASE + ranges[i].offset,
	};
	publish(&target.grants[i].o);
}

static void publish_region(void)
{
	target.region->o.handle = HANDLE(9) + (++target.generation << 32);
	publish(&target.region->o);
}

/* Nothing is accessed after a drop, so it is answered within the call. */
static void drop(enum object_kind kind, dray_handle handle, enum drop_mode mode)
{
	unsigned n = target.n_dropped;

	object_drop(&target.core, kind, handle, DRAY_E_REVOKED, mode);
	dray_assert(target.n_dropped == n + 1);
}

static void drop_all(enum drop_mode mode)
{
	for (unsigned i = 0; i < BUFFERS; i++)
		drop(OBJECT_GRANT, target.grants[i].o.handle, mode);
	drop(OBJECT_REGION, target.region->o.handle, mode);
}

static void start(void)
{
	struct core *c = &target.core;

	c->up = &upcalls;
	c->counters = &target.counters;
	c->now_ns = 1000;
	c->cfg.mooncake_stall_ns = DRAY_NS_PER_SEC;
	c->cfg.mooncake_idle_ns = 10 * DRAY_NS_PER_SEC;
	c->transports[0] = &transport_mooncake;
	dray_assert(fault_init() == 0 && loop_init(&c->loop) == 0 && objects_init(c) == 0 &&
		    transport_mooncake.init(c, &target.state) == 0);
	c->transport_state[0] = target.state;
	c->n_transports = 1;
	target.memory =
		mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	target.region = calloc(1, sizeof(*target.region) + EXTENTS * sizeof(struct extent_view));
	dray_assert(target.memory != MAP_FAILED && target.region);
	target.region->o = (struct object_view){ .kind = OBJECT_REGION,
						 .length = REGION,
						 .access = DMSG_ACCESS_ALL };
	target.region->n_extents = EXTENTS;
	/* not in the order of their addresses */
	for (unsigned i = 0; i < EXTENTS; i++)
		target.region->extents[i] =
			(struct extent_view){ .start = i * PIECE,
					      .length = PIECE,
					      .base = target.memory + (EXTENTS - 1 - i) * PIECE,
					      .node = -1 };
}

static uint8_t *byte_at(uint32_t offset)
{
	return target.region->extents[offset / PIECE].base + offset % PIECE;
}

static void turn(void)
{
	struct core *c = &target.core;

	while (loop_turn(&c->loop, 0) > 0)
		continue;
	for (unsigned i = 0; transport_mooncake.progress(c, target.state) && i < 20; i++)
		continue;
	transport_mooncake.tick(c, target.state);
}

static void connect_new(void)
{
	int pair[2];

	dray_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	target.fd = pair[0];
	transport_mooncake.message(&target.core, target.state,
				   &(struct transport_message){ .type = MOONCAKE_ADOPT,
								.code = (uint32_t)pair[1],
								.id = ++target.conn });
}

static void disconnect(void)
{
	transport_mooncake.message(&target.core, target.state,
				   &(struct transport_message){ .type = MOONCAKE_CLOSE,
								.id = target.conn });
	close(target.fd);
	dray_assert(target.n_closed == target.conn);
	dray_assert(object_find(&target.core, OBJECT_REGION, target.region->o.handle)->users == 0);
}

static void feed(const void *p, size_t n)
{
	/* bytes that the socket does not accept are lost, as with a peer that gives up */
	if (send(target.fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		dray_assert(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

static void feed_request(struct script *s)
{
	static const uint8_t payload[REGION];
	uint64_t how = take(s, 1), address = BASE + ranges[how % BUFFERS].offset,
		 length = take(s, 2);
	uint8_t head[MOONCAKE_REQUEST_BYTES] = { 0 };

	if (how & 16)
		address += take(s, 2);
	if (how & 32)
		length |= take(s, 8) << 16;
	for (unsigned i = 0; i < 8; i++) {
		head[i] = (uint8_t)(length >> 8 * i);
		head[8 + i] = (uint8_t)(address >> 8 * i);
	}
	head[16] = how & 64 ? (uint8_t)take(s, 1) :
			      (uint8_t)((how & 4 ? 1 : 0) | (how & 8 ? 0x80 : 0));
	feed(head, sizeof(head));
	if (head[16] & 1 && how & 128)
		feed(payload, dray_min(length, (uint64_t)sizeof(payload)));
}

static void receive(size_t n)
{
	static uint8_t sink[REGION];

	if (recv(target.fd, sink, dray_min(n, sizeof(sink)), MSG_DONTWAIT) < 0)
		dray_assert(errno == EAGAIN || errno == ECONNRESET);
}

static bool writable(uint32_t offset)
{
	for (unsigned i = 0; i < BUFFERS; i++)
		if (ranges[i].access & DMSG_ACCESS_WRITE &&
		    offset - ranges[i].offset < ranges[i].length)
			return true;
	return false;
}

static void data_connection(struct script s)
{
	if (!target.memory)
		start();
	memset(target.memory, 'k', REGION);
	publish_region();
	for (unsigned i = 0; i < BUFFERS; i++)
		publish_grant(i);
	connect_new();
	while (s.p < s.end) {
		uint64_t n;
		unsigned i;

		switch (take(&s, 1) % 8) {
		case 0:
			n = dray_min(take(&s, 1), (uint64_t)(s.end - s.p));
			feed(s.p, n);
			s.p += n;
			break;
		case 1:
		case 2:
			feed_request(&s);
			break;
		case 3:
			turn();
			break;
		case 4:
			receive(take(&s, 2));
			break;
		case 5:
			n = take(&s, 1);
			i = (unsigned)(n % BUFFERS);
			if (n & 64) {
				drop_all(n & 128 ? DROP_URGENT : DROP_STOP);
				publish_region();
				for (unsigned k = 0; k < BUFFERS; k++)
					publish_grant(k);
			} else {
				drop(OBJECT_GRANT, target.grants[i].o.handle,
				     n & 128 ? DROP_URGENT : DROP_STOP);
				publish_grant(i);
			}
			break;
		case 6:
			n = take(&s, 1);
			if (n & 1)
				shutdown(target.fd, SHUT_WR);
			target.core.now_ns += (int64_t)n * 10 * DRAY_NS_PER_MS;
			turn();
			break;
		case 7:
			disconnect();
			connect_new();
			break;
		}
	}
	turn();
	disconnect();
	turn();
	for (uint32_t offset = 0; offset < REGION; offset++)
		dray_assert(writable(offset) || *byte_at(offset) == 'k');
	drop_all(DROP_STOP);
}

/* --- handshakes ----------------------------------------------------------------------------------- */

static struct dray_config config = { .mooncake = { .stall_timeout = 60 * DRAY_NS_PER_SEC } };
static struct mooncake_server server;

static void server_start(void)
{
	static struct worker_pool pool;

	server.deps = (struct mooncake_deps){ .cfg = &config, .pool = &pool };
	server.cfg = &config;
	snprintf(server.name, sizeof(server.name), "10.0.0.1:15000");
	server.data_port = 15001;
	dray_assert(sd_event_new(&server.deps.event) >= 0);
	dray_assert(regions_new(&server.deps.regions,
				&(struct regions_deps){ .cfg = &config, .pool = &pool }) == 0);
	dray_assert(handshakes_init(&server) >= 0);
}

static void run_events(void)
{
	while (sd_event_run(server.deps.event, 0) > 0)
		continue;
}

/* The answer to this request, which was sent as a whole or cut off. */
static void check_answer(const uint8_t *request, size_t n, const uint8_t *answer, size_t answer_n)
{
	struct mooncake_frame asked, got;
	bool valid = n >= MOONCAKE_FRAME_HEAD && mooncake_frame_get(request, &asked) == 0 &&
		     n - MOONCAKE_FRAME_HEAD >= asked.body;
	json_error_t error;
	json_t *body;

	if (!valid) {
		dray_assert(!answer_n);
		return;
	}
	dray_assert(answer_n >= MOONCAKE_FRAME_HEAD && mooncake_frame_get(answer, &got) == 0);
	dray_assert(got.type == asked.type && got.body == answer_n - MOONCAKE_FRAME_HEAD);
	body = json_loadb((const char *)answer + MOONCAKE_FRAME_HEAD, (size_t)got.body, 0, &error);
	dray_assert(json_is_object(body));
	json_decref(body);
}

static void handshake(struct script s)
{
	static uint8_t request[1 << 16], answer[1 << 16];
	const struct dray_addr from = { .len = 0 };
	uint64_t piece = take(&s, 1) + 1;
	size_t n = dray_min((size_t)(s.end - s.p), sizeof(request)), sent = 0, got = 0;
	uint64_t refused, answered;
	int pair[2];

	if (!server.deps.event)
		server_start();
	refused = server.totals.handshakes_refused;
	answered = server.totals.handshakes;
	memcpy(request, s.p, n);
	dray_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	handshake_add(&server, pair[1], &from);
	while (sent < n) {
		ssize_t r = send(pair[0], request + sent, dray_min((size_t)piece, n - sent),
				 MSG_NOSIGNAL);

		run_events();
		if (r < 0)
			break;
		sent += (size_t)r;
		piece *= 2;
	}
	shutdown(pair[0], SHUT_WR);
	run_events();
	for (ssize_t r; (r = recv(pair[0], answer + got, sizeof(answer) - got, 0)) > 0;)
		got += (size_t)r;
	check_answer(request, n, answer, got);
	close(pair[0]);
	run_events();
	dray_assert(server.n_handshakes == 0);
	dray_assert(server.totals.handshakes - answered == (got > 0));
	dray_assert(server.totals.handshakes_refused - refused == (got == 0));
}

/* --- requests for queue pairs --------------------------------------------------------------------- */

#define CONNECTION 'C'

static const json_t *field(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	dray_assert(v);
	return v;
}

static const char *text_field(const json_t *o, const char *key)
{
	const char *text = json_string_value(field(o, key));

	dray_assert(text);
	return text;
}

/* Engines stop their process if a value has another type than they expect. */
static void check_reply(const struct rails_guest_request *want,
			const struct rails_guest_reply *reply)
{
	size_t n = 0, pairs = reply->refused ? 0 : reply->n;
	dray_auto_free char *text = connection_answer(server.name, want, reply, &n);
	json_error_t error;
	json_t *o;

	dray_assert(text);
	o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	dray_assert(o && json_is_integer(field(o, "local_lid")));
	dray_assert(!strcmp(text_field(o, "reply_msg"), reply->refused ? reply->refused : ""));
	dray_assert(!strcmp(text_field(o, "peer_nic_path"), reply->refused ? "" : want->path));
	dray_assert(!*text_field(o, "local_gid") == (reply->refused != NULL));
	dray_assert(!*text_field(o, "local_nic_path") == (reply->refused != NULL));
	dray_assert(!*text_field(o, "payload"));
	dray_assert(json_array_size(field(o, "qp_num")) == pairs);
	for (size_t i = 0; i < pairs; i++)
		dray_assert(json_integer_value(json_array_get(field(o, "qp_num"), i)) ==
			    reply->qpn[i]);
	json_decref(o);
}

static void connection(struct script s)
{
	static struct rails_guest_request want;
	size_t n = dray_min((size_t)(s.end - s.p), (size_t)MOONCAKE_CONNECTION_MAX);
	const char *why;

	if (!server.deps.event)
		server_start();
	memset(&want, 0xa5, sizeof(want));
	why = connection_parse((const char *)s.p, n, server.name, &want);
	if (!why) {
		dray_assert(want.n && want.n <= RAILS_GUEST_QUEUE_PAIRS);
		dray_assert(*want.path &&
			    strnlen(want.path, sizeof(want.path)) < sizeof(want.path));
		dray_assert(*want.device &&
			    strnlen(want.device, sizeof(want.device)) < sizeof(want.device));
	}
	check_reply(&want,
		    &(struct rails_guest_reply){
			    .refused = why,
			    .device = { .name = want.device, .lid = want.lid, .gid = want.gid },
			    .n = want.n,
			    .qpn = want.qpn });
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, data + size };
	uint64_t kind = take(&s, 1);

	if (kind == CONNECTION)
		connection(s);
	else if (kind & 1)
		handshake(s);
	else
		data_connection(s);
	return 0;
}
