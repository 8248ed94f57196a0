/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction policies: the rules that all of them keep, what each one evicts, and what eviction by value saves. */
#include <stdlib.h>
#include <string.h>

#include "agent/store/policy/ghost.h"
#include "agent/store/policy/policy.h"
#include "agent/store/policy/trial.h"
#include "tests/unit/cm.h"
#include "tests/unit/store_replay.h"

#define N 64
#define REQUESTS 100000

static struct policy *policy;
static struct policy_entry entries[N];

static void make(enum policy_kind kind)
{
	assert_int_equal(policy_new(&policy, kind, NULL), 0);
}

static void add(unsigned i, uint64_t bytes, float cost)
{
	assert_int_equal(policy_add(policy, &entries[i], bytes, cost, i), 0);
}

static void use(unsigned i, unsigned times)
{
	while (times--)
		policy_use(policy, &entries[i]);
}

/* Evicts one object and returns its number; -1: there is none. */
static int evict(void)
{
	struct policy_entry *e = policy_victim(policy);

	if (!e)
		return -1;
	policy_remove(policy, e, true);
	return (int)(e - entries);
}

static int teardown(void **state)
{
	policy_free(policy);
	policy = NULL;
	return 0;
}

/* --- rules of all policies ------------------------------------------------------------------------ */

static void test_each_object_is_evicted_once(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		bool out[N] = { false };

		make(kind);
		for (unsigned i = 0; i < N; i++)
			add(i, 1, 1);
		for (unsigned i = 0; i < N; i += 3)
			use(i, i);
		for (unsigned i = 0; i < N; i++) {
			int v = evict();

			assert_in_range(v, 0, N - 1);
			assert_false(out[v]);
			out[v] = true;
		}
		assert_int_equal(evict(), -1);
		teardown(NULL);
	}
}

static void test_held_objects_are_no_victims(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		make(kind);
		for (unsigned i = 0; i < 4; i++)
			add(i, 1, 1);
		for (unsigned i = 0; i < 3; i++)
			policy_hold(policy, &entries[i]);
		use(0, 3);
		assert_int_equal(evict(), 3);
		assert_int_equal(evict(), -1);
		policy_release(policy, &entries[1]);
		assert_int_equal(evict(), 1);
		assert_int_equal(evict(), -1);
		policy_remove(policy, &entries[2], false);
		policy_release(policy, &entries[0]);
		assert_int_equal(evict(), 0);
		assert_int_equal(evict(), -1);
		teardown(NULL);
	}
}

/* In random order all calls that a store makes; the policy never names an object that is held or gone. */
static void test_random_calls(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		bool in[N] = { false };
		uint32_t random = 1;

		make(kind);
		for (unsigned step = 0; step < 20000; step++) {
			unsigned i = (random = random * 1664525 + 1013904223) >> 8 & (N - 1);
			struct policy_entry *e = &entries[i], *v;

			if (!in[i]) {
				add(i, 1 + i % 5, (float)(1 + i % 7));
				in[i] = true;
			} else if (random >> 16 & 1) {
				policy_use(policy, e);
			} else if (random >> 17 & 1) {
				(e->held ? policy_release : policy_hold)(policy, e);
			} else if (random >> 18 & 1) {
				policy_remove(policy, e, false);
				in[i] = false;
			} else if ((v = policy_victim(policy))) {
				assert_true(in[v - entries] && !v->held);
				policy_remove(policy, v, true);
				in[v - entries] = false;
			}
		}
		teardown(NULL);
	}
}

/* Holds the next victims, and gives them back. */
static void look(void)
{
	struct policy_entry *looked[16], *e;
	unsigned n = 0;

	while (n < 16 && (e = policy_victim(policy))) {
		policy_hold(policy, e);
		looked[n++] = e;
	}
	while (n)
		policy_return(policy, looked[--n]);
}

