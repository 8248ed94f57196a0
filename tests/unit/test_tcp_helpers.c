/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of large READs that another worker receives, into host memory, and into buffers of slices of GPU memory. The side that reads is a, its
 * peer b; the helper is another worker of a's agent.
 */
#include "agent/data/transfer/delegate.h"

#include "agent/data/transfer/sched.h"
#include "agent/data/transport/tcp/tcp.h"
#include "tests/gpu/fake.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1ull << 20)
#define BYTES (16 * MIB)
#define SEED 5
/* In buffers of 1 MiB, 16 of which one peer may have. */
#define STAGING (64 * MIB)
#define OTHER_SEED 6

static struct lab lab;
static struct lab_side *const a = &lab.side[0], *const b = &lab.side[1], *const h = &lab.helper;

static uint64_t helped(void)
{
	return lab_counter(a, DRAY_METRIC_TCP_HELPED_SLICES_TOTAL);
}

static const struct dray_list *away(void)
{
	return &tcp_peer_get(a->tcp, LAB_PEER)->channels[DMSG_CLASS_BULK].helpers.slices;
}

static unsigned n_away(void)
{
	return (unsigned)dray_list_length(away());
}

/* Until a helper that had no stream, or had a transfer of its own, gets slices again. */
static void later(void)
{
	lab_advance(&lab, 11);
}

static void read_all(uint64_t id)
{
	lab_transfer1(a, id, DMSG_DIRECTION_READ, 0, 0, BYTES);
}

static void expect_end(uint64_t id, uint32_t code)
{
	lab_until(&lab, lab_end(a, id));
	assert_int_equal(lab_end(a, id)->code, code);
}

static void start(void)
{
	lab_init(&lab, BYTES, 4);
	lab_helper_start(&lab);
	lab_fill(b, 0, BYTES, SEED);
}

/* The streams of both workers are open. */
static void start_open(void)
{
	start();
	read_all(1000);
	expect_end(1000, 0);
	/* its streams open after it was asked for the first time */
	lab_settle(&lab);
	lab_fill(a, 0, BYTES, OTHER_SEED);
	later();
}

/* Slices are on the way by both workers, and b answers nothing. */
static void start_on_the_way(void)
{
	start_open();
	read_all(1);
	for (unsigned i = 0; i < 4; i++) {
		lab_side_turn(a);
		lab_side_turn(h);
	}
	assert_true(n_away());
	assert_null(lab_end(a, 1));
}

/* Some of what the helper receives is there, and slices are still with it. */
static void until_half(void)
{
	uint64_t before = lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL);

	lab_until(&lab, lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL) > before);
	assert_true(n_away());
}

static void test_both_receive(void **state)
{
	uint64_t before, own;

	start_open();
	assert_int_equal(helped(), 0);
	before = lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL);
	own = lab_counter(a, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL);
	read_all(1);
	expect_end(1, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_in_range(helped(), 4, 12);
	assert_true(lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL) - before ==
		    helped() * MIB);
	assert_true(lab_counter(a, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL) - own ==
		    BYTES - helped() * MIB);
	assert_int_equal(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL), 0);
	lab_deinit(&lab);
}

/* Not worth a wake-up, or not a READ, or of the other class; or the helper has transfers of its own. */
static void test_others_stay(void **state)
{
	static const uint64_t op[1][3] = { { 0, 0, BYTES } };

	start_open();
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 2 * MIB - 1);
	expect_end(1, 0);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 0, 0, BYTES);
	expect_end(2, 0);
	lab_transfer(a, 3, DMSG_DIRECTION_READ, DMSG_CLASS_LATENCY, op, 1);
	expect_end(3, 0);
	core_count(&h->counters, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
	read_all(4);
	expect_end(4, 0);
	assert_int_equal(helped(), 0);
	core_count_down(&h->counters, DRAY_METRIC_TRANSFERS_IN_FLIGHT, 1);
	/* or it had one just now, and may have the next one soon */
	h->counters.asked_ns = a->core.now_ns;
	read_all(5);
	expect_end(5, 0);
	assert_int_equal(helped(), 0);
	later();
	read_all(6);
	expect_end(6, 0);
	assert_true(helped());
	lab_deinit(&lab);
}

