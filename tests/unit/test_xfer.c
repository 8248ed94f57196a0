/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, the scheduler and the local transport. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "lib/fault.h"
#include "agent/data/transfer/object.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define BYTES (8u << 20)

struct two {
	struct rig rig;
	struct rig_session a, b;
	struct rig_region ra, rb;
	struct remote_view *remote; /* the remote of rb, for session a */
};

#define SESSION_A (1ull << 32 | 1)
#define SESSION_B (1ull << 32 | 2)
#define REGION_A (1ull << 32 | 3)
#define REGION_B (1ull << 32 | 4)
#define REMOTE_B (1ull << 32 | 5)

static int setup(void **state)
{
	struct two *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	rig_init(&t->rig);
	rig_session_init(&t->rig, &t->a, SESSION_A);
	rig_session_init(&t->rig, &t->b, SESSION_B);
	rig_region_init(&t->rig, &t->ra, REGION_A, SESSION_A, BYTES, 32);
	rig_region_init(&t->rig, &t->rb, REGION_B, SESSION_B, BYTES, 4);
	t->remote = rig_remote(&t->rig, REMOTE_B, &t->rb, SESSION_A);
	*state = t;
	return 0;
}

static int teardown(void **state)
{
	struct two *t = *state;

	assert_int_equal(t->rig.counters.v[DRAY_METRIC_TRANSFERS_IN_FLIGHT], 0);
	assert_int_equal(t->a.shared.own.transfers + t->b.shared.own.transfers, 0);
	assert_int_equal(t->rig.group.transfers, 0);
	assert_int_equal(t->a.shared.account->budget.of[RESOURCE_TRANSFERS].used, 0);
	assert_int_equal(t->a.shared.account->budget.of[RESOURCE_WAITING_TRANSFERS].used, 0);
	assert_int_equal(t->a.shared.account->budget.of[RESOURCE_OPS].used, 0);
	assert_int_equal(t->a.xs.ops + t->b.xs.ops + t->a.xs.slices[0] + t->a.xs.slices[1] +
				 t->b.xs.slices[0] + t->b.xs.slices[1],
			 0);
	xfer_session_deinit(&t->a.xs);
	xfer_session_deinit(&t->b.xs);
	rig_deinit(&t->rig);
	rig_region_deinit(&t->ra);
	rig_region_deinit(&t->rb);
	free(t->remote);
	free(t);
	return 0;
}

static struct xfer_request request(uint64_t id)
{
	return (struct xfer_request){ .request_id = id,
				      .spec.local = REGION_A,
				      .spec.remote = REMOTE_B };
}

static void run(struct two *t)
{
	while (rig_turn(&t->rig))
		;
}

static void bytes_arrive_at_their_destination(void **state)
{
	struct two *t = *state;
	unsigned seed = 7;

	for (int round = 0; round < 40; round++) {
		static uint64_t ops[2000][3];
		uint32_t n = 0;
		uint64_t at = 0;
		struct xfer_request q = request((uint64_t)round + 1);
		struct dray_err err = DRAY_ERR_NULL;

		for (uint64_t i = 0; i < BYTES; i += sizeof(int)) {
			int word = rand_r(&seed);

			memcpy(t->ra.memory + i, &word, sizeof(word));
		}
		memset(t->rb.memory, 0, BYTES);
		q.spec.direction = round % 2 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE;
		if (round % 2)
			memcpy(t->rb.memory, t->ra.memory, BYTES);
		/* destinations do not overlap: their offsets rise, with and without gaps */
		while (n < 2000) {
			uint64_t length = 1 + (uint64_t)rand_r(&seed) % (round % 3 ? 300 : 200000);
			uint64_t source = (uint64_t)rand_r(&seed) % BYTES;

			at += rand_r(&seed) % 3 ? 0 : (uint64_t)rand_r(&seed) % 5000;
			if (at + length > BYTES)
				break;
			if (source + length > BYTES)
				source = BYTES - length;
			ops[n][round % 2] = source;
			ops[n][1 - round % 2] = at;
			ops[n++][2] = length;
			at += length;
		}
		assert_int_equal(rig_submit(&t->rig, &t->a, &q, ops, n, &err), 0);
		run(t);
		assert_int_equal(t->rig.n_ended, round + 1);
		assert_int_equal(t->rig.ended[round].code, 0);
		/*
		 * in one region a destination could overwrite a source; here there are two regions
		 */
		for (uint32_t i = 0; i < n; i++)
			for (uint64_t k = 0; k<ops[i][2]; k += ops[i][2]> 1 ? ops[i][2] - 1 : 1)
				assert_int_equal(*rig_at(&t->ra, ops[i][0] + k),
						 *rig_at(&t->rb, ops[i][1] + k));
	}
}

