/* SPDX-License-Identifier: Apache-2.0 */
/* Hints with clocks of the test, and with a real database. */
#include "agent/placement/hint/hints.h"

#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/time.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/account.h"

#define DAY_MS (24 * 3600 * 1000LL)
#define A "10.0.0.1:50053"
#define B "10.0.0.2:50053"
#define C "[fd00::1]:50053"

enum {
	EXPLICIT = DMSG_HINT_SOURCE_EXPLICIT,
	ENVIRONMENT = DMSG_HINT_SOURCE_ENVIRONMENT,
	DETECTED = DMSG_HINT_SOURCE_DETECTED,
	CLIENT = DMSG_HINT_SOURCE_CLIENT
};

struct fixture {
	sd_event *event;
	struct dray_config cfg;
	struct state *state;
	struct hints *h;
	int64_t unix_ms, boot_ms;
	bool real_clocks;
	char log[1024]; /* text of the upcalls */
	char dir[CM_DIR_BYTES];
};

static int64_t unix_ms(void *arg)
{
	return ((struct fixture *)arg)->unix_ms;
}

static int64_t boot_ms(void *arg)
{
	return ((struct fixture *)arg)->boot_ms;
}

static void pass(struct fixture *x, int64_t ms)
{
	x->unix_ms += ms;
	x->boot_ms += ms;
}

static void note(struct fixture *x, const char *what, const char *text)
{
	size_t n = strlen(x->log);

	snprintf(x->log + n, sizeof(x->log) - n, "%s%s;", what, text);
}

static void on_changed(void *arg, const char *scope)
{
	note(arg, "", scope);
}

static void on_named(void *arg, const char *segment, const struct hint_owner *owner, bool named)
{
	note(arg, named ? "+" : "-", segment);
}

#define assert_log(x, text)                          \
	do {                                         \
		assert_string_equal((x)->log, text); \
		(x)->log[0] = '\0';                  \
	} while (0)

static void load_row(void *arg, enum state_kind kind, const union state_row *row)
{
	hints_load(arg, &row->hint);
}

static void new_hints(struct fixture *x)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct hints_deps deps = { .event = x->event,
				   .cfg = &x->cfg,
				   .state = x->state,
				   .changed = on_changed,
				   .named = on_named,
				   .arg = x };

	if (!x->real_clocks) {
		deps.unix_ms = unix_ms;
		deps.boot_ms = boot_ms;
	}
	assert_int_equal(hints_new(&x->h, &deps, &err), 0);
}

static void open_hints(struct fixture *x)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(state_open(&x->state,
				    &(struct state_deps){ .event = x->event,
							  .dir = x->dir,
							  .gather_ns = 1,
							  .retry_min_ns = DRAY_NS_PER_MS,
							  .retry_max_ns = DRAY_NS_PER_MS },
				    &err),
			 0);
	x->log[0] = '\0';
	new_hints(x);
	state_load(x->state, 1u << STATE_HINT, load_row, x->h);
	assert_log(x, "");
	hints_loaded(x->h);
	x->log[0] = '\0';
	assert_int_equal(state_start(x->state), 0);
}

static void close_hints(struct fixture *x)
{
	x->h = hints_free(x->h);
	x->state = state_free(x->state);
}

static void reopen(struct fixture *x)
{
	close_hints(x);
	open_hints(x);
}

static struct fixture *fixture_new(void **state)
{
	static struct fixture x;

	x = (struct fixture){ .unix_ms = 1700000000000, .boot_ms = 5000 };
	x.cfg.hint.ttl = DAY_MS * DRAY_NS_PER_MS;
	x.cfg.limits.hints = 1000;
	x.cfg.limits.hints_per_owner = 100;
	cm_dir_make(x.dir);
	assert_true(sd_event_new(&x.event) >= 0);
	*state = &x;
	return &x;
}

static int setup(void **state)
{
	open_hints(fixture_new(state));
	return 0;
}

