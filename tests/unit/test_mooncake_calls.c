/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes go to and come from an engine with Mooncake, what a stop leaves of them, and when an engine is given up. No sockets. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transport/mooncake/mooncake.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define ADDRESS UINT64_C(0x7f0000001000)

struct rig {
	struct mooncake_calls q;
	struct mooncake_scratch scratch;
	struct xfer write, read;
	struct slice slices[4];
	uint8_t memory[4][64];
	struct dray_list again;
};

static struct rig *rig_new(bool with_status)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->q.with_status = with_status;
	r->write.direction = DMSG_DIRECTION_WRITE;
	r->read.direction = DMSG_DIRECTION_READ;
	dray_list_init(&r->again);
	for (unsigned i = 0; i < 4; i++) {
		/* in two ranges of memory, of 24 and 40 bytes */
		r->slices[i].n_local = 2;
		r->slices[i].local[0] = (struct iovec){ r->memory[i] + 40, 24 };
		r->slices[i].local[1] = (struct iovec){ r->memory[i], 40 };
		r->slices[i].bytes = 64;
		dray_list_init(&r->slices[i].link);
		for (unsigned k = 0; k < 64; k++)
			r->memory[i][k] = (uint8_t)(i * 64 + k);
	}
	return r;
}

/* Slice i, as calls of these sizes. */
static struct mooncake_work *add(struct rig *r, unsigned i, struct xfer *x, const uint64_t *sizes,
				 unsigned n)
{
	uint64_t at = 0;
	uint8_t k;

	r->slices[i].xfer = x;
	k = mooncake_calls_take(&r->q, &r->slices[i]);
	for (unsigned c = 0; c < n; c++) {
		mooncake_calls_add(&r->q, k, at, ADDRESS + at, sizes[c]);
		at += sizes[c];
	}
	return &r->q.works[k];
}

static const uint64_t whole[] = { 64 }, halves[] = { 30, 34 };

/* What the ranges have, up to n bytes. Returns the length. */
static size_t join(const struct iovec *iov, unsigned k, uint8_t *to, size_t n)
{
	size_t at = 0;

	for (unsigned i = 0; i < k; i++) {
		size_t part = dray_min(iov[i].iov_len, n - at);

		memcpy(to + at, iov[i].iov_base, part);
		at += part;
	}
	return at;
}

/* Byte `at` of slice i, which is in two ranges. */
static uint8_t byte_of(const struct rig *r, unsigned i, size_t at)
{
	return at < 24 ? r->memory[i][40 + at] : r->memory[i][at - 24];
}

static void check_head(const uint8_t *p, uint64_t address, uint64_t length, bool write,
		       bool with_status)
{
	struct mooncake_request rq;

	assert_int_equal(mooncake_request_get(p, &rq), 0);
	assert_true(rq.address == address && rq.length == length);
	assert_true(rq.write == write && rq.with_status == with_status);
}

/* A WRITE of two calls and a READ, taken by the kernel in pieces of any size, are the same bytes. */
static void test_send(void **state)
{
	for (uint64_t piece = 1; piece < 180; piece++) {
		struct rig *r = rig_new(true);
		uint8_t wire[256] = { 0 };
		uint64_t payload = 0;
		size_t n = 0;

		add(r, 0, &r->write, halves, 2);
		add(r, 1, &r->read, whole, 1);
		while (r->q.sent != r->q.tail) {
			unsigned k = mooncake_calls_gather(&r->q, r->scratch.iov, UINT32_MAX, 1000);
			size_t got = join(r->scratch.iov, k, wire + n, piece);

			assert_true(got > 0 && got <= piece);
			payload += mooncake_calls_sent(&r->q, got);
			n += got;
		}
		assert_int_equal(n, 3 * MOONCAKE_REQUEST_BYTES + 64);
		assert_int_equal(payload, 64);
		check_head(wire, ADDRESS, 30, true, true);
		check_head(wire + 24 + 30, ADDRESS + 30, 34, true, true);
		check_head(wire + 24 + 30 + 24 + 34, ADDRESS, 64, false, true);
		for (size_t i = 0; i < 30; i++)
			assert_int_equal(wire[24 + i], byte_of(r, 0, i));
		for (size_t i = 0; i < 34; i++)
			assert_int_equal(wire[24 + 30 + 24 + i], byte_of(r, 0, 30 + i));
		assert_int_equal(r->q.sent_of, 0);
		free(r);
	}
}