static void adjacent_operations_are_merged(void **state)
{
	struct two *t = *state;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q = request(1);
	struct transfer_record last;
	uint64_t ops[256][3];

	for (uint64_t i = 0; i < 256; i++) {
		ops[i][0] = i * 4096;
		ops[i][1] = i * 4096;
		ops[i][2] = 4096;
	}
	assert_int_equal(rig_submit(&t->rig, &t->a, &q, (const uint64_t(*)[3])ops, 256, &err), 0);
	run(t);
	assert_int_equal(t->rig.ended[0].code, 0);
	assert_int_equal(t->rig.ended[0].bytes, 256 * 4096);
	assert_int_equal(xfers_records(&t->rig.core, &last, 1), 1);
	assert_int_equal(last.operations, 1);
	/*
	 * each is one turn's amount of bytes; operations that are not merged count for more than
	 * their bytes
	 */
	assert_int_equal(t->rig.counters.v[DRAY_METRIC_SLICES_TOTAL], 4);
	assert_int_equal(t->rig.counters.v[DRAY_METRIC_OPERATIONS_TOTAL], 256);
}

static void refused(struct two *t, struct xfer_request q, uint64_t local, uint64_t remote,
		    uint64_t length, int code)
{
	struct dray_err err = DRAY_ERR_NULL;
	const uint64_t ops[1][3] = { { local, remote, length } };

	assert_true(rig_submit(&t->rig, &t->a, &q, ops, 1, &err) < 0);
	assert_int_equal(err.code, code);
	assert_true(err.msg[0] != '\0');
	assert_int_equal(t->rig.n_ended, 0);
}

static void invalid_requests_have_no_effect(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(1);

	refused(t, q, BYTES, 0, 1, DRAY_E_RANGE);
	refused(t, q, 0, BYTES - 3, 4, DRAY_E_RANGE);
	refused(t, q, UINT64_MAX, 0, 2, DRAY_E_RANGE);
	refused(t, q, 1, 1, UINT64_MAX, DRAY_E_RANGE);
	refused(t, q, 0, UINT64_MAX - 1, 1, DRAY_E_RANGE);
	refused(t, q, 0, 0, 0, DRAY_E_RANGE);
	q.spec.direction = 3;
	refused(t, q, 0, 0, 1, DRAY_E_INVALID);
	q = request(1);
	q.spec.flags = 0x8000;
	refused(t, q, 0, 0, 1, DRAY_E_UNSUPPORTED);
	q = request(1);
	q.spec.local = REMOTE_B;
	refused(t, q, 0, 0, 1, DRAY_E_NOT_FOUND);
	q = request(1);
	q.spec.remote = 2ull << 32 | 5;
	refused(t, q, 0, 0, 1, DRAY_E_NOT_FOUND);
	t->ra.view->o.group = 78;
	refused(t, request(1), 0, 0, 1, DRAY_E_NOT_FOUND);
	t->ra.view->o.group = 77;
	t->remote->o.access = DMSG_ACCESS_READ;
	refused(t, request(1), 0, 0, 1, DRAY_E_DENIED);
	t->remote->o.access = DMSG_ACCESS_ALL;
	q = request(1);
	q.spec.flags = DMSG_TRANSFER_FLAG_WAIT;
	q.spec.wait_region = REGION_A;
	q.spec.wait_offset = 6;
	refused(t, q, 0, 0, 1, DRAY_E_INVALID);
	q.spec.wait_offset = BYTES;
	refused(t, q, 0, 0, 1, DRAY_E_RANGE);
	t->a.shared.own.transfers_max = 0;
	refused(t, request(1), 0, 0, 1, DRAY_E_BUSY);
	t->a.shared.own.transfers_max = 100;
	t->rig.group.transfers_max = 0;
	refused(t, request(1), 0, 0, 1, DRAY_E_BUSY);
	t->rig.group.transfers_max = 100;
	t->a.shared.account->budget.all->of[RESOURCE_TRANSFERS].max = 0;
	refused(t, request(1), 0, 0, 1, DRAY_E_BUSY);
	t->a.shared.account->budget.all->of[RESOURCE_TRANSFERS].max = 100;
	t->a.shared.ops_max = 0;
	refused(t, request(1), 0, 0, 1, DRAY_E_BUSY);
}

static int submit_one(struct two *t, struct rig_session *s, struct xfer_request q, uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;
	const uint64_t ops[1][3] = { { 0, 0, bytes } };

	return rig_submit(&t->rig, s, &q, ops, 1, &err);
}

static void two_sessions_get_the_same_bytes(void **state)
{
	struct two *t = *state;
	uint64_t ops[2000][3];
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q = request(1);

	/* one session requests two large pieces, the other many small ones that cannot be merged */
	assert_int_equal(submit_one(t, &t->a, request(1), BYTES), 0);
	for (uint64_t i = 0; i < 2000; i++) {
		ops[i][0] = i * 4096;
		ops[i][1] = (1999 - i) * 4096;
		ops[i][2] = 4096;
	}
	q.request_id = 2;
	assert_int_equal(rig_submit(&t->rig, &t->b, &q, (const uint64_t(*)[3])ops, 2000, &err), 0);
	while (rig_turn(&t->rig) && !t->rig.n_ended)
		;
	/* when the first has ended, the other is almost done */
	while (t->rig.n_ended < 2) {
		uint64_t left = t->b.xs.xfers.next != &t->b.xs.xfers ?
					dray_list_first(&t->b.xs.xfers, struct xfer, session_link)
						->bytes_done :
					BYTES;
		assert_true(left >= BYTES / 2);
		rig_turn(&t->rig);
	}
	run(t);
}

