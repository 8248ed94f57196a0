/* SPDX-License-Identifier: Apache-2.0 */
/* Name spaces, and who may use them. */
#include "agent/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/store_space.h"
#include "agent/process/jobs.h"
#include "agent/store/internal.h"
#include "lib/random.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* Objects of one call of store_evict(). */
#define EVICTED_BY_CALL 256

static struct store *fail(struct store *s)
{
	store_free(s);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct store *, fail);

int store_new(struct store **ret, const struct store_config *cfg, struct dray_err *reterr)
{
	dray_auto(fail) struct store *s = NULL;
	int r;

	*ret = NULL;
	if (!cfg->bytes)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the store");
	s->cfg = *cfg;
	pthread_mutex_init(&s->lock, NULL);
	dray_list_init(&s->spaces);
	dray_list_init(&s->ended);
	dray_list_init(&s->loans);
	dray_list_init(&s->lends);
	s->region = calloc(1, sizeof(*s->region) + sizeof(s->region->extents[0]));
	s->hinted = calloc(dray_max(cfg->n_spaces, (size_t)1), sizeof(*s->hinted));
	r = s->region && s->hinted ? memory_init(s) : -ENOMEM;
	if (r >= 0)
		r = slabs_init(&s->objects);
	if (r >= 0)
		r = cfg->disk.event ? jobs_new(&s->jobs, cfg->disk.event, "dray-store", 0) :
				      dray_jobs_new(&s->jobs, "dray-store", 0, NULL);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY,
				    "no addresses for limits.store_bytes: %s; lower it",
				    dray_errno_text(r));
	*s->region = (struct region_view){
		.o = { .kind = OBJECT_REGION, .length = s->reserved, .access = DMSG_ACCESS_ALL },
		.memory = REGION_HOST,
		.cold = true,
		.n_extents = 1,
	};
	s->region->extents[0] =
		(struct extent_view){ .length = s->reserved, .base = s->base, .node = -1 };
	s->remote = (struct remote_view){
		.o = { .kind = OBJECT_REMOTE, .length = s->reserved, .access = DMSG_ACCESS_ALL },
		.is_local = true,
	};
	r = tier_new(s, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(s);
	return 0;
}

static void member_free(struct store *s, struct store_member *m)
{
	dray_list_del(&m->link);
	s->cfg.release(m->account);
	free(m);
}

static void space_free(struct store_space *sp)
{
	for (uint32_t i = 0; i < sp->n_buckets; i++)
		while (sp->buckets[i])
			item_remove(sp->buckets[i], false);
	dray_list_for_each(&sp->members, m, struct store_member, link)
		member_free(sp->store, m);
	dray_list_del(&sp->link);
	policy_free(sp->policy);
	policy_free(sp->disk_policy);
	free(sp->buckets);
	free(sp);
}

static bool end(struct store *s)
{
	/* the thread does not wait for anything, and ends; else it uses the store until the process ends */
	pthread_mutex_lock(&s->lock);
	s->ending = true;
	pthread_mutex_unlock(&s->lock);
	if (!jobs_free(s->jobs))
		return false;
	/* what the disk has stays there from now on, and no job is queued */
	s->closing = true;
	users_free(s);
	loans_free(s);
	if (!tier_free(s))
		return false;
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		space_free(sp);
	memory_deinit(s);
	slabs_deinit(&s->objects);
	free(s->tier);
	free(s->region);
	free(s->hinted);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return true;
}

bool store_free(struct store *s)
{
	struct changes *changes = s ? dray_take(s->changes) : NULL;
	bool ended = !s || end(s);

	/* the jobs may have had its wake-up, and still have it if they go on */
	if (ended)
		free(changes);
	return ended;
}

const struct region_view *store_region(const struct store *s)
{
	return s->region;
}

const struct remote_view *store_remote(const struct store *s)
{
	return &s->remote;
}

uint32_t store_retry_ms(const struct store *s)
{
	return s->cfg.retry_ms;
}

uint32_t store_lease_ms(const struct store *s)
{
	return s->cfg.lease_ms;
}

bool store_keeps_copies(const struct store *s)
{
	return s->cfg.keep_copies;
}

int64_t store_peer_timeout_ns(const struct store *s)
{
	return s->cfg.peer_timeout_ns;
}

bool store_has_disk(const struct store *s)
{
	return s && s->tier;
}

uint32_t store_leases_max(const struct store *s)
{
	return s->cfg.leases_max;
}