/* An object that was used often, and is not any more, gives way to others, also if it is looked at as one of the next victims. */
static void test_objects_that_are_looked_at_age(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		int v = -1;

		/* it has no ageing but for the last uses */
		if (kind == POLICY_SCORE)
			continue;
		make(kind);
		add(0, 1, 1);
		use(0, 20);
		for (unsigned step = 0; v && step < 1000; step++) {
			/* the one that was evicted comes back as another one */
			unsigned i = step + 1;

			if (i >= N / 2) {
				v = evict();
				i = (unsigned)v;
			}
			if (!v)
				break;
			assert_int_equal(policy_add(policy, &entries[i], 1, 1, N + step), 0);
			use(i, 2);
			look();
		}
		assert_int_equal(v, 0);
		teardown(NULL);
	}
}

/* A use counts also while the object is held as the next victim. */
static void test_uses_while_it_is_looked_at(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		struct policy_entry *first;

		make(kind);
		for (unsigned i = 0; i < 4; i++) {
			add(i, 1, 1);
			use(i, 2);
		}
		first = policy_victim(policy);
		policy_hold(policy, first);
		use((unsigned)(first - entries), 2);
		policy_return(policy, first);
		for (unsigned i = 0; i < 3; i++)
			assert_int_not_equal(evict(), first - entries);
		assert_int_equal(evict(), first - entries);
		teardown(NULL);
	}
}

/* Also when all objects were used since they came, the search for a victim moves few of them to another queue or place. */
static void test_a_search_is_bounded(void **state)
{
	enum { OBJECTS = 2000 };
	static struct policy_entry many[OBJECTS], before[OBJECTS];

	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		make(kind);
		for (unsigned i = 0; i < OBJECTS; i++) {
			assert_int_equal(policy_add(policy, &many[i], 1, 1, i), 0);
			for (unsigned n = 0; n < 3; n++)
				policy_use(policy, &many[i]);
		}
		for (unsigned evicted = 0; evicted < OBJECTS; evicted++) {
			struct policy_entry *e;
			unsigned moved = 0;

			memcpy(before, many, sizeof(many));
			e = policy_victim(policy);
			assert_non_null(e);
			for (unsigned i = 0; i < OBJECTS; i++)
				moved += before[i].queue != many[i].queue ||
					 before[i].used != many[i].used;
			assert_in_range(moved, 0, POLICY_MOVED_AT_ONCE);
			policy_remove(policy, e, true);
		}
		assert_null(policy_victim(policy));
		teardown(NULL);
	}
}

/* The same for two tiers: an object is the victim of the one that it is in, and of no other. */
static void test_random_moves(void **state)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		struct policy *below;
		struct policy *in[N] = { NULL };
		uint32_t random = 1;

		assert_int_equal(policy_new(&below, kind, NULL), 0);
		assert_int_equal(policy_new(&policy, kind, below), 0);
		for (unsigned step = 0; step < 20000; step++) {
			unsigned i = (random = random * 1664525 + 1013904223) >> 8 & (N - 1);
			struct policy_entry *e = &entries[i];
			struct policy *victims_of = random >> 20 & 1 ? policy : below, *other;

			if (!in[i]) {
				add(i, 1 + i % 5, (float)(1 + i % 7));
				in[i] = policy;
			} else if (random >> 16 & 1) {
				policy_use(in[i], e);
			} else if (random >> 17 & 1) {
				(e->held ? policy_release : policy_hold)(in[i], e);
			} else if (random >> 18 & 1) {
				policy_remove(in[i], e, random >> 19 & 1);
				in[i] = NULL;
			} else if (!e->held) {
				other = in[i] == policy ? below : policy;
				assert_int_equal(policy_move(in[i], other, e, other == below), 0);
				in[i] = other;
			}
			e = policy_victim(victims_of);
			assert_true(!e || (in[e - entries] == victims_of && !e->held));
		}
		teardown(NULL);
		policy_free(below);
	}
}

static void test_names_differ(void **state)
{
	for (enum policy_kind a = 0; a < POLICY_KIND_N; a++)
		for (enum policy_kind b = 0; b < a; b++)
			assert_string_not_equal(policy_name(a), policy_name(b));
}

/* --- each policy ---------------------------------------------------------------------------------- */

static void test_lru(void **state)
{
	make(POLICY_LRU);
	for (unsigned i = 0; i < 3; i++)
		add(i, 1, 1);
	use(0, 1);
	assert_int_equal(evict(), 1);
	assert_int_equal(evict(), 2);
	assert_int_equal(evict(), 0);
}

