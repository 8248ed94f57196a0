/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of objects of another agent that this one keeps, because a client there has put them with replicas = 2. They are fetched as for a
 * GET (store_fetch.c), from that agent alone, by a session of their owner that has no client: what they cost counts against that owner. An
 * object that has come with the right checksum appears as after a PUT. One that is here already is looked up there as well: it may be an
 * older one, which was removed there.
 */
#include "agent/model/store_keep.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_wanted.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

static struct store_keep *keep_of(const struct wsession *s)
{
	return dray_container_of(s->xs.shared, struct store_keep, shared);
}

/* keeps_check() does the rest: the session may be in use. */
static void keep_end(struct wsession *s)
{
	s->dead = true;
	dray_list_move(&s->worker->kept, &keep_of(s)->link);
}

/* `end` of its batch. */
static void kept(struct wsession *s, struct batch *b, uint32_t code, const struct dray_err *err)
{
	struct store_keep *k = keep_of(s);
	struct data_counters *counters = s->worker->core.counters;

	for (uint32_t i = 0; i < k->n; i++) {
		k->v[i].status = (enum dmsg_store_status)b->results[i].status;
		if (k->v[i].status)
			continue;
		core_count(counters, DRAY_METRIC_STORE_KEPT_TOTAL, 1);
		core_count(counters, DRAY_METRIC_STORE_KEPT_BYTES_TOTAL, b->results[i].length);
	}
	free(b);
	keep_end(s);
}

static struct batch *batch_of(const struct store_keep *k, struct store_member *member, int64_t now)
{
	struct batch *b = calloc(1, sizeof(*b) + k->n * sizeof(b->results[0]));

	if (!b)
		return NULL;
	b->member = member;
	b->begin_ns = now;
	b->n = k->n;
	b->end = kept;
	b->results = (void *)b->ops;
	return b;
}

/* False: nothing of it is fetched. */
static bool start(struct wsession *s, struct store_keep *k)
{
	struct worker *w = s->worker;
	struct dray_str space = { k->space, (uint32_t)strlen(k->space) };
	dray_auto_free struct store_key *keys = malloc(k->n * sizeof(*keys));
	struct dray_err err = DRAY_ERR_NULL;
	struct store_member *member = NULL;
	struct batch *b;

	s->store = keys ? store_user_new(w->store, s->xs.shared->account, &err) : NULL;
	if (s->store)
		member = store_join(s->store, space, &err);
	b = member ? batch_of(k, member, w->core.now_ns) : NULL;
	if (!b)
		return false;
	for (uint32_t i = 0; i < k->n; i++) {
		keys[i] = (struct store_key){ k->v[i].key, k->v[i].n_key };
		b->results[i].status = DMSG_STORE_STATUS_NOT_FOUND;
	}
	if (fetch_keep(s, k, member, keys, b))
		return true;
	free(b);
	return false;
}

void keep_begin(struct worker *w, struct store_keep *k)
{
	struct wsession *s = wsession_new(w, &k->shared);

	dray_list_init(&k->link);
	for (uint32_t i = 0; i < k->n; i++)
		k->v[i].status = DMSG_STORE_STATUS_BUSY;
	k->session = s;
	if (!s) {
		worker_event(w, &(struct event){ .type = EVENT_STORE_KEPT, .keep = k });
		return;
	}
	dray_slots_set(&w->keep_sessions, k->shared.session, s);
	dray_list_add(&w->keeps, &k->link);
	owner_charge(s->xs.owner, (uint64_t)k->n * KEY_WORK);
	if (w->draining || !start(s, k))
		keep_end(s);
}

void keeps_check(struct worker *w)
{
	struct store_keep *k;

	while ((k = dray_list_pop(&w->kept, struct store_keep, link))) {
		dray_slots_set(&w->keep_sessions, k->shared.session, NULL);
		wsession_free(k->session, DRAY_E_SESSION_CLOSED);
		worker_event(w, &(struct event){ .type = EVENT_STORE_KEPT, .keep = k });
	}
}

void keeps_close(struct worker *w)
{
	dray_list_for_each(&w->keeps, k, struct store_keep, link)
		wsession_stop(k->session, DRAY_E_SESSION_CLOSED);
	keeps_check(w);
}
