/* SPDX-License-Identifier: Apache-2.0 */
/* Before the agent ends, objects that are only in memory are written to disk. */
#include "agent/store/internal.h"

/* Buckets of the index that one call looks at. */
#define BUCKETS_AT_ONCE 1024

/* Queues the objects of a bucket. False: no more may wait for the disk now. */
static bool flush_bucket(struct store_object *o)
{
	for (; o; o = o->next)
		if (o->resident && tier_is_dirty(o) && !work_write(o))
			return false;
	return true;
}

/* False: some of its objects are still to be queued. */
static bool flush_space(struct store_space *sp, unsigned *left)
{
	for (; *left && sp->flushed < sp->n_buckets; --*left) {
		if (!flush_bucket(sp->buckets[sp->flushed]))
			return false;
		sp->flushed++;
	}
	return sp->flushed >= sp->n_buckets;
}

static bool flush(struct store *s)
{
	unsigned left = BUCKETS_AT_ONCE;
	bool all = true;

	/* A full disk may return, when objects there are removed. */
	if (!tier_can_write(s))
		return tier_is_full(s) && s->totals.unsaved_objects;
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		all = flush_space(sp, &left) && all;
	return !all || tier_pending(s);
}

bool store_flush(struct store *s)
{
	bool more;

	if (!s)
		return false;
	pthread_mutex_lock(&s->lock);
	more = flush(s);
	pthread_mutex_unlock(&s->lock);
	return more;
}

void flush_restart(struct store *s)
{
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		sp->flushed = 0;
}

void store_flush_again(struct store *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	flush_restart(s);
	pthread_mutex_unlock(&s->lock);
}