/* A small transfer of the session whose turn comes in the middle of a large READ goes by the worker's own streams. */
static void test_small_one_between(void **state)
{
	start_open();
	read_all(1);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, 4096);
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 0, 0, 3 * MIB);
	expect_end(2, 0);
	expect_end(3, 0);
	expect_end(1, 0);
	assert_true(helped());
	lab_deinit(&lab);
}

static void stop(uint64_t id, bool urgent)
{
	xfer_stop(&a->core, xfer_find(&a->session, id), DRAY_E_CANCELLED, NULL, urgent);
}

/* The memory is the client's again at once, whatever the helper does. */
static void recalled(bool urgent, bool half)
{
	start_on_the_way();
	if (half)
		until_half();
	stop(1, urgent);
	assert_non_null(lab_end(a, 1));
	assert_int_equal(lab_end(a, 1)->code, DRAY_E_CANCELLED);
	assert_int_equal(n_away(), 0);
	assert_int_equal(a->session.slices[DMSG_CLASS_BULK], 0);
	lab_fill(a, 0, BYTES, OTHER_SEED);
	lab_settle(&lab);
	assert_true(lab_filled(a, 0, BYTES, OTHER_SEED));
	/* the helper's streams are as good as before */
	read_all(2);
	expect_end(2, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_true(helped());
	assert_int_equal(h->lost.n, 0);
	lab_deinit(&lab);
}

static void test_recalled(void **state)
{
	recalled(false, false);
}

static void test_recalled_urgently(void **state)
{
	recalled(true, false);
}

static void test_recalled_half_way(void **state)
{
	recalled(false, true);
}

static void test_recalled_urgently_half_way(void **state)
{
	recalled(true, true);
}

/* Slices that the helper has not looked at are never asked for. */
static void test_recalled_before(void **state)
{
	uint64_t before;

	start_open();
	before = lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL);
	lab.helper_pauses = true;
	read_all(1);
	lab_side_turn(a);
	assert_true(n_away());
	stop(1, false);
	assert_non_null(lab_end(a, 1));
	lab.helper_pauses = false;
	lab_settle(&lab);
	assert_true(lab_counter(h, DRAY_METRIC_TCP_RECEIVED_BYTES_TOTAL) == before);
	assert_int_equal(helped(), 0);
	lab_deinit(&lab);
}