/*
 * Sessions with the same kind of operations: when the first has moved all bytes, the others lack
 * only their last slices.
 */
static void many_sessions_get_the_same_bytes(void **state)
{
	enum { N = 16, OPS = 400 };
	static struct rig_session many[N];
	struct two *t = *state;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q = request(1);
	uint64_t ops[OPS][3], least;

	/*
	 * half of the sessions have operations of whole megabytes, the others hundreds of small
	 * pieces
	 */
	for (uint64_t i = 0; i < OPS; i++) {
		ops[i][0] = i * 4096;
		ops[i][1] = (OPS - 1 - i) * 4096;
		ops[i][2] = 4096;
	}
	for (unsigned i = 0; i < N; i++) {
		rig_session_init(&t->rig, &many[i], SESSION_A);
		q.request_id = i + 1;
		for (unsigned k = 0; k < 16; k++)
			if (i % 2)
				assert_int_equal(rig_submit(&t->rig, &many[i], &q,
							    (const uint64_t(*)[3])ops, OPS, &err),
						 0);
			else
				assert_int_equal(submit_one(t, &many[i], q, OPS * 4096), 0);
	}
	while (t->rig.n_ended < 16 * 15 && rig_turn(&t->rig))
		for (unsigned i = 0; i < N; i++)
			if (many[i].shared.transfers_ended == 16)
				goto first;
first:
	for (unsigned half = 0; half < 2; half++) {
		uint64_t most = 0;

		least = UINT64_MAX;
		for (unsigned i = half; i < N; i += 2) {
			least = dray_min(least, (uint64_t)many[i].shared.bytes_moved);
			most = dray_max(most, (uint64_t)many[i].shared.bytes_moved);
		}
		/* two sessions of the same kind differ by at most two slices */
		assert_true(most - least <= 2 << 20);
		/* small pieces cost more than their bytes, but no session starves */
		assert_true(least >= 16ull * OPS * 4096 * 8 / 10);
	}
	run(t);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(many[i].shared.bytes_moved, 16ull * OPS * 4096);
		xfer_session_deinit(&many[i].xs);
	}
}

/* A session with tiny operations gets the same share of a worker as one with large operations. */
static void tiny_operations_starve_no_session(void **state)
{
	enum { OPS = 4096 };
	struct two *t = *state;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q = request(1);
	static uint64_t ops[OPS][3];
	uint64_t cost_tiny, cost_large;

	for (uint64_t i = 0; i < OPS; i++) {
		ops[i][0] = i * 128;
		ops[i][1] = i * 128;
		ops[i][2] = 64;
	}
	for (q.request_id = 1; q.request_id <= 20; q.request_id++)
		assert_int_equal(
			rig_submit(&t->rig, &t->a, &q, (const uint64_t(*)[3])ops, OPS, &err), 0);
	for (uint64_t i = 0; i < 8; i++)
		assert_int_equal(submit_one(t, &t->b, request(100 + i), BYTES), 0);
	for (unsigned i = 0; i < 80; i++)
		assert_true(rig_turn(&t->rig));
	/* the scheduler counts 512 bytes for each segment beside its bytes */
	cost_tiny = t->a.shared.bytes_moved / 64 * (64 + 512);
	cost_large = t->b.shared.bytes_moved;
	assert_true(cost_tiny > 4 << 20 && cost_large > 4 << 20);
	assert_true(cost_tiny <= cost_large + (2 << 20) && cost_large <= cost_tiny + (2 << 20));
	run(t);
}

#define SHARING_MAX 64
/* A slice; as large as those of the local transport. */
#define UNIT (256u << 10)

static uint64_t moved_at_end[SHARING_MAX + 1]; /* by request id, which starts at 1 */

static void note_end(struct rig *r, struct xfer *x)
{
	moved_at_end[x->request_id] = x->session->shared->bytes_moved;
}

/* One operation for each BYTES, which cannot be merged. */
static void submit_long(struct two *t, uint64_t id, uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q = request(id);
	uint64_t ops[32][3];
	uint32_t n = 0;

	for (; bytes; bytes -= ops[n++][2]) {
		ops[n][0] = ops[n][1] = 0;
		ops[n][2] = dray_min(bytes, (uint64_t)BYTES);
	}
	assert_int_equal(rig_submit(&t->rig, &t->a, &q, (const uint64_t(*)[3])ops, n, &err), 0);
}

/*
 * Transfers of so many units, submitted together, end when this part of the bytes has moved that has moved in equal
 * sharing, or a third later.
 */
static void share(struct two *t, const unsigned *units, unsigned n)
{
	t->rig.on_end = note_end;
	t->rig.core.cfg.slice_size = UNIT;
	for (unsigned i = 0; i < n; i++)
		submit_long(t, i + 1, (uint64_t)units[i] * UNIT);
	run(t);
	assert_int_equal(t->rig.n_ended, n);
	for (unsigned i = 0; i < n; i++) {
		uint64_t fair = 0;

		for (unsigned k = 0; k < n; k++)
			fair += (uint64_t)dray_min(units[i], units[k]) * UNIT;
		assert_true(moved_at_end[i + 1] <= fair * 4 / 3 + 2ull * UNIT);
	}
}

