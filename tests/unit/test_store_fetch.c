/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GETs of keys that other agents have, at a real worker without a thread. The test is the control thread, which answers lookups, and
 * the transport, which reads from the other agents: each stage ends as the test says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/object.h"
#include "agent/data/worker/store_pending.h"
#include "agent/model/keys.h"
#include "agent/model/peer_link.h"
#include "agent/model/store_ask.h"
#include "agent/model/store_keep.h"
#include "lib/crc32c.h"
#include "lib/fault.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/ring_rig.h"

#define MIB (1ull << 20)
#define BYTES 100u /* of each object */
#define PLACE 128  /* between places in the region */
#define PEER ((dray_handle)9)
#define OTHER ((dray_handle)10)
#define ASKS_MAX 16
#define LARGE (256u << 10)

static const char *const spaces[] = { "kv=test:7" };

static struct rig {
	struct ring_rig ring;
	sd_event *event;
	struct store *store;
	struct worker_pool pool;
	const struct transport_ops *tcp; /* whose place the fake has */
	struct channel channel;
	struct peer_link link; /* of its agent */
	unsigned n_hastened;
	int64_t hasten_ns;             /* the least time of them */
	const struct object *hastened; /* the last one */
	struct dray_list slices;       /* being read */
	/* all of the test, and those that the worker still has, or has sent */
	struct store_ask *asks[ASKS_MAX];
	unsigned n_asks, n_ended, n_stopped, n_over, n_faults;
	struct store_keep *kept; /* the worker has done with it */
	uint64_t over[ASKS_MAX]; /* sources that are not needed any more */
	struct snapshot *snapshot;
	struct region_view *segment; /* the store's first one, once it is added */
	uint64_t length;             /* of the first object of each answer */
	bool keep_answer;            /* the test gives it back */
	bool counts;                 /* each byte of an object has a value of its own */
	dray_handle region;          /* of GETs */
	uint32_t step,
		apart; /* item i has the place step * i % 32 of them, which are so far apart */
} rig;

/* --- the transport ---------------------------------------------------------------------------------- */

static struct channel *fake_channel(struct core *c, void *state, const struct xfer *x)
{
	return object_remote(x->remote)->is_local ? NULL : &rig.channel;
}

static bool fake_progress(struct core *c, void *state)
{
	struct slice *s;

	while ((s = sched_next(c, &rig.channel, 0)))
		dray_list_add(&rig.slices, &s->link);
	return false;
}

static void fake_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct dray_list over = DRAY_LIST_INIT(over);

	dray_list_for_each(&rig.slices, s, struct slice, link)
		if (s->xfer == x)
			dray_list_move(&over, &s->link);
	xfer_slices_end(c, &over, 0);
}

static void fake_hasten(struct core *c, void *state, const struct object *remote, int64_t ns)
{
	rig.hasten_ns = rig.n_hastened++ ? dray_min(rig.hasten_ns, ns) : ns;
	rig.hastened = remote;
}

static void fake_deinit(struct core *c, void *state)
{
	rig.tcp->deinit(c, state);
}

/* What devices have begun they finish, unless the test does. */
static void devices_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	if (urgent)
		fake_stop(c, state, x, urgent);
}

static const struct transport_ops fake = { .id = DMSG_TRANSPORT_TCP,
					   .deinit = fake_deinit,
					   .channel = fake_channel,
					   .progress = fake_progress,
					   .stop = fake_stop,
					   .hasten = fake_hasten },
				  devices = { .id = DMSG_TRANSPORT_RDMA,
					      .deinit = fake_deinit,
					      .channel = fake_channel,
					      .progress = fake_progress,
					      .stop = devices_stop,
					      .hasten = fake_hasten };

/* --- the store's segments ----------------------------------------------------------------------------- */

#define SEGMENT (1ull << 32 | 1000)

static dray_handle segment_added(void *arg, struct store_segment *g)
{
	/* the tests that use one need no other */
	if (rig.segment)
		return SEGMENT + 1;
	rig.segment = calloc(1, sizeof(*rig.segment) + sizeof(rig.segment->extents[0]));
	assert_non_null(rig.segment);
	rig.segment->o = (struct object_view){ .kind = OBJECT_REGION,
					       .handle = SEGMENT,
					       .length = g->bytes };
	rig.segment->extents[0].base = g->base;
	return SEGMENT;
}

static void segment_leaves(void *arg, struct store_segment *g, dray_handle name)
{
	fail();
}

/* --- the rig ---------------------------------------------------------------------------------------- */

static void count_nothing(struct owner_account *a)
{
}

static struct owner_account *account_of(void *arg, const char *tenant, uint32_t uid)
{
	return NULL;
}

/* disk: the folder of a disk tier; NULL: without one. */
static void make(int64_t peer_timeout_ns, bool keep_copies, const char *disk)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_config cfg = {
		.bytes = 4 * MIB,
		.segment_size = 2 * MIB,
		.policy = POLICY_LRU,
		.evict = true,
		.asks = true,
		.keep_copies = keep_copies,
		.retry_ms = 7,
		.peer_timeout_ns = peer_timeout_ns,
		.lease_ms = 5000,
		.leases_max = 3,
		.spaces = spaces,
		.n_spaces = 1,
		.keep = count_nothing,
		.release = count_nothing,
		.disk = { .dir = disk, .bytes = 64 * MIB, .threads = 1, .account = account_of },
	};
	struct core *c;

	memset(&rig, 0, sizeof(rig));
	rig.length = BYTES;
	rig.region = RING_RIG_FROM;
	rig.step = 1;
	rig.apart = PLACE;
	dray_list_init(&rig.slices);
	assert_true(sd_event_new(&rig.event) >= 0);
	cfg.disk.event = rig.event;
	assert_int_equal(store_new(&rig.store, &cfg, &err), 0);
	store_follow(rig.store, &(struct store_follower){ segment_added, segment_leaves, NULL });
	ring_rig_init(&rig.ring, 1, 8, 0, false);
	rig.pool = (struct worker_pool){ .n = 1, .workers = { rig.ring.worker } };
	pool_store(&rig.pool, rig.store);
	c = &rig.ring.worker->core;
	channel_init(&rig.channel, &fake, DMSG_CLASS_BULK, &rig.link);
	rig.tcp = c->transports[TRANSPORTS_MAX - 1];
	c->transports[TRANSPORTS_MAX - 1] = &fake;
}

static int set_up(void **state)
{
	make(3600 * DRAY_NS_PER_SEC, true, NULL);
	return 0;
}

/* Bytes go to the memory of the client. */
static int set_up_straight(void **state)
{
	make(3600 * DRAY_NS_PER_SEC, false, NULL);
	return 0;
}

/* Each turn of the worker looks whether agents are silent. */
static int set_up_looking(void **state)
{
	make(0, true, NULL);
	return 0;
}

static int set_up_with_disk(void **state)
{
	cm_dir_set_up(state);
	make(3600 * DRAY_NS_PER_SEC, true, cm_dir);
	return 0;
}

static int set_up_straight_looking(void **state)
{
	make(0, false, NULL);
	return 0;
}

static void turn(void)
{
	struct event ev;

	/* a turn ends with a look at the sockets, and the next one reads them */
	worker_turn(rig.ring.worker, false);
	worker_turn(rig.ring.worker, false);
	while (worker_next_event(rig.ring.worker, &ev)) {
		if (ev.type == EVENT_STORE_ASK)
			rig.asks[rig.n_asks++] = ev.ask;
		else if (ev.type == EVENT_STORE_ASK_END)
			rig.n_ended++;
		else if (ev.type == EVENT_STORE_ASK_STOP)
			rig.n_stopped++;
		else if (ev.type == EVENT_STORE_SOURCE_END)
			rig.over[rig.n_over++] = ev.id;
		else if (ev.type == EVENT_SESSION_GONE)
			dray_close(ev.fd);
		else if (ev.type == EVENT_SNAPSHOT)
			rig.snapshot = ev.snapshot;
		else if (ev.type == EVENT_SESSION_FAULT)
			rig.n_faults++;
		else if (ev.type == EVENT_STORE_KEPT)
			rig.kept = ev.keep;
	}
	assert_true(rig.n_asks < ASKS_MAX);
}

static int tear_down(void **state)
{
	turn();
	ring_rig_deinit(&rig.ring);
	assert_true(dray_list_empty(&rig.slices));
	assert_true(dray_list_empty(&rig.channel.all));
	for (unsigned i = 0; i < rig.n_asks; i++)
		store_ask_free(rig.asks[i]);
	free(rig.snapshot);
	free(rig.segment);
	assert_true(store_free(rig.store));
	sd_event_unref(rig.event);
	return 0;
}

static void until_written(void)
{
	while (store_totals(rig.store).disk_pending_bytes)
		assert_true(sd_event_run(rig.event, UINT64_MAX) > 0);
}

static int tear_down_with_disk(void **state)
{
	/* what waits for the disk counts at the account, which the next test has, too */
	until_written();
	tear_down(state);
	return cm_dir_tear_down(state);
}

static struct wsession *session(void)
{
	return ring_rig_session(&rig.ring, 0);
}

static void post(struct command cmd)
{
	worker_post(rig.ring.worker, &cmd);
	turn();
}

/* --- the client ------------------------------------------------------------------------------------- */

/* A GET of keys of one letter each. */
static void get(uint64_t id, uint32_t deadline_ms, const char *keys)
{
	static uint8_t buf[DMSG_MESSAGE_MAX];
	uint32_t n = (uint32_t)strlen(keys);
	uint8_t blob[64], items[32 * DMSG_STORE_ITEM_SIZE], ranges[32 * DMSG_STORE_RANGE_SIZE];
	struct dmsg_store_get m = { .region = rig.region,
				    .deadline_ms = deadline_ms,
				    .space = { "kv", 2 },
				    .keys = { blob, 2 * n },
				    .items = { items, n },
				    .ranges = { ranges, n } };
	int bytes;

	for (uint32_t i = 0; i < n; i++) {
		blob[2 * i] = 1;
		blob[2 * i + 1] = (uint8_t)keys[i];
		dmsg_store_item_put(items + (size_t)i * DMSG_STORE_ITEM_SIZE,
				    &(struct dmsg_store_item){ .ranges = 1 });
		dmsg_store_range_put(ranges + (size_t)i * DMSG_STORE_RANGE_SIZE,
				     &(struct dmsg_store_range){
					     (uint64_t)(i * rig.step % 32) * rig.apart, BYTES });
	}
	bytes = dmsg_store_get_encode(buf, sizeof(buf), id, &m);
	assert_true(bytes > 0);
	assert_int_equal(send(rig.ring.clients[0], buf, (size_t)bytes, MSG_NOSIGNAL), bytes);
	turn();
}

