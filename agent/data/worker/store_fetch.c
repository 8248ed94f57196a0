/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GET or EXISTS of keys that other agents have. An EXISTS keeps what is found for the session (store_held.c). For a GET, which may
 * take that over, more follows. The control thread looks them up there. What is found gets a place in the store here, as
 * if it were put, and one transfer for each source reads it to there. Then its bytes are verified while the GET waits for that, as
 * for objects on disk. So wrong bytes reach no client, targets may be of any memory, and a copy can stay.
 *
 * The keys of a source that is lost meanwhile are looked up once more: another agent may have a copy.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_reading.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* An agent that does not send the bytes of a source at this rate counts as lost: its bytes are asked for elsewhere. */
#define SOURCE_WAIT_NS DRAY_NS_PER_SEC
#define SOURCE_LEAST_RATE (32ull << 20)
/* An EXISTS has its answer by then. */
#define EXISTS_NS DRAY_NS_PER_SEC
/* A lease that ends sooner is not taken over. */
#define HELD_LEAST_NS (20 * DRAY_NS_PER_MS)

struct fetch {
	struct dray_list link;   /* on session->fetches */
	struct dray_list asking; /* on worker->asking, while the control thread has the ask */
	struct wsession *session;
	uint64_t number; /* of this worker; the ask's */
	struct batch *batch;
	struct store_member *member;
	dray_handle region;
	int64_t end_ns;            /* the deadline of the request */
	struct store_ask *ask;     /* NULL: the control thread has it, */
	struct store_ask *asked;   /* which is this one */
	bool again;                /* the second lookup */
	uint32_t source;           /* that is read, or is next */
	struct reading *reading;   /* its transfer; NULL: none */
	struct reading *lingering; /* while its transfer ends, if devices may go on with it */
	struct store_arrivals *arrivals;
	struct store_object **objects; /* by key of the ask, while they are read */
	uint8_t *ops;
	uint32_t n_items;
	const uint8_t *items, *ranges; /* of the request, in wire form */
	uint32_t at_item;              /* ranges_of() goes on there */
	const uint8_t *at_ranges;
	uint8_t data[];
};

static struct worker *worker_of_fetch(const struct fetch *f)
{
	return f->session->worker;
}

/* --- what is asked --------------------------------------------------------------------------------- */

static bool is_wanted(const struct dmsg_store_result *r)
{
	return r->status == DMSG_STORE_STATUS_NOT_FOUND;
}

static bool any_wanted(const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (is_wanted(&b->results[i]))
			return true;
	return false;
}

static struct store_ask *ask_alloc(const struct wsession *s, uint32_t n, size_t bytes)
{
	const struct budget_account *a = &s->xs.shared->account->budget;
	struct store_ask *k = calloc(1, sizeof(*k) + n * sizeof(k->v[0]) + bytes);

	if (!k)
		return NULL;
	k->session = s->xs.handle;
	k->worker = s->worker->core.index;
	k->tenant = a->tenant;
	k->uid = a->uid;
	return k;
}

static struct store_asked *ask_add(struct store_ask *k, uint8_t **at, struct store_key key,
				   uint32_t item)
{
	struct store_asked *a = &k->v[k->n++];

	memcpy(*at, key.p, key.n);
	*a = (struct store_asked){
		.key = *at, .n_key = key.n, .item = item, .status = DMSG_STORE_STATUS_NOT_FOUND
	};
	*at += key.n;
	return a;
}

/* Adds a key that is leased already, and its source, for which there is room. */
static void ask_add_held(struct store_ask *k, uint8_t **at, struct store_key key, uint32_t item,
			 struct held_key *held)
{
	const struct store_source *s = held_source(held);
	struct store_asked *a = ask_add(k, at, key, item);
	const struct store_asked *found = held_asked(held);
	uint32_t i = 0;

