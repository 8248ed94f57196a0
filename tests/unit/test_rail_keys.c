/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of memory on rails, and the rails' states. */
#include "agent/control/rails/rail_fsm.h"
#include "agent/model/keys.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static struct rail_keys *make(const struct rail_key *v, uint32_t n, uint64_t length, bool by_base)
{
	struct rail_keys *k = rail_keys_new(n);

	assert_non_null(k);
	for (uint32_t i = 0; i < n; i++)
		k->v[i] = v[i];
	rail_keys_seal(k, length, by_base);
	return k;
}

static void test_cover(void **state)
{
	static const struct rail_key v[] = {
		/* rail, key, base, offset, length */
		{ 1, 11, 0x9000, 100, 100, 0 },
		{ 1, 10, 0x1000, 0, 100, 0 }, /* whole, in any order */
		{ 2, 20, 0x1000, 0, 199, 0 }, /* short */
		{ 3, 30, 0x1000, 0, 100, 0 },
		{ 3, 31, 0x2000, 101, 99, 0 }, /* a gap */
		{ 4, 40, 0x1000, 0, 150, 0 },
		{ 4, 41, 0x2000, 100, 100, 0 }, /* an overlap */
		{ 5, 50, 0x1000, 0, 0, 0 },
		{ 5, 51, 0x1000, 0, 200, 0 },           /* an empty piece */
		{ 6, 60, UINT64_MAX - 100, 0, 200, 0 }, /* wraps around */
		{ 64, 70, 0x1000, 0, 200, 0 },          /* no such rail */
		{ 7, 80, 0x1000, UINT64_MAX, 200, 0 },  /* overflows */
		{ 63, 90, 0x1000, 0, 200, 0 },
	};
	struct rail_keys *k = make(v, sizeof(v) / sizeof(v[0]), 200, false);

	(void)state;
	assert_int_equal(k->rails, 1ull << 1 | 1ull << 63);
	assert_true(rail_keys_have(k, 1));
	assert_false(rail_keys_have(k, 2));
	assert_false(rail_keys_have(k, 64));
	assert_false(rail_keys_have(NULL, 1));
	assert_int_equal(rail_keys_find(k, 1, 0)->key, 10);
	assert_int_equal(rail_keys_find(k, 1, 99)->key, 10);
	assert_int_equal(rail_keys_find(k, 1, 100)->key, 11);
	assert_int_equal(rail_keys_find(k, 1, 199)->key, 11);
	assert_null(rail_keys_find(k, 1, 200));
	assert_null(rail_keys_find(k, 0, 0));
	assert_null(rail_keys_find(k, 9, 0));
	rail_keys_unref(k);
}

static void test_by_base(void **state)
{
	/* the extents' order in memory differs from that in the region */
	static const struct rail_key v[] = { { 0, 1, 0x3000, 0, 0x1000, 0 },
					     { 0, 2, 0x1000, 0x1000, 0x1000, 0 },
					     { 1, 3, 0x1000, 0, 0x2000, 0 } };
	struct rail_keys *k = make(v, 3, 0x2000, true);

	(void)state;
	assert_int_equal(k->rails, 3);
	assert_int_equal(rail_keys_find(k, 0, 0x3fff)->key, 1);
	assert_int_equal(rail_keys_find(k, 0, 0x1000)->key, 2);
	assert_null(rail_keys_find(k, 0, 0x2000));
	assert_null(rail_keys_find(k, 0, 0xfff));
	assert_int_equal(rail_keys_find(k, 1, 0x2fff)->key, 3);
	rail_keys_unref(k);
}

