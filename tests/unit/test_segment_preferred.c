/* SPDX-License-Identifier: Apache-2.0 */
/* The preferred segment, and the reasons of the other candidates. */
#include "agent/placement/segment/preferred.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define READY DMSG_SEGMENT_STATE_READY
#define LOST DMSG_SEGMENT_STATE_LOST
#define PROBING DMSG_SEGMENT_STATE_PROBING

/* sorted by name, as the facts need them */
static struct preferred_segment segments[5];
static struct preferred_facts facts;

static int setup(void **state)
{
	static const char *const names[] = { "10.0.0.5:1", "10.0.0.5:2", "10.0.0.9:1",
					     "127.0.0.1:1", "agent:7411" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(segments); i++)
		segments[i] = (struct preferred_segment){ .name = names[i],
							  .reason = "because",
							  .where = "where it is",
							  .state = READY,
							  .verified = true,
							  .answers = true,
							  .mentioned = true,
							  .local = true,
							  .located = true };
	segments[2].local = false;
	segments[3].loopback = true;
	segments[4].agent = true;
	facts = (struct preferred_facts){ .explicit_by = "segment.preferred",
					  .segments = segments,
					  .n_segments = DRAY_ARRAY_SIZE(segments),
					  .last = "",
					  .remembered = "" };
	return 0;
}

static void set_state(size_t i, enum dmsg_segment_state s)
{
	segments[i].state = s;
	segments[i].answers = s == READY || s == DMSG_SEGMENT_STATE_UNKNOWN;
}

/*
 * Returns "name preference", "-" for none. Checks that every candidate has a reason, and that only
 * one is chosen.
 */
static const char *chosen(void)
{
	static char text[128];
	struct candidate *v;
	size_t n, n_chosen = 0;

	assert_int_equal(preferred_rank(&facts, &v, &n), 0);
	snprintf(text, sizeof(text), "-");
	for (size_t i = 0; i < n; i++) {
		assert_true(*v[i].reason);
		if (!v[i].chosen)
			continue;
		snprintf(text, sizeof(text), "%s %s", v[i].name,
			 dmsg_preference_name(v[i].preference));
		n_chosen++;
	}
	assert_true(n_chosen <= 1);
	free(v);
	return text;
}

static void precedence(void **state)
{
	struct preferred_hint hint = { "10.0.0.9:1", "about" };

	assert_string_equal(chosen(), "10.0.0.5:1 detected");
	facts.hints = &hint;
	facts.n_hints = 1;
	assert_string_equal(chosen(), "10.0.0.9:1 hint");
	facts.environment = "10.0.0.5:2";
	assert_string_equal(chosen(), "10.0.0.5:2 environment");
	facts.explicit_name = "elsewhere:9";
	assert_string_equal(chosen(), "elsewhere:9 explicit");
}

static void a_configured_segment_needs_no_state(void **state)
{
	facts.explicit_name = "10.0.0.5:2";
	set_state(1, LOST);
	assert_string_equal(chosen(), "10.0.0.5:2 explicit");
	facts.explicit_name = NULL;
	facts.environment = "10.0.0.5:2";
	assert_string_equal(chosen(), "10.0.0.5:2 environment");
}

static void words_for_this_node(void **state)
{
	static const char *const own[] = { "local", "self", "own" };
	struct preferred_hint hint = { "10.0.0.9:1", "about" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(own); i++) {
		facts.explicit_name = own[i];
		assert_string_equal(chosen(), "10.0.0.5:1 explicit");
	}
	/* the best of them, even if none is ready */
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(segments); i++)
		set_state(i, PROBING);
	assert_string_equal(chosen(), "10.0.0.5:1 explicit");
	set_state(1, READY);
	assert_string_equal(chosen(), "10.0.0.5:2 explicit");
	/* none, because only segments of this node are wanted */
	facts.hints = &hint;
	facts.n_hints = 1;
	for (size_t i = 0; i < 4; i++)
		segments[i].local = false;
	assert_string_equal(chosen(), "-");
}

static void hints_of_others_do_not_count(void **state)
{
	struct candidate *v;
	size_t n;

	segments[0].mentioned = segments[1].mentioned = segments[3].mentioned = false;
	segments[0].hinted = true;
	assert_string_equal(chosen(), "-");
	facts.explicit_name = "own";
	assert_string_equal(chosen(), "-");
	facts.explicit_name = NULL;
	assert_int_equal(preferred_rank(&facts, &v, &n), 0);
	for (size_t i = 0; i < n; i++)
		if (v[i].known == &segments[0])
			assert_string_equal(v[i].reason, "it answers, but only hints name it");
	free(v);
}

static void hints_for_lost_segments_do_not_count(void **state)
{
	struct preferred_hint hints[] = { { "10.0.0.9:1", "first" },
					  { "unknown:1", "second" },
					  { "10.0.0.5:2", "third" } };

	facts.hints = hints;
	facts.n_hints = 3;
	set_state(2, LOST);
	assert_string_equal(chosen(), "unknown:1 hint");
	hints[1].segment = "10.0.0.9:1";
	assert_string_equal(chosen(), "10.0.0.5:2 hint");
	set_state(1, LOST);
	assert_string_equal(chosen(), "10.0.0.5:1 detected");
}

