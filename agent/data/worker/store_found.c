/* SPDX-License-Identifier: Apache-2.0 */
/* Answers frames find of other agents, on the worker that has their stream. */
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/internal.h"
#include "agent/model/peer_link.h"

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

static void record_put(uint8_t *p, enum dmsg_store_status s, const struct store_lent *o)
{
	pmsg_store_found_put(p, &(struct pmsg_store_found){ .answer = answer_of(s),
							    .crc = o->sum.crc,
							    .length = o->bytes,
							    .cost_us = o->cost_us });
}

/* An object that is sent from where it lies. */
struct trailing_object {
	struct trailing p;
	struct store_lent lent;
};

static void trailing_end(struct trailing *p)
{
	struct trailing_object *o = dray_container_of(p, struct trailing_object, p);

	store_lent_end(&o->lent);
	free(o);
}

/* Its checksum is the last thing that its record needs. */
static bool trailing_complete(struct trailing *p, uint8_t *found, uint64_t *turn)
{
	struct trailing_object *o = dray_container_of(p, struct trailing_object, p);

	if (!store_lent_sum(&o->lent, turn))
		return false;
	record_put(found, DMSG_STORE_STATUS_OK, &o->lent);
	return true;
}

/* NULL: no memory. */
static struct trailing *trailing_new(const struct store_lent *v)
{
	struct trailing_object *o = malloc(sizeof(*o));

	if (!o)
		return NULL;
	*o = (struct trailing_object){ .p = { .v = { v->p, v->bytes },
					      .complete = v->sum.at == v->bytes ? NULL :
										  trailing_complete,
					      .end = trailing_end },
				       .lent = *v };
	return &o->p;
}

uint32_t find_answered(struct core *c, struct peer_link *link, const uint8_t *find, size_t n,
		       uint8_t *found, size_t *ret_n, struct trailing **ret_trailing)
{
	struct worker *w = worker_of(c);
	struct store_key keys[PMSG_FIND_KEYS_MAX];
	union pmsg_body m;
	uint32_t n_keys = 0, code = may_answer(w, link);
	uint64_t at = 0, most = PMSG_FOUND_BYTES_MAX, all = UINT64_MAX;
	bool trails;
	uint8_t *bytes;

	if (!code)
		code = read_find(w->store, find, n, &m, keys, &n_keys);
	if (code)
		return code;
	bytes = found + (size_t)n_keys * PMSG_STORE_FOUND_SIZE;
	trails = m.store_lookup.room && n_keys == 1;
	if (trails)
		most = dray_min(m.store_lookup.room, (uint32_t)PMSG_FOUND_TRAILING_MAX);
	for (uint32_t i = 0; i < n_keys; i++) {
		struct store_lent o;
		enum dmsg_store_status s = store_find(w->store, m.store_lookup.space, keys[i],
						      most - at, &link->store_held, &o);

		if (!s && trails && o.bytes > PMSG_FOUND_SEALED_MAX) {
			*ret_trailing = trailing_new(&o);
			s = *ret_trailing ? s : DMSG_STORE_STATUS_BUSY;
		} else if (!s) {
			store_lent_sum(&o, &all);
			memcpy(bytes + at, o.p, o.bytes);
			at += o.bytes;
		}
		if (o.object && !*ret_trailing)
			store_lent_end(&o);
		record_put(found + (size_t)i * PMSG_STORE_FOUND_SIZE, s, &o);
	}
	*ret_n = (size_t)(bytes + at - found);
	return 0;
}
