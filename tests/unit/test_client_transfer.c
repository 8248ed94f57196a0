/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: transfers by ring, arena and message; completions, callbacks, busy, cancel, and loss of
 * the agent.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/dray.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "schema/gen/data.h"
#include "tests/unit/client_fake.h"
#include "tests/unit/cm.h"

static struct fake fake;

struct rig {
	struct dray *d;
	struct dray_memory m;
	dray_region region;
	dray_remote remote;
};

static struct rig rig_with(struct dray_options o)
{
	struct rig r = { 0 };
	struct dray_token t;
	char why[200] = "";

	o.socket = fake.path;
	o.reconnect_min_ms = 1;
	o.request_ms = o.request_ms ? o.request_ms : 5000;
	if (dray_connect(&o, &r.d, why, sizeof(why)))
		print_error("%s\n", why);
	assert_non_null(r.d);
	assert_int_equal(dray_memory_alloc(65536, 0, &r.m), 0);
	assert_int_equal(dray_region_add_memory(r.d, &r.m, DRAY_READ | DRAY_WRITE, &r.region), 0);
	assert_int_equal(dray_token_from_bytes("token", 5, &t), 0);
	assert_int_equal(dray_remote_import(r.d, &t, 0, &r.remote), 0);
	return r;
}

static struct rig rig(void)
{
	return rig_with((struct dray_options){ 0 });
}

static void rig_end(struct rig *r)
{
	dray_disconnect(r->d);
	dray_memory_free(&r->m);
}

static int setup(void **state)
{
	fake = (struct fake){ 0 };
	fake_start(&fake);
	return 0;
}

static int teardown(void **state)
{
	fake_stop(&fake);
	return 0;
}

static const struct dray_op one = { 1, 2, 3 };

static struct dray_transfer transfer(const struct rig *r)
{
	return (struct dray_transfer){ .direction = DRAY_DIRECTION_WRITE,
				       .local = r->region,
				       .remote = r->remote,
				       .ops = &one,
				       .count = 1 };
}

static struct dray_op *many(size_t n)
{
	struct dray_op *ops = calloc(n, sizeof(*ops));

	for (size_t i = 0; i < n; i++)
		ops[i] = (struct dray_op){ i, 2 * i, i + 1 };
	return ops;
}

