/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What EXISTS of a session has found at other agents. It stays leased there until a GET or UNPIN of its key, or the end of the session
 * or of its time. A GET takes the key over: it reads from the source that the EXISTS has found, and nobody is asked again.
 *
 * A lease is that of a lookup, and so of all keys that it has found: it ends with the last of them.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_reading.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* Keys of one ask. */
struct holding {
	struct dray_map_node numbered; /* in session->holdings */
	struct wsession *session;
	struct store_ask *ask;
	uint32_t n; /* keys that have not ended */
	struct held_key {
		struct dray_map_node by_key; /* in session->held, until it is taken */
		struct holding *of;          /* NULL: it is not held */
		uint32_t i;                  /* in the ask */
		struct store_ask *by;        /* of the GET that has taken it */
		uint32_t by_i;               /* in that ask */
	} keys[];
};

const struct store_asked *held_asked(const struct held_key *k)
{
	return &k->of->ask->v[k->i];
}

static struct store_source *source_of(const struct held_key *k)
{
	return &k->of->ask->sources[held_asked(k)->source];
}

struct store_ask *held_lease(const struct held_key *k, uint32_t *ret_source)
{
	*ret_source = held_asked(k)->source;
	return k->of->ask;
}

const struct store_source *held_source(const struct held_key *k)
{
	return source_of(k);
}

static void holding_free(struct holding *h)
{
	dray_map_del(&h->session->holdings, &h->numbered);
	ask_end(h->session->worker, h->ask);
	free(h);
}

void held_take(struct held_key *k)
{
	dray_map_del(&k->of->session->held, &k->by_key);
}

void held_taken(struct held_key *k, struct store_ask *by, uint32_t i)
{
	k->by = by;
	k->by_i = i;
}

void held_end(struct held_key *k)
{
	struct holding *h = k->of;
	uint32_t source = held_asked(k)->source;

	held_take(k);
	k->of = NULL;
	if (!--h->n)
		holding_free(h);
	else if (!--h->ask->sources[source].held)
		source_done(h->session->worker, h->ask, source);
}

struct held_key *held_find(struct wsession *s, const char *space, struct store_key key,
			   int64_t least_ns)
{
	dray_map_for_each_of(&s->held, key.p, key.n, k, struct held_key, by_key)
		if (!strcmp(k->of->ask->space, space) &&
		    source_of(k)->end_ns - s->worker->core.now_ns > least_ns)
			return k;
	return NULL;
}

static void hold(struct holding *h, uint32_t i)
{
	struct wsession *s = h->session;
	struct store_asked *v = &h->ask->v[i];
	struct held_key *before =
		held_find(s, h->ask->space, (struct store_key){ v->key, v->n_key }, INT64_MIN / 2);

	h->keys[i] = (struct held_key){ .of = h, .i = i };
	h->ask->sources[v->source].held++;
	h->n++;
	/* its lease ends sooner; it may be of this ask, too */
	if (before)
		held_end(before);
	if (s->held.n < store_leases_max(s->worker->store)) {
		dray_map_add(&s->held, &h->keys[i].by_key, v->key, v->n_key);
	} else {
		held_end(&h->keys[i]);
		v->status = DMSG_STORE_STATUS_BUSY;
	}
}

static void describe(const struct wsession *s, const struct store_ask *k,
		     struct dmsg_store_result *results)
{
	for (uint32_t i = 0; i < k->n; i++) {
		const struct store_asked *v = &k->v[i];
		struct dmsg_store_result *r = &results[v->item];

		*r = (struct dmsg_store_result){ .status = v->status };
		if (!v->status) {
			r->tier = DMSG_STORE_TIER_AGENT;
			r->length = v->length;
		} else if (v->status == DMSG_STORE_STATUS_BUSY) {
			r->wait_ms = store_retry_ms(s->worker->store);
		}
	}
}

void held_add(struct wsession *s, struct store_ask *k, struct dmsg_store_result *results)
{
	struct holding *h = calloc(1, sizeof(*h) + k->n * sizeof(h->keys[0]));

	if (!h) {
		for (uint32_t i = 0; i < k->n; i++)
			if (!k->v[i].status)
				k->v[i].status = DMSG_STORE_STATUS_BUSY;
		describe(s, k, results);
		ask_end(s->worker, k);
		return;
	}
	h->session = s;
	h->ask = k;
	h->n = 1; /* until all are added */
	dray_map_add(&s->holdings, &h->numbered, &k->number, sizeof(k->number));
	for (uint32_t i = 0; i < k->n; i++)
		if (!k->v[i].status && k->sources[k->v[i].source].end_ns)
			hold(h, i);
		else if (!k->v[i].status) /* its lease was ended before the answer */
			k->v[i].status = DMSG_STORE_STATUS_BUSY;
	describe(s, k, results);
	for (uint32_t i = 0; h->n > 1 && i < k->n_sources; i++)
		if (!k->sources[i].held)
			source_done(s->worker, k, i);
	if (!--h->n)
		holding_free(h);
}

void helds_got(struct wsession *s, const char *space, const struct store_key *keys,
	       const struct dmsg_store_result *results, uint32_t n)
{
	for (uint32_t i = 0; s->held.n && i < n; i++) {
		struct held_key *k =
			results[i].status ? NULL : held_find(s, space, keys[i], INT64_MIN / 2);

		if (k)
			held_end(k);
	}
}

void helds_unpin(struct wsession *s, const char *space, const struct store_key *keys,
		 struct dmsg_store_result *results, uint32_t n)
{
	for (uint32_t i = 0; s->held.n && i < n; i++) {
		struct held_key *k = held_find(s, space, keys[i], INT64_MIN / 2);

		if (!k)
			continue;
		if (results[i].status == DMSG_STORE_STATUS_NOT_FOUND)
			results[i] = (struct dmsg_store_result){ .length = held_asked(k)->length };
		held_end(k);
	}
}

/* Those that a GET has taken end with it. */
static void holding_drop(struct holding *h)
{
	h->n++;
	for (uint32_t i = 0; i < h->ask->n; i++)
		if (h->keys[i].of && dray_map_has(&h->keys[i].by_key))
			held_end(&h->keys[i]);
	if (!--h->n)
		holding_free(h);
}

static struct holding *holding_find(struct wsession *s, uint64_t number)
{
	return dray_map_entry(dray_map_find(&s->holdings, &number, sizeof(number)), struct holding,
			      numbered);
}

void helds_fenced(struct wsession *s, uint64_t number, dray_handle peer, uint64_t grant)
{
	struct holding *h = holding_find(s, number);
	uint32_t source;

	if (!h || !ask_find_source(h->ask, peer, grant, &source))
		return;
	h->ask->sources[source].end_ns = 0;
	h->n++;
	for (uint32_t i = 0; i < h->ask->n; i++) {
		struct held_key *k = &h->keys[i];

		if (!k->of || held_asked(k)->source != source)
			continue;
		if (dray_map_has(&k->by_key))
			held_end(k);
		else
			fetch_held_fenced(s, k->by, k->by_i);
	}
	if (!--h->n)
		holding_free(h);
}

void helds_close(struct wsession *s)
{
	dray_map_for_each(&s->holdings, h, struct holding, numbered)
		holding_drop(h);
	dray_map_deinit(&s->holdings);
	dray_map_deinit(&s->held);
}

void held_lapsed(struct worker *w, dray_handle session, uint64_t number)
{
	struct wsession *s = wsession_get(w, session);
	struct holding *h = s ? holding_find(s, number) : NULL;

	if (h)
		holding_drop(h);
}