static int setup_real(void **state)
{
	struct fixture *x = fixture_new(state);

	x->real_clocks = true;
	open_hints(x);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *x = *state;

	close_hints(x);
	x->event = sd_event_unref(x->event);
	cm_dir_remove(x->dir);
	return 0;
}

static int try_put(struct fixture *x, const char *scope, const char *segment, int source,
		   uint32_t uid, uint32_t score, uint64_t ttl_ms, struct dray_err *err)
{
	return hints_put(x->h,
			 &(struct hint_put){
				 .scope = scope,
				 .segment = segment,
				 .source = (enum dmsg_hint_source)source,
				 .uid = uid,
				 .tenant = "t",
				 .account = budget_account_of(&x->cfg, uid),
				 .score = score,
				 .ttl_ms = ttl_ms,
			 },
			 err);
}

static void put(struct fixture *x, const char *scope, const char *segment, int source, uint32_t uid,
		uint32_t score, uint64_t ttl_ms)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (try_put(x, scope, segment, source, uid, score, ttl_ms, &err) < 0)
		fail_msg("%s", err.msg);
}

static void assert_best(struct fixture *x, const char *scope, const char *segment)
{
	struct hint best;
	bool found = hints_best(x->h, scope, NULL, &best);

	assert_int_equal(found, segment != NULL);
	if (!found)
		return;
	assert_string_equal(best.segment, segment);
	assert_string_equal(best.scope, scope);
	assert_true(best.counts);
	assert_true(best.left_ms > 0);
}

static void refused(struct fixture *x, const char *scope, const char *segment, int source,
		    uint64_t ttl_ms, int code, const char *part)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_true(try_put(x, scope, segment, source, 7, 0, ttl_ms, &err) < 0);
	assert_int_equal(err.code, code);
	if (!strstr(err.msg, part))
		fail_msg("%s", err.msg);
	assert_log(x, "");
}

static void the_strongest_hint_is_effective(void **state)
{
	struct fixture *x = *state;
	struct hint best;

	assert_best(x, "m", NULL);
	put(x, "m", A, CLIENT, 1, 5, 0);
	assert_log(x, "+" A ";m;");
	pass(x, 10);
	put(x, "m", B, CLIENT, 2, 5, 0); /* equal, but newer */
	assert_log(x, "+" B ";m;");
	put(x, "m", A, CLIENT, 3, 4, 0); /* another owner names it */
	assert_log(x, "+" A ";");
	assert_best(x, "m", B);
	put(x, "m", A, CLIENT, 3, 6, 0); /* a higher score now */
	assert_log(x, "m;");
	put(x, "m", B, DETECTED, 0, 0, 0);
	put(x, "m", C, ENVIRONMENT, 0, 0, 0);
	assert_log(x, "m;m;");
	assert_false(hints_names(x->h, C, NULL));
	put(x, "m", B, EXPLICIT, 0, 1, 0);
	put(x, "m", A, EXPLICIT, 0, 1, 0);
	put(x, "m", C, EXPLICIT, 0, 0, 0);
	assert_log(x, "+" B ";m;+" A ";m;+" C ";");
	assert_true(hints_names(x->h, C, NULL));
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_string_equal(best.segment, A);
	assert_int_equal(best.source, EXPLICIT);
	assert_int_equal(best.score, 1);
	assert_int_equal(best.age_ms, 0);
	assert_int_equal(best.left_ms, DAY_MS);
	assert_int_equal(hints_count(x->h), 8);
	/* scopes are separate */
	assert_best(x, "", NULL);
	assert_best(x, "m2", NULL);
}

