/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread queues changes. */
#include <errno.h>
#include <stdlib.h>

#include "agent/state/internal.h"
#include "lib/time.h"

#define OVERFLOW_PAUSE_NS (60 * DRAY_NS_PER_SEC)

/* With the lock held. A refill will request again what is dropped here. */
static void drop_queue(struct state *s)
{
	queue_clear(&s->queue);
	s->needs_refill = true;
	s->refill_requested = false;
}

/* With the lock held. */
static void refuse(struct state *s, int err)
{
	if (err != ENOMEM) {
		s->info.errors++;
		state_notice(s, DRAY_LOG_WARNING,
			     "a change of state is not saved: it has a name of more than %d bytes",
			     STATE_TEXT_MAX);
		return;
	}
	drop_queue(s);
}

/* With the lock held. At most one line a minute, for a disk that stays slow. */
static void report_overflow(struct state *s)
{
	int64_t now = dray_now().ns;

	if (s->overflow_ns && now - s->overflow_ns < OVERFLOW_PAUSE_NS)
		return;
	s->overflow_ns = now;
	state_notice(s, DRAY_LOG_WARNING,
		     "too many changes of state wait for the disk; all state is written again "
		     "when the disk answers");
}

/* With the lock held. */
static void add(struct state *s, struct change *c)
{
	if (!queue_count(&s->queue)) {
		s->first_ns = dray_now().ns;
		pthread_cond_signal(&s->wake);
	}
	queue_add(&s->queue, c);
	if (s->queue.bytes <= s->deps.queue_bytes || s->refilling)
		return;
	drop_queue(s);
	report_overflow(s);
	pthread_cond_signal(&s->wake);
}

void state_change(struct state *s, enum state_kind kind, bool drop, const union state_row *row)
{
	struct change *c;
	int err;

	if (!s)
		return;
	c = change_new(kind, drop, row);
	err = errno;
	pthread_mutex_lock(&s->lock);
	if (!c)
		refuse(s, err);
	else if (s->needs_refill)
		free(c);
	else
		add(s, c);
	pthread_mutex_unlock(&s->lock);
}

void state_info(struct state *s, struct state_info *ret)
{
	if (!s) {
		*ret = (struct state_info){ .in_memory = true, .why = "no state is kept" };
		return;
	}
	pthread_mutex_lock(&s->lock);
	*ret = s->info;
	ret->queued = queue_count(&s->queue) + s->n_batch + s->needs_refill;
	pthread_mutex_unlock(&s->lock);
}
