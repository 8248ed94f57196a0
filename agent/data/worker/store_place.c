/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_place.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/worker/store_reading.h"
#include "agent/data/worker/store_request.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/*
 * Bytes that are zeroed in one turn of the worker, because others wait meanwhile; what a range costs beside its bytes; and the bytes for
 * one unit of work (transfer/owner.h).
 */
#define CLEAR_STEP (256u << 10)
#define CLEAR_RANGE 256u
#define CLEAR_WORK_BYTES 32u

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

uint64_t place_room(struct fetch *f, uint32_t item)
{
	uint32_t n;
	const uint8_t *ranges = ranges_of(f, item, &n);

	return item_bytes(ranges, n);
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
	if (f->keeps)
		return;
	if (r->status == DMSG_STORE_STATUS_BUSY)
		r->wait_ms = store_retry_ms(worker_of_fetch(f)->store);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_MISSES_TOTAL,
		   k->status == DMSG_STORE_STATUS_NOT_FOUND);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_LOST_TOTAL,
		   k->status == DMSG_STORE_STATUS_LOST);
}

/* A place for the object of a key. False: it has to evict more. */
static bool place(struct fetch *f, uint32_t i)
{
	struct worker *w = worker_of_fetch(f);
	struct store_asked *k = &f->ask->v[i];
	struct landing *l = &f->landings[i];
	struct store_key key = { k->key, k->n_key };
	struct store_effort *e = &f->batch->wait.effort;
	struct dmsg_store_result *r = &f->batch->results[k->item];
	uint32_t n = 0;
	const uint8_t *ranges = f->keeps ? NULL : ranges_of(f, k->item, &n);
	uint64_t room = f->keeps ? UINT64_MAX : item_bytes(ranges, n);

	l->bytes = r->length = k->length;
	r->tier = DMSG_STORE_TIER_AGENT;
	r->status = DMSG_STORE_STATUS_TOO_LARGE;
	if (k->length > room)
		return true;
	l->wanted = f->straight && !f->ask->sources[k->source].bytes &&
		    (f->devices || !f->ask->sources[k->source].keys);
	if (f->keeps)
		r->status = store_keep_begin(f->member, key, k->length, k->crc, k->cost_us,
					     &f->keep_turn, e, &l->object);
	else if (!l->wanted)
		r->status = store_copy_begin(f->member, key, k->length, k->cost_us, e, &l->object);
	/* it came meanwhile */
	if (!f->keeps && r->status == DMSG_STORE_STATUS_EXISTS)
		batch_get_one(w, f->batch, k->item, f->member, key, room);
	else if (!f->keeps && r->status == DMSG_STORE_STATUS_BUSY && !e->more)
		batch_busy(&w->core, r);
	if (e->more) {
		r->status = DMSG_STORE_STATUS_NOT_TRIED;
		return false;
	}
	l->wanted |= l->object != NULL;
	if (l->wanted)
		r->status = DMSG_STORE_STATUS_NOT_TRIED; /* until it is copied */
	else if (!f->keeps && f->batch->gets[k->item].object)
		batch_item_ops(f->batch, k->item, ranges);
	return true;
}

uint32_t place_ops(struct fetch *f, uint32_t i, uint8_t *ops)
{
	const struct store_asked *k = &f->ask->v[i];
	const struct store_object *o = f->landings[i].object;
	uint32_t n;

	if (!o)
		return item_ops(ops, ranges_of(f, k->item, &n), k->offset, k->length);
	dmsg_op_put(ops, &(struct dmsg_op){ store_object_offset(o), k->offset, k->length });
	return 1;
}

struct zeros {
	const struct region_view *region;
	uint64_t offset, bytes;
};

static void write_zeros(void *arg)
{
	const struct zeros *z = arg;
	const struct extent_view *e = &z->region->extents[region_view_find(z->region, z->offset)];
	uint64_t at = z->offset, left = z->bytes;

	for (; left; e++) {
		uint64_t n = dray_min(left, e->start + e->length - at);

		memset(e->base + (at - e->start), 0, n);
		at += n;
		left -= n;
	}
}