static void test_parts(void **state)
{
	static const struct pmsg_rail v[] = {
		{ 1, 11, 0x9000, 200, 100 },
		{ 1, 10, 0x1000, 100, 100 },
		{ 2, 20, 0x1000, 100, 100 },
		{ 3, 30, 0x1000, 0, UINT64_MAX },
		{ 4, 40, UINT64_MAX - 10, 100, 200 },
		{ 63, 50, 0x1000, 150, 100 },
		{ 64, 60, 0x1000, 0, 1000 },
		/* a part of a larger piece; with both, it is not clear which one has the bytes behind */
		{ 5, 70, 0x1000, 0, 1000 },
		{ 5, 71, 0x3000, 170, 10 },
		{ 6, 80, 0x1000, UINT64_MAX, 2 },
	};
	uint8_t buf[DRAY_ARRAY_SIZE(v) * PMSG_RAIL_SIZE];
	struct dray_vec rails = { buf, DRAY_ARRAY_SIZE(v) };
	struct rail_keys *k;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(v); i++)
		pmsg_rail_put(buf + (size_t)i * PMSG_RAIL_SIZE, &v[i]);
	k = rail_keys_read_parts(&rails);
	assert_int_equal(k->rails, 0x1eull | 1ull << 63);
	rail_keys_need(k, 160, 40);
	assert_int_equal(k->rails, 6 | 1ull << 63);
	rail_keys_need(k, 199, 2);
	assert_int_equal(k->rails, 2 | 1ull << 63);
	assert_int_equal(rail_keys_find(k, 1, 200)->key, 11);
	rail_keys_need(k, 120, 100);
	assert_int_equal(k->rails, 2);
	rail_keys_need(k, UINT64_MAX - 1, 10);
	assert_int_equal(k->rails, 0);
	rail_keys_unref(k);
	rails.n = 0;
	assert_null(rail_keys_read_parts(&rails));
}

/* Sets of the same memory are told apart by any field. */
static void test_same(void **state)
{
	struct rail_keys *a = rail_keys_new(2), *b = rail_keys_new(2), *one = rail_keys_new(1);
	uint32_t *const fields[] = { &b->v[1].rail, &b->v[1].key, &b->v[1].rkey };
	uint64_t *const wide[] = { &b->v[0].base, &b->v[0].offset, &b->v[0].length };

	assert_true(rail_keys_same(a, b));
	assert_false(rail_keys_same(a, one));
	for (unsigned i = 0; i < 3; i++) {
		++*fields[i];
		assert_false(rail_keys_same(a, b));
		--*fields[i];
		++*wide[i];
		assert_false(rail_keys_same(a, b));
		--*wide[i];
	}
	assert_true(rail_keys_same(a, b));
	rail_keys_unref(a);
	rail_keys_unref(b);
	rail_keys_unref(one);
}

static void count(void *arg)
{
	++*(unsigned *)arg;
}

static void test_last_reference(void **state)
{
	struct rail_keys *k = rail_keys_new(0);
	unsigned n = 0;

	(void)state;
	assert_non_null(k);
	k->gone = count;
	k->arg = &n;
	rail_keys_seal(k, 1, true);
	assert_int_equal(k->rails, 0);
	rail_keys_ref(k);
	rail_keys_unref(k);
	assert_int_equal(n, 0);
	rail_keys_unref(k);
	assert_int_equal(n, 1);
	assert_null(rail_keys_unref(NULL));
}

/* The pieces of all, for the rails that all have; and none of them goes before the last use. */
static void test_join(void **state)
{
	static const struct rail_key v[2][2] = {
		{ { 0, 1, 0x9000, 0, 0x1000, 0 }, { 1, 2, 0x9000, 0, 0x1000, 0 } },
		{ { 1, 3, 0x2000, 0, 0x1000, 0 }, { 2, 4, 0x2000, 0, 0x1000, 0 } },
	};
	struct rail_keys *of[2], *k;
	unsigned n = 0;

	for (unsigned i = 0; i < 2; i++) {
		of[i] = make(v[i], 2, 0x1000, true);
		of[i]->gone = count;
		of[i]->arg = &n;
	}
	k = rail_keys_join(of, 1);
	assert_ptr_equal(k, of[0]);
	rail_keys_unref(k);
	k = rail_keys_join(of, 2);
	assert_int_equal(k->rails, 2);
	assert_int_equal(rail_keys_find(k, 1, 0x9800)->key, 2);
	assert_int_equal(rail_keys_find(k, 1, 0x2800)->key, 3);
	assert_null(rail_keys_find(k, 1, 0x3000));
	rail_keys_unref(of[0]);
	rail_keys_unref(of[1]);
	assert_int_equal(n, 0);
	rail_keys_unref(k);
	assert_int_equal(n, 2);
}

/* --- states ------------------------------------------------------------------------------------- */