	while (i < k->n_sources && (k->sources[i].view.peer != s->view.peer ||
				    k->sources[i].view.grant != s->view.grant))
		i++;
	if (i == k->n_sources) {
		/* the ask of the EXISTS has the lease */
		k->sources[k->n_sources++] = (struct store_source){
			.view = s->view,
			.keys = s->keys ? rail_keys_ref(s->keys) : NULL,
			.end_ns = s->end_ns,
		};
	}
	a->status = DMSG_STORE_STATUS_OK;
	a->source = i;
	a->crc = found->crc;
	a->cost_us = found->cost_us;
	a->offset = found->offset;
	a->length = found->length;
	a->held = held;
}

/* Takes over what the session holds of the keys that the batch has not found. Their number. */
static uint32_t take_held(struct wsession *s, const struct batch *b, const struct store_key *keys,
			  struct held_key **held)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		held[i] = b->gets && s->held.n && is_wanted(&b->results[i]) ?
				  held_find(s, store_member_space(b->member), keys[i],
					    HELD_LEAST_NS) :
				  NULL;
		if (!held[i])
			continue;
		/* a second item of this key is asked for */
		held_take(held[i]);
		n++;
	}
	return n;
}

/* The keys that the batch has not found, first those that are asked for. NULL: none, or no memory. */
static struct store_ask *ask_of_batch(struct wsession *s, const struct batch *b,
				      const struct store_key *keys)
{
	struct held_key *held[DMSG_STORE_KEYS_MAX];
	uint32_t n = 0, n_held = take_held(s, b, keys, held);
	size_t bytes = 0;
	struct store_ask *k;
	uint8_t *at;

	for (uint32_t i = 0; i < b->n; i++)
		if (is_wanted(&b->results[i])) {
			n++;
			bytes += keys[i].n;
		}
	k = n ? ask_alloc(s, n, bytes) : NULL;
	if (k && n_held)
		k->sources = calloc(n_held, sizeof(k->sources[0]));
	if (!k || (n_held && !k->sources)) {
		for (uint32_t i = 0; i < b->n; i++)
			if (held[i])
				held_end(held[i]);
		store_ask_free(k);
		return NULL;
	}
	snprintf(k->space, sizeof(k->space), "%s", store_member_space(b->member));
	at = (uint8_t *)(k->v + n);
	for (uint32_t i = 0; i < b->n; i++)
		if (is_wanted(&b->results[i]) && !held[i])
			ask_add(k, &at, keys[i], i);
	k->n_asked = k->n;
	for (uint32_t i = 0; i < b->n; i++)
		if (held[i])
			ask_add_held(k, &at, keys[i], i, held[i]);
	return k;
}

/* The keys whose source was lost. NULL: likewise. */
static struct store_ask *ask_again(const struct fetch *f)
{
	const struct store_ask *before = f->ask;
	uint32_t n = 0;
	size_t bytes = 0;
	struct store_ask *k;
	uint8_t *at;

	for (uint32_t i = 0; i < before->n; i++)
		if (before->v[i].status == DMSG_STORE_STATUS_NOT_TRIED) {
			n++;
			bytes += before->v[i].n_key;
		}
	k = n ? ask_alloc(f->session, n, bytes) : NULL;
	if (!k)
		return NULL;
	memcpy(k->space, before->space, sizeof(k->space));
	at = (uint8_t *)(k->v + n);
	for (uint32_t i = 0; i < before->n; i++) {
		const struct store_asked *v = &before->v[i];
		struct store_asked *a;

		if (v->status != DMSG_STORE_STATUS_NOT_TRIED)
			continue;
		a = ask_add(k, &at, (struct store_key){ v->key, v->n_key }, v->item);
		a->avoid = v->avoid;
		a->slow = v->slow;
	}
	k->n_asked = n;
	k->again = true;
	return k;
}

static void ask_send(struct fetch *f, struct store_ask *k)
{
	k->number = f->number;
	k->end_ns = f->end_ns;
	k->sent = true;
	f->asked = k;
	f->session->requests++;
	dray_list_add(&worker_of_fetch(f)->asking, &f->asking);
	worker_event(worker_of_fetch(f), &(struct event){ .type = EVENT_STORE_ASK, .ask = k });
}

