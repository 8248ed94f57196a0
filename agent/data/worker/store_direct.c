/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_direct.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/transport.h"
#include "agent/data/worker/store_place.h"
#include "agent/data/worker/store_source.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* An agent that has not answered within this part of store.peer_timeout is asked by the control thread. */
#define PATIENCE 4
/* How long the control thread asks alone when an agent was late with a small answer, or cannot be asked. */
#define PAUSE_NS DRAY_NS_PER_SEC

/* To one agent. */
struct question_direct {
	struct seek seek;
	struct direct *of;
	dray_handle peer;
	uint8_t *found;
};

struct direct {
	struct ask_holder holder; /* the fetch's, with the ask */
	struct dray_list link;    /* on worker->directs */
	struct worker *worker;
	struct fetch *fetch;   /* NULL: it has ended, or the control thread asks for it */
	struct store_ask *ask; /* with the fetch */
	int64_t end_ns;
	uint32_t pending, n, n_keys;
	uint32_t room; /* for bytes behind the answer; 0: there are none */
	bool failed;   /* an agent did not say all that is to be known */
	struct question_direct questions[STORE_DIRECT_MAX];
	size_t n_find;
	uint8_t find[FIND_MAX];
};

static void direct_free(struct direct *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		free(d->questions[i].found);
	dray_list_del(&d->link);
	free(d);
}

/* Takes the ask from it. */
static struct store_ask *leave(struct direct *d)
{
	d->fetch->holder = NULL;
	d->fetch->session->requests--;
	dray_list_del(&d->fetch->asking);
	d->fetch = NULL;
	return dray_take(d->ask);
}

static void stop(struct ask_holder *h)
{
	struct direct *d = dray_container_of(h, struct direct, holder);

	store_ask_free(leave(d));
	if (!d->pending)
		direct_free(d);
}

static void ask_instead(struct direct *d)
{
	struct fetch *f = d->fetch;

	fetch_send(f, leave(d));
}

/* All that its keys have here is known. */
static void go_on(struct direct *d)
{
	struct fetch *f = d->fetch;
	struct store_ask *k = leave(d);

	if (f->session->dead || fetch_is_late(f)) {
		store_ask_free(k);
		fetch_fail(f, DRAY_E_DEADLINE, NULL);
	} else {
		sources_read(f, k);
	}
}

/*
 * The bytes that follow the answer: those of the objects, if they are not in it. SEEK_BROKEN: the answer names lengths that the
 * agent may not send, so where the next frame begins is not known.
 */