static void transfers_together_end_within_their_share(void **state)
{
	static const unsigned five[] = { 269, 67, 67, 67, 8 };

	share(*state, five, sizeof(five) / sizeof(*five));
}

static void a_short_transfer_behind_many_ends_within_its_share(void **state)
{
	unsigned units[SHARING_MAX];

	for (unsigned i = 0; i < SHARING_MAX; i++)
		units[i] = 6 - i % 3;
	units[SHARING_MAX - 1] = 2;
	share(*state, units, SHARING_MAX);
}

static void short_transfers_overtake_a_long_one(void **state)
{
	static const uint64_t ids[] = { 5, 2, 3, 4, 1 };
	struct two *t = *state;

	submit_long(t, 1, 16 * BYTES);
	for (uint64_t id = 2; id <= 4; id++)
		submit_long(t, id, BYTES);
	submit_long(t, 5, BYTES / 8);
	run(t);
	assert_int_equal(t->rig.n_ended, 5);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(t->rig.ended[i].request_id, ids[i]);
}

/* A slice of a long transfer, as large as two of these, does not go before them. */
static void transfers_of_half_a_slice_end_within_equal_shares(void **state)
{
	enum { TINY = 6 };
	struct two *t = *state;

	t->rig.on_end = note_end;
	t->rig.core.cfg.slice_size = UNIT;
	submit_long(t, 1, 16 * BYTES);
	for (uint64_t id = 2; id < 2 + TINY; id++)
		submit_long(t, id, UNIT / 2);
	run(t);
	assert_int_equal(t->rig.n_ended, 1 + TINY);
	assert_true(moved_at_end[1 + TINY] <= (1 + TINY) * UNIT / 2);
}

/* Beside short ones without end, each of the others moves: also one that is neither the oldest nor the shortest. */
static void short_transfers_do_not_starve_others(void **state)
{
	struct two *t = *state;
	uint64_t id = 2;

	t->rig.on_end = note_end;
	t->rig.core.cfg.slice_size = UNIT;
	submit_long(t, 1, 4 * BYTES);
	submit_long(t, 2, BYTES / 2);
	memset(moved_at_end, 0, sizeof(moved_at_end));
	while (!moved_at_end[2]) {
		unsigned n = t->rig.n_ended;

		/* ids up to SHARING_MAX, again and again */
		id = id == SHARING_MAX ? 3 : id + 1;
		submit_long(t, id, 4 * UNIT);
		while (t->rig.n_ended == n)
			assert_true(rig_turn(&t->rig));
	}
	/* a quarter is for these two */
	assert_true(moved_at_end[2] <= 4 * BYTES + 8ull * UNIT);
	assert_int_equal(moved_at_end[1], 0);
	run(t);
}

/* Transfers of one slice, which may be a little longer, end in the order of their submission, also beside long ones. */
static void small_transfers_keep_their_order(void **state)
{
	struct two *t = *state;
	uint64_t last = 0;

	t->rig.core.cfg.slice_size = UNIT;
	submit_long(t, 1, BYTES);
	for (uint64_t id = 2; id <= SHARING_MAX; id++)
		submit_long(t, id, id % 5 ? UNIT - id * 7919 % 13 * (UNIT / 16) : UNIT + UNIT / 64);
	run(t);
	assert_int_equal(t->rig.n_ended, SHARING_MAX);
	for (unsigned i = 0; i < SHARING_MAX; i++) {
		if (t->rig.ended[i].request_id == 1)
			continue;
		assert_true(t->rig.ended[i].request_id > last);
		last = t->rig.ended[i].request_id;
	}
}

/* A cancelled transfer leaves its place at once, wherever it waits. */
static void cancelled_transfers_leave_their_flow(void **state)
{
	struct two *t = *state;

	for (uint64_t id = 1; id <= SHARING_MAX; id++)
		submit_long(t, id, id % 2 ? 8 * UNIT : UNIT);
	rig_turn(&t->rig);
	for (uint64_t id = 1; id <= SHARING_MAX; id += 1 + id % 3) {
		struct xfer *x = xfer_find(&t->a.xs, id);

		if (x)
			xfer_stop(&t->rig.core, x, DRAY_E_CANCELLED, NULL, false);
	}
	run(t);
	assert_int_equal(t->rig.n_ended, SHARING_MAX);
	assert_true(t->a.shared.bytes_moved < 32ull * 8 * UNIT);
}

static void latency_comes_first(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(100);

	for (uint64_t i = 1; i <= 16; i++)
		assert_int_equal(submit_one(t, &t->a, request(i), BYTES), 0);
	rig_turn(&t->rig);
	assert_int_equal(t->rig.n_ended, 0);
	/* in the session with the bulk transfer and in another one: in the next turn */
	q.spec.class = DMSG_CLASS_LATENCY;
	assert_int_equal(submit_one(t, &t->a, q, 65536), 0);
	q.request_id = 101;
	assert_int_equal(submit_one(t, &t->b, q, 32768), 0);
	rig_turn(&t->rig);
	assert_int_equal(t->rig.n_ended, 2);
	assert_int_equal(t->rig.ended[0].request_id, 100);
	assert_int_equal(t->rig.ended[1].request_id, 101);
	run(t);
	assert_int_equal(t->rig.n_ended, 18);
}

