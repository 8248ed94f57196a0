/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_wanted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_reading.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"

/* A lease that ends sooner is not taken over. */
#define HELD_LEAST_NS (20 * DRAY_NS_PER_MS)

bool wanted_any(const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (wanted_key(&b->results[i]))
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
	held_taken(held, k, k->n - 1);
}

/* Takes over what the session holds of the keys that the batch has not found. Their number. */
static uint32_t take_held(struct wsession *s, const struct batch *b, const struct store_key *keys,
			  struct held_key **held)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		held[i] = b->gets && s->held.n && wanted_key(&b->results[i]) ?
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

struct store_ask *wanted_ask(struct wsession *s, const struct batch *b,
			     const struct store_key *keys)
{
	struct held_key *held[DMSG_STORE_KEYS_MAX];
	uint32_t n = 0, n_held = take_held(s, b, keys, held);
	size_t bytes = 0;
	struct store_ask *k;
	uint8_t *at;

	for (uint32_t i = 0; i < b->n; i++)
		if (wanted_key(&b->results[i])) {
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
		if (wanted_key(&b->results[i]) && !held[i])
			ask_add(k, &at, keys[i], i);
	k->n_asked = k->n;
	for (uint32_t i = 0; i < b->n; i++)
		if (held[i])
			ask_add_held(k, &at, keys[i], i, held[i]);
	return k;
}

struct store_ask *wanted_replicas(const struct wsession *s, const struct batch *b,
				  const struct store_key *keys, struct dray_str at)
{
	uint32_t n = 0;
	size_t bytes = 0;
	struct store_ask *k;
	uint8_t *p;

	for (uint32_t i = 0; i < b->n; i++)
		if (batch_asks_for(b, i)) {
			n++;
			bytes += keys[i].n;
		}
	k = n ? ask_alloc(s, n, bytes + at.n + 1) : NULL;
	if (!k)
		return NULL;
	snprintf(k->space, sizeof(k->space), "%s", store_member_space(b->member));
	p = (uint8_t *)(k->v + n);
	for (uint32_t i = 0; i < b->n; i++)
		if (batch_asks_for(b, i))
			ask_add(k, &p, keys[i], i)->length = b->results[i].length;
	if (b->forwards)
		k->at = memcpy(p, at.p, at.n);
	k->n_asked = n;
	k->replicates = true;
	return k;
}

struct store_ask *wanted_again(const struct wsession *s, const struct store_ask *before)
{
	uint32_t n = 0;
	size_t bytes = 0;
	struct store_ask *k;
	uint8_t *at;

	for (uint32_t i = 0; i < before->n; i++)
		if (before->v[i].status == DMSG_STORE_STATUS_NOT_TRIED) {
			n++;
			bytes += before->v[i].n_key;
		}
	k = n ? ask_alloc(s, n, bytes) : NULL;
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
		a->silent = v->silent;
		a->slow = v->slow;
	}
	k->n_asked = n;
	k->again = true;
	k->from = before->from;
	return k;
}
