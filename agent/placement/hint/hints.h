/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement hints: for this scope, that segment. Several may speak of one scope; the one that counts is that of the
 * strongest source (explicit, environment, detected, client), then the highest score, then the youngest. A client's
 * hint replaces what clients of its uid said of the scope; other sources have one hint for each scope and segment.
 *
 * Memory is the truth and agent/state behind it, but for hints from the environment, which is read anew at each
 * start.
 *
 * A hint lasts for its time by a clock that nobody sets (CLOCK_BOOTTIME). On disk there is wall-clock time: when the
 * wall clock is set while the agent runs, hints keep what they have left, and the disk is told. At start a hint
 * lives on for what the wall clock says, but never for longer than it was put for, so that a clock that was set back
 * revives nothing for long. How many had expired, and how many are from the future, is a line in the log.
 *
 * Control thread. Strings are copied; those handed out are the hints', until the next change.
 */
#ifndef DRAY_AGENT_PLACEMENT_HINT_HINTS_H
#define DRAY_AGENT_PLACEMENT_HINT_HINTS_H

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/state/state.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"

#define HINT_SCOPE_MAX 256
#define HINT_SEGMENT_MAX 256
/* A year: as much as hint.ttl may be. */
#define HINT_TTL_MAX_MS (8760 * 3600 * 1000LL)

struct hint {
	const char *scope, *segment;
	enum dmsg_hint_source source;
	uint32_t uid; /* of clients; else 0 */
	uint32_t score;
	int64_t put_ms, expires_ms; /* Unix time in milliseconds, by the wall clock of now */
	int64_t age_ms, left_ms;
	bool counts; /* the one that counts for its scope */
};

/* Somebody said so. What the agent found itself, or was started with, names no segment that it would not know otherwise. */
static inline bool hint_is_given(enum dmsg_hint_source source)
{
	return source == DMSG_HINT_SOURCE_EXPLICIT || source == DMSG_HINT_SOURCE_CLIENT;
}

struct hints;

struct hints_deps {
	sd_event *event;
	const struct dray_config
		*cfg;        /* borrowed; hint.ttl and limits.hints* are read anew at each put */
	struct state *state; /* borrowed; NULL: in memory alone */
	/*
	 * After the change, and not for what hints_load() brings. They must not change hints. `changed`: another one
	 * counts for the scope, or none, or its segment or score is another; likewise of those that somebody said. `named`: a segment that no live hint of the
	 * administrator or of a client named is named now, or the other way round.
	 */
	void (*changed)(void *arg, const char *scope);
	void (*named)(void *arg, const char *segment, bool named);
	void *arg;
	/* Clocks, for tests; NULL: the real ones, and a timer. */
	int64_t (*unix_ms)(void *arg);
	int64_t (*boot_ms)(void *arg);
};

/* 0 or -errno with reterr. */
int hints_new(struct hints **ret, const struct hints_deps *deps, struct dray_err *reterr);

/* The state, which is told nothing by this, must outlive it. Returns NULL. */
struct hints *hints_free(struct hints *h);
DRAY_DEFINE_CLEANUP(struct hints *, hints_free);

/* A row of the database (struct state_rows): for state_load(). arg: the hints. */
void hints_load(void *arg, const struct state_hint *row);

/* After the last of them: says in the log what became of them. */
void hints_loaded(struct hints *h);

/* Puts all of them to the state again: for its refill. */
void hints_refill(struct hints *h);

struct hint_put {
	const char *scope; /* "": the whole node */
	const char *segment;
	enum dmsg_hint_source source;
	uint32_t uid; /* of clients; else 0 */
	uint32_t score;
	uint64_t ttl_ms; /* 0: hint.ttl */
};

/*
 * Remembers it. 0, -EINVAL (DRAY_E_INVALID: scope, segment or time), -EDQUOT (DRAY_E_QUOTA: limits.hints_per_uid, or
 * limits.hints are there and all from stronger sources; else those of the weakest source that expire first
 * go), -ENOMEM; with reterr.
 */
int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr);

/* The one that counts for exactly this scope; false: there is none. */
bool hints_best(struct hints *h, const char *scope, struct hint *ret);

/* segment NULL: any; all: of every scope (scope is not looked at). Whatever their source. Returns how many. */
uint32_t hints_forget(struct hints *h, const char *scope, const char *segment, bool all);

/* What the agent found, or was started with, for the whole node (scope ""), but for this segment. */
void hints_forget_found(struct hints *h, const char *segment);

/* What clients of this uid said of the scope. False: nothing. */
bool hints_forget_client(struct hints *h, const char *scope, uint32_t uid);

/* Each live hint, in no order but for those of one scope, which come together, the one that counts first. */
void hints_each(struct hints *h, void (*fn)(void *arg, const struct hint *hint), void *arg);

/* The same for one scope. */
void hints_each_of(struct hints *h, const char *scope,
		   void (*fn)(void *arg, const struct hint *hint), void *arg);

/* Is the segment named by a live hint of the administrator or of a client? */
bool hints_names(struct hints *h, const char *segment);
void hints_each_name(struct hints *h, void (*fn)(void *arg, const char *segment), void *arg);

uint64_t hints_count(const struct hints *h);

/* What the timer does: takes away those that have expired. For tests with clocks of their own. */
void hints_expire(struct hints *h);

/* What a wall clock that was set does. For tests as above. */
void hints_clock_set(struct hints *h);

#endif
