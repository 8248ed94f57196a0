/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/state/internal.h"
#include "lib/thread.h"
#include "lib/time.h"
#include "lib/timeout.h"
#include "schema/gen/errors.h"

/* Long enough to gather a burst, short enough that kill -9 loses little. */
#define GATHER_NS (20 * DRAY_NS_PER_MS)
#define RETRY_MIN_NS DRAY_NS_PER_SEC
#define RETRY_MAX_NS (60 * DRAY_NS_PER_SEC)
/* Limit of the queue; the batch of the writer may hold as much again. */
#define QUEUE_BYTES (16u << 20)
/* Rows that were read late and are handed over in one turn of the loop. */
#define FOUND_PER_TURN 256
#define FREE_LIMIT_NS (2 * (int64_t)DRAY_NS_PER_SEC)

void state_notice(struct state *s, enum dray_log_level level, const char *fmt, ...)
{
	struct notice *n;
	va_list ap;

	if (s->n_notices == NOTICES)
		return;
	n = &s->notices[s->n_notices++];
	n->level = level;
	va_start(ap, fmt);
	vsnprintf(n->text, sizeof(n->text), fmt, ap);
	va_end(ap);
}

void state_failed(struct state *s, const struct dray_err *why)
{
	s->info.errors++;
	snprintf(s->info.why, sizeof(s->info.why), "%s", why->msg);
	if (s->info.in_memory)
		return;
	s->info.in_memory = true;
	state_notice(s, DRAY_LOG_WARNING,
		     "%s; state is kept in memory and will be written when the disk allows",
		     why->msg);
}

/* With the lock held. Returns how many. */
static unsigned take_notices(struct state *s, struct notice ret[NOTICES])
{
	unsigned n = s->n_notices;

	memcpy(ret, s->notices, n * sizeof(*ret));
	s->n_notices = 0;
	return n;
}

static void log_notices(const struct notice *notices, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		dray_log(notices[i].level, "state", "%s", notices[i].text);
}

static void log_pending_notices(struct state *s)
{
	struct notice notices[NOTICES];
	unsigned n;

	pthread_mutex_lock(&s->lock);
	n = take_notices(s, notices);
	pthread_mutex_unlock(&s->lock);
	log_notices(notices, n);
}

static bool begin_refill(struct state *s)
{
	bool wanted;

	pthread_mutex_lock(&s->lock);
	wanted = s->needs_refill && s->refill_requested;
	if (wanted) {
		queue_clear(&s->queue);
		changes_free(&s->found);
		s->needs_refill = s->refill_requested = false;
		s->queue.wipe = s->hold = s->deps.refill != NULL;
	}
	pthread_mutex_unlock(&s->lock);
	return wanted;
}

static void resume(struct state *s)
{
	pthread_mutex_lock(&s->lock);
	s->hold = false;
	s->first_ns = dray_now().ns;
	pthread_cond_broadcast(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static void refill(struct state *s)
{
	if (!begin_refill(s))
		return;
	s->refilling = true;
	if (s->deps.refill)
		s->deps.refill(s->deps.arg);
	s->refilling = false;
	resume(s);
}

/* NULL: none is left. changed: the row is older than a change that waits, which may be any after an overflow. */
static struct change *next_found(struct state *s, bool *changed)
{
	struct change *c;

	pthread_mutex_lock(&s->lock);
	c = dray_list_pop(&s->found, struct change, link);
	*changed = c && (s->needs_refill || queue_has(&s->queue, c));
	pthread_mutex_unlock(&s->lock);
	return c;
}

/* Hands over rows that could not be read at the start. */
static void take_found(struct state *s)
{
	struct change *c = NULL;
	bool changed, any;

	pthread_mutex_lock(&s->lock);
	any = s->hold;
	pthread_mutex_unlock(&s->lock);
	if (!any)
		return;
	for (unsigned i = 0; i < FOUND_PER_TURN && (c = next_found(s, &changed)); i++) {
		if (!changed)
			s->row(s->row_arg, c->kind, &c->row);
		free(c);
	}
	if (c)
		dray_wake(s->event_fd);
	else
		resume(s);
}

static int handle_posted(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	struct state *s = arg;

	if (!dray_wake_clear(fd))
		return 0;
	log_pending_notices(s);
	take_found(s);
	refill(s);
	return 0;
}

static int init_shared(struct state *s)
{
	pthread_condattr_t attr;

	queue_init(&s->queue);
	queue_init(&s->batch);
	dray_list_init(&s->found);
	dray_list_init(&s->reading);
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &attr);
	pthread_condattr_destroy(&attr);
	s->event_fd = dray_wake_new();
	return dray_min(s->event_fd, 0);
}

void state_destroy(struct state *s)
{
	database_close(s->database, true);
	queue_clear(&s->queue);
	queue_clear(&s->batch);
	changes_free(&s->found);
	changes_free(&s->reading);
	dray_close(s->event_fd);
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->lock);
	free(s->dir);
	free(s->path);
	free(s);
}