/* Neither more calls than allowed nor much more payload than there is room for. */
static void test_send_bounds(void **state)
{
	struct rig *r = rig_new(false);
	uint8_t wire[256];

	add(r, 0, &r->write, halves, 2);
	assert_int_equal(join(r->scratch.iov, mooncake_calls_gather(&r->q, r->scratch.iov, 1, 1000),
			      wire, 256),
			 24 + 30);
	check_head(wire, ADDRESS, 30, true, false);
	assert_int_equal(join(r->scratch.iov, mooncake_calls_gather(&r->q, r->scratch.iov, 2, 7),
			      wire, 256),
			 24 + 7);
	free(r);
}

static void send_all(struct rig *r)
{
	uint64_t n = 0;

	for (uint32_t i = r->q.sent; i != r->q.tail; i++) {
		const struct mooncake_call *call = mooncake_calls_at(&r->q, i);

		n += MOONCAKE_REQUEST_BYTES + (call->write ? call->bytes : 0);
	}
	mooncake_calls_sent(&r->q, n);
	assert_int_equal(r->q.sent, r->q.tail);
}

/* The places of answers: a status for each call, then the bytes of a READ in the slice's memory. */
static void test_places(void **state)
{
	struct rig *r = rig_new(true);
	struct iovec *iov = r->scratch.iov;

	add(r, 0, &r->write, whole, 1);
	add(r, 1, &r->read, halves, 2);
	send_all(r);
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 6);
	assert_ptr_equal(iov[0].iov_base, r->scratch.answers[0]);
	assert_ptr_equal(iov[1].iov_base, r->scratch.answers[1]);
	assert_ptr_equal(iov[2].iov_base, r->memory[1] + 40);
	assert_int_equal(iov[2].iov_len, 24);
	assert_ptr_equal(iov[3].iov_base, r->memory[1]);
	assert_int_equal(iov[3].iov_len, 6);
	assert_ptr_equal(iov[4].iov_base, r->scratch.answers[2]);
	assert_ptr_equal(iov[5].iov_base, r->memory[1] + 6);
	assert_int_equal(iov[5].iov_len, 34);
	/* the first answer alone; then what is left of it */
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 1, 1000), 1);
	r->q.received_of = 5;
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 1, 1000), 1);
	assert_ptr_equal(iov[0].iov_base, r->scratch.answers[0] + 5);
	assert_int_equal(iov[0].iov_len, 3);
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[0]);
	assert_int_equal(r->q.received_of, 0);
	r->q.received_of = 8 + 25;
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 3);
	assert_ptr_equal(iov[0].iov_base, r->memory[1] + 1);
	assert_int_equal(iov[0].iov_len, 5);
	/* no more than there is room for */
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 3), 1);
	assert_int_equal(iov[0].iov_len, 3);
	assert_null(mooncake_calls_answered(&r->q));
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[1]);
	assert_true(r->q.head == r->q.tail && r->q.n_works == 0);
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 0);
	free(r);
}

/* Version 1 has no status, so that a WRITE has no answer, and a READ its bytes alone. */
static void test_places_without_status(void **state)
{
	struct rig *r = rig_new(false);

	add(r, 0, &r->write, whole, 1);
	send_all(r);
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 0);
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[0]);
	add(r, 1, &r->read, whole, 1);
	send_all(r);
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 2);
	assert_ptr_equal(r->scratch.iov[0].iov_base, r->memory[1] + 40);
	free(r);
}

