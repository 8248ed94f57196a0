/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_place.h"

#include <stdlib.h>

#include "lib/cleanup.h"

/* Goes on from the item of the last call, because the keys of an ask have the order of their items. */
static const uint8_t *ranges_of(struct fetch *f, uint32_t item, uint32_t *ret_n)
{
	struct dmsg_store_item it;

	if (!f->at_ranges || item < f->at_item) {
		f->at_item = 0;
		f->at_ranges = f->ranges;
	}
	for (;; f->at_item++) {
		dmsg_store_item_get(f->items + (size_t)f->at_item * DMSG_STORE_ITEM_SIZE, &it);
		if (f->at_item == item)
			break;
		f->at_ranges += (size_t)it.ranges * DMSG_STORE_RANGE_SIZE;
	}
	*ret_n = it.ranges;
	return f->at_ranges;
}

static void arrived_ops(struct fetch *f)
{
	struct batch *b = f->batch;
	const uint8_t *ranges = f->ranges;

	for (uint32_t i = 0; i < f->n_items; i++) {
		struct dmsg_store_item it;

		dmsg_store_item_get(f->items + (size_t)i * DMSG_STORE_ITEM_SIZE, &it);
		/* those that were here have theirs */
		if (b->gets[i].object && b->gets[i].arrives)
			batch_item_ops(b, i, ranges);
		ranges += (size_t)it.ranges * DMSG_STORE_RANGE_SIZE;
	}
}

void place_failed(struct fetch *f, struct store_asked *k)
{
	struct dmsg_store_result *r = &f->batch->results[k->item];
	struct data_counters *counters = worker_of_fetch(f)->core.counters;

	/* its only holder was lost */
	if (f->again && k->status == DMSG_STORE_STATUS_NOT_FOUND)
		k->status = DMSG_STORE_STATUS_LOST;
	r->status = k->status;
	if (r->status == DMSG_STORE_STATUS_BUSY)
		r->wait_ms = store_retry_ms(worker_of_fetch(f)->store);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_MISSES_TOTAL,
		   k->status == DMSG_STORE_STATUS_NOT_FOUND);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_LOST_TOTAL,
		   k->status == DMSG_STORE_STATUS_LOST);
}

/* A place for the object of a key. */
static struct store_object *place(struct fetch *f, struct store_asked *k)
{
	struct worker *w = worker_of_fetch(f);
	struct store_key key = { k->key, k->n_key };
	struct dmsg_store_result *r = &f->batch->results[k->item];
	struct store_object *o = NULL;
	uint32_t n;
	const uint8_t *ranges = ranges_of(f, k->item, &n);
	uint64_t room = item_bytes(ranges, n);

	r->length = k->length;
	r->tier = DMSG_STORE_TIER_AGENT;
	r->status = k->length > room ? DMSG_STORE_STATUS_TOO_LARGE :
				       store_copy_begin(f->member, key, k->length, k->cost_us, &o);
	if (r->status == DMSG_STORE_STATUS_EXISTS) {
		/* it came meanwhile */
		batch_get_one(w, f->batch, k->item, f->member, key, room);
		if (f->batch->gets[k->item].object)
			batch_item_ops(f->batch, k->item, ranges);
	} else if (r->status == DMSG_STORE_STATUS_BUSY) {
		r->wait_ms = store_retry_ms(w->store);
		core_count(w->core.counters, DRAY_METRIC_STORE_BUSY_TOTAL, 1);
	}
	if (o)
		r->status = DMSG_STORE_STATUS_NOT_TRIED; /* until it is copied */
	return o;
}

void place_lost(struct fetch *f, uint32_t i, bool slow)
{
	struct store_asked *k = &f->ask->v[i];

	fetch_place_end(f, i);
	k->slow = slow;
	k->status = !f->again ? DMSG_STORE_STATUS_NOT_TRIED :
		    slow      ? DMSG_STORE_STATUS_BUSY :
				DMSG_STORE_STATUS_LOST;
	if (f->again)
		place_failed(f, k);
}

/* Room for the objects of the ask, and the operations that read them. */
static bool make_room(struct fetch *f, uint32_t n)
{
	free(f->objects);
	free(f->ops);
	f->objects = calloc(n, sizeof(struct store_object *));
	f->ops = malloc((size_t)n * DMSG_OP_SIZE);
	return f->objects && f->ops;
}

bool places_begin(struct fetch *f)
{
	struct store_ask *k = f->ask;

	if (!make_room(f, k->n))
		return false;
	for (uint32_t i = 0; i < k->n; i++)
		if (!k->v[i].status)
			f->objects[i] = place(f, &k->v[i]);
		/* else it is looked up again */
		else if (k->v[i].status != DMSG_STORE_STATUS_NOT_TRIED)
			place_failed(f, &k->v[i]);
	return true;
}

void places_done(struct fetch *f)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;
	struct dray_err err = DRAY_ERR_NULL;

	store_arrive(dray_take(f->arrivals));
	arrived_ops(f);
	idset_del(&s->ids, b->request_id);
	if (!b->n_ops) {
		batch_reply(s, b, 0);
		free(b);
	} else if (batch_start(s, b, f->region, fetch_time_until(f, f->end_ns), &err) < 0) {
		batch_settle(&s->worker->core, b, false);
		wsession_reply_error(s, b->request_id, &err);
		free(b);
	}
	fetch_free(f);
}