static void set_limits(struct state_deps *d)
{
	d->gather_ns = d->gather_ns ? d->gather_ns : GATHER_NS;
	d->retry_min_ns = d->retry_min_ns ? d->retry_min_ns : RETRY_MIN_NS;
	d->retry_max_ns = d->retry_max_ns ? d->retry_max_ns : RETRY_MAX_NS;
	d->queue_bytes = d->queue_bytes ? d->queue_bytes : QUEUE_BYTES;
}

/* Before the thread runs. */
static void keep_in_memory(struct state *s, const struct dray_err *why)
{
	s->database = s->database && s->database->read_only ? s->database :
							      database_close(s->database, true);
	s->failures = 1;
	s->retry_ns = dray_now().ns + s->deps.retry_min_ns;
	state_failed(s, why);
}

int state_open(struct state **ret, const struct state_deps *deps, struct dray_err *reterr)
{
	struct state *s = calloc(1, sizeof(*s));
	struct dray_err why = DRAY_ERR_NULL;
	int r = -ENOMEM;

	if (!s)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for the state");
	s->deps = *deps;
	set_limits(&s->deps);
	r = init_shared(s);
	s->dir = strdup(deps->dir);
	if (asprintf(&s->path, "%s/%s", deps->dir, DRAY_STATE_DATABASE) < 0)
		s->path = NULL;
	if (r >= 0 && (!s->dir || !s->path))
		r = -ENOMEM;
	if (r >= 0)
		r = sd_event_add_io(deps->event, &s->source, s->event_fd, EPOLLIN, handle_posted,
				    s);
	if (r < 0) {
		state_destroy(s);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "state: %s", dray_errno_text(r));
	}
	if (writer_open(s, &why) < 0)
		keep_in_memory(s, &why);
	else if (s->database->read_only && database_touch(s->database, &why) < 0)
		keep_in_memory(s, &why);
	log_pending_notices(s);
	*ret = s;
	return 0;
}

uint64_t state_load(struct state *s, unsigned kinds, state_row_fn fn, void *arg)
{
	struct dray_err why = DRAY_ERR_NULL, err = DRAY_ERR_NULL;
	uint64_t n = 0, refused = 0;
	int r;

	s->row = fn;
	s->row_arg = arg;
	s->unread = kinds;
	if (!s->database)
		return 0;
	r = database_load(s->database, kinds, fn, arg, &n, &refused, &why);
	if (refused)
		log_warning("state", "%" PRIu64 " invalid rows of %s are ignored", refused,
			    s->path);
	/* rows that were read so far are in memory, and a refill saves them again */
	if (r > 0)
		r = writer_discard_file(s, r, &why, &err);
	else if (r < 0)
		err = why;
	if (r < 0)
		keep_in_memory(s, &err);
	else
		s->unread = 0;
	log_pending_notices(s);
	return n;
}

bool state_has_unread(struct state *s)
{
	bool any;

	if (!s)
		return false;
	pthread_mutex_lock(&s->lock);
	any = s->unread || !dray_list_empty(&s->found);
	pthread_mutex_unlock(&s->lock);
	return any;
}

int state_start(struct state *s)
{
	int r;

	s->started = true;
	r = dray_thread_start(&s->thread, "dray-state", 0, writer_main, s);
	s->started = !r;
	return r;
}

/* With the lock held. Returns whether the writer has ended. */
static bool end_thread(struct state *s)
{
	if (!s->started)
		return true;
	s->quit = true;
	/* the file has the rows that were not taken */
	s->hold = false;
	pthread_cond_broadcast(&s->wake);
	return dray_timeout_await(&s->ended, &s->wake, &s->lock, FREE_LIMIT_NS);
}

static void log_end(bool ended, bool needs_refill, uint64_t left, const char *why)
{
	if (!ended)
		log_warning("state",
			    "the disk does not answer; the thread that writes is abandoned");
	else if (needs_refill || left)
		log_warning("state", "the last changes of state are lost%s%s", *why ? ": " : "",
			    why);
}

struct state *state_free(struct state *s)
{
	struct notice notices[NOTICES];
	char why[DRAY_ERR_MSG_MAX];
	uint64_t left;
	bool started, ended, needs_refill;
	unsigned n;

	if (!s)
		return NULL;
	s->source = sd_event_source_disable_unref(s->source);
	pthread_mutex_lock(&s->lock);
	ended = end_thread(s);
	started = s->started;
	left = queue_count(&s->queue) + s->n_batch;
	needs_refill = s->needs_refill;
	memcpy(why, s->info.why, sizeof(why));
	n = take_notices(s, notices);
	/* after this the writer may free the state at any time */
	s->abandoned = !ended;
	if (!ended)
		pthread_detach(s->thread);
	pthread_mutex_unlock(&s->lock);
	if (ended && started)
		pthread_join(s->thread, NULL);
	if (ended)
		state_destroy(s);
	log_notices(notices, n);
	log_end(ended, started && needs_refill, started ? left : 0, why);
	return NULL;
}