static void keys_blob(uint8_t *blob, const char *keys)
{
	for (; *keys; keys++) {
		*blob++ = 1;
		*blob++ = (uint8_t)*keys;
	}
}

static void say(const uint8_t *p, int n)
{
	assert_true(n > 0);
	assert_int_equal(send(rig.ring.clients[0], p, (size_t)n, MSG_NOSIGNAL), n);
	turn();
}

/* An EXISTS that asks other agents. */
static void exists(uint64_t id, uint32_t lease_ms, const char *keys)
{
	uint8_t buf[256], blob[64];
	struct dmsg_store_exists m = { .space = { "kv", 2 },
				       .keys = { blob, 2 * (uint32_t)strlen(keys) },
				       .flags = DMSG_STORE_EXISTS_FLAG_AGENTS,
				       .lease_ms = lease_ms };

	keys_blob(blob, keys);
	say(buf, dmsg_store_exists_encode(buf, sizeof(buf), id, &m));
}

static void unpin(uint64_t id, const char *keys)
{
	uint8_t buf[256], blob[64];
	struct dmsg_store_unpin m = { .space = { "kv", 2 },
				      .keys = { blob, 2 * (uint32_t)strlen(keys) } };

	keys_blob(blob, keys);
	say(buf, dmsg_store_unpin_encode(buf, sizeof(buf), id, &m));
}

static void cancel(uint64_t id, uint64_t request)
{
	uint8_t buf[256];
	int n = dmsg_transfer_cancel_encode(buf, sizeof(buf), id,
					    &(struct dmsg_transfer_cancel){ .request = request });

	assert_int_equal(send(rig.ring.clients[0], buf, (size_t)n, MSG_NOSIGNAL), n);
	turn();
}

/* The next message from the agent, after as many turns as it takes. Its type, 0: none is on its way. */
static uint16_t receive(uint8_t *body, struct dmsg_header *h, bool wait)
{
	static uint8_t buf[DMSG_MESSAGE_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	ssize_t n;

	while ((n = recv(rig.ring.clients[0], buf, sizeof(buf), 0)) < 0 && wait) {
		turn();
		sched_yield();
	}
	if (n < 0)
		return 0;
	assert_int_equal(dmsg_header_decode(buf, (size_t)n, h, &err), 0);
	memcpy(body, buf + DMSG_HEADER_SIZE, h->length);
	return h->type;
}

static void silent(void)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, false), 0);
}

/* A letter for each key: K ok, N not found, B busy, L lost, T not tried, C corrupt, G too large. */
static void results_are(struct dray_vec results, const char *expected)
{
	static const char letters[] = {
		[DMSG_STORE_STATUS_OK] = 'K',        [DMSG_STORE_STATUS_NOT_FOUND] = 'N',
		[DMSG_STORE_STATUS_BUSY] = 'B',      [DMSG_STORE_STATUS_LOST] = 'L',
		[DMSG_STORE_STATUS_NOT_TRIED] = 'T', [DMSG_STORE_STATUS_CORRUPT] = 'C',
		[DMSG_STORE_STATUS_TOO_LARGE] = 'G'
	};
	char text[33] = "";

	for (uint32_t i = 0; i < results.n; i++) {
		struct dmsg_store_result r;

		dmsg_store_result_get(results.p + (size_t)i * DMSG_STORE_RESULT_SIZE, &r);
		text[i] = letters[r.status];
		assert_int_equal(r.wait_ms, text[i] == 'B' ? 7 : 0);
	}
	assert_string_equal(text, expected);
}

/* The GET's answer. */
static void answered(uint64_t id, uint32_t code, const char *results)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_store_get_reply m;
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, true), DMSG_STORE_GET_REPLY);
	assert_int_equal(h.request_id, id);
	assert_int_equal(dmsg_store_get_reply_decode(body, h.length, &m, &err), 0);
	assert_int_equal(m.status, code);
	results_are(m.results, results);
	assert_int_equal(idset_has(&session()->ids, id), false);
}

/* Of an EXISTS, or of UNPIN. */
static void told(uint16_t type, uint64_t id, const char *results)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_store_exists_reply m;
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, true), type);
	assert_int_equal(h.request_id, id);
	assert_int_equal(dmsg_store_exists_reply_decode(body, h.length, &m, &err), 0);
	results_are(m.results, results);
	assert_false(idset_has(&session()->ids, id));
}

static void existed(uint64_t id, const char *results)
{
	told(DMSG_STORE_EXISTS_REPLY, id, results);
}

static uint32_t error_code(uint64_t id)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_error m;
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, true), DMSG_ERROR);
	assert_int_equal(h.request_id, id);
	assert_int_equal(dmsg_error_decode(body, h.length, &m, &err), 0);
	return m.code;
}

static void cancelled(uint64_t id)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, true), DMSG_TRANSFER_CANCEL_REPLY);
	assert_int_equal(h.request_id, id);
	assert_false(idset_has(&session()->ids, id));
}

/* --- the other agents ------------------------------------------------------------------------------- */

static void give_back(struct store_ask *k)
{
	post((struct command){ .type = COMMAND_STORE_ASKED, .session = k->session, .ask = k });
}

/* Answers the last ask: what[i] is the source of key i, from 0, or N or B. Each source is at that peer. */
static void tell(const char *what, const dray_handle *peers)
{
	struct store_ask *k = rig.asks[rig.n_asks - 1];
	uint8_t value[BYTES];

	for (uint64_t i = 0; i < BYTES; i++)
		value[i] = rig.counts ? (uint8_t)i : 'x';
	assert_int_equal(k->n, strlen(what));
	for (uint32_t i = 0; i < k->n; i++) {
		struct store_asked *a = &k->v[i];

		a->status = what[i] == 'N' ? DMSG_STORE_STATUS_NOT_FOUND :
			    what[i] == 'B' ? DMSG_STORE_STATUS_BUSY :
					     DMSG_STORE_STATUS_OK;
		if (a->status)
			continue;
		a->source = (uint32_t)(what[i] - '0');
		a->offset = (uint64_t)i * 4096;
		a->length = i ? BYTES : rig.length;
		a->crc = dray_crc32c(0, value, BYTES);
		k->n_sources = dray_max(k->n_sources, a->source + 1);
	}
	k->sources = calloc(k->n_sources + 1, sizeof(k->sources[0]));
	assert_non_null(k->sources);
	for (uint32_t i = 0; i < k->n_sources; i++)
		k->sources[i] =
			(struct store_source){ .view = { .o = { .kind = OBJECT_REMOTE,
								.length = MIB,
								.access = DMSG_ACCESS_READ },
							 .peer = peers[i],
							 .grant = 100 + i },
					       .end_ns = INT64_MAX };
	if (!rig.keep_answer)
		give_back(k);
}

/* Ends all that is being read, with bytes of this value. */
static void read_as(uint8_t value, uint32_t code, const char *detail)
{
	struct core *c = &rig.ring.worker->core;
	struct slice *s;

	assert_false(dray_list_empty(&rig.slices));
	while ((s = dray_list_pop(&rig.slices, struct slice, link))) {
		for (unsigned i = 0; i < s->n_local; i++)
			memset(s->local[i].iov_base, value, s->local[i].iov_len);
		xfer_slice_done(c, s, code, detail);
	}
	turn();
}

/* Ends all slices, the last one first. wrong: the place of a byte at the other agent that is wrong. */
static void read_backwards(uint64_t wrong)
{
	struct core *c = &rig.ring.worker->core;

	assert_false(dray_list_empty(&rig.slices));
	while (!dray_list_empty(&rig.slices)) {
		struct slice *s = dray_container_of(rig.slices.prev, struct slice, link);
		const struct pmsg_seg *from = s->remote;
		uint64_t at = 0;

		for (unsigned i = 0; i < s->n_local; i++)
			for (size_t k = 0; k < s->local[i].iov_len; k++, at++) {
				uint8_t *p = s->local[i].iov_base;

				if (at == from->length) {
					at = 0;
					from++;
				}
				p[k] = (uint8_t)((from->offset + at) % 4096 +
						 (from->offset + at == wrong));
			}
		dray_list_del(&s->link);
		xfer_slice_done(c, s, 0, NULL);
	}
	turn();
}

static struct xfer *reading(uint64_t request)
{
	struct xfer *x = xfer_find(&session()->xs, request);

	assert_non_null(x);
	return x;
}

static const dray_handle at_peer[] = { PEER, PEER }, at_both[] = { PEER, OTHER };

/* --- tests ------------------------------------------------------------------------------------------ */

static void test_found(void **state)
{
	get(1, 0, "abc");
	assert_int_equal(rig.asks[0]->n, 3);
	tell("0N1", at_both);
	silent();
	read_as('x', 0, NULL);
	read_as('y', 0, NULL);
	answered(1, 0, "KNC");
	assert_int_equal(rig.ring.memory[0][0], 'x');
	assert_int_equal(rig.ring.memory[0][BYTES - 1], 'x');
	assert_int_equal(rig.ring.memory[0][2 * PLACE], 0);
	assert_int_equal(rig.n_ended, 1);
}

static void test_copy_stays(void **state)
{
	get(1, 0, "a");
	tell("0", at_both);
	read_as('x', 0, NULL);
	answered(1, 0, "K");
	get(2, 0, "a");
	answered(2, 0, "K");
	assert_int_equal(rig.n_asks, 1);
}

/* Slices end in any order, begin and end inside of objects, and have pieces of several. */
static void test_slices(void **state)
{
	rig.counts = true;
	rig.ring.worker->core.cfg.slice_size = 33;
	get(1, 0, "abacde");
	tell("000000", at_peer);
	read_backwards(3 * 4096 + 50);
	answered(1, 0, "KKKCKK");
	for (unsigned i = 0; i < 6; i++)
		for (unsigned k = 0; k < BYTES; k++)
			assert_int_equal(rig.ring.memory[0][i * PLACE + k], i == 3 ? 0 : k);
	rig.ring.worker->core.cfg.slice_size = 250;
	get(2, 0, "fghi");
	tell("0000", at_peer);
	read_backwards(3 * 4096 + 99);
	answered(2, 0, "KKKC");
}

/* Bytes that came with the answers; those of the last object are wrong. */
static void test_bytes_of_answers(void **state)
{
	struct store_ask *k;

	rig.keep_answer = true;
	get(1, 0, "abcd");
	tell("0120", (dray_handle[]){ PEER, PEER, PEER });
	k = rig.asks[0];
	for (unsigned i = 0; i < 3; i += 2) {
		k->sources[i] =
			(struct store_source){ .bytes = malloc(2 * BYTES), .end_ns = INT64_MAX };
		assert_non_null(k->sources[i].bytes);
		memset(k->sources[i].bytes, 'x', 2 * BYTES);
	}
	k->v[0].offset = k->v[2].offset = 0;
	k->v[3].offset = BYTES;
	k->sources[0].bytes[2 * BYTES - 1]++;
	give_back(k);
	/* the agent of the others is lost, which does not matter for what is here */
	read_as('x', DRAY_E_PEER_LOST, NULL);
	tell("N", NULL);
	give_back(rig.asks[1]);
	answered(1, 0, "KLKC");
	assert_int_equal(rig.ring.memory[0][0], 'x');
	assert_int_equal(rig.ring.memory[0][2 * PLACE], 'x');
	assert_int_equal(rig.ring.memory[0][3 * PLACE], 0);
}