static bool same(struct dray_str a, const char *b)
{
	return a.n == strlen(b) && !memcmp(a.p, b, a.n);
}

/* A word of store.spaces is about the name space of this name. */
static bool is_about(const struct store *s, size_t i, struct dray_str name)
{
	struct store_space_word w;

	return store_space_word_parse(s->cfg.spaces[i], &w) && w.name.n == name.n &&
	       !memcmp(w.name.p, name.p, name.n);
}

/* It need not be there yet. Under the lock. */
static bool is_hinted(const struct store *s, struct dray_str name)
{
	for (size_t i = 0; i < s->cfg.n_spaces; i++)
		if (s->hinted[i] && is_about(s, i, name))
			return true;
	return false;
}

void store_hinted(struct store *s, const char *space, bool on)
{
	struct dray_str name = { space, (uint32_t)strlen(space) };

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->cfg.n_spaces; i++)
		if (is_about(s, i, name))
			s->hinted[i] = on;
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		if (name.n && same(name, sp->name))
			atomic_store_explicit(&sp->hinted, on, memory_order_relaxed);
	pthread_mutex_unlock(&s->lock);
}

int store_may_use(const struct store *s, const struct store_asker *who, struct dray_err *reterr)
{
	if (who->space.n &&
	    store_space_allows(s->cfg.spaces, s->cfg.n_spaces, who->space, who->tenant, who->uid))
		return 0;
	return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
			    "uid %u of tenant %.*s may not use name space \"%.*s\" of this "
			    "agent; add it to store.spaces there",
			    who->uid, (int)who->tenant.n, who->tenant.p, (int)who->space.n,
			    who->space.p);
}

/* The owner may use the name space of this name. */
static bool may_use(const struct store *s, const struct owner_account *a, struct dray_str name)
{
	struct dray_str tenant = { a->budget.tenant, (uint32_t)strlen(a->budget.tenant) };

	return store_space_allows(s->cfg.spaces, s->cfg.n_spaces, name, tenant, a->budget.uid);
}

struct store_space *space_find(struct store *s, const struct owner_account *a, struct dray_str name)
{
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		if (same(name, sp->name) && (name.n || sp->account == a))
			return sp;
	return NULL;
}

static struct store_space *space_new(struct store *s, struct owner_account *a, struct dray_str name)
{
	struct store_space *sp = calloc(1, sizeof(*sp));

	if (!sp)
		return NULL;
	if ((s->tier && policy_new(&sp->disk_policy, s->cfg.policy, NULL) < 0) ||
	    policy_new(&sp->policy, s->cfg.policy, sp->disk_policy) < 0) {
		policy_free(sp->disk_policy);
		free(sp);
		return NULL;
	}
	sp->store = s;
	memcpy(sp->name, name.p, name.n);
	atomic_init(&sp->hinted, is_hinted(s, name));
	sp->account = name.n ? NULL : a;
	sp->seed = dray_random();
	sp->number = ++s->last_space;
	dray_list_init(&sp->members);
	dray_list_init(&sp->segments);
	for (unsigned i = 0; i < FREE_CLASSES; i++)
		dray_list_init(&sp->free[i]);
	dray_list_add(&s->spaces, &sp->link);
	return sp;
}

static struct store_member *member_get(struct store *s, struct owner_account *a,
				       struct dray_str name)
{
	struct store_space *sp = space_find(s, a, name);
	struct store_member *m;

	if (!sp)
		sp = space_new(s, a, name);
	if (!sp)
		return NULL;
	dray_list_for_each(&sp->members, known, struct store_member, link)
		if (known->account == a)
			return known;
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->space = sp;
	m->account = a;
	dray_list_init(&m->reads.link);
	dray_list_init(&m->writes.link);
	dray_list_init(&m->to_write);
	m->reads.member = m->writes.member = m;
	turns_init(&m->to_read);
	s->cfg.keep(a);
	dray_list_add(&sp->members, &m->link);
	return m;
}

struct store_member *store_member_get(struct store *s, struct owner_account *a,
				      struct dray_str name)
{
	return name.n && !may_use(s, a, name) ? NULL : member_get(s, a, name);
}

static struct store_member *join(struct store_user *u, struct dray_str name)
{
	struct joined *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	j->member = member_get(u->store, u->account, name);
	if (!j->member) {
		free(j);
		return NULL;
	}
	j->member->refs++;
	dray_list_add(&u->joined, &j->link);
	return j->member;
}