/* A helper without a processor delays nothing: its slices go by the worker's own streams. */
static void test_taken_back(void **state)
{
	start_open();
	lab.helper_pauses = true;
	read_all(1);
	lab_side_turn(a);
	assert_true(n_away());
	assert_true(transport_tcp.tick(&a->core, a->tcp) != INT64_MAX);
	lab_advance(&lab, 3);
	expect_end(1, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_int_equal(helped(), 0);
	/* what it finds when it goes on is of no use any more */
	lab_fill(a, 0, BYTES, OTHER_SEED);
	lab.helper_pauses = false;
	lab_settle(&lab);
	assert_true(lab_filled(a, 0, BYTES, OTHER_SEED));
	later();
	read_all(2);
	expect_end(2, 0);
	assert_true(helped());
	lab_deinit(&lab);
}

/* The slices of a stream of the helper's that breaks go by other streams. */
static void test_stream_breaks(void **state)
{
	start_on_the_way();
	until_half();
	for (uint64_t id = 1; id <= 2; id++)
		lab_stream_reset(b, LAB_PEER, (uint64_t)h->core.index << 32 | id);
	expect_end(1, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_true(h->lost.n);
	assert_int_equal(a->lost.n, 0);
	assert_true(lab_counter(a, DRAY_METRIC_SLICES_RESENT_TOTAL));
	lab_deinit(&lab);
}

/* One of the workers hears first that the peer is down. */
static void test_peer_down_at_helper(void **state)
{
	start_on_the_way();
	transport_tcp.peer_down(&h->core, h->tcp, LAB_PEER, DRAY_E_PEER_LOST);
	assert_int_equal(h->n_gone, 1);
	expect_end(1, DRAY_E_PEER_LOST);
	/* it goes on without a helper that does not know the peer */
	read_all(2);
	expect_end(2, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_int_equal(helped(), 0);
	lab_deinit(&lab);
}

static void test_peer_down(void **state)
{
	start_on_the_way();
	until_half();
	lab_peer_down(a, DRAY_E_PEER_LOST);
	assert_int_equal(a->n_gone, 1);
	assert_non_null(lab_end(a, 1));
	assert_int_equal(lab_end(a, 1)->code, DRAY_E_PEER_LOST);
	lab_fill(a, 0, BYTES, OTHER_SEED);
	lab_settle(&lab);
	assert_true(lab_filled(a, 0, BYTES, OTHER_SEED));
	a->n_gone = 0;
	transport_tcp.peer_up(&a->core, a->tcp, &a->link);
	lab_deinit(&lab);
}

/* The worker whose session it is reports the fault. */
static void test_fault(void **state)
{
	start_on_the_way();
	if (!lab_punch(a, 0, BYTES)) {
		expect_end(1, 0);
		lab_deinit(&lab);
		skip();
	}
	/* its own streams bring nothing */
	while (!h->core.awaited || !lab_end(a, 1)) {
		lab_side_turn(b);
		lab_side_turn(h);
		if (!dray_list_empty(away()) && delegates_wait(&a->core))
			tcp_helpers_progress(a->tcp);
	}
	assert_int_equal(lab_end(a, 1)->code, DRAY_E_REGION_FAULT);
	assert_int_equal(a->n_faults, 1);
	assert_int_equal(h->n_faults, 0);
	lab_deinit(&lab);
}

static uint64_t counted;

static int count(const struct xfer *x, const struct slice *s)
{
	/* the bytes are in place */
	if (*(const uint8_t *)s->local[0].iov_base == lab_pattern(s->at, SEED))
		counted += s->bytes;
	return 0;
}

/* Each byte is checked once, by the worker that has received it. */
static void test_checked_once(void **state)
{
	start_open();
	counted = 0;
	read_all(1);
	xfer_find(&a->session, 1)->arrived = count;
	lab_until(&lab, helped());
	assert_true(counted >= helped() * TCP_CHECKED_MAX);
	expect_end(1, 0);
	assert_true(counted == BYTES);
	lab_deinit(&lab);
}

static int refuse(const struct xfer *x, const struct slice *s)
{
	return -1;
}

static void test_check_faults(void **state)
{
	start_on_the_way();
	xfer_find(&a->session, 1)->arrived = refuse;
	expect_end(1, DRAY_E_REGION_FAULT);
	assert_true(a->n_faults);
	assert_int_equal(h->n_faults, 0);
	lab_deinit(&lab);
}

/* The agent ends while a helper still waits for answers. */
static void test_end_on_the_way(void **state)
{
	start_on_the_way();
	until_half();
	stop(1, true);
	lab.forced_end = true;
	lab_deinit(&lab);
}

/* The only slice that is left comes back from a helper whose stream has broken. */
static void test_last_one_comes_back(void **state)
{
	struct tcp_requester *p = NULL;

	start_open();
	lab_transfer1(a, 1, DMSG_DIRECTION_READ, 0, 0, 2 * MIB);
	lab.helper_pauses = true;
	lab_side_turn(a);
	assert_int_equal(n_away(), 1);
	/* the helper asks for it, and sees no answer */
	lab_side_turn(h);
	lab_until(&lab, lab_xfer(a, 1)->bytes_done == MIB);
	/* until no timer of the beginning is left */
	lab_advance(&lab, 20);
	lab_settle(&lab);
	assert_int_equal(n_away(), 1);
	dray_list_for_each(&tcp_peer_get(h->tcp, LAB_PEER)->channels[DMSG_CLASS_BULK].streams, it,
			   struct tcp_requester, s.peer_link)
		if (it->head != it->tail)
			p = it;
	assert_non_null(p);
	tcp_requester_lose(&p->s);
	lab.helper_pauses = false;
	expect_end(1, 0);
	assert_true(lab_filled(a, 0, 2 * MIB, SEED));
	lab_deinit(&lab);
}

/* READs of one session fill the way to this worker and its helpers; the transfers of others, and WRITEs, go on. */
static void test_others_pass(void **state)
{
	struct xfer_session other;
	uint8_t op[DMSG_OP_SIZE];
	struct xfer_request r = { .request_id = 2,
				  .spec.direction = DMSG_DIRECTION_WRITE,
				  .spec.class = DMSG_CLASS_BULK,
				  .spec.local = LAB_REGION,
				  .spec.remote = LAB_REMOTE,
				  .ops = op,
				  .n_ops = 1 };
	struct dray_err err;
	uint64_t before;

	start_open();
	assert_int_equal(xfer_session_init(&a->core, &other, LAB_HANDLE(9), &a->shared), 0);
	read_all(1);
	for (unsigned i = 0; i < 4; i++)
		lab_side_turn(a);
	before = lab_counter(a, DRAY_METRIC_TCP_SENT_BYTES_TOTAL);
	dmsg_op_put(op, &(struct dmsg_op){ 0, 0, MIB });
	assert_int_equal(xfer_start(&a->core, &other, &r, &err), 0);
	for (unsigned i = 0; i < 4; i++)
		lab_side_turn(a);
	assert_true(lab_counter(a, DRAY_METRIC_TCP_SENT_BYTES_TOTAL) > before);
	expect_end(2, 0);
	expect_end(1, 0);
	xfer_session_deinit(&other);
	lab_deinit(&lab);
}

/* Half of the buffers are for requests of peers, and half of the rest for one peer. */
static void test_few_buffers(void **state)
{
	lab_staging[0] = 8 * MIB;
	start_open();
	read_all(1);
	expect_end(1, 0);
	assert_true(lab_filled(a, 0, BYTES, SEED));
	assert_true(helped());
	lab_deinit(&lab);
	lab_staging[0] = STAGING;
}

/* What helpers have received cannot be scattered, and what they have not is recalled. */
static void test_device_lost(void **state)
{
	start_on_the_way();
	until_half();
	fake_gpu_lose(LAB_GPU, true);
	expect_end(1, DRAY_E_GPU_LOST);
	assert_int_equal(n_away(), 0);
	lab_settle(&lab);
	lab_deinit(&lab);
}

/* The helper has received all of its slices, and the device copies none of them. */
static void test_recalled_while_scattered(void **state)
{
	start_open();
	fake_gpu_hold(true);
	read_all(1);
	lab_until(&lab, helped() >= 2);
	stop(1, false);
	fake_gpu_hold(false);
	expect_end(1, DRAY_E_CANCELLED);
	lab_fill(a, 0, BYTES, OTHER_SEED);
	lab_settle(&lab);
	assert_true(lab_filled(a, 0, BYTES, OTHER_SEED));
	lab_deinit(&lab);
}

static int into_gpu(void **state)
{
	lab_staging[0] = STAGING;
	return 0;
}

#define TESTS_OF_BOTH                                                                             \
	cmocka_unit_test(test_both_receive), cmocka_unit_test(test_others_stay),                  \
		cmocka_unit_test(test_small_one_between), cmocka_unit_test(test_recalled),        \
		cmocka_unit_test(test_recalled_urgently),                                         \
		cmocka_unit_test(test_recalled_half_way),                                         \
		cmocka_unit_test(test_recalled_urgently_half_way),                                \
		cmocka_unit_test(test_recalled_before), cmocka_unit_test(test_taken_back),        \
		cmocka_unit_test(test_stream_breaks), cmocka_unit_test(test_peer_down_at_helper), \
		cmocka_unit_test(test_peer_down), cmocka_unit_test(test_end_on_the_way),          \
		cmocka_unit_test(test_last_one_comes_back)

int main(void)
{
	const struct CMUnitTest host[] = {
		TESTS_OF_BOTH,
		cmocka_unit_test(test_fault),
		cmocka_unit_test(test_checked_once),
		cmocka_unit_test(test_check_faults),
		cmocka_unit_test(test_others_pass),
	};
	const struct CMUnitTest gpu[] = {
		TESTS_OF_BOTH,
		cmocka_unit_test(test_few_buffers),
		cmocka_unit_test(test_device_lost),
		cmocka_unit_test(test_recalled_while_scattered),
	};

	return cmocka_run_group_tests(host, NULL, NULL) +
	       cmocka_run_group_tests(gpu, into_gpu, NULL);
}