/* What it has taken over from an EXISTS. The control thread may have the ask, and leaves these keys alone. */
static void ask_end_held(struct store_ask *k)
{
	for (uint32_t i = k->n_asked; i < k->n; i++)
		if (k->v[i].held)
			held_end(dray_take(k->v[i].held));
}

static void ask_drop(struct wsession *s, struct store_ask *k)
{
	ask_end_held(k);
	ask_end(s->worker, k);
}

/* --- its end ------------------------------------------------------------------------------------------- */

/* The object of a key is not wanted any more. */
static void place_end(struct fetch *f, uint32_t i)
{
	struct store_object *o = dray_take(f->objects[i]);

	if (f->lingering && f->ask->v[i].source == f->source)
		reading_keep(f->lingering, o);
	else
		store_put_end(o, false);
}

static void fetch_free(struct fetch *f)
{
	struct worker *w = worker_of_fetch(f);

	for (uint32_t i = 0; f->ask && f->objects && i < f->ask->n; i++)
		if (f->objects[i])
			place_end(f, i);
	if (f->ask || f->asked)
		ask_end_held(f->ask ? f->ask : f->asked);
	if (f->asked)
		worker_event(w, &(struct event){ .type = EVENT_STORE_ASK_STOP, .ask = f->asked });
	ask_end(w, f->ask);
	store_arrivals_drop(f->arrivals);
	free(f->objects);
	free(f->ops);
	dray_list_del(&f->asking);
	dray_list_del(&f->link);
	free(f);
}

/* The request ends without its bytes. err: why, or NULL if the code says it. */
static void fetch_fail(struct fetch *f, uint32_t code, const struct dray_err *err)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;

	idset_del(&s->ids, b->request_id);
	batch_settle(&s->worker->core, b, false);
	for (uint32_t i = 0; !b->gets && i < b->n; i++)
		if (is_wanted(&b->results[i]))
			b->results[i].status = DMSG_STORE_STATUS_NOT_TRIED;
	if (!s->dead && err)
		wsession_reply_error(s, b->request_id, err);
	else if (!s->dead)
		batch_reply(s, b, code);
	free(b);
	fetch_free(f);
}

/* Milliseconds from now; at least one. */
static uint32_t time_until(const struct fetch *f, int64_t end_ns)
{
	int64_t left = (end_ns - worker_of_fetch(f)->core.now_ns) / DRAY_NS_PER_MS;

	left = dray_max(left, (int64_t)1);
	return (uint32_t)dray_min(left, (int64_t)UINT32_MAX);
}

static bool is_late(const struct fetch *f)
{
	return worker_of_fetch(f)->core.now_ns >= f->end_ns;
}

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

/* All sources are read: the GET goes on as if all had been here, some of them on disk. */
static void fetch_done(struct fetch *f)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;
	struct dray_err err = DRAY_ERR_NULL;

	b->loads |= store_arrive(dray_take(f->arrivals), &b->wait);
	arrived_ops(f);
	idset_del(&s->ids, b->request_id);
	if (!b->n_ops) {
		batch_reply(s, b, 0);
		free(b);
	} else if (batch_start(s, b, f->region, time_until(f, f->end_ns), &err) < 0) {
		batch_settle(&s->worker->core, b, false);
		wsession_reply_error(s, b->request_id, &err);
		free(b);
	}
	fetch_free(f);
}

/* --- sources ---------------------------------------------------------------------------------------------- */

static void next_source(struct fetch *f);

/* What a key that was found nowhere, or not read, is answered. */
static void key_failed(struct fetch *f, struct store_asked *k)
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

/*
 * Gives leases back from which nothing more is read, while others are still needed: of objects that are read, that are lost, that are
 * too large for their ranges, or that came here by another way.
 */