/* A small transfer does not wait for a turn, unless it has to wait for something else. */
static void small_transfers_end_at_once(void **state)
{
	struct two *t = *state;
	/* across the end of an extent on both sides */
	uint64_t edge = BYTES / 4 - 100, ops[5][3] = { { edge, edge, 200 }, { 0, 5000, 1 } };
	const struct data_counters *c = &t->rig.counters;
	struct dray_err err = DRAY_ERR_NULL;
	struct transfer_record last;
	struct xfer_request q = request(1);

	for (uint64_t i = 0; i < BYTES; i++)
		t->ra.memory[i] = (uint8_t)(i * 31 + i / 4096);
	memset(t->rb.memory, 0, BYTES);
	q.spec.direction = DMSG_DIRECTION_WRITE;
	q.spec.set_region = REGION_A;
	q.spec.set_offset = 64;
	q.spec.set_value = 0x01020304;
	q.spec.flags = DMSG_TRANSFER_FLAG_SET;
	assert_int_equal(rig_submit(&t->rig, &t->a, &q, ops, 2, &err), 0);
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(t->rig.ended[0].code, 0);
	assert_int_equal(t->rig.ended[0].bytes, 201);
	for (uint64_t i = 0; i < 200; i++)
		assert_int_equal(*rig_at(&t->rb, edge + i), *rig_at(&t->ra, edge + i));
	assert_int_equal(*rig_at(&t->rb, edge - 1) | *rig_at(&t->rb, edge + 200), 0);
	assert_int_equal(*rig_at(&t->rb, 5000), *rig_at(&t->ra, 0));
	assert_int_equal(*(uint32_t *)(void *)rig_at(&t->ra, 64), 0x01020304);
	assert_int_equal(c->v[DRAY_METRIC_TRANSFERS_DONE_TOTAL], 1);
	assert_int_equal(c->v[DRAY_METRIC_LOCAL_BYTES_TOTAL], 201);
	assert_int_equal(t->a.shared.bytes_moved, 201);
	assert_int_equal(xfers_records(&t->rig.core, &last, 1), 1);
	assert_int_equal(last.transport, DMSG_TRANSPORT_LOCAL);
	assert_int_equal(last.slices, 1);

	/* the limit is 4,096 bytes in four operations; more of either waits for the turn */
	for (unsigned i = 0; i < 5; i++) {
		ops[i][0] = ops[i][1] = i * 8192;
		ops[i][2] = 1024;
	}
	q = request(2);
	q.spec.direction = DMSG_DIRECTION_READ;
	assert_int_equal(rig_submit(&t->rig, &t->a, &q, ops, 4, &err), 0);
	assert_int_equal(t->rig.n_ended, 2);
	q.request_id = 3;
	assert_int_equal(rig_submit(&t->rig, &t->a, &q, ops, 5, &err), 0);
	q.request_id = 4;
	assert_int_equal(submit_one(t, &t->a, q, 4097), 0);
	assert_int_equal(t->rig.n_ended, 2);
	run(t);
	assert_int_equal(t->rig.n_ended, 4);

	assert_int_equal(fault_init(), 0);
	if (fallocate(t->rb.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES) < 0)
		skip();
	q.request_id = 5;
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	assert_int_equal(t->rig.n_ended, 5);
	if (!t->rig.n_faults)
		skip(); /* see missing_memory_ends_its_own_session */
	assert_int_equal(t->rig.ended[4].code, DRAY_E_REGION_FAULT);
	assert_int_equal(t->rig.last_fault, SESSION_B);
}

static void a_deadline_and_a_cancel_end_a_transfer_once(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(1);

	q.spec.flags = DMSG_TRANSFER_FLAG_WAIT;
	q.spec.wait_region = REGION_A;
	q.spec.wait_value = 42;
	q.spec.deadline_ms = 5;
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	q.request_id = 2;
	q.spec.deadline_ms = 0;
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	rig_turn(&t->rig);
	assert_int_equal(t->rig.n_ended, 0);
	t->rig.core.now_ns += 5 * DRAY_NS_PER_MS;
	rig_turn(&t->rig);
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(t->rig.ended[0].request_id, 1);
	assert_int_equal(t->rig.ended[0].code, DRAY_E_DEADLINE);
	xfer_stop(&t->rig.core, dray_list_first(&t->a.xs.xfers, struct xfer, session_link),
		  DRAY_E_CANCELLED, NULL, false);
	assert_int_equal(t->rig.n_ended, 2);
	assert_int_equal(t->rig.ended[1].code, DRAY_E_CANCELLED);
	assert_int_equal(t->rig.ended[1].bytes, 0);
}