static uint64_t bytes_behind(const struct question_direct *q)
{
	const struct direct *d = q->of;
	uint64_t bytes = 0;

	if (!d->room || q->seek.n_found != (size_t)d->n_keys * PMSG_STORE_FOUND_SIZE)
		return 0;
	for (uint32_t i = 0; i < d->n_keys; i++) {
		struct pmsg_store_found f;

		pmsg_store_found_get(q->seek.found + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
		if (f.answer != PMSG_STORE_ANSWER_FOUND)
			continue;
		if (!f.length || f.length > d->room - bytes)
			return SEEK_BROKEN;
		bytes += f.length;
	}
	return bytes;
}

/* behind: the bytes that follow the answer; 0: they are in it. */
static struct store_source source_of(struct question_direct *q, uint64_t behind)
{
	if (!behind)
		return (struct store_source){ .bytes = dray_take(q->found), .end_ns = INT64_MAX };
	return (struct store_source){
		.view = { .o = { .kind = OBJECT_REMOTE,
				 .length = behind,
				 .access = DMSG_ACCESS_READ },
			  .peer = q->peer },
		.trailing = q->seek.trailing,
		.end_ns = INT64_MAX,
	};
}

/* Takes what the agent has. False: the answer is not whole, or the agent may have more. */
static bool take(struct store_ask *k, struct question_direct *q, uint64_t behind)
{
	const uint8_t *records = q->seek.found;
	size_t head = (size_t)k->n * PMSG_STORE_FOUND_SIZE;
	uint64_t at = behind ? 0 : head, end = behind ? behind : q->seek.n_found;
	bool any = false, more = false;

	if (q->seek.n_found < head)
		return false;
	for (uint32_t i = 0; i < k->n; i++) {
		struct store_asked *v = &k->v[i];
		struct pmsg_store_found f;

		pmsg_store_found_get(records + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
		if (f.answer != PMSG_STORE_ANSWER_FOUND) {
			more |= v->status && f.answer != PMSG_STORE_ANSWER_NOT_FOUND;
			continue;
		}
		if (!f.length || f.length > end - at) {
			more = true;
			break;
		}
		if (v->status) {
			v->status = DMSG_STORE_STATUS_OK;
			v->source = k->n_sources;
			v->offset = at;
			v->length = f.length;
			v->crc = f.crc;
			v->cost_us = f.cost_us;
			any = true;
		}
		at += f.length;
	}
	if (any)
		k->sources[k->n_sources++] = source_of(q, behind);
	return !more;
}

static bool all_found(const struct store_ask *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		if (k->v[i].status)
			return false;
	return true;
}

/* The control thread asks for all of it. */
static void forget_found(struct store_ask *k)
{
	for (uint32_t i = 0; i < k->n_sources; i++)
		free(k->sources[i].bytes);
	k->n_sources = 0;
	for (uint32_t i = 0; i < k->n; i++)
		k->v[i].status = DMSG_STORE_STATUS_NOT_FOUND;
}

/* The agent lends nothing to this owner, or nothing at all. */
static bool has_nothing(uint32_t code)
{
	return code == DRAY_E_DENIED || code == DRAY_E_DRAINING || code == DRAY_E_UNSUPPORTED;
}

static uint64_t answered(struct core *c, struct seek *seek, uint32_t code)
{
	struct question_direct *q = dray_container_of(seek, struct question_direct, seek);
	struct direct *d = q->of;
	uint64_t behind = code ? 0 : bytes_behind(q);

	if (behind == SEEK_BROKEN)
		code = DRAY_E_PROTOCOL;
	d->pending--;
	if (code && !has_nothing(code))
		directs_forget(d->worker);
	if (d->fetch) {
		d->failed |= code ? !has_nothing(code) : !take(d->ask, q, behind);
		if (all_found(d->ask) || (!d->pending && !d->failed)) {
			go_on(d);
		} else if (!d->pending) {
			forget_found(d->ask);
			ask_instead(d);
		}
	}
	if (!d->pending)
		direct_free(d);
	return behind;
}

/* The room for its keys, if they are few. */
static uint64_t room_of(struct fetch *f, const struct store_ask *k)
{
	uint64_t room = 0;

	if (k->n != k->n_asked || k->n > PMSG_TRAILING_KEYS_MAX || k->lease_ms || f->keeps ||
	    f->batch->call.type != DMSG_STORE_GET)
		return UINT64_MAX;
	for (uint32_t i = 0; i < k->n; i++)
		room += dray_min(place_room(f, k->v[i].item),
				 (uint64_t)PMSG_FOUND_TRAILING_MAX + 1);
	return room;
}

/* Bytes may follow the answer: one agent is asked, which can send them, and no RDMA device, which is faster, reaches it. */
static bool may_trail(struct worker *w)
{
	if (!w->direct.trails)
		return false;
	transports_each(&w->core, i, reaches)
		if (w->core.transports[i]->reaches(&w->core, w->core.transport_state[i],
						   w->direct.peers[0]))
			return false;
	return true;
}

/* The body of the frame. False: it is too long. */
static bool find_put(struct direct *d, const struct store_ask *k)
{
	uint8_t keys[FIND_MAX];
	union pmsg_body m = { .store_lookup = {
				      .uid = k->uid,
				      .space = { k->space, (uint32_t)strlen(k->space) },
				      .tenant = { k->tenant, (uint32_t)strlen(k->tenant) },
				      .keys = { keys, 0 },
				      .flags = PMSG_STORE_LOOKUP_FLAG_BYTES,
				      .room = d->room } };
	int n;

	for (uint32_t i = 0; i < k->n; i++) {
		if (k->v[i].n_key >= sizeof(keys) - m.store_lookup.keys.n)
			return false;
		m.store_lookup.keys.n = store_asked_put(&k->v[i], keys, m.store_lookup.keys.n);
	}
	n = pmsg_body_encode(PMSG_STORE_LOOKUP, d->find, sizeof(d->find), 0, &m);
	d->n_find = n > 0 ? (size_t)n : 0;
	return n > 0;
}

static bool question_send(struct direct *d, dray_handle peer)
{
	struct question_direct *q = &d->questions[d->n];
	struct core *c = &d->worker->core;
	bool sent = false;

	q->of = d;
	q->peer = peer;
	q->found = malloc(FOUND_MAX + SEAL_BYTES);
	q->seek = (struct seek){
		.find = d->find,
		.n_find = d->n_find,
		.found = q->found,
		.class = d->room > PMSG_FOUND_BYTES_MAX ? DMSG_CLASS_BULK : DMSG_CLASS_LATENCY,
		.room = d->room,
		.ended = answered,
	};
	dray_list_init(&q->seek.link);
	d->n++;
	transports_each(c, i, seek)
		sent = sent || (q->found &&
				c->transports[i]->seek(c, c->transport_state[i], peer, &q->seek));
	d->pending += sent;
	return sent;
}

bool direct_ask(struct fetch *f, struct store_ask *k)
{
	struct worker *w = worker_of_fetch(f);
	struct direct *d;
	uint64_t room;
	bool trails;

	if (!w->direct.n || w->core.now_ns < w->direct_ns)
		return false;
	room = room_of(f, k);
	trails = (room > PMSG_FOUND_SEALED_MAX || k->n > PMSG_FIND_KEYS_MAX) && may_trail(w);
	if (room > (trails ? PMSG_FOUND_TRAILING_MAX : PMSG_FOUND_BYTES_MAX) ||
	    (!trails && k->n > PMSG_FIND_KEYS_MAX))
		return false;
	d = calloc(1, sizeof(*d));
	if (!d)
		return false;
	d->room = trails ? (uint32_t)room : 0;
	d->n_keys = k->n;
	k->sources = calloc(w->direct.n, sizeof(k->sources[0]));
	if (!k->sources || !find_put(d, k)) {
		free(d);
		return false;
	}
	dray_list_init(&d->link);
	d->holder.stop = stop;
	d->worker = w;
	d->end_ns = dray_min(f->batch->end_ns,
			     w->core.now_ns + store_peer_timeout_ns(w->store) / PATIENCE);
	dray_list_add(&w->directs, &d->link);
	for (uint32_t i = 0; i < w->direct.n; i++)
		if (!question_send(d, w->direct.peers[i])) {
			if (d->pending)
				w->direct_ns = w->core.now_ns + PAUSE_NS / 10;
			if (!d->pending)
				direct_free(d);
			return false;
		}
	f->holder = &d->holder;
	d->fetch = f;
	d->ask = k;
	fetch_wait(f, k);
	return true;
}

void directs_forget(struct worker *w)
{
	w->direct.n = 0;
}

int64_t directs_tick(struct worker *w)
{
	int64_t next = INT64_MAX;

	dray_list_for_each(&w->directs, d, struct direct, link) {
		if (!d->fetch)
			continue;
		if (d->end_ns <= w->core.now_ns) {
			directs_forget(w);
			/* bytes behind an answer may only have waited for others on their stream */
			if (d->questions[0].seek.class == DMSG_CLASS_LATENCY)
				w->direct_ns = w->core.now_ns + PAUSE_NS;
			forget_found(d->ask);
			ask_instead(d);
		} else {
			next = dray_min(next, d->end_ns);
		}
	}
	return next;
}
