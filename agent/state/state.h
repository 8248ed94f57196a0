/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that outlives the agent: hints, segments with their history, and the segment that was preferred last, in the
 * database state.db of the state directory. The agent works with its memory; the database follows. Changes are queued,
 * the last one of each key, and a thread, the writer, commits them in batches, so that kill -9 loses at most one
 * batch. While the database cannot be written, changes are kept and tried again. If too many wait, or the file is
 * lost, the state asks its owner to save everything again (refill).
 *
 * A file that is corrupt, of a newer version, or that cannot be opened is quarantined: renamed to
 * state.db.corrupt-TIME or state.db.newer-VERSION-TIME. Three of each sort are kept.
 *
 * All functions belong to the control thread. Strings are copied; strings in callbacks are valid during the call.
 * Times are Unix time in milliseconds.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "schema/gen/state.h"

/* Longest text of any field. A longer text for people is cut; a row with a longer name is not saved. */
#define STATE_TEXT_MAX 1024

struct state;

struct state_deps {
	sd_event *event;
	const char *dir; /* the state directory, which the caller holds locked */
	/*
	 * The owner must save everything but events again: the file was replaced, or the queue overflowed. The rows
	 * saved during the call are committed as one transaction and replace all rows of the file. NULL: never.
	 */
	void (*refill)(void *arg);
	void *arg;
	/* The pause before a batch, and the pauses after failures. 0: the default in state.c. */
	int64_t gather_ns, retry_min_ns, retry_max_ns;
	uint64_t queue_bytes; /* of changes that wait; 0: the default in state.c */
};

typedef void (*state_row_fn)(void *arg, enum state_kind kind, const union state_row *row);

/*
 * Opens or makes the database, and reads only its version. Blocks for a few milliseconds, so it is called at start
 * only. A fault of the file or the disk is logged and is no error: the file is quarantined, or the state is in
 * memory only. 0 or -errno with reterr.
 */
int state_open(struct state **ret, const struct state_deps *deps, struct dray_err *reterr);

/*
 * Calls fn for all rows of the wanted kinds (1u << enum state_kind), in the order of the kinds; events come oldest first.
 * Blocks for a microsecond or two per row, so it is called at start only, before state_start(). Invalid rows are left
 * out. Returns the number of rows. If the file cannot be read now, fn is called when it can, from the event loop and in
 * parts, for the rows whose key was not changed since.
 */
uint64_t state_load(struct state *s, unsigned kinds, state_row_fn fn, void *arg);

/* The file could not be read at the start, and its rows are still to come. */
bool state_has_unread(struct state *s);

/*
 * Starts the writer, which takes over the credentials of the caller and first verifies the whole file. Changes may be
 * queued before. 0 or -errno.
 */
int state_start(struct state *s);

/* Commits the queued changes, and waits at most two seconds for that. Returns NULL. */
struct state *state_free(struct state *s);
DRAY_DEFINE_CLEANUP(struct state *, state_free);

/*
 * Saves the row, or drops the one with its key. Never blocks and never fails: without memory a refill is requested later.
 * A NULL state saves nothing.
 */
void state_change(struct state *s, enum state_kind kind, bool drop, const union state_row *row);

/* Arguments: a pointer to a row, of which only the key counts to drop it. The events of a dropped segment stay. */
#define STATE_CHANGE_(s, kind, drop, member, ...) \
	state_change(s, kind, drop, &(union state_row){ .member = *(__VA_ARGS__) })
#define state_save_hint(s, ...) STATE_CHANGE_(s, STATE_HINT, false, hint, __VA_ARGS__)
#define state_drop_hint(s, ...) STATE_CHANGE_(s, STATE_HINT, true, hint, __VA_ARGS__)
#define state_save_segment(s, ...) STATE_CHANGE_(s, STATE_SEGMENT, false, segment, __VA_ARGS__)
#define state_add_event(s, ...) STATE_CHANGE_(s, STATE_EVENT, false, event, __VA_ARGS__)
#define state_save_preferred(s, ...) \
	STATE_CHANGE_(s, STATE_PREFERRED, false, preferred, __VA_ARGS__)
#define state_drop_segment(s, key) \
	state_change(s, STATE_SEGMENT, true, &(union state_row){ .segment.name = (key) })

struct state_info {
	bool in_memory;             /* the database cannot be written */
	char why[DRAY_ERR_MSG_MAX]; /* while in memory, else "" */
	uint64_t writes;            /* batches committed */
	uint64_t errors; /* batches that failed, changes refused, and files quarantined */
	uint64_t queued; /* changes that are not committed yet; a refill that is due counts as one */
};

void state_info(struct state *s, struct state_info *ret);