static void a_clients_hint_replaces_that_of_its_uid(void **state)
{
	struct fixture *x = *state;

	put(x, "m", A, CLIENT, 1000, 9, 0);
	put(x, "m", B, CLIENT, 1000, 1, 0);
	assert_log(x, "+" A ";m;+" B ";m;-" A ";");
	assert_int_equal(hints_count(x->h), 1);
	assert_best(x, "m", B);
	put(x, "m", B, CLIENT, 1000, 1, 0); /* put again */
	assert_log(x, "");
	assert_false(hints_names(x->h, A, NULL));
	assert_true(hints_names(x->h, B, NULL));
	reopen(x);
	assert_int_equal(hints_count(x->h), 1);
	assert_best(x, "m", B);
	assert_false(hints_forget_client(x->h, "m", &(struct hint_owner){ "t", 1001 }));
	assert_false(hints_forget_client(x->h, "n", &(struct hint_owner){ "t", 1000 }));
	assert_true(hints_forget_client(x->h, "m", &(struct hint_owner){ "t", 1000 }));
	assert_log(x, "m;-" B ";");
	assert_best(x, "m", NULL);
	reopen(x);
	assert_int_equal(hints_count(x->h), 0);
}

static void hints_are_checked(void **state)
{
	struct fixture *x = *state;
	char longest[HINT_SCOPE_MAX + 2];

	memset(longest, 's', sizeof(longest));
	longest[HINT_SCOPE_MAX + 1] = '\0';
	refused(x, longest, A, CLIENT, 0, DRAY_E_INVALID, "longer than 256 bytes");
	refused(x, "a\nb", A, CLIENT, 0, DRAY_E_INVALID, "control characters");
	refused(x, "a\xff", A, CLIENT, 0, DRAY_E_INVALID, "UTF-8");
	refused(x, "m", "", CLIENT, 0, DRAY_E_INVALID, "HOST:PORT");
	refused(x, "m", "host", CLIENT, 0, DRAY_E_INVALID, "HOST:PORT");
	refused(x, "m", "0.0.0.0:5", CLIENT, 0, DRAY_E_INVALID, "HOST:PORT");
	refused(x, "m", A, 0, 0, DRAY_E_INVALID, "source");
	refused(x, "m", A, CLIENT + 1, 0, DRAY_E_INVALID, "source");
	refused(x, "m", A, CLIENT, HINT_TTL_MAX_MS + 1, DRAY_E_INVALID, "a year");
	refused(x, "m", A, CLIENT, UINT64_MAX, DRAY_E_INVALID, "a year");
	longest[HINT_SCOPE_MAX] = '\0';
	put(x, longest, "host.example:1", CLIENT, 1, 0, HINT_TTL_MAX_MS);
	put(x, "\xc3\xa4", A, CLIENT, 1, 0, 1);
	reopen(x);
	assert_best(x, longest, "host.example:1");
}

static void quotas_are_kept(void **state)
{
	struct fixture *x = *state;
	char scope[32];

	x->cfg.limits.hints_per_owner = 3;
	x->cfg.limits.hints = 6;
	for (unsigned i = 0; i < 3; i++) {
		snprintf(scope, sizeof(scope), "%u", i);
		put(x, scope, A, CLIENT, 7, 0, 1000 + i);
	}
	x->log[0] = '\0';
	refused(x, "3", A, CLIENT, 0, DRAY_E_QUOTA, "limits.hints_per_owner = 3");
	put(x, "2", B, CLIENT, 7, 0, 0); /* replaces another one */
	put(x, "3", A, CLIENT, 8, 0, 5000);
	put(x, "e", A, EXPLICIT, 0, 0, 1);
	put(x, "d", A, DETECTED, 0, 0, 10);
	x->log[0] = '\0';
	/*
	 * above the limit the client's hint that expires first is dropped, not the explicit hint
	 * that expires before it
	 */
	put(x, "4", A, CLIENT, 9, 0, 0);
	assert_log(x, "0;+" A ";4;");
	put(x, "d2", A, DETECTED, 0, 0, 0);
	assert_log(x, "1;-" A ";d2;");
	for (unsigned i = 0; i < 6; i++) {
		snprintf(scope, sizeof(scope), "e%u", i);
		if (i < 5)
			put(x, scope, A, EXPLICIT, 0, 0, 0);
	}
	assert_int_equal(hints_count(x->h), 6);
	x->log[0] = '\0';
	refused(x, "4", A, CLIENT, 0, DRAY_E_QUOTA, "limits.hints = 6");
	refused(x, "4", A, DETECTED, 0, DRAY_E_QUOTA, "limits.hints = 6");
	/* among equal sources the hint that expires first is dropped */
	put(x, "e6", A, EXPLICIT, 0, 0, 0);
	assert_log(x, "e;e6;");
	/* the limit is lowered below the number of hints */
	x->cfg.limits.hints = 2;
	put(x, "e7", A, EXPLICIT, 0, 0, 0);
	assert_int_equal(hints_count(x->h), 2);
	reopen(x);
	assert_int_equal(hints_count(x->h), 2);
	assert_best(x, "e7", A);
}