static void sources_end(struct fetch *f)
{
	struct store_ask *k = f->ask;
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n_sources; i++)
		k->sources[i].wanted = false;
	for (uint32_t i = 0; i < k->n; i++)
		if (f->objects[i] && !k->sources[k->v[i].source].wanted) {
			k->sources[k->v[i].source].wanted = true;
			n++;
		} else if (!f->objects[i] && k->v[i].held) {
			held_end(dray_take(k->v[i].held));
		}
	/* else all end with the ask */
	for (uint32_t i = 0; n && i < k->n_sources; i++)
		if (!k->sources[i].wanted)
			source_done(worker_of_fetch(f), k, i);
}

/* The operations of the source, and its objects. Their number. */
static uint32_t source_ops(struct fetch *f, struct store_object **objects, uint64_t *ret_bytes)
{
	uint32_t n = 0;

	*ret_bytes = 0;
	for (uint32_t i = 0; i < f->ask->n; i++) {
		const struct store_asked *k = &f->ask->v[i];
		struct dmsg_op op;

		if (!f->objects[i] || k->source != f->source)
			continue;
		objects[n] = f->objects[i];
		op = (struct dmsg_op){ store_object_offset(f->objects[i]), k->offset, k->length };
		dmsg_op_put(f->ops + (size_t)n++ * DMSG_OP_SIZE, &op);
		*ret_bytes += k->length;
	}
	return n;
}

/* It may be had elsewhere; or later, if its agent was only too slow. */
static void key_lost(struct fetch *f, uint32_t i, bool slow)
{
	struct store_asked *k = &f->ask->v[i];

	place_end(f, i);
	k->slow = slow;
	k->status = !f->again ? DMSG_STORE_STATUS_NOT_TRIED :
		    slow      ? DMSG_STORE_STATUS_BUSY :
				DMSG_STORE_STATUS_LOST;
	if (f->again)
		key_failed(f, k);
}

/*
 * Nothing more is read from this agent. While it is lost, the transports would still take a transfer with it. Nor does it lend these
 * objects again, unless its lease has ended: that may be because others were read before; or devices were too slow: then frames may
 * be in time. slow: only its time has passed.
 */
static void agent_lost(struct fetch *f, const struct reading *r, bool slow)
{
	bool by_devices = slow && r->local.keys;
	dray_handle peer = r->view.peer;

	for (uint32_t i = 0; i < f->ask->n; i++) {
		struct store_asked *k = &f->ask->v[i];
		const struct store_source *s = &f->ask->sources[k->source];
		bool lasts;

		if (!f->objects[i] || s->view.peer != peer)
			continue;
		/* deadlines are in milliseconds */
		lasts = worker_of_fetch(f)->core.now_ns < s->end_ns - DRAY_NS_PER_MS;
		if (lasts && !by_devices)
			k->avoid = peer;
		key_lost(f, i, slow || !lasts);
	}
}

/* What was read from the source arrives. late: after the end of the lease, so that it may be bytes of another object. */
static void source_end(struct fetch *f, bool late)
{
	struct data_counters *counters = worker_of_fetch(f)->core.counters;

	for (uint32_t i = 0; i < f->ask->n; i++) {
		struct store_asked *k = &f->ask->v[i];
		struct store_get *g = &f->batch->gets[k->item];

		if (!f->objects[i] || k->source != f->source)
			continue;
		if (late) {
			key_lost(f, i, true);
			continue;
		}
		core_count(counters, DRAY_METRIC_STORE_REMOTE_HITS_TOTAL, 1);
		core_count(counters, DRAY_METRIC_STORE_REMOTE_BYTES_TOTAL, k->length);
		g->arrives = true;
		store_arrivals_add(f->arrivals, dray_take(f->objects[i]), k->crc, g);
	}
}

/* The word of the other agent, whatever it is. */
static bool is_refused(const struct xfer *x)
{
	return x->detail && !strcmp(x->detail, XFER_REFUSED_DETAIL);
}