static void one_operation_goes_by_the_ring(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint64_t id;
	int x;

	t.arg = &x;
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	assert_int_equal(dray_wait(r.d, id, 5000, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.id, id);
	assert_ptr_equal(c.arg, &x);
	assert_int_equal(c.request, DRAY_REQUEST_TRANSFER);
	assert_int_equal(c.transport, DRAY_TRANSPORT_LOCAL);
	assert_int_equal(c.duration_ns, 1000);
	assert_string_equal(c.message, "");
	assert_true(fake.last_transfer_on_ring);
	assert_false(fake.last_transfer_in_arena);
	assert_int_equal(fake.last_op.local, 1);
	assert_int_equal(fake.last_op.remote, 2);
	assert_int_equal(fake.last_op.length, 3);
	assert_int_equal(dray_wait(r.d, id, 0, &c), -DRAY_E_NOT_FOUND);
	rig_end(&r);
}

static void many_operations_go_by_the_arena(void **state)
{
	struct rig r = rig();
	struct dray_op *ops = many(DMSG_OPS_MAX);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	static const size_t counts[] = { 2, 3, 4096, 4097, DMSG_OPS_MAX };

	t.ops = ops;
	t.notify = 1;
	t.payload = "the payload";
	t.payload_length = 11;
	for (size_t i = 0; i < 5; i++) {
		t.count = counts[i];
		assert_int_equal(dray_run(r.d, &t, &c), 0);
		assert_true(fake.last_transfer_on_ring);
		assert_true(fake.last_transfer_in_arena);
		assert_int_equal(fake.last_transfer_ops, counts[i]);
		assert_int_equal(fake.last_op.length, counts[i]);
		assert_int_equal(fake.last_payload_n, 11);
		assert_memory_equal(fake.last_payload, "the payload", 11);
	}
	t.count = 1;
	assert_int_equal(dray_run(r.d, &t, &c), 0);
	assert_false(fake.last_transfer_in_arena);
	assert_memory_equal(fake.last_payload, "the payload", 11);
	free(ops);
	rig_end(&r);
}

/* What the agent saw of the parts of one transfer. */
static struct {
	uint32_t parts, ops, in_flight, most_in_flight;
	uint32_t waits, sets, notifications; /* numbers of the parts that had them, from 1 */
	uint32_t fail_at;                    /* the part that fails */
	uint64_t ids[100];
} seen;

static struct dmsg_sqe entry_at(const struct fake *f, uint32_t i)
{
	struct dmsg_sqe e;

	dmsg_sqe_get(f->ring + dray_le_get32(f->ring + DMSG_RING_SQ_OFFSET) +
			     (uint64_t)(i & (f->sq_entries - 1)) * DMSG_SQE_SIZE,
		     &e);
	return e;
}

/* Takes the entries of the ring; answers them only in end_one(). */
static void look(struct fake *f, void *arg)
{
	uint32_t *tail = (uint32_t *)(void *)(f->ring + DMSG_RING_SQ_TAIL);

	while (f->sq_head != __atomic_load_n(tail, __ATOMIC_ACQUIRE)) {
		struct dmsg_sqe e = entry_at(f, f->sq_head++);

		__atomic_store_n((uint32_t *)(void *)(f->ring + DMSG_RING_SQ_HEAD), f->sq_head,
				 __ATOMIC_RELEASE);
		seen.ids[seen.parts++] = e.user_data;
		seen.ops += e.op_count;
		seen.in_flight++;
		seen.most_in_flight = dray_max(seen.most_in_flight, seen.in_flight);
		if (e.flags & DMSG_TRANSFER_FLAG_WAIT)
			seen.waits = seen.waits * 10 + seen.parts;
		if (e.flags & DMSG_TRANSFER_FLAG_SET)
			seen.sets = seen.sets * 10 + seen.parts;
		if (e.flags & DMSG_TRANSFER_FLAG_NOTIFY)
			seen.notifications = seen.notifications * 10 + seen.parts;
	}
}

/* Ends the oldest part in flight. */
static void end_one(struct fake *f, void *arg)
{
	uint32_t part = seen.parts - seen.in_flight--;

	fake_complete(f, seen.ids[part], part + 1 == seen.fail_at ? DRAY_E_RANGE : 0);
}

static struct rig split_rig(struct dray_op **ret_ops)
{
	/* parts of 4,096 operations, because that many fit into a message too */
	struct rig r = rig_with(
		(struct dray_options){ .arena_bytes = 3 * 4096 * DMSG_OP_SIZE, .confirm_ms = 10 });

	memset(&seen, 0, sizeof(seen));
	fake.ignore_ring = true;
	*ret_ops = many(DMSG_OPS_MAX);
	return r;
}

static void a_long_list_is_split(void **state)
{
	enum { N = 10 * 4096 + 1 };
	struct dray_op *ops;
	struct rig r = split_rig(&ops);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint64_t id;

	t.ops = ops;
	t.count = N;
	t.notify = 1;
	t.wait = t.set = (struct dray_word){ r.region, 0, 1 };
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	fake_do(&fake, look, NULL);
	/* the first part waits for the word alone */
	assert_int_equal(seen.parts, 1);
	while (dray_wait(r.d, id, 0, &c) == -DRAY_E_TIMEOUT) {
		if (seen.in_flight)
			fake_do(&fake, end_one, NULL);
		dray_process(r.d, 0);
		fake_do(&fake, look, NULL);
		/* the last part comes alone */
		if (seen.ops == N)
			assert_true(seen.in_flight <= 1);
	}
	assert_int_equal(c.status, 0);
	assert_int_equal(seen.parts, 11);
	assert_int_equal(seen.ops, N);
	assert_true(seen.most_in_flight > 1);
	assert_int_equal(seen.waits, 1);
	assert_int_equal(seen.sets, 11);
	assert_int_equal(seen.notifications, 11);
	free(ops);
	rig_end(&r);
}

static void the_first_failure_ends_a_split_transfer(void **state)
{
	struct dray_op *ops;
	struct rig r = split_rig(&ops);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint64_t id;

	t.ops = ops;
	t.count = 10 * 4096;
	seen.fail_at = 2;
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	fake_do(&fake, look, NULL);
	while (dray_wait(r.d, id, 0, &c) == -DRAY_E_TIMEOUT) {
		if (seen.in_flight)
			fake_do(&fake, end_one, NULL);
		dray_process(r.d, 0);
		fake_do(&fake, look, NULL);
	}
	assert_int_equal(c.status, -DRAY_E_RANGE);
	assert_int_equal(seen.in_flight, 0);
	assert_true(seen.parts < 10);
	free(ops);
	rig_end(&r);
}

static void a_split_transfer_is_cancelled(void **state)
{
	struct dray_op *ops;
	struct rig r = split_rig(&ops);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	struct dray_info info;
	uint64_t id;

	t.ops = ops;
	t.count = 10 * 4096;
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	fake_do(&fake, look, NULL);
	assert_int_equal(dray_cancel(r.d, id), 0);
	/* it has ended when its parts have */
	assert_int_equal(dray_wait(r.d, id, 10, &c), -DRAY_E_TIMEOUT);
	while (seen.in_flight)
		fake_do(&fake, end_one, NULL);
	assert_int_equal(dray_wait(r.d, id, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_CANCELLED);
	assert_true(fake_count(&fake, DMSG_TRANSFER_CANCEL) > 0);
	while (dray_process(r.d, 0) > 0)
		;
	dray_get_info(r.d, &info);
	assert_int_equal(info.completions, 0);
	free(ops);
	rig_end(&r);
}

static void a_split_transfer_is_unconfirmed(void **state)
{
	struct dray_op *ops;
	struct rig r = split_rig(&ops);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	struct dray_event e;
	uint64_t id;

	t.ops = ops;
	t.count = 10 * 4096;
	t.deadline_ms = 10;
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	fake_do(&fake, look, NULL);
	assert_int_equal(dray_wait(r.d, id, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_UNCONFIRMED);
	assert_int_equal(dray_lent(r.d, id), 1);
	assert_true(seen.in_flight > 1);
	while (seen.in_flight) {
		assert_int_equal(dray_lent(r.d, id), 1);
		fake_do(&fake, end_one, NULL);
		while (dray_process(r.d, 0) > 0 && seen.in_flight)
			;
	}
	while (!dray_next_event(r.d, &e))
		dray_process(r.d, -1);
	assert_int_equal(e.type, DRAY_EVENT_CONFIRMED);
	assert_int_equal(e.id, id);
	assert_int_equal(e.code, -DRAY_E_DEADLINE);
	assert_int_equal(dray_lent(r.d, id), 0);
	free(ops);
	rig_end(&r);
}

static void lose(struct fake *f, void *arg)
{
	fake_hang_up(f);
	f->incarnation++;
}

static void a_split_transfer_loses_its_agent(void **state)
{
	struct dray_op *ops;
	struct rig r = split_rig(&ops);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint64_t ids[3];

	t.ops = ops;
	t.count = 10 * 4096;
	/* the arena has no room for parts of the last one */
	for (int i = 0; i < 3; i++)
		dray_submit(r.d, &t, &ids[i]);
	fake_do(&fake, lose, NULL);
	for (int i = 0; i < 2; i++) {
		if (dray_wait(r.d, ids[i], -1, &c) == 0)
			assert_true(c.status == -DRAY_E_AGENT_RESTARTED ||
				    c.status == -DRAY_E_UNCONFIRMED);
	}
	free(ops);
	rig_end(&r);
}

static void messages_without_ring(void **state)
{
	struct rig r = rig_with((struct dray_options){ .flags = DRAY_OPTION_NO_RING });
	struct dray_op *ops = many(4097);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;

	t.ops = ops;
	t.notify = 1;
	t.payload = "x";
	t.payload_length = 1;
	t.count = 4096;
	assert_int_equal(dray_run(r.d, &t, &c), 0);
	assert_int_equal(c.transport, DRAY_TRANSPORT_TCP);
	assert_false(fake.last_transfer_on_ring);
	assert_int_equal(fake.last_transfer_ops, 4096);
	assert_int_equal(fake.last_op.length, 4096);
	assert_int_equal(fake.last_payload_n, 1);
	/* in two messages */
	t.count = 4097;
	assert_int_equal(dray_run(r.d, &t, &c), 0);
	assert_int_equal(fake.last_transfer_ops, 1);
	assert_int_equal(fake.last_op.length, 4097);
	assert_int_equal(fake.last_payload_n, 1);
	fake.transfer_status = DRAY_E_RANGE;
	assert_int_equal(dray_run(r.d, &t, &c), -DRAY_E_RANGE);
	assert_string_equal(c.message, "the fake says so");
	t.count = 1;
	assert_int_equal(dray_run(r.d, &t, &c), -DRAY_E_RANGE);
	assert_string_equal(c.message, "the fake says so");
	assert_string_equal(dray_last_error(r.d), "the fake says so");
	free(ops);
	rig_end(&r);
}

/* A transfer that does not fit into the arena goes by a message if a message can hold it. */
static void small_arena(void **state)
{
	struct rig r = rig_with((struct dray_options){ .arena_bytes = 4096 });
	struct dray_op *ops = many(5000);
	struct dray_transfer t = transfer(&r);

	t.ops = ops;
	t.count = 100;
	assert_int_equal(dray_run(r.d, &t, NULL), 0);
	assert_true(fake.last_transfer_on_ring);
	t.count = 4096;
	assert_int_equal(dray_run(r.d, &t, NULL), 0);
	assert_false(fake.last_transfer_on_ring);
	/* in a message and a ring entry, of which either may be taken first */
	fake.all_ops = 0;
	t.count = 4097;
	assert_int_equal(dray_run(r.d, &t, NULL), 0);
	assert_int_equal(fake.all_ops, 4097);
	free(ops);
	rig_end(&r);
}

static void bad_transfers(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);

	t.direction = (enum dray_direction)0;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_INVALID);
	t = transfer(&r);
	t.count = 0;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_INVALID);
	t = transfer(&r);
	t.ops = NULL;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_INVALID);
	t = transfer(&r);
	t.local.id = 99;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_NOT_FOUND);
	t = transfer(&r);
	t.remote.id = 99;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_NOT_FOUND);
	t = transfer(&r);
	t.set.region.id = 99;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_NOT_FOUND);
	t = transfer(&r);
	t.notify = 1;
	t.payload = &t;
	t.payload_length = 4097;
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_process(r.d, 0), 0);
	rig_end(&r);
}

