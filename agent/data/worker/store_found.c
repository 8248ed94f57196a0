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
	n_keys = store_keys_split(
		keys, ret->store_lookup.room ? PMSG_TRAILING_KEYS_MAX : PMSG_FIND_KEYS_MAX,
		ret->store_lookup.keys, &err);
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

/* What is found for the keys of a frame find. */
struct finding {
	uint32_t n;
	bool busy;      /* some of them cannot be had now */
	uint64_t bytes; /* of all objects */
	/* object NULL: status says why */
	struct store_lent lent[PMSG_TRAILING_KEYS_MAX];
	enum dmsg_store_status status[PMSG_TRAILING_KEYS_MAX];
};

static void finding_end(struct finding *f)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (f->lent[i].object)
			store_lent_end(&f->lent[i]);
}

static void find_all(struct store *s, struct dray_str space, const struct store_key *keys,
		     uint64_t most, uint64_t *held, struct finding *f)
{
	f->bytes = 0;
	f->busy = false;
	for (uint32_t i = 0; i < f->n; i++) {
		f->status[i] = store_find(s, space, keys[i], most - f->bytes, held, &f->lent[i]);
		f->bytes += f->lent[i].bytes;
		f->busy |= f->status[i] && f->status[i] != DMSG_STORE_STATUS_NOT_FOUND;
	}
}

static void records_put(uint8_t *found, const struct finding *f)
{
	for (uint32_t i = 0; i < f->n; i++)
		record_put(found + (size_t)i * PMSG_STORE_FOUND_SIZE, f->status[i], &f->lent[i]);
}

/* Objects that are sent from where they lie. */
struct trailing_objects {
	struct trailing p;
	struct finding finding;
	uint32_t n_sums; /* the checksums of so many are known */
	struct iovec v[PMSG_TRAILING_KEYS_MAX];
};

static void trailing_end(struct trailing *p)
{
	struct trailing_objects *o = dray_container_of(p, struct trailing_objects, p);

	finding_end(&o->finding);
	free(o);
}

/* Their checksums are the last thing that the records need. */
static bool trailing_complete(struct trailing *p, uint8_t *found, uint64_t *turn)
{
	struct trailing_objects *o = dray_container_of(p, struct trailing_objects, p);
	struct finding *f = &o->finding;

	for (; o->n_sums < f->n; o->n_sums++)
		if (f->lent[o->n_sums].object && !store_lent_sum(&f->lent[o->n_sums], turn))
			return false;
	records_put(found, f);
	return true;
}

/* Takes what is found. NULL: no memory. */
static struct trailing *trailing_new(const struct finding *f, uint8_t *found)
{
	struct trailing_objects *o = malloc(sizeof(*o));
	uint64_t turn = 0;

	if (!o)
		return NULL;
	o->p = (struct trailing){ .v = o->v, .bytes = f->bytes, .end = trailing_end };
	o->finding = *f;
	o->n_sums = 0;
	for (uint32_t i = 0; i < f->n; i++)
		if (f->lent[i].object)
			o->v[o->p.n++] = (struct iovec){ f->lent[i].p, f->lent[i].bytes };
	if (!trailing_complete(&o->p, found, &turn))
		o->p.complete = trailing_complete;
	return &o->p;
}

/* Copies the objects behind the records. Returns where they end. */
static uint8_t *objects_put(uint8_t *at, struct finding *f)
{
	uint64_t all = UINT64_MAX;

	for (uint32_t i = 0; i < f->n; i++) {
		if (!f->lent[i].object)
			continue;
		store_lent_sum(&f->lent[i], &all);
		at = (uint8_t *)memcpy(at, f->lent[i].p, f->lent[i].bytes) + f->lent[i].bytes;
	}
	return at;
}

/* The other agent leases all of it: bytes that it would have to ask for again do not go out. */
static void nothing_now(struct finding *f)
{
	finding_end(f);
	for (uint32_t i = 0; i < f->n; i++) {
		f->lent[i] = (struct store_lent){ .bytes = 0 };
		if (!f->status[i])
			f->status[i] = DMSG_STORE_STATUS_BUSY;
	}
}

uint32_t find_answered(struct core *c, struct peer_link *link, const uint8_t *find, size_t n,
		       uint8_t *found, size_t *ret_n, struct trailing **ret_trailing)
{
	struct worker *w = worker_of(c);
	struct store_key keys[PMSG_TRAILING_KEYS_MAX];
	struct finding f; /* not zeroed: it is large, and has few keys as a rule */
	union pmsg_body m;
	uint32_t code = may_answer(w, link);
	uint64_t most = PMSG_FOUND_BYTES_MAX;
	uint8_t *end;

	if (!code)
		code = read_find(w->store, find, n, &m, keys, &f.n);
	if (code)
		return code;
	end = found + (size_t)f.n * PMSG_STORE_FOUND_SIZE;
	if (m.store_lookup.room)
		most = dray_min(m.store_lookup.room, (uint32_t)PMSG_FOUND_TRAILING_MAX);
	find_all(w->store, m.store_lookup.space, keys, most, &link->store_held, &f);
	if (m.store_lookup.room && f.bytes > PMSG_FOUND_SEALED_MAX) {
		*ret_trailing = f.busy ? NULL : trailing_new(&f, found);
		if (!*ret_trailing)
			nothing_now(&f);
	}
	if (!*ret_trailing) {
		end = objects_put(end, &f);
		records_put(found, &f);
		finding_end(&f);
	}
	*ret_n = (size_t)(end - found);
	return 0;
}