/* The client, its deadline, its session or the end of the agent ended the transfer; else its source did, or was too slow. */
static bool ends_all(const struct fetch *f, const struct xfer *x)
{
	if (f->session->dead)
		return true;
	if (is_refused(x))
		return false;
	if (x->code == DRAY_E_DEADLINE)
		return is_late(f) || worker_of_fetch(f)->core.now_ns < x->deadline.key;
	return x->code == DRAY_E_CANCELLED || x->code == DRAY_E_SESSION_CLOSED;
}

static void source_read(struct core *c, struct xfer *x)
{
	struct fetch *f = x->ended_arg;
	struct reading *r = dray_take(f->reading);

	f->lingering = reading_end(worker_of_fetch(f), r) ? r : NULL;
	if (x->code && ends_all(f, x)) {
		fetch_fail(f, x->code, NULL);
		return;
	}
	/* the word of this agent: fetch_fenced() */
	if (x->code == DRAY_E_REVOKED && !is_refused(x))
		source_end(f, true);
	else if (x->code)
		agent_lost(f, r, x->code == DRAY_E_DEADLINE && !is_refused(x));
	else
		source_end(f, c->now_ns >= f->ask->sources[f->source].end_ns);
	f->lingering = NULL;
	f->source++;
	sources_end(f);
	next_source(f);
}

/* When its bytes are of no use any more: an agent that hangs must not delay the other sources by more than about a second. */
static int64_t source_end_ns(const struct fetch *f, uint64_t bytes)
{
	int64_t slow =
		SOURCE_WAIT_NS + (int64_t)(bytes / SOURCE_LEAST_RATE * (uint64_t)DRAY_NS_PER_SEC);
	int64_t end = dray_min(f->end_ns, worker_of_fetch(f)->core.now_ns + slow);

	return dray_min(end, f->ask->sources[f->source].end_ns);
}

/* The ask that has the lease of the source: that of an EXISTS if it was taken over. */
static struct store_ask *lease_of(const struct fetch *f, uint32_t *ret_source)
{
	const struct store_ask *k = f->ask;

	for (uint32_t i = k->n_asked; i < k->n; i++)
		if (k->v[i].held && k->v[i].source == f->source)
			return held_lease(k->v[i].held, ret_source);
	*ret_source = f->source;
	return f->ask;
}

/* 0, or -EINVAL with err. */
static int source_start(struct fetch *f, struct store_object *const *objects, uint32_t n_ops,
			uint64_t bytes, struct dray_err *err)
{
	struct wsession *s = f->session;
	uint32_t source;
	struct store_ask *lease = lease_of(f, &source);
	struct reading *reading = reading_new(s->worker, lease, source, objects, n_ops);
	struct xfer_request r = {
		.spec = { .direction = DMSG_DIRECTION_READ,
			  .class = DMSG_CLASS_BULK,
			  .deadline_ms = time_until(f, source_end_ns(f, bytes)) },
		.request_id = f->batch->request_id,
		.ops = f->ops,
		.n_ops = n_ops,
		.ops_ours = true,
		.outlived = true,
		.ended = source_read,
		.ended_arg = f,
	};

	if (!reading)
		return dray_err_set(err, -EINVAL, DRAY_E_NO_MEMORY, "no memory for the request");
	r.local = &reading->local;
	r.remote = &reading->remote;
	f->reading = reading;
	idset_del(&s->ids, r.request_id);
	/* the fetch may have ended when it returns */
	request_start(s, &r, err);
	if (!err->code)
		return 0;
	f->reading = NULL;
	reading_free(reading);
	return -EINVAL;
}

static bool look_again(struct fetch *f)
{
	struct store_ask *k = f->again ? NULL : ask_again(f);

	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->ask->v[i].status == DMSG_STORE_STATUS_NOT_TRIED && !k) {
			f->ask->v[i].status = DMSG_STORE_STATUS_LOST;
			key_failed(f, &f->ask->v[i]);
		}
	if (!k)
		return false;
	f->again = true;
	ask_end(worker_of_fetch(f), dray_take(f->ask));
	ask_send(f, k);
	return true;
}

