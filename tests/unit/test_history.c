/* SPDX-License-Identifier: Apache-2.0 */
/* The history of changes. */
#include "agent/control/history.h"

#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

DRAY_DEFINE_CLEANUP(struct history *, history_free);

struct seen {
	unsigned n, sessions;
	uint64_t first, last;
	char subject[HISTORY_TEXT_BYTES], old[HISTORY_TEXT_BYTES], new[HISTORY_TEXT_BYTES],
		reason[HISTORY_TEXT_BYTES];
};

static void note(void *arg, const struct dray_dbus_event *e)
{
	struct seen *s = arg;

	assert_true(e->number > s->last);
	assert_true(e->time_ns);
	s->first = s->n++ ? s->first : e->number;
	s->last = e->number;
	s->sessions += !strcmp(e->kind, "session");
	snprintf(s->subject, sizeof(s->subject), "%s", e->subject);
	snprintf(s->old, sizeof(s->old), "%s", e->old);
	snprintf(s->new, sizeof(s->new), "%s", e->new);
	snprintf(s->reason, sizeof(s->reason), "%s", e->reason);
}

static struct seen seen_after(const struct history *h, uint64_t number)
{
	struct seen s = { .n = 0 };

	history_each(h, number, note, &s);
	return s;
}

/* Names of segments have up to 256 bytes, and are shown whole. What is too long for any event is cut. */
static void test_long_texts(void **state)
{
	dray_auto(history_free) struct history *h = history_new();
	char segment[257], endless[2 * HISTORY_TEXT_BYTES];
	struct seen s;

	memset(segment, 's', sizeof(segment) - 1);
	segment[sizeof(segment) - 1] = '\0';
	memset(endless, 'e', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = '\0';
	assert_int_equal(history_add(h, "preferred", NULL, segment, "none", segment, endless), 1);
	s = seen_after(h, 0);
	assert_int_equal(s.n, 1);
	assert_string_equal(s.subject, segment);
	assert_string_equal(s.old, "none");
	assert_string_equal(s.new, segment);
	assert_int_equal(strlen(s.reason), HISTORY_TEXT_BYTES - 1);
}

static void end_session(struct history *h, const char *owner, const char *subject)
{
	history_add(h, "session", owner, subject, "open", "closed", "the client closed");
}

/* A client that opens and closes sessions without end pushes no other event out. */
static void test_sessions_and_others(void **state)
{
	dray_auto(history_free) struct history *h = history_new();
	struct seen s = seen_after(h, 0);

	assert_int_equal(s.n, 0);
	history_add(h, "state", NULL, "agent", "running", "draining", "");
	for (unsigned i = 0; i < 3 * HISTORY_MAX; i++)
		end_session(h, "default:1", "1 ");
	assert_int_equal(history_add(h, "state", NULL, "agent", "draining", "drained", "last"),
			 3 * HISTORY_MAX + 2);
	s = seen_after(h, 0);
	assert_int_equal(s.n, HISTORY_MAX + 2);
	assert_int_equal(s.sessions, HISTORY_MAX);
	assert_int_equal(s.first, 1);
	assert_string_equal(s.reason, "last");
	s = seen_after(h, 3 * HISTORY_MAX);
	assert_int_equal(s.n, 2);
	assert_int_equal(s.first, 3 * HISTORY_MAX + 1);
	for (unsigned i = 0; i < HISTORY_MAX; i++)
		history_add(h, "log-level", NULL, "log.level", "info", "debug", "");
	s = seen_after(h, 0);
	assert_int_equal(s.n, 2 * HISTORY_MAX);
	assert_int_equal(s.first, 2 * HISTORY_MAX + 2);
	assert_int_equal(seen_after(h, s.last).n, 0);
}

static void note_owner(void *arg, const struct dray_dbus_event *e)
{
	unsigned *by_owner = arg;

	by_owner[e->subject[0] - 'a']++;
}

/* One owner that ends sessions without end pushes out only its own; owners that all do so have equal shares. */
static void test_owners(void **state)
{
	dray_auto(history_free) struct history *h = history_new();
	unsigned n[2] = { 0 };

	for (unsigned i = 0; i < 3; i++)
		end_session(h, "default:1", "a");
	for (unsigned i = 0; i < 3 * HISTORY_MAX; i++)
		end_session(h, "default:2", "b");
	history_each(h, 0, note_owner, n);
	assert_int_equal(n[0], 3);
	assert_int_equal(n[1], HISTORY_MAX - 3);
	for (unsigned i = 0; i < 3 * HISTORY_MAX; i++)
		end_session(h, "default:1", "a");
	memset(n, 0, sizeof(n));
	history_each(h, 0, note_owner, n);
	assert_int_equal(n[0], HISTORY_MAX / 2);
	assert_int_equal(n[1], HISTORY_MAX / 2);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_long_texts),
		cmocka_unit_test(test_sessions_and_others),
		cmocka_unit_test(test_owners),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