/* --- straight to the client ------------------------------------------------------------------------------- */

/* The first slice is received to the memory of region i. */
static bool reads_to(unsigned i)
{
	const struct slice *s = dray_list_first(&rig.slices, struct slice, link);
	const uint8_t *p = s->local[0].iov_base, *memory = rig.ring.memory[i];

	return p >= memory && p < memory + RING_RIG_BYTES;
}

static void test_straight(void **state)
{
	memset(rig.ring.memory[0], 'z', RING_RIG_BYTES);
	rig.counts = true;
	rig.step = 25;
	get(1, 0, "abcd");
	tell("0N00", at_both);
	assert_true(reads_to(0));
	read_backwards(3 * 4096 + 99);
	answered(1, 0, "KNKC");
	for (unsigned k = 0; k < PLACE; k++) {
		assert_int_equal(rig.ring.memory[0][k], k < BYTES ? k : 'z');
		assert_int_equal(rig.ring.memory[0][25 * PLACE + k], 'z');
		assert_int_equal(rig.ring.memory[0][18 * PLACE + k], k < BYTES ? k : 'z');
		assert_int_equal(rig.ring.memory[0][11 * PLACE + k], k < BYTES ? 0 : 'z');
	}
	/* nothing has a place here */
	assert_int_equal(store_totals(rig.store).memory, 0);
	assert_int_equal(store_totals(rig.store).copies, 2);
	get(2, 0, "a");
	assert_int_equal(rig.n_asks, 2);
	tell("N", NULL);
	answered(2, 0, "N");
}

/* Ranges that overlap have the bytes of some object, as after a copy. */
static void test_ranges_overlap(void **state)
{
	rig.apart = BYTES - 1;
	rig.step = 31;
	get(1, 0, "abc");
	tell("000", at_both);
	assert_false(reads_to(0));
	read_as('x', 0, NULL);
	answered(1, 0, "KKK");
	rig.apart = BYTES;
	get(2, 0, "abc");
	tell("000", at_both);
	assert_true(reads_to(0));
	read_as('x', 0, NULL);
	answered(2, 0, "KKK");
}

/* Processors do not reach the region. */
static void test_other_memory(void **state)
{
	rig.region = RING_RIG_FROM + 1;
	rig.ring.regions[1]->memory = REGION_GPU;
	get(1, 0, "a");
	tell("0", at_both);
	assert_false(reads_to(1));
	read_as('x', 0, NULL);
	answered(1, DRAY_E_UNSUPPORTED, "T");
}

static void test_region_is_gone(void **state)
{
	rig.region = RING_RIG_FROM + 1;
	get(1, 0, "ab");
	tell("01", at_both);
	read_as('x', 0, NULL);
	assert_true(reads_to(1));
	post((struct command){ .type = COMMAND_DROP,
			       .kind = OBJECT_REGION,
			       .handle = rig.region,
			       .code = DRAY_E_REVOKED,
			       .mode = DROP_STOP });
	answered(1, DRAY_E_REVOKED, "KT");
	assert_int_equal(rig.n_asks, 1);
	assert_int_equal(rig.n_ended, 1);
}

/* The client takes the pages away before the checksum is computed. */
static void test_pages_are_gone(void **state)
{
	struct core *c = &rig.ring.worker->core;
	struct extent_view *e = &rig.ring.regions[1]->extents[0];
	uint8_t *before = e->base;
	int fd = memfd_create("x", MFD_CLOEXEC);
	struct slice *s;

	assert_int_equal(fault_init(), 0);
	assert_int_equal(ftruncate(fd, RING_RIG_BYTES), 0);
	e->base = mmap(NULL, RING_RIG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(e->base != MAP_FAILED);
	rig.region = RING_RIG_FROM + 1;
	get(1, 0, "a");
	tell("0", at_both);
	s = dray_list_pop(&rig.slices, struct slice, link);
	assert_int_equal(ftruncate(fd, 0), 0);
	xfer_slice_done(c, s, 0, NULL);
	turn();
	answered(1, DRAY_E_REGION_FAULT, "T");
	assert_int_equal(rig.n_faults, 1);
	munmap(e->base, RING_RIG_BYTES);
	close(fd);
	e->base = before;
}

/* A GET reads what an EXISTS has found, and nobody is asked again. */
static void test_exists_and_get(void **state)
{
	exists(1, 0, "abc");
	assert_int_equal(rig.asks[0]->lease_ms, 5000);
	tell("0N1", at_both);
	existed(1, "KNK");
	assert_int_equal(rig.n_ended + rig.n_over, 0);
	/* they are held */
	exists(2, 4000, "ca");
	existed(2, "KK");
	assert_int_equal(rig.n_asks, 1);
	get(3, 0, "a");
	assert_int_equal(rig.n_asks, 1);
	read_as('x', 0, NULL);
	answered(3, 0, "K");
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 0);
	/* the others are asked for in the same GET */
	get(4, 0, "dcc");
	assert_int_equal(rig.asks[1]->n_asked, 2);
	assert_int_equal(rig.asks[1]->n, 3);
	rig.asks[1]->sources = realloc(rig.asks[1]->sources, 2 * sizeof(struct store_source));
	assert_int_equal(rig.asks[1]->sources[0].view.peer, OTHER);
	rig.asks[1]->sources[1] = rig.asks[1]->sources[0];
	rig.asks[1]->n_sources = 2;
	for (unsigned i = 0; i < 2; i++) {
		rig.asks[1]->v[i].status = DMSG_STORE_STATUS_OK;
		rig.asks[1]->v[i].source = 1;
		rig.asks[1]->v[i].length = BYTES;
		rig.asks[1]->v[i].crc = rig.asks[1]->v[2].crc;
	}
	give_back(rig.asks[1]);
	read_as('x', 0, NULL);
	read_as('x', 0, NULL);
	answered(4, 0, "KKK");
	assert_int_equal(rig.n_ended, 2);
	assert_true(!session()->holdings.n);
}

/* The leases of an EXISTS end by UNPIN, by their time, by GETs that find the key here, and with the session. */
static void test_held_ends(void **state)
{
	exists(1, 0, "aab");
	tell("001", at_both);
	existed(1, "KKK");
	unpin(2, "axb");
	told(DMSG_STORE_UNPIN_REPLY, 2, "KNK");
	assert_int_equal(rig.n_ended, 1);
	exists(3, 100, "cd");
	tell("00", at_peer);
	existed(3, "KK");
	/* a GET reads one of them at the end of their time */
	get(4, 0, "c");
	post((struct command){ .type = COMMAND_STORE_LAPSED,
			       .session = session()->xs.handle,
			       .number = rig.asks[1]->number });
	assert_int_equal(rig.n_ended, 1);
	read_as('x', 0, NULL);
	answered(4, 0, "K");
	assert_int_equal(rig.n_ended, 2);
	/* it is not held any more, and nothing comes of another message */
	post((struct command){ .type = COMMAND_STORE_LAPSED,
			       .session = session()->xs.handle,
			       .number = rig.asks[1]->number });
	get(5, 0, "d");
	assert_int_equal(rig.n_asks, 3);
	tell("N", NULL);
	answered(5, 0, "N");
	exists(6, 0, "e");
	tell("0", at_peer);
	existed(6, "K");
	/* a session holds so many at a time */
	exists(7, 0, "fgh");
	tell("000", at_peer);
	existed(7, "KKB");
	assert_int_equal(rig.n_ended, 3);
}

/* An EXISTS has an answer in any case. */
static void test_exists_without_answers(void **state)
{
	exists(1, 0, "ab");
	rig.asks[0]->late = true;
	tell("0N", at_peer);
	existed(1, "KB");
	exists(2, 0, "cd");
	cancel(3, 2);
	existed(2, "TT");
	cancelled(3);
	assert_int_equal(rig.n_stopped, 1);
	tell("00", at_peer);
	silent();
	exists(4, 0, "e");
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	existed(4, "T");
	/* a session that ends with one that is asked, and one that is read */
	exists(5, 0, "f");
	get(6, 0, "a");
}

static void test_refused_is_busy(void **state)
{
	get(1, 0, "ab");
	tell("BN", NULL);
	answered(1, 0, "BN");
	assert_int_equal(rig.n_ended, 1);
}

/* The lease of objects that are read, or never will be, ends while another source is read. */
static void test_sources_end(void **state)
{
	get(1, 0, "abc");
	tell("011", at_both);
	assert_int_equal(rig.n_over, 0);
	read_as('x', 0, NULL);
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 0);
	read_as('x', 0, NULL);
	answered(1, 0, "KKK");
	assert_int_equal(rig.n_over, 1);
	/* the first is too large for its range */
	rig.length = BYTES + 1;
	get(2, 0, "de");
	tell("01", at_both);
	assert_int_equal(rig.n_over, 2);
	assert_int_equal(rig.over[1], 0);
	assert_int_equal(rig.n_ended, 1);
	read_as('x', 0, NULL);
	answered(2, 0, "GK");
}

/* Words of another agent do not end the GET: the keys are asked for once more. */
static void test_owner_refuses(void **state)
{
	static const uint32_t codes[] = { DRAY_E_DRAINING, DRAY_E_DEADLINE, DRAY_E_CANCELLED };
	static const char *const keys[] = { "ab", "cd", "ef" };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(codes); i++) {
		get(1 + i, 0, keys[i]);
		tell("01", at_both);
		read_as(0, codes[i], XFER_REFUSED_DETAIL);
		read_as('x', 0, NULL);
		assert_int_equal(rig.asks[rig.n_asks - 1]->n, 1);
		tell("N", NULL);
		answered(1 + i, 0, "LK");
	}
}

/* The limit of one source has passed, and that of the GET has not. */
static void test_slow_source(void **state)
{
	struct xfer *x;

	get(1, 0, "ab");
	tell("01", at_both);
	x = xfer_find(&session()->xs, 1);
	assert_non_null(x);
	assert_true(x->deadline.key <= rig.ring.worker->core.now_ns + 2 * DRAY_NS_PER_SEC);
	x->deadline.key = 0;
	xfer_stop(&rig.ring.worker->core, x, DRAY_E_DEADLINE, NULL, false);
	turn();
	read_as('x', 0, NULL);
	/* it is asked elsewhere */
	assert_int_equal(rig.asks[1]->n, 1);
	assert_int_equal(rig.asks[1]->v[0].avoid, PEER);
	assert_true(rig.asks[1]->v[0].slow);
	assert_true(rig.asks[1]->again);
	tell("1", at_both);
	read_as('x', 0, NULL);
	answered(1, 0, "KK");
	/* the next one is too slow, too: the object is there */
	get(2, 0, "c");
	for (unsigned i = 2; i < 4; i++) {
		tell("0", at_peer);
		x = xfer_find(&session()->xs, 2);
		x->deadline.key = 0;
		xfer_stop(&rig.ring.worker->core, x, DRAY_E_DEADLINE, NULL, false);
		turn();
	}
	answered(2, 0, "B");
}