static void words_order_a_transfer(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(1);
	uint32_t *wait = (uint32_t *)(void *)rig_at(&t->ra, 4096);
	uint32_t *set = (uint32_t *)(void *)rig_at(&t->ra, 8192);

	q.spec.flags = DMSG_TRANSFER_FLAG_WAIT | DMSG_TRANSFER_FLAG_SET;
	q.spec.wait_region = q.spec.set_region = REGION_A;
	q.spec.wait_offset = 4096;
	q.spec.set_offset = 8192;
	q.spec.wait_value = 5;
	q.spec.set_value = 6;
	memset(rig_at(&t->ra, 0), 0xab, 64);
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	run(t);
	assert_int_equal(*rig_at(&t->rb, 0), 0);
	*wait = 5;
	t->rig.core.now_ns += DRAY_NS_PER_MS;
	run(t);
	run(t);
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(*rig_at(&t->rb, 63), 0xab);
	assert_int_equal(*set, 6);
}

/*
 * A transfer that was submitted ahead of others has waited for long when its turn comes: its wait
 * word is still checked soon.
 */
static void wait_words_in_a_row_are_seen_soon(void **state)
{
	struct two *t = *state;
	struct core *c = &t->rig.core;
	uint32_t *wait = (uint32_t *)(void *)rig_at(&t->ra, 4096);
	int64_t rare, soon;

	for (unsigned i = 1; i <= 2; i++) {
		struct xfer_request q = request(i);

		q.spec.flags = DMSG_TRANSFER_FLAG_WAIT;
		q.spec.wait_region = REGION_A;
		q.spec.wait_offset = 4096;
		q.spec.wait_value = i;
		assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	}
	c->now_ns += 8 * DRAY_NS_PER_MS;
	rare = xfers_tick(c) - c->now_ns;
	*wait = 1;
	soon = xfers_tick(c) - c->now_ns;
	assert_true(soon < rare / 8);
	run(t);
	assert_int_equal(t->rig.n_ended, 1);
	c->now_ns += 8 * DRAY_NS_PER_MS;
	assert_int_equal(xfers_tick(c) - c->now_ns, rare);
	*wait = 2;
	xfers_tick(c);
	run(t);
	assert_int_equal(t->rig.n_ended, 2);
}

static void a_notification_follows_the_bytes_and_ends_the_transfer(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(1);

	q.spec.flags = DMSG_TRANSFER_FLAG_NOTIFY;
	q.notify = (const uint8_t *)"hello";
	q.notify_length = 5;
	*rig_at(&t->ra, 0) = 9;
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	run(t);
	assert_int_equal(t->rig.n_notify, 1);
	assert_int_equal(*rig_at(&t->rb, 0), 9);
	assert_int_equal(t->rig.n_ended, 0);
	xfer_notified(&t->rig.core, 12345, 0);
	assert_int_equal(t->rig.n_ended, 0);
	xfer_notified(&t->rig.core, t->rig.last_notify, DRAY_E_NOTIFY_REFUSED);
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(t->rig.ended[0].code, DRAY_E_NOTIFY_REFUSED);
	assert_int_equal(t->rig.ended[0].bytes, 64);
	xfer_notified(&t->rig.core, t->rig.last_notify, 0);
	assert_int_equal(t->rig.n_ended, 1);
}

static void a_dropped_region_is_not_accessed_again(void **state)
{
	struct two *t = *state;
	struct xfer_request q = request(1);

	memset(t->ra.memory, 1, BYTES);
	assert_int_equal(submit_one(t, &t->a, q, BYTES), 0);
	rig_turn(&t->rig);
	assert_int_equal(t->rig.n_ended, 0);
	object_drop(&t->rig.core, OBJECT_REGION, REGION_B, DRAY_E_REVOKED, DROP_STOP);
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(t->rig.ended[0].code, DRAY_E_REVOKED);
	assert_true(t->rig.ended[0].bytes < BYTES);
	assert_int_equal(t->rig.n_dropped, 1);
	memset(t->rb.memory, 0, BYTES);
	run(t);
	for (uint64_t i = 0; i < BYTES; i += 4096)
		assert_int_equal(t->rb.memory[i], 0);
	t->rig.n_ended = 0;
	refused(t, request(2), 0, 0, 1, DRAY_E_REVOKED);
	/* a drop of an unknown grant is answered at once */
	object_drop(&t->rig.core, OBJECT_GRANT, 99, DRAY_E_REVOKED, DROP_STOP);
	assert_int_equal(t->rig.n_dropped, 2);
}

static void missing_memory_ends_its_own_session(void **state)
{
	struct two *t = *state;

	/* cmocka has installed its own handler */
	assert_int_equal(fault_init(), 0);
	if (fallocate(t->rb.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES) < 0)
		skip();
	assert_int_equal(submit_one(t, &t->a, request(1), BYTES), 0);
	run(t);
	if (!t->rig.n_faults)
		skip(); /* this sandbox has no userfaultfd: a page is allocated instead */
	assert_int_equal(t->rig.n_ended, 1);
	assert_int_equal(t->rig.ended[0].code, DRAY_E_REGION_FAULT);
	assert_int_equal(t->rig.last_fault, SESSION_B);
}

