/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the agent: hints, segments with their history, and the segment that was preferred last, in the
 * database state.db of the state directory. What the agent works with is in memory and the truth; the
 * database follows. Changes are queued, the last one of each key, and a thread of its own commits them in batches,
 * so that kill -9 loses at most the batch that was not committed. While the database cannot be written, changes are
 * kept and tried again; where they grow too many, or the file is lost, all is asked for anew (refill).
 *
 * A file that is corrupt, of a newer version, or that cannot be opened is set aside: renamed to
 * state.db.corrupt-TIME, or state.db.newer-VERSION-TIME; three of each sort are kept.
 *
 * Control thread, all of it, unless it says otherwise. Strings are copied; those in callbacks are the state's, for
 * the call. Times are Unix time in milliseconds.
 */
#ifndef DRAY_AGENT_STATE_STATE_H
#define DRAY_AGENT_STATE_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/cleanup.h"
#include "lib/err.h"

/* Longest text of any field; longer ones are cut where they are words for people, else not kept. */
#define STATE_TEXT_MAX 1024

/* Key: scope, source, uid and segment. */
struct state_hint {
	const char *scope, *segment;
	uint32_t source; /* enum dmsg_hint_source */
	uint32_t uid, score;
	int64_t put_ms, expires_ms;
};

/* Key: name. */
struct state_segment {
	const char *name;
	const char *probe;   /* how it is probed; "" not at all */
	const char *target;  /* where; "" at its own address */
	const char *sources; /* from where it is known, by comma */
	uint32_t state;      /* enum dmsg_segment_state */
	int64_t since_ms;    /* in that state */
	int64_t ready_ms;    /* when it last was ready; 0 never */
	const char *reason;
	uint64_t capacity, allocated; /* bytes; up to INT64_MAX */
	int64_t seen_ms;              /* when something last spoke of it */
};

/* The newest of each segment and of all are kept. */
struct state_event {
	const char *segment;
	int64_t at_ms;
	uint32_t old, new; /* enum dmsg_segment_state */
	const char *reason;
};

/* One, the last. */
struct state_preferred {
	const char *name;    /* "" none */
	uint32_t preference; /* enum dmsg_preference */
	int64_t at_ms;
};

struct state;

struct state_deps {
	sd_event *event;
	const char *dir; /* the state directory, which the caller holds locked */
	/*
	 * Everything is to be put again, but for events: the file was replaced, or there were more changes than are
	 * kept. What is put during the call is committed as one, in the place of all that the file has. NULL: never.
	 */
	void (*refill)(void *arg);
	void *arg;
	/* 0: as in state.c. Pause before a batch, and the pauses after failures. */
	int64_t gather_ns, retry_min_ns, retry_max_ns;
	uint64_t queue_bytes; /* 0: as in state.c. Changes that are kept */
};

/* Rows that were committed. NULL: not wanted. Events come oldest first. */
struct state_rows {
	void (*hint)(void *arg, const struct state_hint *row);
	void (*segment)(void *arg, const struct state_segment *row);
	void (*event)(void *arg, const struct state_event *row);
	void (*preferred)(void *arg, const struct state_preferred *row);
	void *arg;
};

/*
 * Opens or makes the database; reads nothing yet but its version. Blocks for a few milliseconds: at start only. What
 * is wrong with the file or the disk is a line in the log and no error: state is in memory then, or the file
 * is set aside. 0 or -errno with reterr.
 */
int state_open(struct state **ret, const struct state_deps *deps, struct dray_err *reterr);

/*
 * Hands over all rows of the kinds that are wanted, the preferred one first. Blocks (a microsecond or two for each row): at
 * start only, before state_start(); it may be called for some kinds first and for the others later. Rows that are not in
 * order are left out. Returns how many rows there were.
 */
uint64_t state_load(struct state *s, const struct state_rows *rows);

/*
 * Starts the thread that writes; where work may start, since it has the credentials of then. It checks the whole file
 * first. Changes may be queued before. 0 or -errno.
 */
int state_start(struct state *s);

/* Commits what is queued, but waits no longer than two seconds for it. Returns NULL. */
struct state *state_free(struct state *s);
DRAY_DEFINE_CLEANUP(struct state *, state_free);

/*
 * These never block and never fail: what finds no memory is asked for anew later (refill). A state that is NULL keeps
 * nothing.
 */
void state_save_hint(struct state *s, const struct state_hint *row);
void state_drop_hint(struct state *s,
		     const struct state_hint *key); /* its key alone is looked at */
void state_save_segment(struct state *s, const struct state_segment *row);
void state_drop_segment(struct state *s, const char *name); /* its history stays, for a while */
void state_add_event(struct state *s, const struct state_event *row);
void state_save_preferred(struct state *s, const struct state_preferred *row);

/*
 * done: once, as an event, or in state_free(): all that was queued before is committed (0), or could not be written
 * (-EIO; it is kept and tried again). 0 or -ENOMEM.
 */
int state_flush(struct state *s, void (*done)(void *arg, int r), void *arg);

struct state_info {
	bool in_memory;             /* nothing can be written */
	char why[DRAY_ERR_MSG_MAX]; /* while in memory, else "" */
	uint64_t writes;            /* batches committed */
	uint64_t errors; /* batches that could not be, changes refused, and files set aside */
	uint64_t queued; /* changes that wait */
};

void state_info(struct state *s, struct state_info *ret);

#endif