static void expired_hints_are_removed(void **state)
{
	struct fixture *x = *state;

	put(x, "m", A, CLIENT, 1, 9, 1000);
	put(x, "m", B, CLIENT, 2, 1, 2000);
	x->log[0] = '\0';
	pass(x, 999);
	hints_expire(x->h);
	assert_log(x, "");
	pass(x, 1);
	assert_best(x, "m", B); /* before the timer runs */
	hints_expire(x->h);
	assert_log(x, "m;-" A ";");
	pass(x, 5000);
	assert_best(x, "m", NULL);
	hints_expire(x->h);
	assert_log(x, "m;-" B ";");
	assert_int_equal(hints_count(x->h), 0);
	reopen(x);
	assert_int_equal(hints_count(x->h), 0);
}

static void forgetting(void **state)
{
	struct fixture *x = *state;

	put(x, "m", A, CLIENT, 1, 0, 0);
	put(x, "m", B, CLIENT, 2, 0, 0);
	put(x, "m", B, EXPLICIT, 0, 0, 0);
	put(x, "n", A, DETECTED, 0, 0, 0);
	x->log[0] = '\0';
	assert_int_equal(hints_forget(x->h, "x", NULL, false), 0);
	assert_int_equal(hints_forget(x->h, "m", C, false), 0);
	assert_log(x, "");
	assert_int_equal(hints_forget(x->h, "m", B, false), 2);
	assert_best(x, "m", A);
	assert_int_equal(hints_forget(x->h, "m", NULL, false), 1);
	assert_best(x, "m", NULL);
	put(x, "m", A, CLIENT, 1, 0, 0);
	put(x, "k", B, CLIENT, 1, 0, 0);
	assert_int_equal(hints_forget(x->h, NULL, A, true), 2);
	assert_int_equal(hints_count(x->h), 1);
	put(x, "m", A, CLIENT, 1, 0, 0);
	assert_int_equal(hints_forget(x->h, NULL, NULL, true), 2);
	assert_int_equal(hints_count(x->h), 0);
	reopen(x);
	assert_int_equal(hints_count(x->h), 0);
}

static void collect(void *arg, const struct hint *h)
{
	char line[300];

	snprintf(line, sizeof(line), "%s=%s%s", h->scope, h->segment, h->counts ? "!" : "");
	note(arg, "", line);
}

static void all_hints_are_listed(void **state)
{
	struct fixture *x = *state;

	put(x, "m", A, CLIENT, 1, 0, 1000);
	put(x, "m", B, EXPLICIT, 0, 0, 500);
	x->log[0] = '\0';
	hints_each(x->h, collect, x);
	assert_log(x, "m=" B "!;m=" A ";");
	pass(x, 700);
	hints_each(x->h, collect, x);
	assert_log(x, "m=" A "!;");
	hints_expire(x->h);
	x->log[0] = '\0';
	assert_true(hints_names(x->h, A, NULL));
	assert_false(hints_names(x->h, B, NULL));
}