/* The next source that has something to read, unless its lease has ended. The number of its operations; 0: there is none. */
static uint32_t find_source(struct fetch *f, struct store_object **objects, uint64_t *ret_bytes)
{
	for (; f->source < f->ask->n_sources; f->source++) {
		uint32_t n = source_ops(f, objects, ret_bytes);

		if (n && worker_of_fetch(f)->core.now_ns < f->ask->sources[f->source].end_ns)
			return n;
		if (!n)
			continue;
		source_end(f, true);
		sources_end(f);
	}
	return 0;
}

static void next_source(struct fetch *f)
{
	struct store_object *objects[DMSG_STORE_KEYS_MAX];
	struct wsession *s = f->session;
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t bytes = 0;
	uint32_t n = find_source(f, objects, &bytes);

	/* the end of the former transfer has given its id back */
	if (!n && !idset_has(&s->ids, f->batch->request_id) &&
	    idset_add(&s->ids, f->batch->request_id) < 0) {
		dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		fetch_fail(f, 0, &err);
	} else if (n && source_start(f, objects, n, bytes, &err) < 0) {
		fetch_fail(f, 0, &err);
	} else if (!n && !look_again(f)) {
		fetch_done(f);
	}
}

/* --- the answer ------------------------------------------------------------------------------------------- */

static struct fetch *fetch_find(struct wsession *s, uint64_t number)
{
	dray_list_for_each(&s->fetches, f, struct fetch, link)
		if (f->number == number)
			return f;
	return NULL;
}

/* Room for the objects of the ask, and the operations that read them. */
static bool fetch_room(struct fetch *f, uint32_t n)
{
	free(f->objects);
	free(f->ops);
	f->objects = calloc(n, sizeof(struct store_object *));
	f->ops = malloc((size_t)n * DMSG_OP_SIZE);
	return f->objects && f->ops;
}

/* Of a GET: all is known of its keys. Consumes the ask. */
static void fetch_found(struct fetch *f, struct store_ask *k)
{
	struct dray_err err = DRAY_ERR_NULL;

	f->source = 0;
	f->ask = k;
	if (!fetch_room(f, k->n)) {
		dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		fetch_fail(f, 0, &err);
		return;
	}
	owner_charge(f->session->xs.owner, (uint64_t)k->n * KEY_WORK);
	dray_list_del(&f->asking);
	for (uint32_t i = 0; i < k->n; i++)
		if (!k->v[i].status)
			f->objects[i] = place(f, &k->v[i]);
		else if (k->v[i].status != DMSG_STORE_STATUS_NOT_TRIED) /* else look_again() */
			key_failed(f, &k->v[i]);
	sources_end(f);
	next_source(f);
}

/* Of an EXISTS: likewise. */
static void fetch_looked(struct fetch *f, struct store_ask *k)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;

	owner_charge(s->xs.owner, (uint64_t)k->n * KEY_WORK);
	/* an agent that has not answered may have it */
	for (uint32_t i = 0; k->late && i < k->n; i++)
		if (k->v[i].status == DMSG_STORE_STATUS_NOT_FOUND)
			k->v[i].status = DMSG_STORE_STATUS_BUSY;
	held_add(s, k, b->results);
	idset_del(&s->ids, b->request_id);
	batch_reply(s, b, 0);
	free(b);
	fetch_free(f);
}

void fetch_asked(struct worker *w, dray_handle session, struct store_ask *k)
{
	struct wsession *s = wsession_get(w, session);
	struct fetch *f = s ? fetch_find(s, k->number) : NULL;

	if (s)
		s->requests--;
	if (!f) {
		ask_end(w, k);
		return;
	}
	f->asked = NULL;
	if (!s->dead && !f->batch->gets) {
		fetch_looked(f, k);
		return;
	}
	if (s->dead || k->late || is_late(f)) {
		ask_drop(s, k);
		fetch_fail(f, DRAY_E_DEADLINE, NULL);
		return;
	}
	fetch_found(f, k);
}