/* Calls that were not begun are skipped, and passed when they come first; those of other slices stay. */
static void test_skip(void **state)
{
	struct rig *r = rig_new(true);
	struct mooncake_work *one = add(r, 0, &r->write, halves, 2),
			     *two = add(r, 1, &r->read, whole, 1);
	uint8_t wire[256];

	mooncake_calls_sent(&r->q, 10);
	assert_true(mooncake_calls_has_begun(&r->q, one) && !mooncake_calls_has_begun(&r->q, two));
	mooncake_calls_skip(&r->q, one);
	assert_int_equal(one->calls, 1);
	mooncake_calls_pass(&r->q);
	assert_int_equal(r->q.sent, 0);
	assert_int_equal(join(r->scratch.iov, mooncake_calls_gather(&r->q, r->scratch.iov, 9, 1000),
			      wire, 256),
			 14 + 30 + 24);
	mooncake_calls_sent(&r->q, 14 + 30);
	mooncake_calls_pass(&r->q);
	assert_int_equal(r->q.sent, 2);
	mooncake_calls_sent(&r->q, 24);
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[0]);
	mooncake_calls_pass(&r->q);
	assert_int_equal(r->q.head, 2);
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[1]);
	free(r);
}

/* The answer to a READ whose slice was taken goes nowhere; a WRITE in the middle of its bytes has to be torn. */
static void test_detach(void **state)
{
	struct rig *r = rig_new(true);
	struct mooncake_work *one = add(r, 0, &r->read, whole, 1), *two, *three;

	send_all(r);
	two = add(r, 1, &r->write, halves, 2);
	three = add(r, 2, &r->write, whole, 1);
	assert_false(mooncake_calls_detach(&r->q, one));
	assert_int_equal(r->q.n_works, 3);
	assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 2);
	assert_ptr_equal(r->scratch.iov[1].iov_base, r->scratch.sink);
	assert_int_equal(r->scratch.iov[1].iov_len, 64);
	/* nothing of it was sent */
	assert_false(mooncake_calls_detach(&r->q, three));
	assert_int_equal(r->q.n_works, 2);
	mooncake_calls_sent(&r->q, 25);
	assert_true(mooncake_calls_detach(&r->q, two));
	assert_null(mooncake_calls_answered(&r->q));
	free(r);
}

/* After a torn call nothing more is sent: slices without a call before it are sent again, others when those are answered. */
static void test_tear(void **state)
{
	struct rig *r = rig_new(true);
	struct mooncake_work *one, *two;

	one = add(r, 0, &r->write, halves, 2);
	mooncake_calls_sent(&r->q, 24 + 30);
	two = add(r, 1, &r->read, whole, 1);
	/* the second call of the first slice is the one that is torn */
	mooncake_calls_sent(&r->q, 30);
	mooncake_calls_tear(&r->q, &r->again);
	assert_int_equal(r->q.tail, 1);
	assert_true(one->slice == &r->slices[0] && one->calls == 1 && !two->slice);
	assert_ptr_equal(dray_list_pop(&r->again, struct slice, link), &r->slices[1]);
	assert_true(dray_list_empty(&r->again));
	assert_int_equal(r->q.n_works, 1);
	assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[0]);
	assert_int_equal(r->q.n_works, 0);
	free(r);
}

/* The ring goes round, and has room for the calls of a slice until it is nearly full. */
static void test_ring(void **state)
{
	struct rig *r = rig_new(true);

	for (unsigned i = 0; i < 3 * MOONCAKE_CALLS; i++) {
		add(r, i % 4, &r->read, whole, 1);
		send_all(r);
		assert_true(mooncake_calls_fit(&r->q));
		assert_int_equal(mooncake_calls_places(&r->q, &r->scratch, 64, 1000), 3);
		assert_ptr_equal(mooncake_calls_answered(&r->q), &r->slices[i % 4]);
	}
	add(r, 0, &r->read, NULL, 0);
	for (unsigned n = 0; n < MOONCAKE_CALLS - MOONCAKE_SLICE_CALLS; n++) {
		assert_true(mooncake_calls_fit(&r->q));
		mooncake_calls_add(&r->q, 0, 0, ADDRESS, 1);
	}
	assert_true(mooncake_calls_fit(&r->q));
	mooncake_calls_add(&r->q, 0, 0, ADDRESS, 1);
	assert_false(mooncake_calls_fit(&r->q));
	free(r);
}

/* --- engines -------------------------------------------------------------------------------------- */

struct engine_rig {
	struct core core;
	struct mooncake m;
	struct mooncake_engine engine;
	struct mooncake_channel *ch;
};