static enum dmsg_store_status keep_arrived(struct store_object *o, const struct store_asked *k,
					   uint32_t sum)
{
	if (sum == k->crc)
		return store_keep_end(o, sum);
	store_put_end(o, false);
	return DMSG_STORE_STATUS_CORRUPT;
}

void place_arrived(struct fetch *f, uint32_t i, uint32_t sum)
{
	struct store_asked *k = &f->ask->v[i];
	struct landing *l = &f->landings[i];
	struct store_get *g = f->keeps ? NULL : &f->batch->gets[k->item];
	struct data_counters *counters = worker_of_fetch(f)->core.counters;
	bool right = sum == k->crc;

	l->wanted = false;
	if (f->keeps) {
		f->batch->results[k->item].status = keep_arrived(dray_take(l->object), k, sum);
		return;
	}
	core_count(counters, DRAY_METRIC_STORE_REMOTE_HITS_TOTAL, 1);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_BYTES_TOTAL, k->length);
	if (l->object) {
		g->arrives = true;
		store_arrivals_add(f->arrivals, dray_take(l->object), k->crc, sum, g);
		return;
	}
	f->batch->results[k->item].status = right ? DMSG_STORE_STATUS_OK :
						    DMSG_STORE_STATUS_CORRUPT;
	/* places_done() clears the ranges */
	if (!right)
		return;
	core_count(counters, DRAY_METRIC_STORE_READ_BYTES_TOTAL, k->length);
	store_passed(f->member, (struct store_key){ k->key, k->n_key }, k->length, k->cost_us);
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