/* The wall clock advances while the agent is not running. */
static void a_restart_restores_hints(void **state)
{
	struct fixture *x = *state;
	struct hint best;

	put(x, "m", A, CLIENT, 1000, 3, 10000);
	put(x, "m", B, ENVIRONMENT, 0, 0, 0); /* read again at each start */
	put(x, "gone", B, DETECTED, 0, 0, 2000);
	close_hints(x);
	x->log[0] = '\0';
	x->unix_ms += 4000;
	x->boot_ms = 100; /* another boot, or another machine */
	open_hints(x);
	assert_int_equal(hints_count(x->h), 1);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_string_equal(best.segment, A);
	assert_int_equal(best.source, CLIENT);
	assert_int_equal(best.uid, 1000);
	assert_int_equal(best.score, 3);
	assert_int_equal(best.left_ms, 6000);
	assert_int_equal(best.age_ms, 4000);
}

/* The database could not be read at the start: its rows come while hints are in use. */
static void rows_that_come_late(void **state)
{
	struct fixture *x = *state;
	struct state_hint row = { .scope = "m",
				  .segment = A,
				  .source = CLIENT,
				  .uid = 1000,
				  .tenant = "t",
				  .score = 3,
				  .put_ms = x->unix_ms - 1000,
				  .expires_ms = x->unix_ms + 5000 };
	struct hint best;

	hints_load(x->h, &row);
	assert_log(x, "+" A ";m;");
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 5000);
	assert_int_equal(best.age_ms, 1000);
	/* what was put since the start stays, whatever the times of the row */
	put(x, "n", B, CLIENT, 1000, 0, 4000);
	x->log[0] = '\0';
	row.scope = "n";
	row.put_ms = x->unix_ms + 1000;
	hints_load(x->h, &row);
	row.segment = B;
	hints_load(x->h, &row);
	assert_log(x, "");
	assert_true(hints_best(x->h, "n", NULL, &best));
	assert_string_equal(best.segment, B);
	assert_int_equal(best.left_ms, 4000);
	reopen(x);
	assert_best(x, "n", B);
}