struct store_member *store_join(struct store_user *u, struct dray_str name, struct dray_err *reterr)
{
	struct store_member *m;

	dray_list_for_each(&u->joined, j, struct joined, link)
		if (same(name, j->member->space->name))
			return j->member;
	if (name.n && !may_use(u->store, u->account, name)) {
		dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
			     "uid %u of tenant %s may not use name space \"%.*s\"; add "
			     "%.*s=%s:%u to store.spaces",
			     u->account->budget.uid, u->account->budget.tenant, (int)name.n, name.p,
			     (int)name.n, name.p, u->account->budget.tenant,
			     u->account->budget.uid);
		return NULL;
	}
	pthread_mutex_lock(&u->store->lock);
	m = join(u, name);
	pthread_mutex_unlock(&u->store->lock);
	if (!m)
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a name space");
	return m;
}

const char *store_member_space(const struct store_member *m)
{
	return m->space->name;
}

struct store_totals store_totals(struct store *s)
{
	struct store_totals t = { 0 };

	if (!s)
		return t;
	pthread_mutex_lock(&s->lock);
	t = s->totals;
	tier_totals(s, &t);
	pthread_mutex_unlock(&s->lock);
	return t;
}

static struct store_space_info describe(const struct store_space *sp)
{
	struct store_space_info i = {
		.name = sp->name,
		.tenant = sp->account ? sp->account->budget.tenant : "",
		.uid = sp->account ? sp->account->budget.uid : 0,
		.objects = sp->n_objects,
		.bytes = sp->bytes,
		.memory = sp->memory,
		.memory_objects = sp->memory_objects,
		.disk_objects = sp->disk_objects,
		.disk_bytes = sp->disk_bytes,
		.hits = sp->hits,
		.misses = sp->misses,
		.puts = sp->puts,
		.evictions = sp->evictions,
		.evicted_cost_us = sp->evicted_cost_us,
		.disk_hits = sp->disk_hits,
		.disk_evictions = sp->disk_evictions,
		.disk_evicted_cost_us = sp->disk_evicted_cost_us,
		.remote_hits = sp->remote_hits,
		.remote_bytes = sp->remote_bytes,
		.kept = sp->kept,
		.forwarded = sp->forwarded,
	};

	dray_list_for_each(&sp->segments, g, struct segment, link)
		i.segments++;
	return i;
}

void store_each(struct store *s, void (*fn)(void *arg, const struct store_space_info *i), void *arg)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	dray_list_for_each(&s->spaces, sp, struct store_space, link) {
		struct store_space_info i = describe(sp);

		fn(arg, &i);
	}
	pthread_mutex_unlock(&s->lock);
}

static bool is_space(const struct store_space *sp, const char *name, const char *tenant,
		     uint32_t uid)
{
	if (strcmp(sp->name, name) != 0)
		return false;
	return !sp->account ||
	       (!strcmp(sp->account->budget.tenant, tenant) && sp->account->budget.uid == uid);
}

struct store_space *space_named(struct store *s, const char *name, const char *tenant, uint32_t uid)
{
	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		if (is_space(sp, name, tenant, uid))
			return sp;
	return NULL;
}

/* Workers wait meanwhile, so that it takes a part of a millisecond. */
static void evict_some(struct store_space *sp, uint64_t bytes, struct store_evicted *ret)
{
	while (ret->bytes < bytes) {
		uint64_t before = sp->bytes;

		ret->more = ret->objects == EVICTED_BY_CALL;
		if (ret->more || !item_evict(sp))
			return;
		ret->objects++;
		ret->bytes += before - sp->bytes;
	}
}

struct store_evicted store_evict(struct store *s, const char *space, const char *tenant,
				 uint32_t uid, uint64_t bytes)
{
	struct store_evicted ret = { .found = false };
	struct store_space *sp;

	if (!s)
		return ret;
	pthread_mutex_lock(&s->lock);
	sp = space_named(s, space, tenant, uid);
	ret.found = sp;
	if (sp)
		evict_some(sp, bytes, &ret);
	pthread_mutex_unlock(&s->lock);
	return ret;
}

void store_sweep(struct store *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	dray_list_for_each(&s->spaces, sp, struct store_space, link) {
		dray_list_for_each(&sp->members, m, struct store_member, link)
			if (!m->refs)
				member_free(s, m);
		if (!dray_list_empty(&sp->members))
			continue;
		while (memory_shrink(sp))
			;
		space_free(sp);
	}
	pthread_mutex_unlock(&s->lock);
}
