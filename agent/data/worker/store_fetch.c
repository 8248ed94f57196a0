/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GET or EXISTS of keys that other agents have, or what this agent is to keep of another one (store_keep.c). An EXISTS keeps what is
 * found for the session (store_held.c). For a GET, which may take that over, more follows. The control thread looks them up there. What is
 * found gets a place in the store here, as if it were put, and one transfer for each source reads it to there. The worker computes the
 * checksum of each slice that has come, while its bytes are in the cache. So wrong bytes reach no client, targets may be of any memory, and
 * a copy can stay. Without copies the bytes go straight to host memory of the client where that is possible (store_place.h), and few bytes
 * come with the answer to the lookup.
 *
 * The keys of a source that is lost meanwhile are looked up once more: another agent may have a copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_direct.h"
#include "agent/data/worker/store_pending.h"
#include "agent/data/worker/store_reading.h"
#include "agent/data/worker/store_source.h"
#include "agent/data/worker/store_wanted.h"
#include "agent/model/store_ask.h"
#include "agent/model/store_keep.h"
#include "lib/cleanup.h"

/* An EXISTS has its answer by then. */
#define EXISTS_NS DRAY_NS_PER_SEC
/* About a millisecond of checksums: of objects that are to be kept, and are here already. */
#define KEEP_TURN (4ull << 20)

static struct fetch *fetch_find(struct wsession *s, uint64_t number)
{
	return dray_map_entry(dray_map_find(&s->fetches_numbered, &number, sizeof(number)),
			      struct fetch, numbered);
}

/* Of an EXISTS: all is known of its keys. Consumes the ask. */
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
	idset_del(&s->ids, b->call.request_id);
	b->end(s, b, 0, NULL);
	fetch_free(f);
}

void fetch_asked(struct worker *w, dray_handle session, struct store_ask *k)
{
	struct wsession *s = wsession_get(w, session);
	struct fetch *f = s ? fetch_find(s, k->number) : NULL;

	if (s)
		s->requests--;
	if (!k->replicates)
		w->direct = k->direct;
	if (!f) {
		ask_end(w, k);
		return;
	}
	f->asked = NULL;
	if (!s->dead && f->batch->call.type == DMSG_STORE_EXISTS) {
		fetch_looked(f, k);
		return;
	}
	if (f->batch->call.type == DMSG_STORE_PUT) {
		replicas_told(f, k, 0);
		return;
	}
	if (s->dead || k->late || fetch_is_late(f)) {
		fetch_drop_ask(s, k);
		fetch_fail(f, DRAY_E_DEADLINE, NULL);
		return;
	}
	sources_read(f, k);
}

void fetch_held_fenced(struct wsession *s, struct store_ask *k, uint32_t i)
{
	struct fetch *f = fetch_find(s, k->number);
	struct store_asked *v = &k->v[i];

	if (f && f->ask == k) {
		source_fenced(f, v->source);
		return;
	}
	/* the control thread has the ask, but leaves this key alone: it is looked up again after the answer */
	v->status = DMSG_STORE_STATUS_NOT_TRIED;
	held_end(dray_take(v->held));
}

void fetch_fenced(struct worker *w, dray_handle session, uint64_t number, dray_handle peer,
		  uint64_t grant)
{
	struct wsession *s = wsession_get(w, session);
	struct fetch *f = s ? fetch_find(s, number) : NULL;
	uint32_t source;

	if (f && f->ask && ask_find_source(f->ask, peer, grant, &source))
		source_fenced(f, source);
	if (s)
		helds_fenced(s, number, peer, grant);
	/* also of GETs, and sessions, that have ended */
	readings_hasten(w, peer, grant);
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
		fetch_drop_ask(s, k);
		return false;
	}
	fetch_enter(f);
	k->number = f->number;
	if (k->n_asked && !direct_ask(f, k))
		fetch_send(f, k);
	else if (!k->n_asked)
		sources_read(f, k);
	return true;
}

bool fetch_begin(struct wsession *s, const struct store_call *q, const struct dmsg_store_put *m,
		 struct store_member *member, const struct store_key *keys, struct batch *b,
		 struct dray_err *err)
{
	struct store_ask *k;

	/* a refused request must leave what the session holds: the ask takes that over */
	if (!store_asks(member) || !wanted_any(b) || !may_begin(s, q->request_id, err))
		return false;
	k = wanted_ask(s, b, keys);
	/* without memory it is not asked for */
	if (!k) {
		idset_del(&s->ids, q->request_id);
		return false;
	}
	return begin(s, fetch_new(s, m, member, b), k, q->request_id, err);
}

bool fetch_keep(struct wsession *s, const struct store_keep *k, struct store_member *member,
		const struct store_key *keys, struct batch *b)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_ask *a;
	struct fetch *f;

	/* the session has no other request */
	b->call.request_id = 1;
	if (request_take_id(s, b->call.request_id, &err) < 0)
		return false;
	a = wanted_ask(s, b, keys);
	if (!a) {
		idset_del(&s->ids, b->call.request_id);
		return false;
	}
	a->from = k->peer;
	b->end_ns = k->end_ns;
	f = fetch_alloc(s, b, member, 0);
	if (f) {
		f->keeps = true;
		f->keep_turn = KEEP_TURN;
	}
	return begin(s, f, a, b->call.request_id, &err);
}

bool fetch_exists(struct wsession *s, const struct store_call *q, uint32_t lease_ms,
		  struct store_member *member, const struct store_key *keys,
		  const struct dmsg_store_result *results, uint32_t n, struct dray_err *err)
{
	size_t bytes = n * sizeof(results[0]);
	struct batch *b = store_asks(member) ? calloc(1, sizeof(*b) + bytes) : NULL;
	struct store_ask *k;

	if (!b)
		return false;
	b->call = *q;
	b->member = member;
	b->begin_ns = s->worker->core.now_ns;
	b->end_ns = b->begin_ns + EXISTS_NS;
	b->n = n;
	b->end = batch_answer;
	b->results = memcpy(b->ops, results, bytes);
	if (!wanted_any(b) || !may_begin(s, q->request_id, err)) {
		free(b);
		return false;
	}
	k = wanted_ask(s, b, keys);
	if (k)
		k->lease_ms = lease_ms;
	else
		idset_del(&s->ids, q->request_id);
	if (k && begin(s, fetch_alloc(s, b, member, 0), k, q->request_id, err))
		return true;
	free(b);
	return false;
}