static void steps(enum rail_state s, enum rail_event e, bool usable, enum rail_state to,
		  unsigned actions)
{
	struct rail_step r = rail_step(s, e, usable);

	if (r.state != to || r.actions != actions)
		fail_msg("%s, %s: %s with 0x%x instead of %s with 0x%x", rail_state_name(s),
			 rail_event_name(e), rail_state_name(r.state), r.actions,
			 rail_state_name(to), actions);
}

static void test_states(void **state)
{
	const unsigned open = RAIL_ACTION_OPEN, up = RAIL_ACTION_UP, lose = RAIL_ACTION_LOSE,
		       close = RAIL_ACTION_CLOSE, wait = RAIL_ACTION_WAIT;

	(void)state;
	steps(RAIL_ABSENT, RAIL_EVENT_USABLE, true, RAIL_OPENING, open);
	steps(RAIL_ABSENT, RAIL_EVENT_GONE, false, RAIL_ABSENT, 0);
	steps(RAIL_OPENING, RAIL_EVENT_OPENED, true, RAIL_UP, up);
	steps(RAIL_OPENING, RAIL_EVENT_OPENED, false, RAIL_DOWN, 0);
	steps(RAIL_OPENING, RAIL_EVENT_OPEN_FAILED, true, RAIL_FAILED, wait);
	steps(RAIL_OPENING, RAIL_EVENT_GONE, false, RAIL_CLOSING, close);
	steps(RAIL_OPENING, RAIL_EVENT_UNUSABLE, false, RAIL_OPENING, 0);
	steps(RAIL_UP, RAIL_EVENT_UNUSABLE, false, RAIL_DOWN, lose);
	steps(RAIL_UP, RAIL_EVENT_MOVED, true, RAIL_UP, lose | up);
	steps(RAIL_UP, RAIL_EVENT_GONE, false, RAIL_CLOSING, lose | close);
	steps(RAIL_UP, RAIL_EVENT_USABLE, true, RAIL_UP, 0);
	steps(RAIL_DOWN, RAIL_EVENT_USABLE, true, RAIL_UP, up);
	steps(RAIL_DOWN, RAIL_EVENT_GONE, false, RAIL_CLOSING, close);
	steps(RAIL_FAILED, RAIL_EVENT_RETRY, true, RAIL_OPENING, open);
	steps(RAIL_FAILED, RAIL_EVENT_RETRY, false, RAIL_ABSENT, 0);
	steps(RAIL_FAILED, RAIL_EVENT_GONE, false, RAIL_ABSENT, 0);
	steps(RAIL_FAILED, RAIL_EVENT_USABLE, true, RAIL_FAILED, 0);
	steps(RAIL_CLOSING, RAIL_EVENT_CLOSED, false, RAIL_ABSENT, 0);
	steps(RAIL_CLOSING, RAIL_EVENT_CLOSED, true, RAIL_FAILED, wait);
	steps(RAIL_CLOSING, RAIL_EVENT_USABLE, true, RAIL_CLOSING, 0);
}

/* Any events in any order: an open device is used or closed, and no device is opened twice. */
static void test_any_order(void **state)
{
	(void)state;
	for (unsigned s = 0; s < RAIL_STATE_N; s++)
		for (unsigned e = 0; e < RAIL_EVENT_N; e++)
			for (unsigned usable = 0; usable < 2; usable++) {
				struct rail_step r =
					rail_step((enum rail_state)s, (enum rail_event)e, usable);

				assert_true(r.state < RAIL_STATE_N);
				assert_int_equal(r.state == RAIL_OPENING && s != RAIL_OPENING,
						 !!(r.actions & RAIL_ACTION_OPEN));
				assert_int_equal(r.state == RAIL_CLOSING && s != RAIL_CLOSING,
						 !!(r.actions & RAIL_ACTION_CLOSE));
				if (s == RAIL_UP && r.state != RAIL_UP)
					assert_true(r.actions & RAIL_ACTION_LOSE);
				if (r.state == RAIL_UP && s != RAIL_UP)
					assert_true(r.actions & RAIL_ACTION_UP);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cover),          cmocka_unit_test(test_by_base),
		cmocka_unit_test(test_last_reference), cmocka_unit_test(test_states),
		cmocka_unit_test(test_parts),          cmocka_unit_test(test_states),
		cmocka_unit_test(test_join),           cmocka_unit_test(test_states),
		cmocka_unit_test(test_any_order),      cmocka_unit_test(test_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