/* Reopens hints while another connection has the database locked, which it returns. */
static sqlite3 *reopen_locked(struct fixture *x)
{
	char path[CM_DIR_BYTES + 16];
	sqlite3 *other;

	close_hints(x);
	snprintf(path, sizeof(path), "%s/state.db", x->dir);
	assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
	assert_int_equal(sqlite3_exec(other, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	open_hints(x);
	assert_int_equal(hints_count(x->h), 0);
	return other;
}

/* Unlocks the database, and returns when its rows have been handed over. */
static void unlock(struct fixture *x, sqlite3 *other)
{
	assert_int_equal(sqlite3_close(other), SQLITE_OK);
	while (state_has_unread(x->state))
		assert_true(sd_event_run(x->event, UINT64_MAX) >= 0);
}

#define assert_after_restart(x, count)                        \
	do {                                                  \
		assert_int_equal(hints_count((x)->h), count); \
		reopen(x);                                    \
		assert_int_equal(hints_count((x)->h), count); \
	} while (0)

/* Rows that are still unread are forgotten and replaced, and do not come back. */
static void changes_before_rows_are_read(void **state)
{
	const struct hint_owner owner = { "t", 1000 };
	struct fixture *x = *state;
	sqlite3 *other;

	put(x, "scope", A, EXPLICIT, 0, 0, 0);
	put(x, "scope", B, CLIENT, 1000, 0, 0);
	put(x, "segment", A, EXPLICIT, 0, 0, 0);
	put(x, "segment", B, EXPLICIT, 0, 0, 0);
	put(x, "client", A, CLIENT, 1000, 0, 0);
	put(x, "client", B, CLIENT, 1001, 0, 0);
	put(x, "replaced", A, CLIENT, 1000, 0, 0);
	put(x, "replaced", B, EXPLICIT, 0, 0, 0);
	put(x, "", A, DETECTED, 0, 0, 0);
	put(x, "", B, EXPLICIT, 0, 0, 0);
	put(x, "other", C, EXPLICIT, 0, 0, 0);
	other = reopen_locked(x);
	hints_forget(x->h, "scope", NULL, false);
	hints_forget(x->h, "segment", A, false);
	hints_forget(x->h, "", C, true);
	/* there may be one */
	assert_true(hints_are_unread(x->h));
	assert_true(hints_forget_client(x->h, "client", &owner));
	put(x, "replaced", C, CLIENT, 1000, 0, 1000);
	pass(x, 1000);
	hints_expire(x->h);
	hints_forget_found(x->h, B);
	assert_int_equal(hints_count(x->h), 0);
	unlock(x, other);
	assert_false(hints_are_unread(x->h));
	assert_false(hints_forget_client(x->h, "client", &owner));
	assert_best(x, "scope", NULL);
	assert_best(x, "segment", B);
	assert_best(x, "client", B);
	assert_best(x, "replaced", B);
	assert_best(x, "", B);
	assert_best(x, "other", NULL);
	assert_after_restart(x, 4);
	/* the end of the late rows is the end of that */
	put(x, "scope", A, EXPLICIT, 0, 0, 0);
	assert_after_restart(x, 5);
}

/* All unread rows are forgotten; those that are put afterwards stay, also with the key of a row. */
static void all_is_forgotten_before_rows_are_read(void **state)
{
	struct fixture *x = *state;
	sqlite3 *other;

	put(x, "m", A, EXPLICIT, 0, 0, 0);
	put(x, "n", A, EXPLICIT, 0, 0, 0);
	other = reopen_locked(x);
	hints_forget(x->h, "", NULL, true);
	put(x, "n", A, EXPLICIT, 0, 0, 0);
	unlock(x, other);
	assert_best(x, "n", A);
	assert_after_restart(x, 1);
}

/* More changes than are kept: no row comes back. */
static void too_many_changes_before_rows_are_read(void **state)
{
	struct fixture *x = *state;
	char scope[HINT_SCOPE_MAX + 1];
	sqlite3 *other;

	put(x, "m", A, EXPLICIT, 0, 0, 0);
	other = reopen_locked(x);
	put(x, "n", A, EXPLICIT, 0, 0, 0);
	for (unsigned i = 0; i < 100000; i++) {
		snprintf(scope, sizeof(scope), "%0*u", HINT_SCOPE_MAX, i);
		hints_forget_client(x->h, scope, &(struct hint_owner){ "t", 1000 });
	}
	unlock(x, other);
	assert_best(x, "m", NULL);
	assert_best(x, "n", A);
	assert_after_restart(x, 1);
}

static void a_clock_set_back_keeps_hints_only_briefly(void **state)
{
	struct fixture *x = *state;
	struct hint best;

	put(x, "m", A, CLIENT, 1000, 3, 10000);
	close_hints(x);
	x->log[0] = '\0';
	x->unix_ms -= 365 * DAY_MS;
	open_hints(x);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 10000);
	/* the database gets the new times, so that the next start does not repeat this */
	close_hints(x);
	x->unix_ms += 6000;
	open_hints(x);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 4000);
	/* back to the first second of 1970 */
	close_hints(x);
	x->unix_ms = 0;
	open_hints(x);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 10000);
}

static void a_clock_set_while_running_changes_nothing(void **state)
{
	struct fixture *x = *state;
	struct hint best;

	put(x, "m", A, CLIENT, 1000, 3, 10000);
	pass(x, 1000);
	x->unix_ms += 1000 * DAY_MS;
	hints_clock_set(x->h);
	hints_expire(x->h);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 9000);
	reopen(x); /* by the present clock */
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 9000);
	x->unix_ms -= 2000 * DAY_MS;
	hints_clock_set(x->h);
	reopen(x);
	assert_true(hints_best(x->h, "m", NULL, &best));
	assert_int_equal(best.left_ms, 9000);
}

