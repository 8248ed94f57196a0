/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/answer.h"

#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/asker.h"
#include "agent/control/exchange/source.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* The agent does not have what the directory says that it has. */
static void correct(const struct question *q, const struct store_asked *k, const struct lender *d)
{
	const struct named *named = q->named ? &q->named[k - q->ask->v] : NULL;

	for (unsigned i = 0; named && i < named->n; i++)
		if (&q->x->lenders[named->lenders[i]] == d)
			directory_forget(q->x->deps.directory, q->ask->space,
					 (struct store_key){ k->key, k->n_key },
					 named->until_ms[i]);
}

static enum dmsg_store_status status_of(uint32_t answer)
{
	switch (answer) {
	case PMSG_STORE_ANSWER_FOUND:
		return DMSG_STORE_STATUS_OK;
	case PMSG_STORE_ANSWER_BUSY:
		return DMSG_STORE_STATUS_BUSY;
	case PMSG_STORE_ANSWER_CORRUPT:
		return DMSG_STORE_STATUS_CORRUPT;
	case PMSG_STORE_ANSWER_LOST:
		return DMSG_STORE_STATUS_LOST;
	default:
		return DMSG_STORE_STATUS_NOT_FOUND;
	}
}

/*
 * Takes the answer of the peer to one key. True: it is the first that has the object. An agent that has it, but was too slow, makes it
 * busy unless another one has it, too.
 */
static bool take(struct store_asked *k, const struct pmsg_store_found *f, dray_handle peer,
		 uint32_t source)
{
	enum dmsg_store_status s = status_of(f->answer);
	uint64_t end;

	if (!k->status || s == DMSG_STORE_STATUS_NOT_FOUND)
		return false;
	if (!s && peer == k->avoid) {
		if (k->slow && k->status == DMSG_STORE_STATUS_NOT_FOUND)
			k->status = DMSG_STORE_STATUS_BUSY;
		return false;
	}
	if (!s && (!f->length || __builtin_add_overflow(f->offset, f->length, &end)))
		return false;
	k->status = s;
	k->source = source;
	k->offset = f->offset;
	k->length = f->length;
	k->crc = f->crc;
	k->cost_us = f->cost_us;
	return !s;
}

/* The keys of the source for what it has. Without them it is read by frames. */
static void take_keys(const struct lookup *l, struct store_source *s, const struct dray_vec *rails)
{
	const struct store_ask *a = l->question->ask;
	struct rail_keys *k = rail_keys_read_parts(rails);

	for (uint32_t i = l->first; k && i < l->end; i++)
		if (!a->v[i].status && a->v[i].source == a->n_sources)
			rail_keys_need(k, a->v[i].offset, a->v[i].length);
	s->keys = k && k->rails ? k : rail_keys_unref(k);
}

bool answer_is_whole(const struct lookup *l, const struct pmsg_store_lookup_reply *m)
{
	/* what EXISTS finds must be leased */
	bool leases = l->question && l->question->ask->lease_ms;
	uint64_t bytes = 0;

	if (m->found.n != l->n || (leases && m->bytes.n))
		return false;
	for (uint32_t i = 0; m->bytes.n && i < l->n; i++) {
		struct pmsg_store_found f;

		pmsg_store_found_get(m->found.p + (size_t)i * PMSG_STORE_FOUND_SIZE, &f);
		if (f.answer == PMSG_STORE_ANSWER_FOUND &&
		    __builtin_add_overflow(bytes, f.length, &bytes))
			return false;
	}
	return bytes == m->bytes.n;
}

static uint8_t *copy_of(const struct dray_blob *b)
{
	uint8_t *p = malloc(b->n);

	return p ? memcpy(p, b->p, b->n) : NULL;
}

bool answer_take(struct lookup *l, const struct pmsg_store_lookup_reply *m)
{
	struct store_ask *a = l->question->ask;
	struct store_source *s =
		realloc(a->sources, (a->n_sources + 1) * sizeof(struct store_source));
	dray_auto_free struct lease *lease = s ? malloc(sizeof(*lease)) : NULL;
	dray_auto_free uint8_t *bytes = m->bytes.n ? copy_of(&m->bytes) : NULL;
	uint64_t end = 0, at_bytes = 0;

	if (s)
		a->sources = s;
	if (!lease || (m->bytes.n && !bytes))
		return false;
	for (uint32_t i = l->first, at = 0; i < l->end; i++) {
		struct store_asked *k = &a->v[i];
		struct pmsg_store_found f;

		if (!question_asks(l->question, i, l->lender))
			continue;
		pmsg_store_found_get(m->found.p + (size_t)at++ * PMSG_STORE_FOUND_SIZE, &f);
		if (f.answer == PMSG_STORE_ANSWER_NOT_FOUND)
			correct(l->question, k, l->lender);
		if (bytes && f.answer == PMSG_STORE_ANSWER_FOUND) {
			f.offset = at_bytes;
			at_bytes += f.length;
		}
		if (!take(k, &f, l->peer, a->n_sources))
			continue;
		l->question->missing--;
		end = dray_max(end, k->offset + k->length);
	}
	if (!end)
		return false;
	s += a->n_sources;
	if (bytes) {
		*s = (struct store_source){ .bytes = dray_take(bytes), .end_ns = INT64_MAX };
		a->n_sources++;
		return false;
	}
	*lease = (struct lease){ .lender = l->lender, .asker = l->asker, .uses = 1 };
	l->asker->uses++;
	*s = (struct store_source){
		.view = { .o = { .kind = OBJECT_REMOTE, .length = end, .access = DMSG_ACCESS_READ },
			  .peer = l->peer,
			  .grant = m->grant },
		.lease = dray_take(lease),
		.end_ns = l->sent_ns +
			  dray_min(m->lease_ms, question_lease_ms(l->question)) * DRAY_NS_PER_MS,
	};
	if (m->rails.n && source_borrow(l->x, s, a))
		take_keys(l, s, &m->rails);
	a->n_sources++;
	return true;
}