static int by_start(const void *a, const void *b)
{
	const struct dmsg_store_range *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Checksums of bytes that others overwrite would be wrong. Also true without memory to find out. */
static bool may_overlap(const struct fetch *f)
{
	dray_auto_free struct dmsg_store_range *r = malloc(f->n_ranges * sizeof(*r));
	bool sorted = true;

	for (uint32_t i = 0; r && i < f->n_ranges; i++) {
		dmsg_store_range_get(f->ranges + (size_t)i * DMSG_STORE_RANGE_SIZE, &r[i]);
		sorted &= !i || r[i].offset >= r[i - 1].offset;
	}
	if (r && !sorted)
		qsort(r, f->n_ranges, sizeof(*r), by_start);
	for (uint32_t i = 1; r && i < f->n_ranges; i++)
		if (r[i].offset - r[i - 1].offset < r[i - 1].length)
			return true;
	return !r;
}

/* Whether bytes go to the ranges of the client, also those that devices write. */
static void choose_way(struct fetch *f)
{
	struct worker *w = worker_of_fetch(f);
	const struct object *region = f->keeps || store_keeps_copies(w->store) ?
					      NULL :
					      object_get(&w->core, OBJECT_REGION, f->region);

	f->straight = region && object_region(region)->memory == REGION_HOST && !may_overlap(f);
	/* what is asked for again comes by frames */
	f->devices = f->straight && (region->keys || f->ask->again);
}

/* Room for what the ask has found, and the operations that read it. */
static bool make_room(struct fetch *f, uint32_t n)
{
	free(f->landings);
	free(f->ops);
	choose_way(f);
	f->landings = calloc(2 * (size_t)n, sizeof(f->landings[0]));
	f->ops = malloc((size_t)dray_max(n, f->n_ranges) * DMSG_OP_SIZE);
	return f->landings && f->ops;
}

bool places_begin(struct fetch *f)
{
	struct store_ask *k = f->ask;

	if (!make_room(f, k->n))
		return false;
	f->placing = true;
	f->placed = 0;
	f->batch->wait.effort = (struct store_effort){ .done = 0 };
	return true;
}

/* Places the next keys. False: it has to evict more. */
static bool place_some(struct fetch *f)
{
	struct store_ask *k = f->ask;
	struct store_effort *e = &f->batch->wait.effort;

	/* a key that has begun to evict goes on */
	*e = (struct store_effort){ .max = k->n_sources && k->sources[0].trailing ?
						   EVICTIONS_TRAILING :
						   EVICTIONS_STEP,
				    .of_key = e->of_key,
				    .vain = e->vain };
	for (; f->placed < k->n; f->placed++) {
		struct store_asked *v = &k->v[f->placed];

		if (!v->status && !place(f, f->placed))
			break;
		/* else it is looked up again */
		if (v->status && v->status != DMSG_STORE_STATUS_NOT_TRIED)
			place_failed(f, v);
		e->of_key = e->vain = 0;
	}
	owner_charge(f->session->xs.owner, (uint64_t)e->done * EVICTION_WORK);
	return f->placed == k->n;
}

/* Goes on in the next turn. */
static void step_later(struct fetch *f)
{
	struct worker *w = worker_of_fetch(f);

	dray_list_move(&w->steps, &f->step);
	dray_list_move(&w->asking, &f->asking);
}

bool places_found(struct fetch *f)
{
	f->placing = !place_some(f);
	if (f->placing)
		step_later(f);
	return !f->placing;
}

/* Wrong bytes are in the ranges of the client, or were. */
static bool is_wrong(const struct batch *b, uint32_t item)
{
	return b->results[item].status == DMSG_STORE_STATUS_CORRUPT && !b->gets[item].object &&
	       !b->gets[item].arrives;
}

/* Zeroes more of the ranges of this key, and takes its bytes and a cost for each range from *left. False: there is more. */
static bool clear_key(struct fetch *f, const struct region_view *region, uint64_t *left)
{
	struct clearing *c = &f->clearing;
	uint64_t bytes = f->batch->results[c->item].length;

	while (c->done < bytes) {
		struct dmsg_store_range r;
		struct zeros z;

		if (!*left)
			return false;
		dmsg_store_range_get(f->ranges + (size_t)c->range * DMSG_STORE_RANGE_SIZE, &r);
		z = (struct zeros){ region, r.offset + c->at, dray_min(r.length - c->at, *left) };
		z.bytes = dray_min(z.bytes, bytes - c->done);
		if (fault_run(write_zeros, &z) < 0) {
			xfer_memory_fault(&worker_of_fetch(f)->core, region->o.session);
			return true;
		}
		c->done += z.bytes;
		c->at += z.bytes;
		*left -= dray_min(*left, z.bytes + CLEAR_RANGE);
		if (c->at < r.length)
			continue;
		c->range++;
		c->at = 0;
	}
	return true;
}

/* Zeroes more of the ranges of all keys with wrong bytes. False: there is more. */
static bool clear_ranges(struct fetch *f, uint64_t *left)
{
	struct clearing *c = &f->clearing;
	const struct object *o = object_get(&worker_of_fetch(f)->core, OBJECT_REGION, f->region);
	const struct region_view *region = o ? object_region(o) : NULL;

	/* the region may have ended meanwhile */
	if (!region || region->memory != REGION_HOST)
		return true;
	while (c->item < f->n_items) {
		struct dmsg_store_item it;

		if (is_wrong(f->batch, c->item) && !clear_key(f, region, left))
			return false;
		dmsg_store_item_get(f->items + (size_t)c->item * DMSG_STORE_ITEM_SIZE, &it);
		c->first += it.ranges;
		*c = (struct clearing){ .item = c->item + 1, .first = c->first, .range = c->first };
	}
	return true;
}

/* Zeroes more of what is wrong. False: there is more, for the next turns. */
static bool clear_some(struct fetch *f)
{
	uint64_t left = CLEAR_STEP;
	bool all = (!f->arrivals || store_arrivals_clear(f->arrivals, &left)) &&
		   (f->keeps || clear_ranges(f, &left));

	owner_charge(f->session->xs.owner, (CLEAR_STEP - left) / CLEAR_WORK_BYTES);
	return all;
}

void places_done(struct fetch *f)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;
	struct dray_err err = DRAY_ERR_NULL;

	if (!clear_some(f)) {
		step_later(f);
		return;
	}
	dray_list_del(&f->asking);
	if (f->arrivals)
		store_arrive(dray_take(f->arrivals));
	arrived_ops(f);
	idset_del(&s->ids, b->call.request_id);
	if (!b->n_ops) {
		b->end(s, b, 0, NULL);
	} else if (batch_start(s, b, f->region, &err) < 0) {
		batch_settle(&s->worker->core, b, false);
		b->end(s, b, 0, &err);
	}
	fetch_free(f);
}