static void set_hold(struct fake *f, void *arg)
{
	f->hold_transfers = arg;
}

static void complete_last(struct fake *f, void *arg)
{
	fake_complete(f, f->last_transfer, *(uint32_t *)arg);
}

static void a_full_ring_is_busy(void **state)
{
	struct rig r = rig_with((struct dray_options){ .ring_entries = 8, .arena_bytes = 8192 });
	struct dray_transfer t[40];
	struct dray_completion c;
	struct dray_info info;
	uint64_t ids[40];
	int n, more;

	for (int i = 0; i < 40; i++)
		t[i] = transfer(&r);
	fake_do(&fake, set_hold, &fake);
	n = dray_submit_many(r.d, t, 40, ids);
	/* as many as the ring has entries, or more if the agent took some meanwhile */
	assert_in_range(n, 8, 16);
	for (int i = 0; i < 1000 && n < 16; i++) {
		more = dray_submit_many(r.d, t, 1, &ids[n]);
		if (more == 1)
			n++;
		else
			assert_int_equal(more, -DRAY_E_BUSY);
		dray_process(r.d, 1);
	}
	/* at most as many as the completion ring has entries */
	assert_int_equal(n, 16);
	assert_int_equal(dray_submit(r.d, t, NULL), -DRAY_E_BUSY);
	dray_get_info(r.d, &info);
	assert_int_equal(info.in_flight, 16);
	fake_do(&fake, set_hold, NULL);
	for (int i = 0; i < 16; i++) {
		uint32_t status = 0;

		fake.last_transfer = ids[i];
		fake_do(&fake, complete_last, &status);
	}
	for (int i = 0; i < 16; i++) {
		assert_int_equal(dray_wait(r.d, ids[i], 5000, &c), 0);
		assert_int_equal(c.status, 0);
	}
	assert_int_equal(dray_run(r.d, t, NULL), 0);
	rig_end(&r);
}