static struct engine_rig *engine_rig_new(void)
{
	struct engine_rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->core.cfg.backoff_min_ns = 50 * DRAY_NS_PER_MS;
	r->core.cfg.backoff_max_ns = DRAY_NS_PER_SEC;
	r->core.cfg.connect_timeout_ns = 5 * DRAY_NS_PER_SEC;
	r->core.now_ns = DRAY_NS_PER_SEC;
	r->m.c = &r->core;
	r->m.timer_ns = INT64_MAX;
	r->engine.m = &r->m;
	r->ch = &r->engine.channels[0];
	r->ch->engine = &r->engine;
	return r;
}

/* A port where nobody listens is lost after three attempts, with pauses that grow. */
static void test_refused(void **state)
{
	struct engine_rig *r = engine_rig_new();

	for (unsigned i = 0; i < 3; i++) {
		int64_t pause;

		assert_false(r->engine.lost);
		mooncake_channel_failed(r->ch, -ECONNREFUSED);
		pause = r->ch->connect_ns - r->core.now_ns;
		assert_in_range(pause, (25 << i) * DRAY_NS_PER_MS, (50 << i) * DRAY_NS_PER_MS);
		assert_true(r->m.timer_ns <= r->ch->connect_ns);
		r->core.now_ns = r->ch->connect_ns;
	}
	assert_true(r->engine.lost);
	free(r);
}

/* One that does not answer is tried for peer.connect_timeout; an answer in between begins anew. */
static void test_silent(void **state)
{
	struct engine_rig *r = engine_rig_new();

	for (unsigned i = 0; i < 20; i++) {
		mooncake_channel_failed(r->ch, 0);
		r->core.now_ns += 200 * DRAY_NS_PER_MS;
	}
	assert_false(r->engine.lost);
	r->ch->refused.n = 0;
	r->core.now_ns += 5 * DRAY_NS_PER_SEC;
	mooncake_channel_failed(r->ch, 0);
	mooncake_channel_failed(r->ch, 0);
	mooncake_channel_failed(r->ch, 0);
	assert_false(r->engine.lost);
	r->core.now_ns += 5 * DRAY_NS_PER_SEC;
	mooncake_channel_failed(r->ch, 0);
	assert_true(r->engine.lost);
	free(r);
}

/* A lack of this agent's own says nothing about the engine, and is counted by itself. */
static void test_lack(void **state)
{
	struct engine_rig *r = engine_rig_new();

	mooncake_channel_failed(r->ch, 0);
	for (unsigned i = 0; !r->engine.lack; i++) {
		assert_true(i < 100);
		mooncake_channel_failed(r->ch, -EMFILE);
		r->core.now_ns += 200 * DRAY_NS_PER_MS;
	}
	assert_int_equal(r->engine.lack, -EMFILE);
	assert_false(r->engine.lost);
	mooncake_channel_failed(r->ch, -ECONNREFUSED);
	assert_false(r->engine.lost);
	free(r);
}

/* When both come in turn, each is counted all the same, so that the engine is given up as early as without the lack. */
static void test_lack_and_refusal(void **state)
{
	struct engine_rig *r = engine_rig_new();

	for (unsigned i = 0; i < 3; i++) {
		assert_false(r->engine.lost);
		mooncake_channel_failed(r->ch, -EMFILE);
		mooncake_channel_failed(r->ch, -ECONNREFUSED);
	}
	assert_true(r->engine.lost);
	free(r);
	r = engine_rig_new();
	for (unsigned i = 0; !r->engine.lost; i++) {
		assert_true(i < 100);
		mooncake_channel_failed(r->ch, -EMFILE);
		mooncake_channel_failed(r->ch, 0);
		r->core.now_ns += 200 * DRAY_NS_PER_MS;
	}
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_send),    cmocka_unit_test(test_send_bounds),
		cmocka_unit_test(test_places),  cmocka_unit_test(test_places_without_status),
		cmocka_unit_test(test_skip),    cmocka_unit_test(test_detach),
		cmocka_unit_test(test_tear),    cmocka_unit_test(test_ring),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_silent),
		cmocka_unit_test(test_lack),    cmocka_unit_test(test_lack_and_refusal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
