/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement hints: a segment for a scope. A scope may have several. The effective one is that of the strongest source
 * (explicit, environment, detected, client), then the one with the highest score, then the youngest. A hint of a client
 * replaces the hint that clients of its owner put for the scope; other sources have one hint for each scope and segment.
 * Clients see no hints that clients of other owners put.
 *
 * Hints live in memory. The database follows, except for hints from the environment, which is read at each start.
 *
 * A hint expires by CLOCK_BOOTTIME, which nobody can set. Rows of the database have wall-clock times. When the wall clock
 * is set while the agent runs, hints keep their remaining time, and their rows are written again. At the start a hint gets
 * the remaining time by the wall clock, but never more than it was put for, so a clock that was set back does not
 * prolong hints. The log says how many had expired and how many are from the future.
 *
 * Control thread. Strings are copied; strings that are handed out are valid until the next change.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/config/tenant.h"
#include "agent/model/budget.h"
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
	uint32_t uid;       /* of clients; else 0 */
	const char *tenant; /* of clients; else "" */
	uint32_t score;
	int64_t age_ms, left_ms;
	bool counts; /* it is the effective one of its scope */
};

/* A person or a client named the segment. Segments of other sources are known to the agent anyway. */
static inline bool hint_is_given(enum dmsg_hint_source source)
{
	return source == DMSG_HINT_SOURCE_EXPLICIT || source == DMSG_HINT_SOURCE_CLIENT;
}

/* A pair of tenant and uid. Of explicit hints: "" and 0. */
struct hint_owner {
	const char *tenant;
	uint32_t uid;
};

static inline struct hint_owner hint_owner_of(const struct hint *hint)
{
	return (struct hint_owner){ hint->tenant, hint->uid };
}

struct hints;

struct hints_deps {
	sd_event *event;
	const struct dray_config
		*cfg;        /* borrowed; hint.ttl and limits.hints* are read anew at each put */
	struct state *state; /* borrowed; NULL: hints are in memory only */
	/*
	 * After the change; they must not change hints. changed: the scope has another effective hint, or none, or
	 * another one of those that were given, or its segment or score is another. named: the first live hint that
	 * this owner gave names the segment, or the owner's last one has gone. hints_load() makes none before hints_loaded().
	 */
	void (*changed)(void *arg, const char *scope);
	void (*named)(void *arg, const char *segment, const struct hint_owner *owner, bool named);
	void *arg;
	/* Clocks, for tests; NULL: the real ones, and a timer. */
	int64_t (*unix_ms)(void *arg);
	int64_t (*boot_ms)(void *arg);
};

/* 0 or -errno with reterr. */
int hints_new(struct hints **ret, const struct hints_deps *deps, struct dray_err *reterr);

/* Rows of the database stay. The state must outlive the hints. Returns NULL. */
struct hints *hints_free(struct hints *h);
DRAY_DEFINE_CLEANUP(struct hints *, hints_free);

/*
 * A row of the database: at the start, or, after hints_loaded() and with upcalls, one that could only be read later, which
 * is dropped if it was forgotten or replaced since the start.
 */
void hints_load(struct hints *h, const struct state_hint *row);

/* After the last row: logs what became of the rows, and makes the upcall `named` for each segment. */
void hints_loaded(struct hints *h);

/* Saves all hints again: for the refill of the state. */
void hints_refill(struct hints *h);

struct hint_put {
	const char *scope; /* "": the whole node */
	const char *segment;
	enum dmsg_hint_source source;
	uint32_t uid;       /* of clients; else 0 */
	const char *tenant; /* of clients, less than TENANT_BYTES; else not used */
	struct budget_account
		*account; /* of the client, for messages and counts of refusals; else NULL */
	uint32_t score;
	uint64_t ttl_ms; /* 0: hint.ttl */
};

/*
 * 0, or with reterr: -EINVAL (DRAY_E_INVALID: scope, segment or time), -ENOMEM, or -EDQUOT (DRAY_E_QUOTA):
 * limits.hints_per_owner is reached, or limits.hints is reached and all hints are of stronger sources. Otherwise a hint of
 * the weakest source, the one that expires first, makes room.
 */
int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr);

/* The viewer may see the hint. NULL sees all. */
bool hint_is_visible(const struct hint *hint, const struct hint_owner *viewer);

/* The effective hint of exactly this scope among those that the viewer sees. False: there is none. */
bool hints_best(struct hints *h, const char *scope, const struct hint_owner *viewer,
		struct hint *ret);

/* Stored hints cannot be read yet. What forgets hints also forgets those, and does not know whether there are any. */
bool hints_are_unread(const struct hints *h);

/* Drops hints of all sources. segment NULL: any; all: of every scope, and `scope` is ignored. Returns how many of those that were read. */
uint32_t hints_forget(struct hints *h, const char *scope, const char *segment, bool all);

/* Drops the hints for the whole node (scope "") that were not given, except those for this segment. */
void hints_forget_found(struct hints *h, const char *segment);

/* Drops the hint of clients of this owner for the scope. False: there is none, also among stored ones. */
bool hints_forget_client(struct hints *h, const char *scope, const struct hint_owner *owner);

/* Each live hint. The hints of a scope come together, the effective one first; scopes come in no order. */
void hints_each(struct hints *h, void (*fn)(void *arg, const struct hint *hint), void *arg);

/* Each scope with hints, in no order. */
void hints_each_scope(struct hints *h, void (*fn)(void *arg, const char *scope), void *arg);

/* Each live hint of one scope, at most 1,024, as above. */
void hints_each_of(struct hints *h, const char *scope,
		   void (*fn)(void *arg, const struct hint *hint), void *arg);

/* Does a live hint that was given name the segment? ret: one of those who gave such hints; may be NULL. */
bool hints_names(struct hints *h, const char *segment, struct hint_owner *ret);

/* Does a live hint that this owner gave name the segment? */
bool hints_names_for(const struct hints *h, const char *segment, const struct hint_owner *owner);

/* Hints of clients of this owner. */
uint32_t hints_count_of(const struct hints *h, const struct hint_owner *owner);

uint64_t hints_count(const struct hints *h);

/* For tests with clocks of their own: drops expired hints, as the timer does, and handles a wall clock that was set. */
void hints_expire(struct hints *h);
void hints_clock_set(struct hints *h);