static void a_full_arena_is_busy(void **state)
{
	struct rig r = rig_with((struct dray_options){ .arena_bytes = 8192 });
	struct dray_op *ops = many(300);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint32_t status = 0;
	uint64_t id;

	t.ops = ops;
	t.count = 300;
	fake_do(&fake, set_hold, &fake);
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_BUSY);
	while (!fake.last_transfer)
		dray_process(r.d, 1);
	fake_do(&fake, complete_last, &status);
	assert_int_equal(dray_wait(r.d, id, 5000, &c), 0);
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	free(ops);
	rig_end(&r);
}

static void the_descriptor_signals_completions(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct pollfd p = { dray_fd(r.d), POLLIN, 0 };
	struct dray_completion c;

	for (int i = 0; i < 3000; i++) {
		if (i % 3 == 0)
			dray_poll(r.d);
		assert_int_equal(dray_process(r.d, 0), 0);
		assert_int_equal(dray_submit(r.d, &t, NULL), 0);
		for (;;) {
			assert_int_equal(poll(&p, 1, 5000), 1);
			if (dray_process(r.d, 0) > 0)
				break;
		}
		assert_int_equal(dray_next_completion(r.d, &c), 1);
		assert_int_equal(c.status, 0);
	}
	rig_end(&r);
}

