/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer. It takes the whole queue as one batch, and keeps it until it is committed. After any failure the file is
 * closed, and opened again before the next attempt. If the file was replaced, its rows are gone and a batch of changes
 * is not enough: the batch is dropped and a refill is requested.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "agent/process/privilege.h"
#include "agent/state/internal.h"
#include "lib/backoff.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* If even new files are corrupt, the disk is at fault. */
#define FILES_MAX 3

static void mark_for_refill(struct state *s)
{
	pthread_mutex_lock(&s->lock);
	s->needs_refill = true;
	s->refill_requested = false;
	pthread_mutex_unlock(&s->lock);
}

static void report_quarantine(struct state *s, const struct dray_err *why, const char *name)
{
	pthread_mutex_lock(&s->lock);
	s->info.errors++;
	state_notice(s, DRAY_LOG_WARNING,
		     "%s cannot be used: %s; it was renamed to %s, and a new one is made", s->path,
		     why->msg, name);
	pthread_mutex_unlock(&s->lock);
}

static void report_moved(struct state *s)
{
	pthread_mutex_lock(&s->lock);
	s->info.errors++;
	state_notice(s, DRAY_LOG_WARNING, "%s was moved or removed while in use; a new one is made",
		     s->path);
	pthread_mutex_unlock(&s->lock);
}

static int quarantine(struct state *s, const char *sort, const struct dray_err *why,
		      struct dray_err *reterr)
{
	char name[QUARANTINE_NAME_BYTES];
	int r = quarantine_file(s->dir, DRAY_STATE_DATABASE, sort, name, reterr);

	if (r == 0)
		report_quarantine(s, why, name);
	return r;
}

int writer_discard_file(struct state *s, int what, const struct dray_err *why,
			struct dray_err *reterr)
{
	/* if the file has moved, sqlite3 must remove its log, or the next file would find it */
	s->database = database_close(s->database, what != DATABASE_E_MOVED);
	mark_for_refill(s);
	if (what == DATABASE_E_MOVED) {
		report_moved(s);
		return 0;
	}
	return quarantine(s, "corrupt", why, reterr);
}

/* The directory is ours, but the file may not be opened. EEXIST: it is a link to nothing. */
static bool is_denied(int r)
{
	return r == -EACCES || r == -EPERM || r == -ELOOP || r == -ENXIO || r == -EEXIST;
}

static bool exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

static int open_once(struct state *s, struct database_info *info, struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	char sort[32];
	int r = database_open(&s->database, s->path, &database_state_schema, info, &why);

	if (r == 0)
		return 0;
	if (r < 0 && (!is_denied(r) || !exists(s->path))) {
		*reterr = why;
		return r;
	}
	snprintf(sort, sizeof(sort), r == DATABASE_E_NEWER ? "newer-%u" : "corrupt", info->version);
	r = quarantine(s, sort, &why, reterr);
	return r < 0 ? r : DATABASE_E_CORRUPT;
}

int writer_open(struct state *s, struct dray_err *reterr)
{
	struct database_info info;
	int r = DATABASE_E_CORRUPT;

	for (int i = 0; r > 0 && i < FILES_MAX; i++)
		r = open_once(s, &info, reterr);
	if (r)
		return r < 0 ? r :
			       dray_err_set(reterr, -EIO, DRAY_E_IO,
					    "%s is corrupt as soon as it is made; check the disk",
					    s->path);
	s->unchecked = !info.created;
	/* a new file lacks the rows in memory; at the very first one they are all queued */
	if (info.created && s->had_database)
		mark_for_refill(s);
	s->had_database = true;
	return 0;
}

static int check(struct state *s, struct dray_err *reterr)
{
	int r = s->unchecked ? database_check(s->database, reterr) : 0;

	s->unchecked &= r != 0;
	return r;
}

struct reading {
	struct state *s;
	bool no_memory;
};

/* What was changed since the start is newer than its row. */
static void keep_row(void *arg, enum state_kind kind, const union state_row *row)
{
	struct reading *reading = arg;
	struct state *s = reading->s;
	struct change *c = change_new(kind, false, row);

	reading->no_memory |= !c;
	if (c && !queue_has(&s->batch, c))
		dray_list_add(&s->reading, &c->link);
	else
		free(c);
}

/* Reads what could not be read at the start, before the batch changes it. */
static int read_late(struct state *s, struct dray_err *reterr)
{
	struct reading reading = { .s = s };
	uint64_t n, refused;
	int r;

	if (!s->unread)
		return 0;
	changes_free(&s->reading);
	r = database_load(s->database, s->unread, keep_row, &reading, &n, &refused, reterr);
	if (!r && reading.no_memory)
		r = dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "reading state: no memory");
	return r;
}

