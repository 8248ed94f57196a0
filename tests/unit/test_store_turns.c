/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of an owner that read from disk take turns, so that a large one does not hold up small ones. */
#include <string.h>

#include "agent/store/turns.h"
#include "tests/unit/cm.h"

#define BUDGET 100u
#define N 400u

struct part {
	struct dray_list link;
	unsigned batch;
	uint64_t bytes;
};

static struct rig {
	struct turns turns;
	struct part parts[N];
	unsigned n;
	struct turns_share shares[N];
} rig;

static int set_up(void **state)
{
	memset(&rig, 0, sizeof(rig));
	turns_init(&rig.turns);
	return 0;
}

/* Returns how many turns the batch has begun. */
static unsigned add(unsigned batch, unsigned n, uint64_t bytes)
{
	unsigned begun = 0;

	while (n--) {
		struct part *p = &rig.parts[rig.n++];

		*p = (struct part){ .batch = batch, .bytes = bytes };
		begun += turns_add(&rig.turns, &rig.shares[batch], &p->link, bytes, BUDGET);
	}
	return begun;
}

/* The batch of the next part. */
static unsigned take(void)
{
	struct dray_list *l = turns_first(&rig.turns);
	struct part *p = dray_container_of(l, struct part, link);

	assert_non_null(l);
	turns_take(&rig.turns, l, p->bytes);
	return p->batch;
}

static void takes(unsigned batch, unsigned n)
{
	while (n--)
		assert_int_equal(take(), batch);
}

static void test_one_batch_is_in_order(void **state)
{
	assert_int_equal(add(0, 35, 10), 4);
	assert_int_equal(rig.shares[0].n, 4);
	for (unsigned i = 0; i < 35; i++) {
		struct dray_list *l = turns_first(&rig.turns);

		assert_ptr_equal(l, &rig.parts[i].link);
		turns_take(&rig.turns, l, 10);
	}
	assert_null(turns_first(&rig.turns));
}

/* The small one waits for the rest of a turn. */
static void test_small_batch_behind_a_large_one(void **state)
{
	add(0, 100, 10);
	takes(0, 3);
	assert_int_equal(add(1, 2, 10), 1);
	takes(0, 7);
	takes(1, 2);
	takes(0, 90);
	assert_null(turns_first(&rig.turns));
}

static void test_two_large_batches_share(void **state)
{
	add(0, 30, 10);
	add(1, 30, 10);
	for (unsigned turn = 0; turn < 3; turn++) {
		takes(0, 10);
		takes(1, 10);
	}
}

/* Small ones that come all the time do not keep a large one waiting. */
static void test_no_batch_waits_forever(void **state)
{
	unsigned large = 0;

	add(0, 30, 10);
	for (unsigned i = 1; i < 300 && large < 30; i++) {
		add(i, 1, 10);
		large += take() == 0;
	}
	assert_int_equal(large, 30);
}

/* An object that is larger than the budget has a turn of its own. */
static void test_large_objects(void **state)
{
	assert_int_equal(add(0, 3, 1000), 3);
	assert_int_equal(add(1, 1, 1), 1);
	takes(0, 1);
	takes(1, 1);
	takes(0, 2);
}

/* There are as many turns as a batch needs; far ones are one. */
static void test_many_turns(void **state)
{
	assert_int_equal(add(0, 200, BUDGET), 200);
	add(1, 1, 1);
	takes(0, 1);
	takes(1, 1);
	takes(0, 199);
	assert_null(turns_first(&rig.turns));
	add(2, 1, 1);
	takes(2, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_one_batch_is_in_order, set_up),
		cmocka_unit_test_setup(test_small_batch_behind_a_large_one, set_up),
		cmocka_unit_test_setup(test_two_large_batches_share, set_up),
		cmocka_unit_test_setup(test_no_batch_waits_forever, set_up),
		cmocka_unit_test_setup(test_large_objects, set_up),
		cmocka_unit_test_setup(test_many_turns, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