static void polling_needs_no_descriptor(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;

	for (int i = 0; i < 1000; i++) {
		assert_int_equal(dray_submit(r.d, &t, NULL), 0);
		while (!dray_poll(r.d))
			;
		assert_int_equal(dray_next_completion(r.d, &c), 1);
	}
	rig_end(&r);
}

/* Many transfers of all kinds at once; each ends exactly once. */
static void storm(void **state)
{
	struct rig r = rig_with((struct dray_options){ .ring_entries = 64, .arena_bytes = 65536 });
	struct dray_op *ops = many(600);
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	unsigned seed = 3, started = 0, ended = 0;

	t.ops = ops;
	while (ended < 20000) {
		t.count = 1 + (size_t)rand_r(&seed) % 600;
		if (started < 20000 && dray_submit(r.d, &t, NULL) == 0)
			started++;
		else
			assert_true(dray_process(r.d, 5000) >= 0);
		while (dray_next_completion(r.d, &c) == 1) {
			assert_int_equal(c.status, 0);
			ended++;
		}
	}
	assert_int_equal(started, 20000);
	free(ops);
	rig_end(&r);
}

struct counted {
	int calls, resubmit;
	struct dray_transfer t;
};

static void count_call(struct dray *d, const struct dray_completion *c)
{
	struct counted *n = c->arg;

	dray_assert(c->status == 0);
	n->calls++;
	if (n->resubmit-- > 0)
		dray_assert(dray_submit(d, &n->t, NULL) == 0);
}

static void callbacks_run(void **state)
{
	struct rig r = rig();
	struct counted n = { .t = transfer(&r), .resubmit = 10 };
	struct dray_completion c;
	uint64_t id;

	n.t.arg = &n;
	n.t.done = count_call;
	assert_int_equal(dray_submit(r.d, &n.t, NULL), 0);
	while (n.calls < 11)
		assert_true(dray_process(r.d, 5000) > 0);
	assert_int_equal(dray_next_completion(r.d, &c), 0);
	/* a blocking wait: the callback runs, and the call returns the completion */
	n.resubmit = 0;
	assert_int_equal(dray_submit(r.d, &n.t, &id), 0);
	assert_int_equal(dray_wait(r.d, id, 5000, &c), 0);
	assert_int_equal(n.calls, 12);
	assert_int_equal(c.id, id);
	rig_end(&r);
}

static uint64_t waited_id;

static void take_all(struct dray *d, const struct dray_completion *c)
{
	struct dray_completion other;

	while (dray_next_completion(d, &other) == 1)
		dray_assert(other.id != waited_id);
}

/* A callback cannot take the completion that a blocking call waits for. */
static void callbacks_do_not_take_awaited_completions(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;

	for (int i = 0; i < 200; i++) {
		t.done = take_all;
		assert_int_equal(dray_submit(r.d, &t, NULL), 0);
		t.done = NULL;
		assert_int_equal(dray_submit(r.d, &t, &waited_id), 0);
		t.done = take_all;
		assert_int_equal(dray_submit(r.d, &t, NULL), 0);
		assert_int_equal(dray_wait(r.d, waited_id, 5000, &c), 0);
		assert_int_equal(c.id, waited_id);
	}
	rig_end(&r);
}