/* As many looks at the transfer as show that its agent is silent, but for `less` of them. */
static void look(unsigned less)
{
	for (unsigned i = less; i < SILENCE_LOOKS; i++)
		worker_turn(rig.ring.worker, false);
}

/* Turns of the worker in which bytes come from the agent, of this or another transfer. */
static void bytes_come(unsigned turns)
{
	while (turns--) {
		atomic_fetch_add(&rig.link.bytes_received, 1);
		worker_turn(rig.ring.worker, false);
	}
}

/* Nothing comes from an agent: its object is asked for elsewhere, after a number of looks, not after a second. */
static void test_silent_agent(void **state)
{
	get(1, 0, "ab");
	tell("01", at_both);
	bytes_come(10 * SILENCE_LOOKS);
	look(1);
	assert_int_equal(reading(1)->code, 0);
	/* the first look that finds nothing new comes after those that did */
	bytes_come(1);
	look(0);
	turn();
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 0);
	bytes_come(1);
	read_as('x', 0, NULL);
	assert_int_equal(rig.n_asks, 2);
	assert_int_equal(rig.asks[1]->n, 1);
	assert_int_equal(rig.asks[1]->v[0].avoid, PEER);
	assert_int_equal(rig.asks[1]->v[0].silent, PEER);
	assert_true(rig.asks[1]->v[0].slow);
	tell("N", NULL);
	answered(1, 0, "LK");
	assert_true(dray_list_empty(&rig.ring.worker->watched));
}

/* The next look is in time for that number of them within the limit. */
static void test_looks(void **state)
{
	int64_t now, next;

	get(1, 0, "a");
	assert_int_equal(silences_tick(rig.ring.worker), INT64_MAX);
	tell("0", at_peer);
	now = rig.ring.worker->core.now_ns;
	next = silences_tick(rig.ring.worker);
	assert_true(next > now);
	assert_true(next <= now + 3600 * DRAY_NS_PER_SEC / SILENCE_LOOKS);
	read_as('x', 0, NULL);
	answered(1, 0, "K");
	assert_int_equal(silences_tick(rig.ring.worker), INT64_MAX);
}

/* The agent has not been asked for bytes while all slices of the session are in flight elsewhere. */
static void test_silence_of_an_agent_that_is_not_asked(void **state)
{
	struct core *c = &rig.ring.worker->core;
	uint32_t most = c->cfg.slices_per_session;

	get(1, 0, "a");
	c->cfg.slices_per_session = 0;
	tell("0", at_peer);
	assert_int_equal(reading(1)->slices, 0);
	for (unsigned i = 0; i < 10; i++)
		look(0);
	assert_int_equal(reading(1)->slices, 0);
	c->cfg.slices_per_session = most;
	look(0);
	turn();
	assert_int_equal(rig.n_asks, 2);
	tell("N", NULL);
	answered(1, 0, "L");
}

/* The session ends while its agents are watched. */
static void test_session_ends_beside_silence(void **state)
{
	get(1, 0, "ab");
	tell("01", at_both);
	bytes_come(1);
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	post((struct command){ .type = COMMAND_SESSION_CLOSE,
			       .session = session()->xs.handle,
			       .code = DRAY_E_SESSION_CLOSED });
	look(0);
	assert_true(dray_list_empty(&rig.ring.worker->watched));
	assert_int_equal(rig.n_asks, 1);
}

/* The lease has ended before its bytes came: the agent may have been asked late, and lends the object again. */
static void test_lease_ends(void **state)
{
	get(1, 0, "a");
	tell("0", at_both);
	rig.asks[0]->sources[0].end_ns = 1;
	read_as('x', 0, NULL);
	assert_int_equal(rig.asks[1]->v[0].avoid, 0);
	tell("0", at_both);
	rig.asks[1]->sources[0].end_ns = 1;
	read_as(0, DRAY_E_DEADLINE, XFER_REFUSED_DETAIL);
	answered(1, 0, "B");
}

/* Nothing more is read from an agent that is lost; another one has a copy of one object. */
static void test_agent_is_lost(void **state)
{
	get(1, 0, "abc");
	tell("011", at_peer);
	read_as(0, DRAY_E_PEER_LOST, NULL);
	assert_true(dray_list_empty(&rig.slices));
	assert_false(rig.asks[1]->v[0].slow);
	assert_int_equal(rig.asks[1]->n, 3);
	assert_int_equal(rig.n_ended, 1);
	tell("N0B", (dray_handle[]){ OTHER });
	read_as('x', 0, NULL);
	answered(1, 0, "LKB");
}

static void test_deadline(void **state)
{
	get(1, 5, "a");
	/* the control thread says so, also if this worker's clock is behind */
	rig.asks[0]->late = true;
	tell("0", at_both);
	answered(1, DRAY_E_DEADLINE, "N");
	assert_int_equal(rig.n_ended, 1);
	/* the answer comes in time, and is seen late */
	get(2, 1, "a");
	while (rig.ring.worker->core.now_ns < rig.asks[1]->end_ns)
		turn();
	tell("0", at_both);
	answered(2, DRAY_E_DEADLINE, "N");
	assert_int_equal(rig.n_ended, 2);
}

static void test_cancel(void **state)
{
	/* while it asks; the cancellation's own id must be free */
	get(1, 0, "a");
	cancel(1, 1);
	assert_int_equal(error_code(1), DRAY_E_DUPLICATE_ID);
	assert_true(idset_has(&session()->ids, 1));
	cancel(2, 1);
	answered(1, DRAY_E_CANCELLED, "N");
	cancelled(2);
	assert_int_equal(rig.n_stopped, 1);
	tell("0", at_both);
	silent();
	assert_int_equal(rig.n_ended, 1);
	/* while it is read */
	get(3, 0, "ab");
	tell("0N", at_both);
	cancel(4, 3);
	answered(3, DRAY_E_CANCELLED, "TN");
	cancelled(4);
	assert_int_equal(rig.n_ended, 2);
	/* by an operator */
	get(5, 0, "a");
	post((struct command){
		.type = COMMAND_CANCEL, .session = session()->xs.handle, .id = 5, .handle = 77 });
	answered(5, DRAY_E_CANCELLED, "N");
	tell("0", at_both);
	assert_int_equal(session()->requests, 0);
}

/* A GET of a large object to ranges that overlap, which an agent has. */
static void get_large(uint64_t id, uint32_t deadline_ms, uint64_t length)
{
	static uint8_t buf[DMSG_MESSAGE_MAX], ranges[MIB / RING_RIG_BYTES * DMSG_STORE_RANGE_SIZE];
	uint8_t blob[2], item[DMSG_STORE_ITEM_SIZE];
	struct dmsg_store_get m = { .region = rig.region,
				    .deadline_ms = deadline_ms,
				    .space = { "kv", 2 },
				    .keys = { blob, sizeof(blob) },
				    .items = { item, 1 },
				    .ranges = { ranges, MIB / RING_RIG_BYTES } };

	keys_blob(blob, "a");
	dmsg_store_item_put(item, &(struct dmsg_store_item){ .ranges = MIB / RING_RIG_BYTES });
	for (uint32_t i = 0; i < MIB / RING_RIG_BYTES; i++)
		dmsg_store_range_put(ranges + (size_t)i * DMSG_STORE_RANGE_SIZE,
				     &(struct dmsg_store_range){ 0, RING_RIG_BYTES });
	say(buf, dmsg_store_get_encode(buf, sizeof(buf), id, &m));
	rig.length = length;
	tell("0", at_peer);
}

/* The same, until the bytes that came have begun to be zeroed. */
static void get_wrong(uint64_t id, uint32_t deadline_ms)
{
	struct worker *w = rig.ring.worker;
	struct slice *s;

	get_large(id, deadline_ms, MIB);
	while (dray_list_empty(&w->steps)) {
		s = dray_list_pop(&rig.slices, struct slice, link);
		if (s)
			xfer_slice_done(&w->core, s, 0, NULL);
		else
			worker_turn(w, false);
	}
	silent();
}

static void test_cancel_while_it_is_zeroed(void **state)
{
	get_wrong(1, 0);
	/* by an operator: what is zeroed is charged to the session's owner, and delays its messages */
	post((struct command){
		.type = COMMAND_CANCEL, .session = session()->xs.handle, .id = 1, .handle = 77 });
	answered(1, DRAY_E_CANCELLED, "T");
	assert_true(dray_list_empty(&rig.ring.worker->steps));
}