static void test_s3fifo(void **state)
{
	make(POLICY_S3FIFO);
	for (unsigned i = 0; i < 20; i++)
		add(i, 1, 1);
	use(0, 2);
	use(1, 1);
	/* Two uses move an object to the main queue; one does not. */
	assert_int_equal(evict(), 1);
	assert_int_equal(evict(), 2);
	/* An object that comes back enters the main queue, behind those that are there. */
	add(1, 1, 1);
	for (unsigned i = 3; i < 20; i++)
		assert_int_equal(evict(), i);
	assert_int_equal(evict(), 0);
	assert_int_equal(evict(), 1);
}

/* The queue of new objects keeps a tenth of what there is, however little that is. */
static void test_new_objects_keep_a_tenth(void **state)
{
	static const enum policy_kind kinds[] = { POLICY_S3FIFO, POLICY_MERIT, POLICY_VALUE };

	for (unsigned k = 0; k < DRAY_ARRAY_SIZE(kinds); k++) {
		make(kinds[k]);
		for (unsigned i = 0; i < 10; i++) {
			add(i, 1, 1);
			use(i, 2);
		}
		add(10, 1, 1);
		add(11, 1, 1);
		add(12, 1, 1);
		assert_int_equal(evict(), 10);
		assert_int_equal(evict(), 11);
		assert_int_equal(evict(), 0);
		teardown(NULL);
	}
}

static void test_gdsf(void **state)
{
	make(POLICY_GDSF);
	add(0, 10, 10); /* 1 for each byte */
	add(1, 10, 30); /* 3 */
	add(2, 10, 20); /* 2, and 4 after a use */
	use(2, 1);
	assert_int_equal(evict(), 0);
	assert_int_equal(evict(), 1);
	/* The last victim was worth 3, so that new objects begin there. */
	add(3, 10, 20); /* 5 */
	assert_int_equal(evict(), 2);
	assert_int_equal(evict(), 3);
}

static void test_score(void **state)
{
	make(POLICY_SCORE);
	add(0, 1, 2);
	add(1, 1, 2);
	add(2, 1, 1);
	use(1, 1);
	assert_int_equal(evict(), 2); /* (1 + 15) x 1, before (1 + 15) x 2 and (2 + 15) x 2 */
	add(2, 1, 1);
	/* After 15 x 64 uses of it, 2 is worth (961 + 15) x 1, and the others (1 + 0) x 2 and (2 + 0) x 2. */
	use(2, 15 * 64);
	assert_int_equal(evict(), 0);
	assert_int_equal(evict(), 1);
}

/* The clock falls by one for each 64 uses and additions. */
static void test_score_clock(void **state)
{
	make(POLICY_SCORE);
	add(0, 1, 100);  /* (1 + clock) x 100 */
	add(1, 10, 400); /* (1 + clock) x 40, but 20 uses */
	use(1, 19);
	add(2, 1, 1000000);
	/* 1: (20 + 15) x 40 = 1400; 0: (1 + 15) x 100 = 1600, until its clock is 12: 1300 before 1280. */
	use(2, 64);
	assert_ptr_equal(policy_victim(policy), &entries[1]);
	use(2, 64 * 13);
	/* 0: (1 + 1) x 100; 1: (20 + 1) x 40. */
	assert_ptr_equal(policy_victim(policy), &entries[0]);
}

static void test_merit(void **state)
{
	make(POLICY_MERIT);
	add(0, 10, 10);
	use(0, 1);
	add(1, 10, 20);
	use(1, 1);
	add(2, 10, 1000);
	/* 0 and 1 are in the heap now; one use proves nothing, whatever it costs to compute 2 again. */
	assert_int_equal(evict(), 2);
	/* It comes back, and is known. */
	add(2, 10, 1000);
	assert_int_equal(entries[2].uses, 2);
	assert_int_equal(evict(), 0);
	assert_int_equal(evict(), 1);
	assert_int_equal(evict(), 2);
}