static void restart(struct fake *f, void *arg)
{
	fake_hang_up(f);
	f->incarnation++;
	f->hold_transfers = false;
}

static void loss_of_the_agent_ends_all_transfers(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	struct dray_token token;
	uint64_t ids[8];
	uint32_t status = 0;

	fake_do(&fake, set_hold, &fake);
	for (int i = 0; i < 8; i++)
		assert_int_equal(dray_submit(r.d, &t, &ids[i]), 0);
	while (fake.last_transfer != ids[7])
		dray_process(r.d, 1);
	/* a transfer that ended before is not lost */
	fake.last_transfer = ids[5];
	fake_do(&fake, complete_last, &status);
	fake_do(&fake, restart, NULL);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(dray_wait(r.d, ids[i], 5000, &c), 0);
		assert_int_equal(c.status, i == 5 ? 0 : -DRAY_E_AGENT_RESTARTED);
	}
	/* the remote belongs to the old session */
	while (dray_submit(r.d, &t, NULL) == -DRAY_E_SESSION_CLOSED)
		dray_process(r.d, 10);
	assert_int_equal(dray_submit(r.d, &t, NULL), -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_token_from_bytes("token", 5, &token), 0);
	assert_int_equal(dray_remote_import(r.d, &token, 0, &t.remote), 0);
	assert_int_equal(dray_run(r.d, &t, &c), 0);
	assert_true(fake.last_transfer_on_ring);
	rig_end(&r);
}

static bool cancel_known(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	struct dmsg_transfer_cancel m;
	uint8_t buf[64];

	if (h->type != DMSG_TRANSFER_CANCEL)
		return false;
	/* the first cancel arrives before the transfer */
	if (f->connections++ == 1) {
		fake_send_error(f, h->request_id, DRAY_E_NOT_FOUND, "no such transfer");
		return true;
	}
	dray_assert(dmsg_transfer_cancel_decode(body, h->length, &m, NULL) == 0);
	fake_complete(f, m.request, DRAY_E_CANCELLED);
	fake_send(f,
		  dmsg_transfer_cancel_reply_encode(buf, sizeof(buf), h->request_id,
						    &(struct dmsg_transfer_cancel_reply){}),
		  buf);
	return true;
}

static void cancelling(void **state)
{
	struct rig r = rig();
	struct dray_transfer t = transfer(&r);
	struct dray_completion c;
	uint64_t id;

	fake_do(&fake, set_hold, &fake);
	fake.hook = cancel_known;
	assert_int_equal(dray_submit(r.d, &t, &id), 0);
	assert_int_equal(dray_cancel(r.d, id), 0);
	assert_int_equal(dray_wait(r.d, id, 5000, &c), 0);
	assert_int_equal(c.status, -DRAY_E_CANCELLED);
	assert_int_equal(fake_count(&fake, DMSG_TRANSFER_CANCEL), 2);
	assert_int_equal(dray_cancel(r.d, id), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_cancel(r.d, 12345), -DRAY_E_NOT_FOUND);
	rig_end(&r);
}

static void run_times_out_on_a_stopped_agent(void **state)
{
	struct rig r = rig_with((struct dray_options){ .request_ms = 30 });
	struct dray_transfer t = transfer(&r);

	fake_do(&fake, set_hold, &fake);
	t.deadline_ms = 20;
	assert_int_equal(dray_run(r.d, &t, NULL), -DRAY_E_TIMEOUT);
	rig_end(&r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_operation_goes_by_the_ring),
		TEST(many_operations_go_by_the_arena),
		TEST(a_long_list_is_split),
		TEST(the_first_failure_ends_a_split_transfer),
		TEST(a_split_transfer_is_cancelled),
		TEST(a_split_transfer_is_unconfirmed),
		TEST(a_split_transfer_loses_its_agent),
		TEST(messages_without_ring),
		TEST(small_arena),
		TEST(bad_transfers),
		TEST(a_full_ring_is_busy),
		TEST(a_full_arena_is_busy),
		TEST(the_descriptor_signals_completions),
		TEST(polling_needs_no_descriptor),
		TEST(storm),
		TEST(callbacks_run),
		TEST(callbacks_do_not_take_awaited_completions),
		TEST(loss_of_the_agent_ends_all_transfers),
		TEST(cancelling),
		TEST(run_times_out_on_a_stopped_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