/* Rows that a file can have but the agent would not write. */
static void rows_are_checked(void **state)
{
	struct fixture *x = *state;
	const struct state_hint bad[] = {
		{ "m", CLIENT, 0, "nonsense", "t", 0, x->unix_ms, x->unix_ms + 1000 },
		{ "m\n", CLIENT, 0, A, "t", 0, x->unix_ms, x->unix_ms + 1000 },
		{ "m", 0, 0, A, "t", 0, x->unix_ms, x->unix_ms + 1000 },
		{ "m", 77, 0, A, "t", 0, x->unix_ms, x->unix_ms + 1000 },
		{ "m", ENVIRONMENT, 0, A, "t", 0, x->unix_ms, x->unix_ms + 1000 },
		{ "m", CLIENT, 0, A, "t", 0, x->unix_ms + 10, x->unix_ms + 5 },
		{ "m", CLIENT, 0, A, "t", 0, 0, 0 },
	};
	const struct state_hint good[] = {
		{ "m", CLIENT, 5, A, "t", 0, x->unix_ms - 20, x->unix_ms + 1000 },
		{ "m", CLIENT, 5, B, "t", 0, x->unix_ms - 10, x->unix_ms + 1000 },
		{ "m", CLIENT, 5, C, "t", 0, x->unix_ms - 30, x->unix_ms + 1000 },
		{ "far", DETECTED, 0, A, "t", 0, INT64_MAX - 1, INT64_MAX },
		{ "long", DETECTED, 0, A, "t", 0, 0, INT64_MAX },
	};
	struct hint best;

	x->h = hints_free(x->h);
	new_hints(x);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(bad); i++)
		hints_load(x->h, &bad[i]);
	assert_int_equal(hints_count(x->h), 0);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(good); i++)
		hints_load(x->h, &good[i]);
	assert_log(x, "");
	hints_loaded(x->h);
	assert_log(x, "+" B ";");
	assert_int_equal(hints_count(x->h), 3);
	assert_best(x, "m", B); /* of one uid the newest counts */
	assert_true(hints_best(x->h, "far", NULL, &best));
	assert_int_equal(best.left_ms, 1);
	assert_true(hints_best(x->h, "long", NULL, &best));
	assert_int_equal(best.left_ms, HINT_TTL_MAX_MS);
}

static void a_refill_writes_all_hints(void **state)
{
	struct fixture *x = *state;

	put(x, "m", A, CLIENT, 1, 0, 0);
	put(x, "n", B, EXPLICIT, 0, 0, 0);
	state_drop_hint(x->state, &(struct state_hint){ "m", CLIENT, 1, A, "t", 0, 0, 0 });
	state_drop_hint(x->state, &(struct state_hint){ "n", EXPLICIT, 0, B, "", 0, 0, 0 });
	hints_refill(x->h);
	reopen(x);
	assert_int_equal(hints_count(x->h), 2);
	assert_best(x, "n", B);
}

static void the_timer_removes_expired_hints(void **state)
{
	struct fixture *x = *state;
	int64_t until = dray_now().ns + 20 * DRAY_NS_PER_SEC;

	put(x, "never", C, EXPLICIT, 0, 0, 0);
	put(x, "m", A, CLIENT, 1, 0, 2);
	put(x, "m", B, CLIENT, 2, 0, 1);
	while (hints_count(x->h) > 1 && dray_now().ns < until)
		assert_true(sd_event_run(x->event, 20000000) >= 0);
	assert_int_equal(hints_count(x->h), 1);
	assert_best(x, "m", NULL);
}

/* Random hints, compared with a list that is searched linearly. */
struct model {
	char scope[8];
	unsigned segment, source;
	uint32_t uid, score;
	int64_t put_ms, end_ms;
	bool live;
};

static const char *const segments[] = { A, B, C };

static bool is_better(const struct model *a, const struct model *b)
{
	if (!b || a->source != b->source)
		return !b || a->source < b->source;
	if (a->score != b->score)
		return a->score > b->score;
	return a->put_ms > b->put_ms;
}

