/* SPDX-License-Identifier: Apache-2.0 */
/* When detect looks for listening sockets, and when a look is a search. */
#include "agent/placement/detect/pace.h"

#include "lib/time.h"
#include "tests/unit/cm.h"

#define S DRAY_NS_PER_SEC

static void search(struct pace *p, unsigned sockets, bool found, int64_t now_ns)
{
	pace_searches(p, &(struct nd_socket_count){ .known = true, .v4 = sockets }, now_ns);
	pace_searched(p, found, now_ns);
}

static bool must_search(const struct pace *p, unsigned sockets)
{
	return pace_must_search(p, &(struct nd_socket_count){ .known = true, .v4 = sockets });
}

/* Makes the looks until then, which find so many sockets. Returns the number of searches. */
static unsigned looks(struct pace *p, unsigned sockets, int64_t until_ns)
{
	unsigned searches = 0;
	int64_t due;

	while ((due = pace_due_ns(p, S)) <= until_ns) {
		if (must_search(p, sockets)) {
			search(p, sockets, true, due);
			searches++;
		} else {
			pace_skipped(p, due);
		}
	}
	return searches;
}

static int64_t pause_of(const struct pace *p)
{
	return pace_due_ns(p, S) - p->looked_ns;
}

/* A quarter of the time for which the number has stayed, and from one interval to four. */
static void the_pause_grows_while_the_number_stays(void **state)
{
	struct pace p = { 0 };

	assert_true(must_search(&p, 0));
	search(&p, 3, true, 100 * S);
	assert_false(must_search(&p, 3));
	assert_int_equal(pause_of(&p), S);
	looks(&p, 3, 104 * S);
	assert_int_equal(pause_of(&p), S);
	looks(&p, 3, 110 * S);
	assert_in_range(pause_of(&p), 2 * S, 3 * S);
	looks(&p, 3, 120 * S);
	assert_int_equal(pause_of(&p), 4 * S);
	looks(&p, 3, 1000 * S);
	assert_int_equal(pause_of(&p), 4 * S);
}

static void another_number_sets_it_back(void **state)
{
	struct pace p = { 0 };

	search(&p, 3, true, 100 * S);
	assert_int_equal(looks(&p, 3, 150 * S), 0);
	assert_int_equal(pause_of(&p), 4 * S);
	assert_int_equal(looks(&p, 4, 155 * S), 1);
	assert_int_equal(pause_of(&p), S);
}

/* As many sockets may have opened as closed, so there is a search after thirty looks. That alone does not make looks more frequent. */
static void a_search_in_any_case_keeps_the_pause(void **state)
{
	struct pace p = { 0 };

	search(&p, 3, true, 100 * S);
	assert_int_equal(looks(&p, 3, 130 * S), 0);
	assert_int_equal(looks(&p, 3, (130 + 30 * 4) * S), 1);
	assert_int_equal(pause_of(&p), 4 * S);
}

/* Without the numbers, and after a search that failed, each look is a search, at the interval. */
static void unknown_numbers_are_no_reason_to_wait(void **state)
{
	struct pace p = { 0 };

	for (int64_t now = 100 * S; now < 200 * S; now += S) {
		assert_true(pace_must_search(&p, &(struct nd_socket_count){ .known = false }));
		pace_searches(&p, &(struct nd_socket_count){ .known = false }, now);
		pace_searched(&p, true, now);
		assert_int_equal(pause_of(&p), S);
	}
	search(&p, 3, false, 200 * S);
	assert_true(must_search(&p, 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_pause_grows_while_the_number_stays),
		cmocka_unit_test(another_number_sets_it_back),
		cmocka_unit_test(a_search_in_any_case_keeps_the_pause),
		cmocka_unit_test(unknown_numbers_are_no_reason_to_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