static void end_the_session(struct rig *r, struct xfer *x)
{
	r->on_end = NULL; /* the callback is for one end only */
	dray_list_for_each(&x->session->xfers, other, struct xfer, session_link)
		xfer_stop(&r->core, other, DRAY_E_SESSION_CLOSED, NULL, true);
}

/*
 * A waiting transfer that faults ends its session, as a closed socket does, and with it the
 * session's other waiting transfers.
 */
static void waiting_transfers_end_together(void **state)
{
	struct two *t = *state;

	assert_int_equal(fault_init(), 0);
	for (uint64_t id = 1; id <= 4; id++) {
		struct xfer_request q = request(id);

		q.spec.flags = DMSG_TRANSFER_FLAG_WAIT;
		q.spec.wait_region = REGION_A;
		q.spec.wait_value = 1;
		assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	}
	if (fallocate(t->ra.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES) < 0)
		skip();
	t->rig.on_end = end_the_session;
	t->rig.core.now_ns += DRAY_NS_PER_MS;
	run(t);
	if (!t->rig.n_faults) { /* this sandbox has no userfaultfd */
		t->rig.on_end = NULL;
		dray_list_for_each(&t->a.xs.xfers, x, struct xfer, session_link)
			xfer_stop(&t->rig.core, x, DRAY_E_SESSION_CLOSED, NULL, true);
		skip();
	}
	assert_int_equal(t->rig.n_ended, 4);
	assert_int_equal(t->rig.ended[0].code, DRAY_E_REGION_FAULT);
	for (unsigned i = 1; i < 4; i++)
		assert_int_equal(t->rig.ended[i].code, DRAY_E_SESSION_CLOSED);
}

static uint64_t in_buckets(const struct data_histogram *h, enum dray_family f)
{
	uint64_t n = 0;

	for (unsigned i = 0; i <= dray_families[f].n_bounds; i++)
		n += h->buckets[i].n;
	return n;
}

/* The histograms hold what the record holds, by transport and class. */
static void phases_are_counted(void **state)
{
	struct two *t = *state;
	const struct data_counters *c = &t->rig.counters;
	const struct data_phases *p = &c->phases[DMSG_TRANSPORT_LOCAL][DMSG_CLASS_LATENCY];
	const struct data_histogram *of = p->of;
	struct xfer_request q = request(1);
	struct transfer_record r;
	int64_t before_ns = dray_now().ns;

	q.spec.class = DMSG_CLASS_LATENCY;
	q.spec.flags = DMSG_TRANSFER_FLAG_NOTIFY;
	q.notify = (const uint8_t *)"x";
	q.notify_length = 1;
	t->rig.core.now_ns = before_ns - 5 * DRAY_NS_PER_MS;
	assert_int_equal(submit_one(t, &t->a, q, 64 << 10), 0);
	t->rig.core.now_ns = before_ns;
	run(t);
	assert_int_equal(t->rig.n_notify, 1);
	assert_int_equal(in_buckets(&of[XFER_PHASE_QUEUE], DRAY_FAMILY_TRANSFER_PHASE_SECONDS), 0);
	xfer_notified(&t->rig.core, t->rig.last_notify, 0);
	assert_int_equal(xfers_records(&t->rig.core, &r, 1), 1);
	assert_int_equal(r.phase_ns[XFER_PHASE_QUEUE], 5 * DRAY_NS_PER_MS);
	assert_in_range(r.phase_ns[XFER_PHASE_MOVE], 1, dray_now().ns - before_ns);
	assert_in_range(r.phase_ns[XFER_PHASE_COMPLETE], 1, dray_now().ns - before_ns);
	for (unsigned i = XFER_PHASE_QUEUE; i < XFER_PHASE_N; i++) {
		uint64_t sum = 0;

		for (unsigned k = 0; k <= DRAY_FAMILY_BUCKETS_MAX; k++)
			sum += of[i].buckets[k].sum;
		assert_int_equal(sum, r.phase_ns[i]);
		assert_int_equal(in_buckets(&of[i], DRAY_FAMILY_TRANSFER_PHASE_SECONDS), 1);
	}
	/* up to 10 ms */
	assert_int_equal(of[XFER_PHASE_QUEUE].buckets[8].n, 1);
	/* a transfer that is carried out at once has waited for nothing */
	assert_int_equal(submit_one(t, &t->a, request(2), 64), 0);
	assert_int_equal(p->at_once, 0);
	p = &c->phases[DMSG_TRANSPORT_LOCAL][DMSG_CLASS_BULK];
	assert_int_equal(p->at_once, 1);
	assert_int_equal(in_buckets(&p->of[XFER_PHASE_MOVE], DRAY_FAMILY_TRANSFER_PHASE_SECONDS),
			 1);
}