/* What was used in one tier keeps its uses in the other one, and is known when it comes back after its eviction from there. */
static void test_uses_in_two_tiers(void **state)
{
	static const enum policy_kind kinds[] = { POLICY_MERIT, POLICY_VALUE };

	for (unsigned k = 0; k < DRAY_ARRAY_SIZE(kinds); k++) {
		struct policy *below;

		assert_int_equal(policy_new(&below, kinds[k], NULL), 0);
		assert_int_equal(policy_new(&policy, kinds[k], below), 0);
		add(0, 1, 1);
		use(0, 1);
		for (unsigned i = 1; i < 4; i++)
			add(i, 1, 100);
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(policy_move(policy, below, &entries[i], true), 0);
		assert_int_equal(entries[0].uses, 2);
		/* it has come first, but only it was used */
		assert_ptr_equal(policy_victim(below), &entries[1]);
		policy_remove(below, &entries[1], true);
		assert_int_equal(policy_move(below, policy, &entries[0], false), 0);
		use(0, 1);
		assert_int_equal(entries[0].uses, 3);
		add(1, 1, 1);
		assert_int_equal(entries[1].uses, 2);
		teardown(NULL);
		policy_free(below);
	}
}

static void test_uses_do_not_wrap(void **state)
{
	make(POLICY_MERIT);
	add(0, 1, 1);
	use(0, UINT16_MAX + 10);
	assert_int_equal(entries[0].uses, UINT16_MAX);
	assert_int_equal(evict(), 0);
	add(0, 1, 1);
	assert_int_equal(entries[0].uses, UINT16_MAX);
}

/* --- parts ------------------------------------------------------------------------------------------ */

static void test_ghost(void **state)
{
	struct ghost g = { .sets = NULL };
	uint32_t found = 0;
	uint16_t uses = 0;

	ghost_put(&g, 1, 5);
	assert_false(ghost_take(&g, 1, &uses));
	ghost_reserve(&g, 1000);
	for (uint32_t i = 0; i < 200; i++)
		ghost_put(&g, i, (uint16_t)(i + 1));
	ghost_put(&g, 7, 70);
	ghost_reserve(&g, 5000);
	assert_true(ghost_take(&g, 7, &uses));
	assert_int_equal(uses, 70);
	assert_false(ghost_take(&g, 7, &uses));
	for (uint32_t i = 0; i < 200; i++)
		found += ghost_take(&g, i, &uses) && uses == i + 1;
	assert_int_equal(found, 199);
	/* Those that were put lately are there, whatever was put before. */
	for (uint32_t i = 0; i < 100000; i++)
		ghost_put(&g, i, 1);
	found = 0;
	for (uint32_t i = 99000; i < 100000; i++)
		found += ghost_take(&g, i, &uses);
	assert_in_range(found, 950, 1000);
	ghost_deinit(&g);
}

/* Room for one more divides one set, whatever there is; what is remembered stays. */
static void test_ghost_grows_by_steps(void **state)
{
	enum { MOST = 3000 };
	struct ghost g = { .sets = NULL };
	uint32_t found = 0, before;
	uint16_t uses = 0;

	ghost_reserve(&g, 1);
	ghost_put(&g, 0, 1);
	for (uint32_t n = 2; n <= MOST; n++) {
		before = g.n_sets;
		ghost_reserve(&g, n);
		assert_in_range(g.n_sets, before, before + 1);
		assert_true(g.n_sets * GHOST_WAYS >= n);
		ghost_put(&g, n - 1, (uint16_t)n);
	}
	for (uint32_t i = 0; i < MOST; i++)
		found += ghost_take(&g, i, &uses) && uses == i + 1;
	/* what other tags have driven out of full sets is missing */
	assert_in_range(found, MOST * 3 / 5, MOST);
	ghost_deinit(&g);
}

static void test_trial_is_bounded(void **state)
{
	struct trial t;

	assert_int_equal(trial_init(&t, POLICY_MERIT, POLICY_LRU), 0);
	t.capacity = 1 << 20;
	for (uint32_t i = 0; i < 10 * TRIAL_OBJECTS; i++) {
		trial_request(&t, 1, 1, i);
		assert_in_range(t.objects.n, 0, TRIAL_OBJECTS);
		for (unsigned p = 0; p < TRIAL_PARTIES; p++)
			assert_true(t.parties[p].bytes <= t.capacity);
	}
	assert_in_range(t.sample, 1ull << 28, 1ull << 30);
	for (uint32_t i = 0; i < 10 * TRIAL_OBJECTS; i++)
		trial_remove(&t, i);
	assert_int_equal(t.objects.n, 0);
	assert_int_equal(t.parties[0].bytes + t.parties[1].bytes, 0);
	trial_deinit(&t);
}

