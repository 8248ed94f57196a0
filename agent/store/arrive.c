/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that came from other agents. Their bytes are verified before anybody gets them: a few by the worker that has received them, more
 * by the thread of the store.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "lib/crc32c.h"
#include "lib/time.h"

struct arrival {
	struct store_object *object;
	struct store_get *get;
	uint32_t crc;
	struct dray_list waiter; /* the get, until it has ended */
};

struct store_arrivals {
	struct dray_job job;
	struct store *store;
	uint32_t n;
	uint32_t next; /* the first that is not verified, and how far its checksum is */
	struct summing sum;
	struct arrival v[];
};

bool store_asks(const struct store_member *m)
{
	return m->space->store->cfg.asks && m->space->name[0];
}

struct store_arrivals *store_arrivals_new(struct store *s, uint32_t max)
{
	struct store_arrivals *a = calloc(1, sizeof(*a) + max * sizeof(a->v[0]));

	if (!a)
		return NULL;
	a->store = s;
	return a;
}

void store_arrivals_add(struct store_arrivals *a, struct store_object *o, uint32_t crc,
			struct store_get *get)
{
	a->v[a->n++] = (struct arrival){ .object = o, .crc = crc, .get = get };
}

void store_arrivals_drop(struct store_arrivals *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->n; i++)
		store_put_end(a->v[i].object, false);
	free(a);
}

bool sum_go_on(struct summing *c, const struct store_object *o, uint64_t *turn)
{
	const uint8_t *p = store_of(o)->base + store_object_offset(o);
	uint64_t n = dray_min(*turn, o->policy.bytes - c->at);

	c->crc = dray_crc32c(c->crc, p + c->at, n);
	c->at += n;
	*turn -= n;
	return c->at == o->policy.bytes;
}

/* Under the lock. */
static void arrival_end(struct store *s, struct arrival *v, bool right)
{
	struct store_object *o = v->object;
	struct store_space *sp = o->member->space;
	struct store_get *g = dray_list_pop(&v->waiter, struct store_get, link);

	if (right) {
		s->totals.copies++;
		sp->remote_hits++;
		sp->remote_bytes += o->policy.bytes;
		trace_object(sp, STORE_GET, (struct store_key){ o->key, o->key_n }, o,
			     DMSG_STORE_STATUS_OK, DMSG_STORE_TIER_AGENT);
	}
	o->copy = 1;
	/* else it ends with the last that holds it */
	if (!right || !s->cfg.keep_copies || !item_appear(o))
		o->state = OBJECT_GONE;
	else if (s->cfg.lend)
		*sum_part(o) = (struct sum_part){ v->crc, true };
	if (g) {
		g->status = right ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_CORRUPT;
		g->wait->agents_ns = dray_now().ns;
		wait_less(g->wait);
	}
	item_put(o);
}

/* One thread at a time. Consumes the arrivals with the last of them. False: the turn is over before that. */
static bool verify_some(struct store_arrivals *a, uint64_t turn)
{
	struct store *s = a->store;

	for (; a->next < a->n; a->next++) {
		struct arrival *v = &a->v[a->next];
		bool right;

		/* the bytes are not needed when the store ends */
		if (!s->ending && (!turn || !sum_go_on(&a->sum, v->object, &turn)))
			return false;
		right = a->sum.crc == v->crc;
		a->sum = (struct summing){ 0 };
		if (!right)
			memset(s->base + store_object_offset(v->object), 0,
			       v->object->policy.bytes);
		pthread_mutex_lock(&s->lock);
		arrival_end(s, v, right);
		pthread_mutex_unlock(&s->lock);
	}
	free(a);
	return true;
}

/* Thread of the store. A turn at a time, so that large objects do not hold up the small ones of others. */
static void verify(struct dray_job *j)
{
	struct store_arrivals *a = dray_container_of(j, struct store_arrivals, job);
	struct store *s = a->store;

	if (!verify_some(a, SUM_TURN))
		dray_jobs_add(s->jobs, j, verify, NULL);
}

bool store_arrive(struct store_arrivals *a, struct store_wait *w)
{
	struct store *s = a->store;

	if (!a->n) {
		free(a);
		return false;
	}
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		struct arrival *v = &a->v[i];
		struct store_get *g = v->get;

		/* for the thread, and for the GET */
		v->object->holds += 2;
		dray_list_init(&v->waiter);
		dray_list_init(&g->link);
		dray_list_add(&v->waiter, &g->link);
		g->object = v->object;
		g->tier = DMSG_STORE_TIER_AGENT;
		g->loads = true;
		g->wait = w;
		/* one more than objects, until store_get_waits() */
		w->pending += w->pending ? 1 : 2;
	}
	pthread_mutex_unlock(&s->lock);
	if (!verify_some(a, SUM_HERE))
		dray_jobs_add(s->jobs, &a->job, verify, NULL);
	return true;
}