static void results_are_recorded(void **state)
{
	struct two *t = *state;
	const struct data_counters *c = &t->rig.counters;
	struct transfer_record last[RECORDS_MAX];
	uint64_t ops[1][3] = { { 0, 0, 3 << 20 } };
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request q;

	for (uint64_t id = 1; id <= RECORDS_MAX + 5; id++) {
		q = request(id);
		ops[0][2] = id == RECORDS_MAX + 5 ? 3 << 20 : 4096;
		assert_int_equal(rig_submit(&t->rig, &t->a, &q, ops, 1, &err), 0);
		run(t);
		t->rig.n_ended = 0;
	}
	assert_int_equal(xfers_records(&t->rig.core, last, RECORDS_MAX), RECORDS_MAX);
	assert_int_equal(last[0].request, 6);
	assert_int_equal(last[RECORDS_MAX - 1].request, RECORDS_MAX + 5);
	assert_int_equal(last[RECORDS_MAX - 1].bytes, 3 << 20);
	/* slices of 256 KiB each */
	assert_int_equal(last[RECORDS_MAX - 1].slices, 12);
	assert_int_equal(last[0].slices, 1);
	assert_int_equal(last[0].peer, 0);
	/* 4 KiB belong to the second bucket, up to 4,096 bytes; 3 MiB to the one up to 4 MiB */
	assert_int_equal(c->size[DMSG_TRANSPORT_LOCAL].buckets[1].n, RECORDS_MAX + 4);
	assert_int_equal(c->size[DMSG_TRANSPORT_LOCAL].buckets[6].n, 1);
	assert_int_equal(c->size[DMSG_TRANSPORT_LOCAL].buckets[1].sum, (RECORDS_MAX + 4) * 4096);
	assert_int_equal(c->size[DMSG_TRANSPORT_LOCAL].buckets[6].sum, 3 << 20);
	assert_int_equal(in_buckets(&c->duration[DMSG_TRANSPORT_LOCAL],
				    DRAY_FAMILY_TRANSFER_DURATION_SECONDS),
			 RECORDS_MAX + 5);
	assert_int_equal(in_buckets(&c->size[DMSG_TRANSPORT_TCP], DRAY_FAMILY_TRANSFER_SIZE_BYTES),
			 0);
	assert_int_equal(t->a.shared.transfers_ended, RECORDS_MAX + 5);
	assert_int_equal(t->a.shared.bytes_moved, (RECORDS_MAX + 4) * 4096 + (3 << 20));
	/* a failed transfer is recorded, but not in a histogram */
	q = request(1);
	q.spec.flags = DMSG_TRANSFER_FLAG_WAIT;
	q.spec.wait_region = REGION_A;
	q.spec.wait_value = 42;
	q.spec.deadline_ms = 1;
	assert_int_equal(submit_one(t, &t->a, q, 64), 0);
	t->rig.core.now_ns += 2 * DRAY_NS_PER_MS;
	rig_turn(&t->rig);
	assert_int_equal(xfers_records(&t->rig.core, last, 1), 1);
	assert_int_equal(last[0].code, DRAY_E_DEADLINE);
	assert_int_equal(last[0].slices, 0);
	assert_int_equal(last[0].transport, DMSG_TRANSPORT_NONE);
	assert_int_equal(in_buckets(&c->size[DMSG_TRANSPORT_NONE], DRAY_FAMILY_TRANSFER_SIZE_BYTES),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_arrive_at_their_destination, setup, teardown),
		cmocka_unit_test_setup_teardown(phases_are_counted, setup, teardown),
		cmocka_unit_test_setup_teardown(results_are_recorded, setup, teardown),
		cmocka_unit_test_setup_teardown(adjacent_operations_are_merged, setup, teardown),
		cmocka_unit_test_setup_teardown(invalid_requests_have_no_effect, setup, teardown),
		cmocka_unit_test_setup_teardown(two_sessions_get_the_same_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(many_sessions_get_the_same_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(tiny_operations_starve_no_session, setup, teardown),
		cmocka_unit_test_setup_teardown(short_transfers_overtake_a_long_one, setup,
						teardown),
		cmocka_unit_test_setup_teardown(transfers_of_half_a_slice_end_within_equal_shares,
						setup, teardown),
		cmocka_unit_test_setup_teardown(short_transfers_do_not_starve_others, setup,
						teardown),
		cmocka_unit_test_setup_teardown(transfers_together_end_within_their_share, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_short_transfer_behind_many_ends_within_its_share,
						setup, teardown),
		cmocka_unit_test_setup_teardown(small_transfers_keep_their_order, setup, teardown),
		cmocka_unit_test_setup_teardown(cancelled_transfers_leave_their_flow, setup,
						teardown),
		cmocka_unit_test_setup_teardown(latency_comes_first, setup, teardown),
		cmocka_unit_test_setup_teardown(small_transfers_end_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(a_deadline_and_a_cancel_end_a_transfer_once, setup,
						teardown),
		cmocka_unit_test_setup_teardown(words_order_a_transfer, setup, teardown),
		cmocka_unit_test_setup_teardown(wait_words_in_a_row_are_seen_soon, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_notification_follows_the_bytes_and_ends_the_transfer, setup, teardown),
		cmocka_unit_test_setup_teardown(a_dropped_region_is_not_accessed_again, setup,
						teardown),
		cmocka_unit_test_setup_teardown(missing_memory_ends_its_own_session, setup,
						teardown),
		cmocka_unit_test_setup_teardown(waiting_transfers_end_together, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