static int apply(struct state *s, struct dray_err *reterr)
{
	uint64_t refused = 0;
	int r = database_apply(s->database, &s->batch, &refused, reterr);

	if (r)
		return r;
	queue_clear(&s->batch);
	pthread_mutex_lock(&s->lock);
	s->n_batch = 0;
	s->info.writes++;
	s->info.errors += refused;
	if (refused)
		state_notice(s, DRAY_LOG_WARNING,
			     "%" PRIu64 " changes of state are not saved: %s rejects them", refused,
			     s->path);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static int write_once(struct state *s, struct dray_err *reterr)
{
	bool needs_refill, in_memory;
	int r = check(s, reterr);

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	needs_refill = s->needs_refill;
	in_memory = s->info.in_memory;
	pthread_mutex_unlock(&s->lock);
	if (needs_refill)
		queue_clear(&s->batch);
	r = needs_refill ? 0 : read_late(s, reterr);
	if (r)
		return r;
	if (queue_count(&s->batch))
		return apply(s, reterr);
	/* a refill is requested only when the file can be written */
	return needs_refill || in_memory ? database_touch(s->database, reterr) : 0;
}

/* 0, or -errno with reterr and the file closed. */
static int attempt(struct state *s, struct dray_err *reterr)
{
	int r = 0;

	for (int i = 0; i < FILES_MAX; i++) {
		struct dray_err why = DRAY_ERR_NULL;

		if (s->database && s->database->read_only)
			s->database = database_close(s->database, true);
		r = s->database ? 0 : writer_open(s, &why);
		if (!r)
			r = write_once(s, &why);
		if (r > 0)
			r = writer_discard_file(s, r, &why, reterr);
		else if (r < 0)
			*reterr = why;
		else
			return 0;
		if (r < 0)
			break;
	}
	s->database = database_close(s->database, true);
	return dray_err_set(reterr, r < 0 ? r : -EIO, DRAY_E_IO,
			    "%s is corrupt each time it is made; check the disk", s->path);
}

static bool has_changes(const struct state *s)
{
	/* a refill will replace the queued changes, so take_batch() leaves them */
	return (!s->hold && !s->needs_refill && queue_count(&s->queue)) || queue_count(&s->batch);
}

static bool has_work(const struct state *s)
{
	if (has_changes(s))
		return true;
	if (s->quit)
		return false;
	return s->unchecked || s->info.in_memory || (s->needs_refill && !s->refill_requested);
}

static int64_t next_attempt_ns(const struct state *s)
{
	if (s->failures)
		return s->retry_ns;
	return has_changes(s) ? s->first_ns + s->deps.gather_ns : 0;
}

static void wait_until(struct state *s, int64_t at_ns)
{
	struct timespec t = { at_ns / DRAY_NS_PER_SEC, at_ns % DRAY_NS_PER_SEC };

	pthread_cond_timedwait(&s->wake, &s->lock, &t);
}

/* False: the thread must end. */
static bool wait_for_work(struct state *s)
{
	for (;;) {
		int64_t due = next_attempt_ns(s);

		if (!has_work(s)) {
			if (s->quit)
				return false;
			pthread_cond_wait(&s->wake, &s->lock);
		} else if (s->quit || due <= dray_now().ns) {
			return true;
		} else {
			wait_until(s, due);
		}
	}
}

static void take_batch(struct state *s)
{
	if (s->hold || s->needs_refill || queue_count(&s->batch))
		return;
	queue_move(&s->batch, &s->queue);
	s->n_batch = queue_count(&s->batch);
}

/* Rows that a refill replaces are too old: changes since the start are no longer known. */
static void hand_over(struct state *s)
{
	s->unread = 0;
	if (s->needs_refill)
		changes_free(&s->reading);
	if (dray_list_empty(&s->reading))
		return;
	state_notice(s, DRAY_LOG_NOTICE,
		     "%u rows of %s, which the start could not read, have been read",
		     dray_list_length(&s->reading), s->path);
	dray_list_splice(&s->found, &s->reading);
	s->hold = true;
}

static void succeeded(struct state *s)
{
	s->failures = 0;
	hand_over(s);
	if (s->needs_refill) {
		s->refill_requested = true;
		s->n_batch = 0;
	}
	if (!s->info.in_memory)
		return;
	s->info.in_memory = false;
	s->info.why[0] = '\0';
	state_notice(s, DRAY_LOG_NOTICE, "state is written to %s again", s->path);
}

static void failed(struct state *s, const struct dray_err *why)
{
	s->failures++;
	s->retry_ns = dray_now().ns +
		      backoff_pause(s->failures, s->deps.retry_min_ns, s->deps.retry_max_ns);
	state_failed(s, why);
}

void *writer_main(void *arg)
{
	struct state *s = arg;
	bool abandoned;

	privilege_drop();
	pthread_mutex_lock(&s->lock);
	while (wait_for_work(s)) {
		struct dray_err why = DRAY_ERR_NULL;
		int r;

		take_batch(s);
		pthread_mutex_unlock(&s->lock);
		r = attempt(s, &why);
		pthread_mutex_lock(&s->lock);
		if (r == 0)
			succeeded(s);
		else
			failed(s, &why);
		dray_wake(s->event_fd);
		/* that was the last attempt */
		if (s->quit && r < 0)
			break;
	}
	pthread_mutex_unlock(&s->lock);
	/* may take long: sqlite3 merges its log into the file */
	s->database = database_close(s->database, false);
	pthread_mutex_lock(&s->lock);
	s->ended = true;
	abandoned = s->abandoned;
	pthread_cond_broadcast(&s->wake);
	pthread_mutex_unlock(&s->lock);
	if (abandoned)
		state_destroy(s);
	return NULL;
}