static void check_model(struct fixture *x, const struct model *m, unsigned n)
{
	bool named[3] = { false };
	char scope[8];

	for (unsigned s = 0; s < 5; s++) {
		const struct model *best = NULL;

		snprintf(scope, sizeof(scope), "s%u", s);
		for (unsigned i = 0; i < n; i++) {
			if (!m[i].live)
				continue;
			/* a segment counts as named only by explicit hints and hints of clients */
			named[m[i].segment] |= m[i].source == EXPLICIT || m[i].source == CLIENT;
			if (!strcmp(m[i].scope, scope) && is_better(&m[i], best))
				best = &m[i];
		}
		assert_best(x, scope, best ? segments[best->segment] : NULL);
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(hints_names(x->h, segments[i], NULL), named[i]);
}

static void walk_put(struct fixture *x, struct model *m, unsigned *n, unsigned *seed)
{
	struct model *e = &m[*n];

	*e = (struct model){ .segment = (unsigned)rand_r(seed) % 3,
			     .source = 1 + (unsigned)rand_r(seed) % 4,
			     .score = (uint32_t)rand_r(seed) % 3,
			     .put_ms = x->boot_ms,
			     .end_ms = x->boot_ms + 1 + rand_r(seed) % 200,
			     .live = true };
	snprintf(e->scope, sizeof(e->scope), "s%u", (unsigned)rand_r(seed) % 5);
	e->uid = e->source == CLIENT ? (uint32_t)rand_r(seed) % 3 : 0;
	for (unsigned i = 0; i < *n; i++)
		if (m[i].live && !strcmp(m[i].scope, e->scope) && m[i].source == e->source &&
		    (e->source == CLIENT ? m[i].uid == e->uid : m[i].segment == e->segment))
			m[i].live = false;
	put(x, e->scope, segments[e->segment], (int)e->source, e->uid, e->score,
	    (uint64_t)(e->end_ms - e->put_ms));
	++*n;
}

static void random_walk(void **state)
{
	static struct model m[3000];
	struct fixture *x = *state;
	unsigned n = 0, seed = 7;
	uint64_t live;

	while (n < DRAY_ARRAY_SIZE(m)) {
		pass(x, 1 + rand_r(&seed) % 3);
		for (unsigned i = 0; i < n; i++)
			m[i].live &= m[i].end_ms > x->boot_ms;
		hints_expire(x->h);
		walk_put(x, m, &n, &seed);
		x->log[0] = '\0';
		if (n % 500 == 0) {
			reopen(x);
			/* hints of the environment are read again */
			for (unsigned i = 0; i < n; i++)
				m[i].live &= m[i].source != ENVIRONMENT;
		}
		check_model(x, m, n);
	}
	live = 0;
	for (unsigned i = 0; i < n; i++)
		live += m[i].live;
	assert_int_equal(hints_count(x->h), live);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_strongest_hint_is_effective, setup, teardown),
		cmocka_unit_test_setup_teardown(a_clients_hint_replaces_that_of_its_uid, setup,
						teardown),
		cmocka_unit_test_setup_teardown(hints_are_checked, setup, teardown),
		cmocka_unit_test_setup_teardown(quotas_are_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(expired_hints_are_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(forgetting, setup, teardown),
		cmocka_unit_test_setup_teardown(all_hints_are_listed, setup, teardown),
		cmocka_unit_test_setup_teardown(a_restart_restores_hints, setup, teardown),
		cmocka_unit_test_setup_teardown(rows_that_come_late, setup, teardown),
		cmocka_unit_test_setup_teardown(changes_before_rows_are_read, setup, teardown),
		cmocka_unit_test_setup_teardown(all_is_forgotten_before_rows_are_read, setup,
						teardown),
		cmocka_unit_test_setup_teardown(too_many_changes_before_rows_are_read, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_clock_set_back_keeps_hints_only_briefly, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_clock_set_while_running_changes_nothing, setup,
						teardown),
		cmocka_unit_test_setup_teardown(rows_are_checked, setup, teardown),
		cmocka_unit_test_setup_teardown(a_refill_writes_all_hints, setup, teardown),
		cmocka_unit_test_setup_teardown(the_timer_removes_expired_hints, setup_real,
						teardown),
		cmocka_unit_test_setup_teardown(random_walk, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
