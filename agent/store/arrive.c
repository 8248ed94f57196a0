/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that came from other agents: only right bytes stay, and reach GETs. */
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"

struct arrival {
	struct store_object *object;
	struct store_get *get;
	uint32_t crc;
	bool right;
};

struct store_arrivals {
	struct store *store;
	uint32_t n;
	uint32_t cleared;  /* those that are right, or have zeros */
	uint64_t clear_at; /* in the next one */
	struct arrival v[];
};

bool store_asks(const struct store_member *m)
{
	return m->space->store->cfg.asks && m->space->name[0];
}

bool store_prefers(const struct store_member *m)
{
	struct store_space *sp = m->space;
	struct store *s = sp->store;

	if (!store_asks(m) || !s->cfg.lend)
		return false;
	switch (atomic_load_explicit(&s->prefers, memory_order_relaxed)) {
	case STORE_PREFERS_AGENT:
		return true;
	case STORE_PREFERS_HINTS:
		return atomic_load_explicit(&sp->hinted, memory_order_relaxed);
	case STORE_PREFERS_ITSELF:
		break;
	}
	return false;
}

void store_prefer(struct store *s, enum store_preference how)
{
	atomic_store_explicit(&s->prefers, how, memory_order_relaxed);
}

bool store_replicates(const struct store_member *m, uint32_t wanted)
{
	return wanted ? wanted > 1 : m->space->store->cfg.replicas > 1 && store_asks(m);
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
			uint32_t sum, struct store_get *get)
{
	a->v[a->n++] = (struct arrival){ .object = o, .get = get, .crc = crc, .right = crc == sum };
}

void store_arrivals_drop(struct store_arrivals *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->n; i++)
		store_put_end(a->v[i].object, false);
	free(a);
}

/* Under the lock. */
static void count_arrival(struct store_space *sp, uint64_t bytes)
{
	sp->store->totals.copies++;
	sp->remote_hits++;
	sp->remote_bytes += bytes;
}

void store_passed(const struct store_member *m, struct store_key key, uint64_t bytes,
		  uint32_t cost_us)
{
	struct store_space *sp = m->space;

	pthread_mutex_lock(&sp->store->lock);
	count_arrival(sp, bytes);
	trace(sp, STORE_GET, key, bytes, (float)cost_us, DMSG_STORE_STATUS_OK,
	      DMSG_STORE_TIER_AGENT);
	pthread_mutex_unlock(&sp->store->lock);
}

/* Under the lock. */
static void arrive(struct store *s, const struct arrival *v)
{
	struct store_object *o = v->object;
	struct store_space *sp = o->member->space;
	struct store_get *g = v->get;

	if (v->right) {
		count_arrival(sp, object_bytes(o));
		trace_object(sp, STORE_GET, (struct store_key){ o->key, o->key_n }, o,
			     DMSG_STORE_STATUS_OK, DMSG_STORE_TIER_AGENT);
	}
	o->holds++;
	o->copy = 1;
	/* else it ends with the GET */
	if (!v->right || !s->cfg.keep_copies || !o->is_counted || !item_appear(o))
		o->state = OBJECT_GONE;
	else
		object_set_crc(o, v->crc);
	g->object = o;
	g->tier = DMSG_STORE_TIER_AGENT;
	g->status = v->right ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_CORRUPT;
	dray_list_init(&g->link);
}

bool store_arrivals_clear(struct store_arrivals *a, uint64_t *left)
{
	for (; a->cleared < a->n; a->cleared++, a->clear_at = 0) {
		const struct store_object *o = a->v[a->cleared].object;
		uint64_t n = dray_min(object_bytes(o) - a->clear_at, *left);

		if (a->v[a->cleared].right)
			continue;
		memset(a->store->base + store_object_offset(o) + a->clear_at, 0, n);
		*left -= n;
		a->clear_at += n;
		if (a->clear_at < object_bytes(o))
			return false;
	}
	return true;
}

void store_arrive(struct store_arrivals *a)
{
	struct store *s = a->store;

	for (uint32_t i = 0; i < a->n; i++) {
		const struct arrival *v = &a->v[i];

		pthread_mutex_lock(&s->lock);
		arrive(s, v);
		pthread_mutex_unlock(&s->lock);
	}
	free(a);
}