/* It does not read from this source any more. May end it. */
static void source_fenced(struct fetch *f, uint32_t source)
{
	struct wsession *s = f->session;

	f->ask->sources[source].end_ns = 0;
	if (f->reading && f->source == source) {
		xfer_stop(&s->worker->core, xfer_find(&s->xs, f->batch->request_id), DRAY_E_REVOKED,
			  NULL, true);
		return;
	}
	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->objects[i] && f->ask->v[i].source == source)
			key_lost(f, i, true);
	sources_end(f);
}

/* A fetch with a source of this lease that has not ended. */
static struct fetch *fetch_of_lease(struct wsession *s, dray_handle peer, uint64_t grant,
				    uint32_t *ret_source)
{
	dray_list_for_each(&s->fetches, f, struct fetch, link)
		for (uint32_t i = 0; f->ask && i < f->ask->n_sources; i++) {
			const struct store_source *k = &f->ask->sources[i];

			if (k->view.peer != peer || k->view.grant != grant || !k->end_ns)
				continue;
			*ret_source = i;
			return f;
		}
	return NULL;
}

/* The control thread has its ask, but leaves these keys alone. They are looked up again after its answer. */
static void held_fenced(struct fetch *f, dray_handle peer, uint64_t grant)
{
	struct store_ask *k = f->asked;

	for (uint32_t i = k->n_asked; i < k->n; i++) {
		struct store_asked *v = &k->v[i];
		const struct store_source *s = v->held ? held_source(v->held) : NULL;

		if (!s || s->view.peer != peer || s->view.grant != grant)
			continue;
		v->status = DMSG_STORE_STATUS_NOT_TRIED;
		held_end(dray_take(v->held));
	}
}

void fetch_fenced(struct worker *w, dray_handle session, dray_handle peer, uint64_t grant)
{
	struct wsession *s = wsession_get(w, session);
	struct fetch *f;
	uint32_t source;

	if (!s)
		return;
	/* the end of one may end others */
	while ((f = fetch_of_lease(s, peer, grant, &source)))
		source_fenced(f, source);
	dray_list_for_each(&s->fetches, asking, struct fetch, link)
		if (asking->asked)
			held_fenced(asking, peer, grant);
	helds_fenced(s, peer, grant);
}

static struct fetch *fetch_asking(struct wsession *s, uint64_t request)
{
	dray_list_for_each(&s->fetches, f, struct fetch, link)
		if (f->batch->request_id == request && !f->ask)
			return f;
	return NULL;
}

bool fetch_asks(struct wsession *s, uint64_t request)
{
	return fetch_asking(s, request);
}

void fetch_cancel(struct wsession *s, uint64_t request)
{
	fetch_fail(fetch_asking(s, request), DRAY_E_CANCELLED, NULL);
}

uint32_t fetches_asking(const struct worker *w)
{
	uint32_t n = 0;

	dray_list_for_each(&w->asking, f, struct fetch, asking)
		n++;
	return n;
}

void fetches_stop(struct worker *w, uint32_t code)
{
	struct fetch *f;

	while ((f = dray_list_first(&w->asking, struct fetch, asking)))
		fetch_fail(f, code, NULL);
}

void fetches_close(struct wsession *s)
{
	dray_list_for_each(&s->fetches, f, struct fetch, link)
		fetch_fail(f, DRAY_E_SESSION_CLOSED, NULL);
}

/* --- the request ------------------------------------------------------------------------------------------ */

/* NULL: no memory. more: bytes behind it. */
static struct fetch *fetch_alloc(struct wsession *s, struct batch *b, struct store_member *member,
				 int64_t time_ns, size_t more)
{
	struct fetch *f = calloc(1, sizeof(*f) + more);

	if (!f)
		return NULL;
	f->session = s;
	f->number = ++s->worker->fetches;
	f->batch = b;
	f->member = member;
	f->end_ns = s->worker->core.now_ns + time_ns;
	dray_list_init(&f->link);
	dray_list_init(&f->asking);
	return f;
}