/* --- what it saves ------------------------------------------------------------------------------------ */

static void check_saving_of(const struct store_trace *t, const char *name, uint64_t seed,
			    unsigned tiers)
{
	double least = name[0] == 'm' ? 1.15 : 0.98, lru, value;
	uint64_t upper = tiers == 2 ? t->capacity / STORE_TRACE_UPPER_SHARE : 0;

	lru = store_replay(t, POLICY_LRU, t->capacity, upper).saved;
	value = store_replay(t, POLICY_VALUE, t->capacity, upper).saved;
	if (value < least * lru)
		fail_msg("%s, seed %u, %u tiers: eviction by value saves %.3f of what LRU saves; "
			 "at least %.2f",
			 name, (unsigned)seed, tiers, value / lru, least);
}

static void check_saving(const struct store_trace_recipe *r, uint64_t seed)
{
	struct store_trace t;

	store_trace_make(&t, r, seed, REQUESTS);
	for (unsigned tiers = 1; tiers <= 2; tiers++)
		check_saving_of(&t, r->name, seed, tiers);
	store_trace_deinit(&t);
}

static void test_saving_by_value(void **state)
{
	static const uint64_t seeds[] = STORE_TRACE_CHECKING_SEEDS;

	/* each third one has one of nearly every kind; all of them take seconds with sanitizers */
	size_t step = getenv("DRAY_LONG") ? 1 : 3;

	for (size_t i = step - 1; i < store_trace_n_recipes; i += step)
		check_saving(&store_trace_recipes[i], seeds[i / step % DRAY_ARRAY_SIZE(seeds)]);
}

static void test_recorded_trace(void **state)
{
	char good[] = "# key bytes cost\na 10 1.5\nb 20 2\n\na 11 7\n", bad[] = "a 10 1\nb ten 1\n";
	FILE *f = fmemopen(good, sizeof(good) - 1, "r");
	struct store_trace t;

	assert_int_equal(store_trace_read(&t, f, 0.5), 0);
	fclose(f);
	assert_int_equal(t.n_objects, 2);
	assert_int_equal(t.n_requests, 3);
	assert_int_equal(t.capacity, 15);
	assert_int_equal(t.objects[0].bytes, 10);
	assert_int_equal(t.requests[2], 0);
	store_trace_deinit(&t);
	f = fmemopen(bad, sizeof(bad) - 1, "r");
	assert_int_equal(store_trace_read(&t, f, 0.5), 2);
	fclose(f);
	store_trace_deinit(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_each_object_is_evicted_once, teardown),
		cmocka_unit_test_teardown(test_held_objects_are_no_victims, teardown),
		cmocka_unit_test_teardown(test_random_calls, teardown),
		cmocka_unit_test_teardown(test_objects_that_are_looked_at_age, teardown),
		cmocka_unit_test_teardown(test_uses_while_it_is_looked_at, teardown),
		cmocka_unit_test_teardown(test_random_moves, teardown),
		cmocka_unit_test_teardown(test_a_search_is_bounded, teardown),
		cmocka_unit_test(test_names_differ),
		cmocka_unit_test_teardown(test_lru, teardown),
		cmocka_unit_test_teardown(test_s3fifo, teardown),
		cmocka_unit_test_teardown(test_new_objects_keep_a_tenth, teardown),
		cmocka_unit_test_teardown(test_gdsf, teardown),
		cmocka_unit_test_teardown(test_score, teardown),
		cmocka_unit_test_teardown(test_score_clock, teardown),
		cmocka_unit_test_teardown(test_merit, teardown),
		cmocka_unit_test_teardown(test_uses_in_two_tiers, teardown),
		cmocka_unit_test_teardown(test_uses_do_not_wrap, teardown),
		cmocka_unit_test(test_ghost),
		cmocka_unit_test(test_ghost_grows_by_steps),
		cmocka_unit_test(test_trial_is_bounded),
		cmocka_unit_test(test_saving_by_value),
		cmocka_unit_test(test_recorded_trace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
