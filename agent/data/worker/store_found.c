/* SPDX-License-Identifier: Apache-2.0 */
/* Answers frames find of other agents, on the worker that has their stream. */
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/internal.h"
#include "agent/model/peer_link.h"
#include "lib/cleanup.h"

/* Bytes of objects whose checksums one answer computes: it takes about as long as sending as many. */
#define SUMS_MAX (2ull << 20)

/* 0, or an error code. */
static uint32_t may_answer(const struct worker *w, const struct peer_link *link)
{
	if (w->draining)
		return DRAY_E_DRAINING;
	return w->store && store_lends(w->store) && link->may_find ? 0 : DRAY_E_DENIED;
}

static enum pmsg_store_answer answer_of(enum dmsg_store_status s)
{
	return s == DMSG_STORE_STATUS_OK        ? PMSG_STORE_ANSWER_FOUND :
	       s == DMSG_STORE_STATUS_NOT_FOUND ? PMSG_STORE_ANSWER_NOT_FOUND :
						  PMSG_STORE_ANSWER_BUSY;
}

/* 0, or an error code: the owner may not use the name space, or the keys are wrong. */
static uint32_t read_find(const struct store *s, const uint8_t *find, size_t n,
			  union pmsg_body *ret, struct store_key *keys, uint32_t *ret_n)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_header h;
	int n_keys;

	if (pmsg_header_decode(find, n, &h, &err) < 0 || h.type != PMSG_STORE_LOOKUP ||
	    h.length != n - PMSG_HEADER_SIZE ||
	    pmsg_body_decode(h.type, find + PMSG_HEADER_SIZE, h.length, ret, &err) < 0)
		return DRAY_E_INVALID;
	n_keys = store_keys_split(keys, PMSG_FIND_KEYS_MAX, ret->store_lookup.keys, &err);
	if (n_keys <= 0)
		return DRAY_E_INVALID;
	*ret_n = (uint32_t)n_keys;
	return store_may_use(s,
			     &(struct store_asker){ ret->store_lookup.space,
						    ret->store_lookup.tenant,
						    ret->store_lookup.uid },
			     &err) < 0 ?
		       DRAY_E_DENIED :
		       0;
}

/* Objects of an answer that are sent from where they lie. */
struct pushed_objects {
	struct pushed p;
	struct store_lent v[PMSG_FIND_KEYS_MAX];
};

static void pushed_end(struct pushed *p)
{
	struct pushed_objects *o = dray_container_of(p, struct pushed_objects, p);

	for (unsigned i = 0; i < p->n; i++)
		store_lent_end(&o->v[i]);
	free(o);
}

/* NULL: no memory. Else it has what is found. */
static struct pushed *push(const struct store_lent *v, uint32_t n)
{
	struct pushed_objects *o = malloc(sizeof(*o));

	if (!o)
		return NULL;
	o->p = (struct pushed){ .end = pushed_end };
	for (uint32_t i = 0; i < n; i++) {
		if (!v[i].p)
			continue;
		o->v[o->p.n] = v[i];
		o->p.v[o->p.n++] = (struct iovec){ v[i].p, v[i].bytes };
		o->p.bytes += v[i].bytes;
	}
	return &o->p;
}

/* Writes the bytes of what is found, in a row. Returns their end. */
static uint8_t *copy(struct store_lent *v, uint32_t n, uint8_t *to)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!v[i].p)
			continue;
		memcpy(to, v[i].p, v[i].bytes);
		to += v[i].bytes;
		store_lent_end(&v[i]);
	}
	return to;
}

uint32_t find_answered(struct core *c, const struct peer_link *link, const uint8_t *find, size_t n,
		       uint8_t *found, size_t *ret_n, struct pushed **ret_pushed)
{
	struct store_lent v[PMSG_FIND_KEYS_MAX];
	struct store_key keys[PMSG_FIND_KEYS_MAX];
	struct worker *w = worker_of(c);
	union pmsg_body m;
	uint32_t n_keys = 0, code = may_answer(w, link);
	uint64_t bytes = 0, most, sums = SUMS_MAX;
	uint8_t *end;
	bool pushes;

	if (!code)
		code = read_find(w->store, find, n, &m, keys, &n_keys);
	if (code)
		return code;
	pushes = m.store_lookup.flags & PMSG_STORE_LOOKUP_FLAG_PUSH;
	most = pushes ? PMSG_FOUND_PUSHED_MAX : PMSG_FOUND_BYTES_MAX;
	for (uint32_t i = 0; i < n_keys; i++) {
		enum dmsg_store_status s = store_find(w->store, m.store_lookup.space, keys[i],
						      most - bytes, &sums, &v[i]);

		pmsg_store_found_put(found + (size_t)i * PMSG_STORE_FOUND_SIZE,
				     &(struct pmsg_store_found){ .answer = answer_of(s),
								 .crc = v[i].crc,
								 .length = v[i].bytes,
								 .cost_us = v[i].cost_us });
		bytes += v[i].bytes;
	}
	end = found + (size_t)n_keys * PMSG_STORE_FOUND_SIZE;
	*ret_n = (size_t)(end - found);
	if (!pushes || bytes <= PMSG_FOUND_SEALED_MAX) {
		*ret_n = (size_t)(copy(v, n_keys, end) - found);
		return 0;
	}
	*ret_pushed = push(v, n_keys);
	if (*ret_pushed)
		return 0;
	for (uint32_t i = 0; i < n_keys; i++)
		if (v[i].p)
			store_lent_end(&v[i]);
	return DRAY_E_NO_MEMORY;
}
