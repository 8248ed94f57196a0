/* SPDX-License-Identifier: Apache-2.0 */
/* What the control thread (state.c) and the thread that writes (writer.c) share. */
#ifndef DRAY_AGENT_STATE_INTERNAL_H
#define DRAY_AGENT_STATE_INTERNAL_H

#include <pthread.h>

#include "agent/state/queue.h"
#include "agent/state/state.h"
#include "agent/state/database.h"
#include "lib/log.h"
#include "lib/wake.h"

/* Lines for the log, which is the control thread's; more of them at a time are not said. */
#define NOTICES 8

struct notice {
	enum dray_log_level level;
	char text[DRAY_ERR_MSG_MAX * 2];
};

struct state {
	struct state_deps deps; /* with limits filled in */
	char *dir, *path;

	/* control thread's */
	sd_event_source *source;
	struct dray_list flushes;
	bool refilling; /* the queue may grow over its limit */

	int event_fd; /* writer to control: look at what is below */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t wake;

	/* under the lock */
	struct queue queue;
	int64_t overflow_ns;               /* when it was last said to be too long; 0 never */
	int64_t first_ns;                  /* when it stopped being empty */
	uint64_t queued_seq;               /* changes asked for, kept or not */
	uint64_t committed_seq;            /* up to here they are on disk */
	uint64_t attempts, failed_attempt; /* how many began; the last of them that failed */
	bool hold;                         /* the queue is being filled: not to be taken */
	bool needs_refill;                 /* all is to be put again */
	bool refill_requested;             /* of which the control thread is told */
	bool flush;                        /* somebody waits */
	bool quit, ended, abandoned;
	uint64_t n_batch; /* changes that the writer holds */
	struct state_info info;
	struct notice notices[NOTICES];
	unsigned n_notices;

	/* the writer's once it runs */
	struct database *database;
	bool had_database; /* since the start */
	bool unchecked;    /* not every page of it has been looked at */
	struct queue batch;
	uint64_t batch_seq;
	uint32_t failures; /* in a row */
	int64_t retry_ns;
};

/* The thread's; arg: the state. */
void *writer_main(void *arg);

/*
 * Opens the file, and sets aside what is no database of ours. Whoever owns the store at that time. 0, or -errno with
 * reterr: in memory then.
 */
int writer_open(struct state *s, struct dray_err *reterr);

/* Closes and sets aside (what: DATABASE_E_*). 0, or -errno with reterr. */
int writer_discard_file(struct state *s, int what, const struct dray_err *why,
			struct dray_err *reterr);

/* With the lock held. */
void state_notice(struct state *s, enum dray_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void state_failed(struct state *s, const struct dray_err *why);

/* When nobody uses it any more. */
void state_destroy(struct state *s);

#endif