static void found_on_this_node(void **state)
{
	/*
	 * configured segments first, then those that other nodes can reach, then the previous one,
	 * then those of a master
	 */
	segments[1].configured = true;
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	segments[1].configured = false;
	facts.last = "10.0.0.5:2";
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	facts.last = "127.0.0.1:1";
	segments[1].listed = true;
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	segments[1].listed = false;
	segments[1].capacity = 5;
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	/* not segments that are lost, that belong to an agent, or that are on other nodes */
	set_state(0, LOST);
	set_state(1, PROBING);
	assert_string_equal(chosen(), "127.0.0.1:1 detected");
	set_state(3, LOST);
	assert_string_equal(chosen(), "-");
}

static void the_segment_found_before_a_restart(void **state)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(segments); i++)
		set_state(i, DMSG_SEGMENT_STATE_UNKNOWN);
	assert_string_equal(chosen(), "-");
	/* before the addresses of this node are known, and after */
	facts.remembered = "10.0.0.5:2";
	segments[1].local = segments[1].located = false;
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	segments[1].local = segments[1].located = true;
	assert_string_equal(chosen(), "10.0.0.5:2 detected");
	/* another segment is ready; the remembered one is lost, on another node, or an agent */
	set_state(0, READY);
	assert_string_equal(chosen(), "10.0.0.5:1 detected");
	set_state(0, LOST);
	set_state(1, PROBING);
	assert_string_equal(chosen(), "-");
	set_state(1, DMSG_SEGMENT_STATE_UNKNOWN);
	segments[1].local = false;
	assert_string_equal(chosen(), "-");
	facts.remembered = "agent:7411";
	assert_string_equal(chosen(), "-");
}

static void every_candidate_is_listed(void **state)
{
	struct preferred_hint hint = { "10.0.0.9:1", "about" };
	struct candidate *v;
	size_t n;

	facts.explicit_name = "10.0.0.5:1";
	facts.environment = "10.0.0.5:2";
	facts.hints = &hint;
	facts.n_hints = 1;
	assert_int_equal(preferred_rank(&facts, &v, &n), 0);
	assert_int_equal(n, 3 + DRAY_ARRAY_SIZE(segments));
	assert_int_equal(v[0].preference, DMSG_PREFERENCE_EXPLICIT);
	assert_int_equal(v[1].preference, DMSG_PREFERENCE_ENVIRONMENT);
	assert_int_equal(v[2].preference, DMSG_PREFERENCE_HINT);
	/* the segments of this node first */
	assert_string_equal(v[n - 1].name, "10.0.0.9:1");
	assert_string_equal(v[n - 1].reason, "where it is");
	free(v);
}

static void no_segment_is_known(void **state)
{
	facts = (struct preferred_facts){ .last = "", .remembered = "" };
	assert_string_equal(chosen(), "-");
	facts.environment = "local";
	assert_string_equal(chosen(), "-");
}

/* Agents with stores: this one, one that takes objects, and one that does not. */
static void puts_to_a_name_space(void **state)
{
	struct preferred_segment stores[] = {
		{ .name = "10.0.0.1:7411", .local = true, .where = "this agent" },
		{ .name = "10.0.0.2:7411", .where = "another agent" },
		{ .name = "10.0.0.3:7411", .where = "another agent" },
	};
	struct preferred_hint hints[] = { { "10.0.0.3:7411", "about" },
					  { "10.0.0.9:50053", "about" },
					  { "10.0.0.2:7411", "about" } };
	struct candidate *v;
	size_t n;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(stores); i++) {
		stores[i].reason = "because";
		stores[i].state = i == 2 ? LOST : READY;
		stores[i].answers = i != 2;
		stores[i].verified = stores[i].located = stores[i].mentioned = true;
	}
	facts = (struct preferred_facts){ .stores = true,
					  .explicit_by = "store.put_at",
					  .segments = stores,
					  .n_segments = DRAY_ARRAY_SIZE(stores),
					  .last = "",
					  .remembered = "" };
	assert_string_equal(chosen(), "10.0.0.1:7411 detected");
	/* one that is down, and one that is no agent with a store, are no candidates */
	facts.hints = hints;
	facts.n_hints = 2;
	assert_string_equal(chosen(), "10.0.0.1:7411 detected");
	facts.n_hints = 3;
	assert_string_equal(chosen(), "10.0.0.2:7411 hint");
	/* what the configuration names counts whatever its state */
	facts.explicit_name = "local";
	assert_string_equal(chosen(), "10.0.0.1:7411 explicit");
	facts.explicit_name = "10.0.0.3:7411";
	assert_string_equal(chosen(), "10.0.0.3:7411 explicit");
	assert_int_equal(preferred_rank(&facts, &v, &n), 0);
	assert_int_equal(n, 7);
	assert_string_equal(v[0].reason, "store.put_at is 10.0.0.3:7411; because");
	free(v);
}

#define TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(precedence),
		TEST(a_configured_segment_needs_no_state),
		TEST(words_for_this_node),
		TEST(hints_of_others_do_not_count),
		TEST(hints_for_lost_segments_do_not_count),
		TEST(found_on_this_node),
		TEST(the_segment_found_before_a_restart),
		TEST(every_candidate_is_listed),
		TEST(no_segment_is_known),
		TEST(puts_to_a_name_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
