/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the control thread (state.c, enqueue.c) and the writer, the thread that writes (writer.c). */
#pragma once

#include <pthread.h>

#include "agent/state/database.h"
#include "agent/state/queue.h"
#include "agent/state/state.h"
#include "lib/log.h"
#include "lib/wake.h"

/* Only the control thread logs. The writer queues its lines here and drops those that do not fit. */
#define NOTICES 8

struct notice {
	enum dray_log_level level;
	char text[DRAY_ERR_MSG_MAX * 2];
};

struct state {
	struct state_deps deps; /* with the defaults filled in */
	char *dir, *path;

	/* of the control thread */
	sd_event_source *source;
	bool refilling;   /* the queue may exceed its limit */
	state_row_fn row; /* of state_load(); with its arg */
	void *row_arg;

	int event_fd; /* the writer wakes the control thread */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t wake;

	/* under the lock */
	struct queue queue;
	int64_t overflow_ns; /* when an overflow was last logged; 0 never */
	int64_t first_ns;    /* when the queue stopped being empty */
	/* the writer waits: a refill is filling the queue, or the control thread takes the rows in `found` */
	bool hold;
	bool needs_refill;     /* the file lacks rows: all must be queued again */
	bool refill_requested; /* the control thread has been told to refill */
	struct dray_list
		found; /* struct change: rows that were read late; of the control thread while `hold` is set */
	bool quit, ended, abandoned;
	uint64_t n_batch; /* changes in the batch of the writer */
	struct state_info info;
	struct notice notices[NOTICES];
	unsigned n_notices;

	/* of the writer, once it runs */
	struct database *database;
	bool had_database; /* a database was open since the start */
	bool unchecked;    /* its pages have not been verified yet */
	/* kinds of rows that could not be read at the start (1u << enum state_kind); changed under the lock */
	unsigned unread;
	struct dray_list
		reading; /* struct change: what becomes `found` when the batch is committed */
	struct queue batch;
	uint32_t failures; /* in a row */
	int64_t retry_ns;
};

/* The main function of the writer; arg: the state. */
void *writer_main(void *arg);

/*
 * Opens the database, and quarantines a file that is none of ours. Called by the thread that owns s->database. 0, or
 * -errno with reterr: the state is in memory only.
 */
int writer_open(struct state *s, struct dray_err *reterr);

/* Closes and quarantines the file, for the reason `what` (DATABASE_E_*). 0, or -errno with reterr. */
int writer_discard_file(struct state *s, int what, const struct dray_err *why,
			struct dray_err *reterr);

/* With the lock held. */
void state_notice(struct state *s, enum dray_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void state_failed(struct state *s, const struct dray_err *why);

#define QUARANTINE_NAME_BYTES 96

/*
 * Renames dir/name, and the files that sqlite3 keeps beside it, to name.SORT-TIME, and removes all but the three
 * youngest of that sort. sort: "corrupt", or "newer-3", whose sort is "newer". Blocks. 0 with the new name, or -errno
 * with reterr and all files where they were.
 */
int quarantine_file(const char *dir, const char *name, const char *sort,
		    char ret_name[QUARANTINE_NAME_BYTES], struct dray_err *reterr);

/* Called by the last thread that uses the state. */
void state_destroy(struct state *s);