static struct fetch *fetch_new(struct wsession *s, const struct dmsg_store_put *m,
			       struct store_member *member, struct batch *b)
{
	size_t items = (size_t)m->items.n * DMSG_STORE_ITEM_SIZE,
	       ranges = (size_t)m->ranges.n * DMSG_STORE_RANGE_SIZE;
	int64_t time_ns = m->deadline_ms ? m->deadline_ms * DRAY_NS_PER_MS :
					   s->worker->core.cfg.deadline_ns;
	struct fetch *f = fetch_alloc(s, b, member, time_ns, items + ranges);

	if (!f)
		return NULL;
	f->arrivals = store_arrivals_new(s->worker->store, b->n);
	if (!f->arrivals) {
		free(f);
		return NULL;
	}
	f->region = m->region;
	f->n_items = m->items.n;
	f->items = memcpy(f->data, m->items.p, items);
	f->ranges = memcpy(f->data + items, m->ranges.p, ranges);
	return f;
}

/* The session may have one more, whose id is taken then. */
static bool may_begin(struct wsession *s, uint64_t request_id, struct dray_err *err)
{
	if (s->requests >= s->xs.shared->requests_max) {
		dray_err_set(err, -EBUSY, DRAY_E_BUSY,
			     "%u requests are pending (limits.requests_per_session)", s->requests);
		return false;
	}
	return request_take_id(s, request_id, err) == 0;
}

/* f NULL: no memory for it. True: it has begun. */
static bool begin(struct wsession *s, struct fetch *f, struct store_ask *k, uint64_t request_id,
		  struct dray_err *err)
{
	if (!f) {
		dray_err_set(err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		idset_del(&s->ids, request_id);
		ask_drop(s, k);
		return false;
	}
	dray_list_add(&s->fetches, &f->link);
	if (k->n_asked)
		ask_send(f, k);
	else
		fetch_found(f, k);
	return true;
}

bool fetch_begin(struct wsession *s, const struct dmsg_header *h, const struct dmsg_store_put *m,
		 struct store_member *member, const struct store_key *keys, struct batch *b,
		 struct dray_err *err)
{
	struct store_ask *k;

	/* a refused request must leave what the session holds: the ask takes that over */
	if (!store_asks(member) || !any_wanted(b) || !may_begin(s, h->request_id, err))
		return false;
	k = ask_of_batch(s, b, keys);
	/* without memory it is not asked for */
	if (!k) {
		idset_del(&s->ids, h->request_id);
		return false;
	}
	return begin(s, fetch_new(s, m, member, b), k, h->request_id, err);
}

bool fetch_exists(struct wsession *s, uint64_t request_id, uint32_t lease_ms,
		  struct store_member *member, const struct store_key *keys,
		  const struct dmsg_store_result *results, uint32_t n, struct dray_err *err)
{
	size_t bytes = n * sizeof(results[0]);
	struct batch *b = store_asks(member) ? calloc(1, sizeof(*b) + bytes) : NULL;
	struct store_ask *k;

	if (!b)
		return false;
	b->request_id = request_id;
	b->member = member;
	b->begin_ns = s->worker->core.now_ns;
	b->type = DMSG_STORE_EXISTS;
	b->n = n;
	b->results = memcpy(b->ops, results, bytes);
	if (!any_wanted(b) || !may_begin(s, request_id, err)) {
		free(b);
		return false;
	}
	k = ask_of_batch(s, b, keys);
	if (k)
		k->lease_ms = lease_ms;
	else
		idset_del(&s->ids, request_id);
	if (k && begin(s, fetch_alloc(s, b, member, EXISTS_NS, 0), k, request_id, err))
		return true;
	free(b);
	return false;
}