static void test_drain_while_it_is_zeroed(void **state)
{
	rig.snapshot = snapshot_new(NULL, false, 1);
	get_wrong(1, 0);
	worker_post(rig.ring.worker,
		    &(struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	assert_int_equal(rig.snapshot->asking, 1);
	answered(1, DRAY_E_DEADLINE, "T");
}

static void test_deadline_while_it_is_zeroed(void **state)
{
	get_wrong(1, 60000);
	dray_list_first(&rig.ring.worker->steps, struct fetch, step)->batch->end_ns = 1;
	answered(1, DRAY_E_DEADLINE, "T");
}

/* A drain waits for it, and its deadline ends it, in each stage. */
static void test_drain(void **state)
{
	rig.snapshot = snapshot_new(NULL, false, 1);
	get(1, 0, "a");
	get(2, 0, "b");
	post((struct command){ .type = COMMAND_DRAIN });
	post((struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	assert_int_equal(rig.snapshot->asking, 2);
	assert_int_equal(rig.snapshot->in_flight, 0);
	tell("0", at_both);
	rig.snapshot->asking = rig.snapshot->in_flight = 0;
	post((struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	assert_int_equal(rig.snapshot->asking, 1);
	assert_int_equal(rig.snapshot->in_flight, 1);
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	answered(2, DRAY_E_DEADLINE, "T");
	answered(1, DRAY_E_DEADLINE, "N");
	rig.snapshot->asking = rig.snapshot->in_flight = 0;
	post((struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	assert_int_equal(rig.snapshot->asking + rig.snapshot->in_flight, 0);
}

/* The session ends with one GET that asks, one that is read, and one whose ask nobody has taken. */
static void test_session_ends(void **state)
{
	get(1, 0, "a");
	tell("0", at_both);
	get(2, 0, "b");
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	post((struct command){ .type = COMMAND_SESSION_CLOSE,
			       .session = session()->xs.handle,
			       .code = DRAY_E_SESSION_CLOSED });
	assert_int_equal(rig.n_ended, 1);
	assert_int_equal(rig.n_stopped, 1);
}

/* A GET that has taken over what an EXISTS holds ends before the answer to its other keys: nothing is held any more. */
static void test_late_with_held(void **state)
{
	exists(1, 0, "ab");
	tell("00", at_peer);
	existed(1, "KK");
	get(2, 0, "ac");
	assert_int_equal(rig.asks[1]->n, 2);
	assert_int_equal(rig.asks[1]->n_asked, 1);
	rig.asks[1]->late = true;
	give_back(rig.asks[1]);
	/* of the GET */
	assert_int_equal(rig.n_ended, 1);
	unpin(3, "ab");
	post((struct command){ .type = COMMAND_STORE_LAPSED,
			       .session = session()->xs.handle,
			       .number = rig.asks[0]->number });
	assert_int_equal(rig.n_ended, 2);
}

/* The same of a session that dies before the answer. */
static void test_session_ends_with_held(void **state)
{
	exists(1, 0, "ab");
	tell("00", at_peer);
	existed(1, "KK");
	get(2, 0, "ac");
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	give_back(rig.asks[1]);
	post((struct command){ .type = COMMAND_SESSION_CLOSE,
			       .session = session()->xs.handle,
			       .code = DRAY_E_SESSION_CLOSED });
	assert_int_equal(rig.n_ended, 2);
}

/* --- devices ---------------------------------------------------------------------------------------------- */

static struct rail_keys *keys_of(uint64_t base, uint64_t bytes, bool by_base)
{
	struct rail_keys *k = rail_keys_new(1);

	assert_non_null(k);
	k->v[0] = (struct rail_key){ 0, 1, base, 0, bytes, 2 };
	rail_keys_seal(k, bytes, by_base);
	return k;
}

/* A GET has made a segment, which devices have registered. */
static void register_segment(void)
{
	get(1, 0, "z");
	tell("0", at_peer);
	read_as('x', 0, NULL);
	answered(1, 0, "K");
	while (!rig.segment)
		assert_true(sd_event_run(rig.event, UINT64_MAX) >= 0);
	post((struct command){ .type = COMMAND_PUBLISH, .view = &rig.segment->o });
	post((struct command){
		.type = COMMAND_KEYS,
		.kind = OBJECT_REGION,
		.handle = SEGMENT,
		.keys = keys_of((uintptr_t)rig.segment->extents[0].base, 2 * MIB, true) });
	rig.n_ended = 0;
}

/* Answers the last ask: its sources have keys. */
static void tell_with_keys(const char *what, const dray_handle *peers)
{
	struct store_ask *k = rig.asks[rig.n_asks - 1];
	struct command cmd = { .type = COMMAND_STORE_ASKED, .session = k->session, .ask = k };

	rig.keep_answer = true;
	tell(what, peers);
	rig.keep_answer = false;
	for (uint32_t i = 0; i < k->n_sources; i++)
		k->sources[i].keys = keys_of(0x1000, MIB, false);
	post(cmd);
}

static uint64_t unregistered(void)
{
	return rig.ring.worker->core.counters->v[DRAY_METRIC_STORE_REMOTE_UNREGISTERED_TOTAL];
}

static void test_keys(void **state)
{
	struct xfer *x;

	register_segment();
	get(2, 0, "ab");
	tell_with_keys("01", at_both);
	x = reading(2);
	assert_int_equal(x->remote->keys->rails, 1);
	assert_int_equal(x->local->keys->rails, 1);
	assert_true(x->remote->no_window);
	assert_int_equal(x->remote->view->length, MIB);
	read_as('x', 0, NULL);
	/* the other agent has no rails */
	read_as('x', 0, NULL);
	answered(2, 0, "KK");
	get(3, 0, "c");
	tell("0", at_peer);
	assert_null(reading(3)->remote->keys);
	read_as('x', 0, NULL);
	answered(3, 0, "K");
	assert_int_equal(unregistered(), 0);
	/* devices have not registered the place */
	post((struct command){ .type = COMMAND_KEYS, .kind = OBJECT_REGION, .handle = SEGMENT });
	get(4, 0, "d");
	tell_with_keys("0", at_peer);
	assert_null(reading(4)->local->keys);
	assert_null(reading(4)->remote->keys);
	assert_int_equal(unregistered(), 1);
	read_as('x', 0, NULL);
	answered(4, 0, "K");
	assert_true(dray_list_empty(&rig.ring.worker->readings));
}

/* As transport rdma does when a transfer stops whose work requests are in flight. Returns its remote. */
static struct object *device_goes_on(uint64_t request)
{
	struct object *remote = reading(request)->remote;

	object_hold(remote);
	return remote;
}

static void device_ends(struct object *remote)
{
	object_release(&rig.ring.worker->core, remote);
	turn();
}

static uint64_t in_use(void)
{
	return session()->xs.shared->account->budget.of[RESOURCE_STORE_BYTES].used;
}

/* A GET ends at its limit; the place and the lease stay until no device uses them. */
static void test_device_goes_on(void **state)
{
	struct object *remote;
	uint64_t before;

	register_segment();
	before = in_use();
	get(2, 0, "ab");
	tell_with_keys("01", at_both);
	remote = device_goes_on(2);
	reading(2)->deadline.key = 0;
	turn();
	/* the first source is too slow */
	read_as('x', 0, NULL);
	assert_int_equal(rig.n_over, 0);
	assert_int_equal(rig.asks[2]->n, 1);
	tell("N", NULL);
	answered(2, 0, "LK");
	assert_int_equal(rig.n_ended, 1);
	assert_int_equal(in_use(), before + 2 * 128);
	device_ends(remote);
	assert_int_equal(rig.n_ended, 2);
	assert_int_equal(in_use(), before + 128);
	/* an ask that goes on meanwhile */
	get(3, 0, "cde");
	tell_with_keys("010", at_both);
	remote = device_goes_on(3);
	xfer_stop(&rig.ring.worker->core, reading(3), DRAY_E_PEER_LOST, NULL, false);
	turn();
	assert_int_equal(rig.n_over, 0);
	device_ends(remote);
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 0);
	read_as('x', 0, NULL);
	tell("NN", NULL);
	answered(3, 0, "LKL");
}

/* An agent whose bytes come too slowly by RDMA is asked once more, and they come by frames. */
static void test_slow_devices(void **state)
{
	struct object *remote;

	register_segment();
	get(2, 0, "a");
	tell_with_keys("0", at_peer);
	assert_non_null(reading(2)->local->keys);
	remote = device_goes_on(2);
	reading(2)->deadline.key = 0;
	turn();
	assert_int_equal(rig.asks[2]->v[0].avoid, 0);
	tell_with_keys("0", at_peer);
	assert_null(reading(2)->local->keys);
	read_as('x', 0, NULL);
	answered(2, 0, "K");
	device_ends(remote);
	/* by frames alone it is too slow */
	get(3, 0, "b");
	tell("0", at_peer);
	reading(3)->deadline.key = 0;
	turn();
	assert_int_equal(rig.asks[4]->v[0].avoid, PEER);
	tell("B", NULL);
	answered(3, 0, "B");
}

/* Nothing comes by devices: the agent is asked again, by frames, unless it is silent there, too. */
static void test_silent_devices(void **state)
{
	struct object *remote;

	register_segment();
	get(2, 0, "a");
	tell_with_keys("0", at_peer);
	assert_non_null(reading(2)->local->keys);
	remote = device_goes_on(2);
	xfer_stop(&rig.ring.worker->core, reading(2), DRAY_E_TIMEOUT, NULL, false);
	turn();
	assert_int_equal(rig.asks[2]->v[0].avoid, 0);
	assert_int_equal(rig.asks[2]->v[0].silent, PEER);
	tell("0", at_peer);
	read_as('x', 0, NULL);
	answered(2, 0, "K");
	device_ends(remote);
}

/* The ask has taken the source over from an EXISTS. */
static bool is_taken_over(const struct store_ask *k, uint32_t source)
{
	for (uint32_t i = k->n_asked; i < k->n; i++)
		if (k->v[i].source == source)
			return true;
	return false;
}

/* Of the last ask that has got this lease. */
static uint64_t number_of(uint64_t grant)
{
	for (uint32_t i = rig.n_asks, source; i--;)
		if (ask_find_source(rig.asks[i], PEER, grant, &source) &&
		    !is_taken_over(rig.asks[i], source))
			return rig.asks[i]->number;
	return 0;
}

static void fence_of(dray_handle of, uint64_t grant)
{
	post((struct command){ .type = COMMAND_STORE_FENCED,
			       .session = of,
			       .handle = PEER,
			       .id = grant,
			       .number = number_of(grant) });
}

static void fence(uint64_t grant)
{
	fence_of(session()->xs.handle, grant);
}

/* Devices reach the region of the client, and read there what has keys. */
static void register_region(void)
{
	rig.ring.worker->core.transports[TRANSPORTS_MAX - 1] = &devices;
	post((struct command){
		.type = COMMAND_KEYS,
		.kind = OBJECT_REGION,
		.handle = RING_RIG_FROM,
		.keys = keys_of((uintptr_t)rig.ring.memory[0], RING_RIG_BYTES, true) });
}

static void test_devices_straight(void **state)
{
	uint64_t before;

	register_region();
	before = in_use();
	get(2, 0, "ab");
	tell_with_keys("01", at_both);
	assert_true(reads_to(0));
	assert_int_equal(reading(2)->remote->keys->rails, 1);
	assert_int_equal(in_use(), before);
	read_as('x', 0, NULL);
	assert_true(reads_to(0));
	read_as('y', 0, NULL);
	answered(2, 0, "KC");
	assert_int_equal(rig.ring.memory[0][0], 'x');
	assert_int_equal(rig.ring.memory[0][PLACE], 0);
	assert_int_equal(rig.n_ended, 1);
	assert_int_equal(unregistered(), 0);
	/* ranges that overlap, and a region that devices do not reach, have the bytes from a place in the store */
	rig.apart = BYTES - 1;
	get(3, 0, "cd");
	tell_with_keys("00", at_peer);
	assert_false(reads_to(0));
	assert_null(reading(3)->remote->keys);
	read_as('x', 0, NULL);
	answered(3, 0, "KK");
	rig.apart = PLACE;
	post((struct command){
		.type = COMMAND_KEYS, .kind = OBJECT_REGION, .handle = RING_RIG_FROM });
	get(4, 0, "e");
	tell_with_keys("0", at_peer);
	assert_false(reads_to(0));
	assert_null(reading(4)->remote->keys);
	assert_int_equal(unregistered(), 3);
	read_as('x', 0, NULL);
	answered(4, 0, "K");
}

/* The client has no answer while devices write to its memory, and they have to end soon if the agent is silent or wants its lease back. */
static void test_devices_end_first(void **state)
{
	register_region();
	/* the time of its source */
	get(2, 0, "a");
	tell_with_keys("0", at_peer);
	reading(2)->deadline.key = 0;
	turn();
	silent();
	assert_int_equal(rig.n_hastened, 1);
	assert_ptr_equal(rig.hastened, reading(2)->remote);
	assert_int_equal(rig.n_ended, 0);
	read_as('x', 0, NULL);
	/* it may be in time by frames */
	assert_int_equal(rig.n_asks, 2);
	assert_int_equal(rig.asks[1]->v[0].avoid, 0);
	tell_with_keys("0", at_peer);
	assert_true(reads_to(0));
	assert_null(reading(2)->remote->keys);
	read_as('x', 0, NULL);
	answered(2, 0, "K");
	/* a cancel */
	get(3, 0, "b");
	tell_with_keys("0", at_peer);
	cancel(4, 3);
	silent();
	assert_int_equal(rig.n_hastened, 2);
	read_as('x', 0, NULL);
	answered(3, DRAY_E_CANCELLED, "T");
	cancelled(4);
	/* a fence */
	get(5, 0, "c");
	tell_with_keys("0", at_peer);
	fence(100);
	assert_int_equal(rig.n_hastened, 3);
	assert_int_equal(rig.n_asks, 4);
	silent();
	read_as('x', DRAY_E_REVOKED, NULL);
	assert_int_equal(rig.n_asks, 5);
	tell("N", NULL);
	answered(5, 0, "L");
	/* the other agent is lost */
	get(6, 0, "d");
	tell_with_keys("0", at_peer);
	post((struct command){
		.type = COMMAND_PEER_DOWN, .session = PEER, .code = DRAY_E_PEER_LOST });
	assert_int_equal(rig.n_hastened, 4);
	silent();
	read_as('x', DRAY_E_PEER_LOST, NULL);
	assert_int_equal(rig.asks[6]->v[0].avoid, PEER);
	tell("N", NULL);
	answered(6, 0, "L");
	/* the session */
	get(7, 0, "e");
	tell_with_keys("0", at_peer);
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	assert_true(dray_list_empty(&rig.slices));
}

/* A source of a GET is given up. Its devices go on, and the GET with them. */
static void source_stops(uint64_t id)
{
	get(id, 0, "ab");
	tell_with_keys("01", at_peer);
	read_as('x', 0, NULL);
	assert_true(reads_to(0));
	xfer_stop(&rig.ring.worker->core, reading(id), DRAY_E_TIMEOUT, NULL, false);
	turn();
	silent();
}

/* Its devices have finished: nothing more of the GET is read. */
static void request_ends(uint64_t id, uint32_t code)
{
	unsigned asks = rig.n_asks;

	silent();
	read_as('x', 0, NULL);
	assert_true(dray_list_empty(&rig.slices));
	answered(id, code, "KT");
	assert_int_equal(rig.n_asks, asks);
	assert_int_equal(rig.n_ended, asks);
}

/* What stops a GET while one of its sources is being stopped, and devices go on, is not lost. */
static void test_request_stops_meanwhile(void **state)
{
	register_region();
	source_stops(2);
	cancel(3, 2);
	request_ends(2, DRAY_E_CANCELLED);
	cancelled(3);
	/* the first one decides */
	source_stops(4);
	post((struct command){
		.type = COMMAND_CANCEL, .session = session()->xs.handle, .id = 4, .handle = 77 });
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	request_ends(4, DRAY_E_CANCELLED);
	/* a drain, also when the source's time has passed */
	source_stops(5);
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	reading(5)->deadline.key = 0;
	request_ends(5, DRAY_E_DEADLINE);
	/* its deadline */
	source_stops(6);
	dray_list_first(&session()->fetches, struct fetch, link)->batch->end_ns = 0;
	request_ends(6, DRAY_E_DEADLINE);
	/* a fence in between */
	source_stops(7);
	fence(101);
	cancel(8, 7);
	request_ends(7, DRAY_E_CANCELLED);
	cancelled(8);
	/* the other agent refuses what has not been read */
	source_stops(9);
	cancel(10, 9);
	silent();
	read_as('x', DRAY_E_REVOKED, XFER_REFUSED_DETAIL);
	answered(9, DRAY_E_CANCELLED, "KT");
	cancelled(10);
	/* the region */
	source_stops(11);
	post((struct command){ .type = COMMAND_DROP,
			       .kind = OBJECT_REGION,
			       .handle = RING_RIG_FROM,
			       .code = DRAY_E_REGION_FAULT,
			       .mode = DROP_STOP });
	request_ends(11, DRAY_E_REGION_FAULT);
}

/* A session that ends does not wait. */
static void test_session_ends_meanwhile(void **state)
{
	register_region();
	source_stops(2);
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	assert_true(dray_list_empty(&rig.slices));
	assert_int_equal(rig.n_ended, 1);
}

/* An agent is silent: its devices have a part of the time after which it is that. */
static void test_devices_are_silent(void **state)
{
	register_region();
	get(2, 0, "a");
	tell_with_keys("0", at_peer);
	look(0);
	/* within that time first; a longer one changes nothing */
	assert_int_equal(rig.n_hastened, 2);
	assert_int_equal(rig.hasten_ns, 0);
	assert_ptr_equal(rig.hastened, reading(2)->remote);
	assert_int_equal(reading(2)->code, DRAY_E_TIMEOUT);
	/* as when its queue pair is lost */
	read_as('x', DRAY_E_TIMEOUT, NULL);
	assert_int_equal(rig.n_asks, 2);
	assert_int_equal(rig.asks[1]->v[0].silent, PEER);
	tell_with_keys("0", at_peer);
	assert_null(reading(2)->remote->keys);
	bytes_come(1);
	read_as('x', 0, NULL);
	answered(2, 0, "K");
}

/* The session ends, also with what an EXISTS of it holds. */
static void test_session_ends_before_the_device(void **state)
{
	struct object *remotes[2];

	register_segment();
	exists(2, 0, "ab");
	tell_with_keys("00", at_peer);
	existed(2, "KK");
	get(3, 0, "a");
	get(4, 0, "c");
	tell_with_keys("0", at_peer);
	remotes[0] = device_goes_on(3);
	remotes[1] = device_goes_on(4);
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	post((struct command){ .type = COMMAND_SESSION_CLOSE,
			       .session = session()->xs.handle,
			       .code = DRAY_E_SESSION_CLOSED });
	assert_int_equal(rig.n_ended, 0);
	device_ends(remotes[1]);
	assert_int_equal(rig.n_ended, 1);
	device_ends(remotes[0]);
	assert_int_equal(rig.n_ended, 2);
	assert_true(dray_list_empty(&rig.ring.worker->readings));
}

/* The other agent ends a lease: nothing is read there any more, and it is asked again, because it may have the object still. */
static void test_fenced(void **state)
{
	register_segment();
	get(2, 0, "abc");
	tell_with_keys("011", at_peer);
	/* not the one that is read */
	fence(101);
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 1);
	fence(101);
	fence(102);
	assert_int_equal(rig.n_over, 1);
	/* and that one */
	fence(100);
	assert_true(dray_list_empty(&rig.slices));
	assert_int_equal(rig.n_ended, 1);
	assert_int_equal(rig.asks[2]->n, 3);
	assert_int_equal(rig.asks[2]->v[0].avoid, 0);
	tell("0NB", at_peer);
	read_as('x', 0, NULL);
	answered(2, 0, "KLB");
	/* what an EXISTS holds */
	exists(3, 0, "de");
	tell_with_keys("01", at_peer);
	existed(3, "KK");
	fence(101);
	assert_int_equal(rig.n_over, 2);
	get(4, 0, "d");
	fence(100);
	assert_int_equal(rig.n_ended, 3);
	tell("N", NULL);
	answered(4, 0, "L");
}

/* Devices that go on after the GET, and after its session, have to end in time for the fence. */
static void test_fenced_beside_devices(void **state)
{
	struct object *remote;
	dray_handle gone;

	register_segment();
	get(2, 0, "a");
	tell_with_keys("0", at_peer);
	remote = device_goes_on(2);
	reading(2)->deadline.key = 0;
	turn();
	fence(101);
	assert_int_equal(rig.n_hastened, 0);
	fence(100);
	assert_int_equal(rig.n_hastened, 1);
	assert_ptr_equal(rig.hastened, remote);
	tell("N", NULL);
	answered(2, 0, "L");
	gone = session()->xs.handle;
	shutdown(rig.ring.clients[0], SHUT_RDWR);
	turn();
	post((struct command){
		.type = COMMAND_SESSION_CLOSE, .session = gone, .code = DRAY_E_SESSION_CLOSED });
	fence_of(gone, 100);
	assert_int_equal(rig.n_hastened, 2);
	device_ends(remote);
}

/* Likewise of what a GET has taken over whose other keys are being asked for: the fence does not wait for these. */
static void test_fenced_while_it_asks(void **state)
{
	register_segment();
	exists(2, 0, "ac");
	tell_with_keys("01", at_both);
	existed(2, "KK");
	get(3, 0, "abc");
	assert_int_equal(rig.asks[2]->n_asked, 1);
	fence(100);
	assert_int_equal(rig.n_over, 1);
	assert_int_equal(rig.over[0], 0);
	give_back(rig.asks[2]);
	/* the other source is not fenced */
	read_as('x', 0, NULL);
	assert_int_equal(rig.asks[3]->n, 1);
	tell("0", at_peer);
	read_as('x', 0, NULL);
	answered(3, 0, "KNK");
}

/* --- copies that are kept for another agent ------------------------------------------------------------------ */

/* The peer wants keys of one letter each to be kept. */
static struct store_keep *keep_from(dray_handle peer, const char *keys)
{
	uint32_t n = (uint32_t)strlen(keys);
	struct store_keep *k = calloc(1, sizeof(*k) + n * sizeof(k->v[0]));

	assert_non_null(k);
	k->shared.session = (dray_handle)STORE_KEEP_HANDLES << 48 | 1 << 24 | 1;
	k->shared.account = rig.ring.shared[0].account;
	k->shared.group_quota = &k->group;
	k->shared.own.transfers_max = k->group.transfers_max = 1;
	k->shared.ops_max = n;
	k->peer = peer;
	k->end_ns = dray_now().ns + 3600 * DRAY_NS_PER_SEC;
	snprintf(k->space, sizeof(k->space), "kv");
	k->n = n;
	for (uint32_t i = 0; i < n; i++)
		k->v[i] = (struct store_keep_key){ .key = (const uint8_t *)keys + i, .n_key = 1 };
	rig.kept = NULL;
	return k;
}

static void keep(const char *keys)
{
	post((struct command){ .type = COMMAND_STORE_KEEP, .keep = keep_from(PEER, keys) });
}

/* A letter for each key, as in results_are(), and E for one that exists. */
static void kept(const char *expected)
{
	static const char letters[] = "KENBGCLT";

	for (unsigned i = 0; i < 1000 && !rig.kept; i++)
		turn();
	assert_non_null(rig.kept);
	for (uint32_t i = 0; i < rig.kept->n; i++)
		assert_int_equal(letters[rig.kept->v[i].status], expected[i]);
	assert_int_equal(rig.kept->shared.own.transfers, 0);
	assert_null(wsession_get(rig.ring.worker, rig.kept->shared.session));
	assert_true(dray_list_empty(&rig.ring.worker->keeps));
	free(dray_take(rig.kept));
}

/* It is an object of this store like one that was put, and nothing of it counts as a GET. */
static void test_keep(void **state)
{
	keep("abc");
	assert_int_equal(rig.n_asks, 1);
	assert_int_equal(rig.asks[0]->from, PEER);
	tell("0N0", at_peer);
	assert_null(rig.kept);
	read_as('x', 0, NULL);
	kept("KNK");
	assert_int_equal(rig.n_ended, 1);
	assert_int_equal(store_totals(rig.store).objects, 2);
	assert_int_equal(store_totals(rig.store).copies, 0);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 2);
	get(1, 0, "ac");
	answered(1, 0, "KK");
	assert_int_equal(rig.ring.memory[0][BYTES - 1], 'x');
	/* all are here now, and have the same bytes */
	keep("ca");
	tell("00", at_peer);
	kept("EE");
	assert_int_equal(rig.n_ended, 2);
}

/* A copy of a GET stays from then on, as if it had been put. */
static void test_keep_copy(void **state)
{
	get(1, 0, "a");
	tell("0", at_peer);
	read_as('x', 0, NULL);
	answered(1, 0, "K");
	assert_int_equal(store_totals(rig.store).unsaved_objects, 0);
	keep("ab");
	tell("00", at_peer);
	read_as('x', 0, NULL);
	kept("EK");
	assert_int_equal(store_totals(rig.store).unsaved_objects, 2);
}

/* A PUT or GET of the key was faster. */
static void test_keep_meanwhile(void **state)
{
	keep("a");
	get(1, 0, "a");
	tell("0", at_peer);
	read_as('x', 0, NULL);
	answered(1, 0, "K");
	rig.n_asks--;
	tell("0", at_peer);
	kept("E");
	rig.n_asks++;
	assert_int_equal(store_totals(rig.store).objects, 1);
}

static void test_keep_wrong_bytes(void **state)
{
	keep("abc");
	tell("000", at_peer);
	read_as('y', 0, NULL);
	kept("CCC");
	assert_int_equal(store_totals(rig.store).objects, 0);
	keep("a");
	tell("0", at_peer);
	read_as('x', 0, NULL);
	kept("K");
}

/* The agent is asked once more, and does not answer; then nothing is left. */
static void test_keep_agent_is_lost(void **state)
{
	keep("ab");
	tell("00", at_peer);
	read_as('x', DRAY_E_PEER_LOST, NULL);
	assert_int_equal(rig.n_asks, 2);
	assert_int_equal(rig.asks[1]->from, PEER);
	tell("NN", NULL);
	kept("LL");
	assert_int_equal(store_totals(rig.store).objects, 0);
	assert_int_equal(rig.n_ended, 2);
}

static void test_keep_is_late(void **state)
{
	keep("a");
	rig.asks[0]->late = true;
	give_back(rig.asks[0]);
	kept("T");
}

/* A drain, and the end of the agent, beside those that wait and those that are read. */
static void test_keep_is_stopped(void **state)
{
	keep("a");
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	kept("T");
	assert_int_equal(rig.n_stopped, 1);
	give_back(rig.asks[0]);
	keep("a");
	tell("0", at_peer);
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	kept("T");
	post((struct command){ .type = COMMAND_DRAIN });
	keep("a");
	kept("B");
}

static void test_keep_at_the_end(void **state)
{
	keep("a");
	post((struct command){ .type = COMMAND_QUIT });
	kept("T");
	give_back(rig.asks[0]);
	keep("b");
	tell("0", at_peer);
	post((struct command){ .type = COMMAND_QUIT });
	kept("T");
	assert_int_equal(store_totals(rig.store).objects, 0);
}

/* The owner may not use the name space, or its share of transfers is in use. */
static void test_keep_without_share(void **state)
{
	struct store_keep *k = keep_from(PEER, "a");

	snprintf(k->space, sizeof(k->space), "no");
	post((struct command){ .type = COMMAND_STORE_KEEP, .keep = k });
	kept("B");
	k = keep_from(PEER, "a");
	k->group.transfers_max = 0;
	post((struct command){ .type = COMMAND_STORE_KEEP, .keep = k });
	tell("0", at_peer);
	kept("T");
	assert_int_equal(store_totals(rig.store).objects, 0);
}

/* --- what requests evict ------------------------------------------------------------------------------ */

static struct store_member *join(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_member *m;

	/* its first request makes the session a user of the store */
	unpin(1, "a");
	told(DMSG_STORE_UNPIN_REPLY, 1, "N");
	m = store_join(session()->store, (struct dray_str){ "kv", 2 }, &err);
	assert_non_null(m);
	return m;
}

static void put_here(struct store_member *m, struct store_key key, uint64_t bytes)
{
	struct store_object *o;

	assert_int_equal(store_put_begin(m, key, bytes, 1, &(struct store_effort){ 0 }, &o),
			 DMSG_STORE_STATUS_OK);
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
}

/* Fills the store with the smallest objects. */
static void fill(void)
{
	struct store_member *m = join();
	uint64_t before = store_totals(rig.store).evictions;

	for (uint32_t i = 0; store_totals(rig.store).evictions == before; i++)
		put_here(m, (struct store_key){ (const uint8_t *)&i, sizeof(i) }, 64);
}

#define PUT_KEYS 4
#define PUT_RANGES 64 /* of each key, all the same */

static void put(uint64_t id, dray_handle region, uint32_t deadline_ms)
{
	static uint8_t buf[DMSG_MESSAGE_MAX], ranges[PUT_KEYS * PUT_RANGES * DMSG_STORE_RANGE_SIZE];
	uint8_t blob[2 * PUT_KEYS], items[PUT_KEYS * DMSG_STORE_ITEM_SIZE];
	struct dmsg_store_put m = { .region = region,
				    .deadline_ms = deadline_ms,
				    .space = { "kv", 2 },
				    .keys = { blob, sizeof(blob) },
				    .items = { items, PUT_KEYS },
				    .ranges = { ranges, PUT_KEYS * PUT_RANGES } };
	int n;

	keys_blob(blob, "ABCD");
	for (uint32_t i = 0; i < PUT_KEYS; i++)
		dmsg_store_item_put(items + (size_t)i * DMSG_STORE_ITEM_SIZE,
				    &(struct dmsg_store_item){ .ranges = PUT_RANGES });
	for (uint32_t i = 0; i < PUT_KEYS * PUT_RANGES; i++)
		dmsg_store_range_put(ranges + (size_t)i * DMSG_STORE_RANGE_SIZE,
				     &(struct dmsg_store_range){ 0, 1024 });
	n = dmsg_store_put_encode(buf, sizeof(buf), id, &m);
	assert_true(n > 0);
	assert_int_equal(send(rig.ring.clients[0], buf, (size_t)n, MSG_NOSIGNAL), n);
}

static void put_answered(uint64_t id, uint32_t code, const char *results)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_store_put_reply m;
	struct dmsg_header h;

	assert_int_equal(receive(body, &h, true), DMSG_STORE_PUT_REPLY);
	assert_int_equal(h.request_id, id);
	assert_int_equal(dmsg_store_put_reply_decode(body, h.length, &m, &err), 0);
	assert_int_equal(m.status, code);
	results_are(m.results, results);
}

/* Large objects in the place of many small ones: other owners have their turns meanwhile. */
static void test_put_evicts_in_turns(void **state)
{
	uint64_t before, all;

	fill();
	all = store_totals(rig.store).evictions;
	put(2, rig.region, 0);
	worker_turn(rig.ring.worker, false);
	worker_turn(rig.ring.worker, false);
	assert_non_null(session()->begins);
	while (session()->begins) {
		before = store_totals(rig.store).evictions;
		worker_turn(rig.ring.worker, false);
		assert_true(store_totals(rig.store).evictions - before <= 64);
	}
	assert_true(store_totals(rig.store).evictions - all >=
		    PUT_KEYS * PUT_RANGES * 1024 / 64 / 2);
	put_answered(2, 0, "KKKK");
}

/* These keys, of one letter each, have large objects that are only on disk; memory is full of small ones. */
static void fill_beside_disk(const char *keys)
{
	struct store_member *m = join();

	for (const char *k = keys; *k; k++)
		put_here(m, (struct store_key){ (const uint8_t *)k, 1 }, LARGE);
	until_written();
	store_evict(rig.store, "kv", "", 0, UINT64_MAX);
	assert_int_equal(store_totals(rig.store).bytes, 0);
	fill();
	until_written();
}

/* The request evicts for the object of one key, in turns. */
static void evicts_in_turns(const uint8_t *p, int n)
{
	uint64_t all = store_totals(rig.store).evictions, before;

	assert_true(n > 0);
	assert_int_equal(send(rig.ring.clients[0], p, (size_t)n, MSG_NOSIGNAL), n);
	do {
		before = store_totals(rig.store).evictions;
		worker_turn(rig.ring.worker, false);
		assert_in_range(store_totals(rig.store).evictions - before, 0, 64);
	} while (store_totals(rig.store).evictions == all || session()->begins);
	assert_true(store_totals(rig.store).evictions - all >= LARGE / 64 / 2);
}

static void test_pin_and_read_evict_in_turns(void **state)
{
	static uint8_t body[DMSG_MESSAGE_MAX];
	uint8_t buf[256], blob[2];
	struct dmsg_store_pin pin = { .space = { "kv", 2 }, .keys = { blob, sizeof(blob) } };
	struct dmsg_store_read read = { .space = { "kv", 2 }, .keys = { blob, sizeof(blob) } };
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_store_read_reply m;
	struct dmsg_store_place place;
	struct dmsg_header h;

	fill_beside_disk("PR");
	keys_blob(blob, "P");
	evicts_in_turns(buf, dmsg_store_pin_encode(buf, sizeof(buf), 2, &pin));
	told(DMSG_STORE_PIN_REPLY, 2, "K");
	/* the session takes its next request */
	keys_blob(blob, "R");
	evicts_in_turns(buf, dmsg_store_read_encode(buf, sizeof(buf), 3, &read));
	assert_int_equal(receive(body, &h, true), DMSG_STORE_READ_REPLY);
	assert_int_equal(dmsg_store_read_reply_decode(body, h.length, &m, &err), 0);
	dmsg_store_place_get(m.places.p, &place);
	assert_int_equal(place.status, DMSG_STORE_STATUS_BUSY);
	while (store_totals(rig.store).disk.reads < 2)
		assert_true(sd_event_run(rig.event, UINT64_MAX) > 0);
}

static void send_pin(uint64_t id, uint32_t deadline_ms)
{
	uint8_t buf[256], blob[2];
	struct dmsg_store_pin pin = { .space = { "kv", 2 },
				      .keys = { blob, sizeof(blob) },
				      .deadline_ms = deadline_ms };
	int n;

	keys_blob(blob, "P");
	n = dmsg_store_pin_encode(buf, sizeof(buf), id, &pin);
	assert_true(n > 0);
	assert_int_equal(send(rig.ring.clients[0], buf, (size_t)n, MSG_NOSIGNAL), n);
}

/* The session has begun to evict for a PIN. */
static void begin_pin(uint64_t id, uint32_t deadline_ms)
{
	fill_beside_disk("P");
	send_pin(id, deadline_ms);
	for (unsigned i = 0; i < 1000 && !session()->begins; i++)
		worker_turn(rig.ring.worker, false);
	assert_non_null(session()->begins);
}

/* Else a client that pins and reads on and on would keep the drain from its end. */
static void test_pin_during_a_drain(void **state)
{
	fill_beside_disk("P");
	post((struct command){ .type = COMMAND_DRAIN });
	send_pin(2, 0);
	turn();
	assert_null(session()->begins);
	told(DMSG_STORE_PIN_REPLY, 2, "B");
}

/* It is answered without the object. */
static void test_pin_at_the_end_of_a_drain(void **state)
{
	begin_pin(2, 0);
	worker_post(rig.ring.worker,
		    &(struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	while (session()->begins)
		worker_turn(rig.ring.worker, false);
	assert_in_range(store_totals(rig.store).evictions, 0, LARGE / 64 / 2);
	told(DMSG_STORE_PIN_REPLY, 2, "B");
}

static void pass_time(int64_t ns)
{
	int64_t end_ns = rig.ring.worker->core.now_ns + ns;

	while (dray_now().ns < end_ns)
		;
}

/* It is answered without the object, and the session takes its next request. */
static void pin_late(uint32_t deadline_ms)
{
	uint64_t before;

	begin_pin(2, deadline_ms);
	pass_time(DRAY_NS_PER_MS);
	before = store_totals(rig.store).evictions;
	worker_turn(rig.ring.worker, false);
	assert_null(session()->begins);
	assert_in_range(store_totals(rig.store).evictions - before, 0, 64);
	told(DMSG_STORE_PIN_REPLY, 2, "B");
	unpin(3, "a");
	told(DMSG_STORE_UNPIN_REPLY, 3, "N");
}

static void test_pin_whose_deadline_passes(void **state)
{
	pin_late(1);
}

static void test_pin_without_a_deadline_of_its_own(void **state)
{
	rig.ring.worker->core.cfg.deadline_ns = DRAY_NS_PER_MS;
	pin_late(0);
}

static void test_pin_of_a_session_that_ends(void **state)
{
	begin_pin(2, 0);
	post((struct command){ .type = COMMAND_SESSION_CLOSE, .session = session()->xs.handle });
}

/* The worker has begun to evict for the places of what other agents have, and goes on in turns. */
static void places_in_turns(uint64_t least)
{
	struct worker *w = rig.ring.worker;
	uint64_t all = store_totals(rig.store).evictions, before;

	assert_false(dray_list_empty(&w->steps));
	while (!dray_list_empty(&w->steps)) {
		before = store_totals(rig.store).evictions;
		worker_turn(w, false);
		assert_in_range(store_totals(rig.store).evictions - before, 0, 64);
	}
	assert_true(store_totals(rig.store).evictions - all >= least);
	turn();
}

static void test_keep_evicts_in_turns(void **state)
{
	fill();
	rig.length = LARGE;
	keep("ab");
	tell("00", at_peer);
	places_in_turns(LARGE / 64 / 2);
	read_as('x', 0, NULL);
	/* the checksum is of fewer bytes */
	kept("CK");
}

static void test_get_of_a_copy_evicts_in_turns(void **state)
{
	fill();
	get_large(2, 0, LARGE);
	places_in_turns(LARGE / 64 / 2);
	read_as('x', 0, NULL);
	answered(2, 0, "C");
}

static void test_cancel_while_it_evicts(void **state)
{
	fill();
	get_large(2, 0, LARGE);
	assert_false(dray_list_empty(&rig.ring.worker->steps));
	post((struct command){
		.type = COMMAND_CANCEL, .session = session()->xs.handle, .id = 2, .handle = 77 });
	answered(2, DRAY_E_CANCELLED, "T");
	assert_true(dray_list_empty(&rig.ring.worker->steps));
	assert_int_equal(rig.n_ended, 1);
}

static void test_session_ends_while_it_evicts(void **state)
{
	fill();
	get_large(2, 0, LARGE);
	assert_false(dray_list_empty(&rig.ring.worker->steps));
	post((struct command){ .type = COMMAND_SESSION_CLOSE, .session = session()->xs.handle });
	assert_true(dray_list_empty(&rig.ring.worker->steps));
	assert_int_equal(rig.n_ended, 1);
}

/* The leases of keys that have no place yet go on beside one that ends. */
static void test_fenced_while_it_evicts(void **state)
{
	fill();
	rig.length = LARGE;
	keep("ab");
	tell("01", at_peer);
	fence_of((dray_handle)STORE_KEEP_HANDLES << 48 | 1 << 24 | 1, 100);
	assert_int_equal(rig.n_over, 0);
	places_in_turns(LARGE / 64 / 2);
	read_as('x', 0, NULL);
	/* the first one is asked for once more */
	tell("N", NULL);
	kept("LK");
}

static void test_put_of_a_session_that_ends(void **state)
{
	fill();
	put(2, rig.region, 0);
	worker_turn(rig.ring.worker, false);
	worker_turn(rig.ring.worker, false);
	assert_non_null(session()->begins);
	post((struct command){ .type = COMMAND_SESSION_CLOSE, .session = session()->xs.handle });
}

/* A drain waits for it, and its deadline ends it. */
static void test_put_at_a_drain(void **state)
{
	rig.snapshot = snapshot_new(NULL, false, 1);
	fill();
	put(2, rig.region, 0);
	turn();
	assert_non_null(session()->begins);
	post((struct command){ .type = COMMAND_DRAIN });
	post((struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	assert_int_equal(rig.snapshot->asking, 1);
	assert_int_equal(rig.snapshot->in_flight, 0);
	post((struct command){ .type = COMMAND_STOP_TRANSFERS, .code = DRAY_E_DEADLINE });
	put_answered(2, DRAY_E_DEADLINE, "TTTT");
	rig.snapshot->asking = 0;
	post((struct command){ .type = COMMAND_SNAPSHOT, .snapshot = rig.snapshot });
	assert_int_equal(rig.snapshot->asking, 0);
	/* the session takes its next request */
	unpin(3, "a");
	told(DMSG_STORE_UNPIN_REPLY, 3, "N");
}

/* It passes while the PUT evicts. */
static void test_put_whose_deadline_passes_before_its_copy(void **state)
{
	fill();
	put(2, rig.region, 1);
	worker_turn(rig.ring.worker, false);
	worker_turn(rig.ring.worker, false);
	assert_non_null(session()->begins);
	pass_time(DRAY_NS_PER_MS);
	worker_turn(rig.ring.worker, false);
	assert_null(session()->begins);
	put_answered(2, DRAY_E_DEADLINE, "TTTT");
	/* the session takes its next request */
	unpin(3, "a");
	told(DMSG_STORE_UNPIN_REPLY, 3, "N");
}

static void test_put_without_region_evicts_nothing(void **state)
{
	uint64_t before;

	fill();
	before = store_totals(rig.store).evictions;
	put(2, 77, 0);
	assert_int_equal(error_code(2), DRAY_E_NOT_FOUND);
	assert_int_equal(store_totals(rig.store).evictions, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_found, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_put_evicts_in_turns, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_pin_and_read_evict_in_turns, set_up_with_disk,
						tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_pin_during_a_drain, set_up_with_disk,
						tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_pin_at_the_end_of_a_drain, set_up_with_disk,
						tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_pin_whose_deadline_passes, set_up_with_disk,
						tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_pin_without_a_deadline_of_its_own,
						set_up_with_disk, tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_pin_of_a_session_that_ends, set_up_with_disk,
						tear_down_with_disk),
		cmocka_unit_test_setup_teardown(test_keep_evicts_in_turns, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_get_of_a_copy_evicts_in_turns, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_while_it_evicts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_while_it_evicts, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_fenced_while_it_evicts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_put_of_a_session_that_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_put_at_a_drain, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_put_whose_deadline_passes_before_its_copy,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_put_without_region_evicts_nothing, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_found, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_copy_stays, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slices, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slices, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_bytes_of_answers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_bytes_of_answers, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_straight, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_ranges_overlap, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_other_memory, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_region_is_gone, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_pages_are_gone, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_exists_and_get, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_exists_and_get, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_held_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_exists_without_answers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused_is_busy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sources_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sources_end, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_refuses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_refuses, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_slow_source, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slow_source, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_silent_agent, set_up_looking, tear_down),
		cmocka_unit_test_setup_teardown(test_looks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silence_of_an_agent_that_is_not_asked,
						set_up_looking, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_beside_silence, set_up_looking,
						tear_down),
		cmocka_unit_test_setup_teardown(test_lease_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lease_ends, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_agent_is_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_agent_is_lost, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_drain, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cancel_while_it_is_zeroed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_drain_while_it_is_zeroed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deadline_while_it_is_zeroed, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_drain, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_late_with_held, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_late_with_held, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_with_held, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_with_held, set_up_straight,
						tear_down),
		cmocka_unit_test_setup_teardown(test_keys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_device_goes_on, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slow_devices, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silent_devices, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_devices_straight, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_devices_end_first, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_devices_are_silent, set_up_straight_looking,
						tear_down),
		cmocka_unit_test_setup_teardown(test_request_stops_meanwhile, set_up_straight,
						tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_meanwhile, set_up_straight,
						tear_down),
		cmocka_unit_test_setup_teardown(test_session_ends_before_the_device, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_fenced, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fenced_beside_devices, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fenced_while_it_asks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep, set_up_straight, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_copy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_meanwhile, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_wrong_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_agent_is_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_is_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_is_stopped, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_at_the_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep_without_share, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
