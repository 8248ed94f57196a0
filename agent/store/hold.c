/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, and leases of objects that clients read in place. Both end with their session, and never by time. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "agent/store/internal.h"
#include "schema/gen/errors.h"

/* Objects that one PIN or READ evicts: those that store_load() has to evict are gone by then. */
#define EVICTIONS_MAX 64
/*
 * store_user_free() frees so many holds itself. The thread of the store frees the others, as many at a time, with pauses: a worker that
 * waits for the lock has to wake up first, and would not get it from a thread that takes it again at once.
 */
#define FREED_AT_ONCE 512
#define FREED_PAUSE_NS 50000

static bool charge(struct budget_account *a, uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (budget_take(a, RESOURCE_STORE_HOLDS, 1, &err) < 0)
		return false;
	if (budget_take(a, RESOURCE_STORE_HELD_BYTES, bytes, &err) == 0)
		return true;
	budget_put(a, RESOURCE_STORE_HOLDS, 1);
	return false;
}

/* NULL: the owner's share of held bytes or of holds is used up, or there is no memory. */
static struct hold *hold_new(struct store_user *u, struct store_object *o)
{
	struct hold *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->bytes = room(object_bytes(o));
	if (!charge(&u->account->budget, h->bytes)) {
		free(h);
		return NULL;
	}
	h->user = u;
	h->object = o;
	item_hold(o);
	u->store->totals.held_bytes += h->bytes;
	dray_list_add(&u->holds, &h->link);
	return h;
}

/* The owner may never hold it, however long it waits. */
static bool is_too_large(const struct store_user *u, struct store_object *o)
{
	return room(object_bytes(o)) > budget_most(&u->account->budget, RESOURCE_STORE_HELD_BYTES);
}

static void hold_free(struct hold *h)
{
	struct store_user *u = h->user;

	budget_put(&u->account->budget, RESOURCE_STORE_HELD_BYTES, h->bytes);
	budget_put(&u->account->budget, RESOURCE_STORE_HOLDS, 1);
	u->store->totals.held_bytes -= h->bytes;
	dray_list_del(&h->link);
	dray_map_del(&u->pins, &h->by_key);
	if (h->lease)
		dray_handles_del(&u->leases, h->lease);
	if (h->keeps)
		memory_unkeep(h->keeps);
	item_put(h->object);
	free(h);
}

struct store_user *store_user_new(struct store *s, struct owner_account *account,
				  struct dray_err *reterr)
{
	struct store_user *u;

	if (!s) {
		dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED, STORE_ABSENT);
		return NULL;
	}
	u = calloc(1, sizeof(*u));
	if (!u) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the store");
		return NULL;
	}
	u->store = s;
	u->account = account;
	dray_list_init(&u->link);
	dray_list_init(&u->joined);
	dray_list_init(&u->holds);
	dray_map_init(&u->pins);
	/* a client may release what its former session had */
	dray_handles_init_apart(&u->leases, DRAY_HANDLES_MAX);
	return u;
}

/* Under the lock. False: there are more. */
static bool free_holds(struct store_user *u)
{
	unsigned n = 0;

	dray_list_for_each(&u->holds, h, struct hold, link) {
		if (n++ == FREED_AT_ONCE)
			return false;
		hold_free(h);
	}
	return true;
}

/* It has no holds. Under the lock. */
static void leave(struct store_user *u)
{
	for (uint32_t i = 0; u->files && i < u->store->n_slots; i++) {
		struct segment *g = u->store->slots[i];

		if (g && u->files[i].number == g->file)
			memory_unkeep(g);
	}
	dray_list_for_each(&u->joined, j, struct joined, link) {
		j->member->refs--;
		free(j);
	}
}

/* It has no holds. */
static void user_end(struct store_user *u)
{
	pthread_mutex_lock(&u->store->lock);
	dray_list_del(&u->link);
	leave(u);
	pthread_mutex_unlock(&u->store->lock);
	dray_map_deinit(&u->pins);
	dray_handles_deinit(&u->leases);
	free(u->files);
	free(u);
}

/* Control thread. When it was told that the session is gone, the user still had members of name spaces. */
static void on_freed(struct dray_job *j)
{
	struct store_user *u = dray_container_of(j, struct store_user, job);
	struct store *s = u->store;

	user_end(u);
	store_sweep(s);
}

/* Thread of the store. What is left when the store ends, users_free() frees: the thread gets little time then. */
static void free_more(struct dray_job *j)
{
	struct store_user *u = dray_container_of(j, struct store_user, job);
	struct store *s = u->store;
	bool ending, freed;

	if (!s->ending)
		nanosleep(&(struct timespec){ .tv_nsec = FREED_PAUSE_NS }, NULL);
	pthread_mutex_lock(&s->lock);
	ending = s->ending;
	freed = !ending && free_holds(u);
	pthread_mutex_unlock(&s->lock);
	if (freed)
		dray_jobs_finish(s->jobs, j, on_freed);
	else if (!ending)
		dray_jobs_add(s->jobs, j, free_more, NULL);
}

void store_user_free(struct store_user *u)
{
	struct store *s = u ? u->store : NULL;
	bool freed;

	if (!u)
		return;
	pthread_mutex_lock(&s->lock);
	freed = free_holds(u);
	if (!freed)
		dray_list_add(&s->ended, &u->link);
	pthread_mutex_unlock(&s->lock);
	if (freed)
		user_end(u);
	else
		dray_jobs_add(s->jobs, &u->job, free_more, NULL);
}

void users_free(struct store *s)
{
	dray_list_for_each(&s->ended, u, struct store_user, link) {
		pthread_mutex_lock(&s->lock);
		while (!free_holds(u))
			;
		pthread_mutex_unlock(&s->lock);
		user_end(u);
	}
}

static struct hold *pin_find(struct store_user *u, struct store_member *m, struct store_key key)
{
	dray_map_for_each_of(&u->pins, key.p, key.n, h, struct hold, by_key)
		if (h->object->member->space == m->space)
			return h;
	return NULL;
}

/* NULL: as for hold_new(), or the owner keeps as much memory as it may. */
static struct hold *pin_new(struct store_user *u, struct store_member *m, struct store_object *o)
{
	struct segment *g = u->store->slots[o->at.slot];
	struct hold *h;

	if (!memory_keep(g, m))
		return NULL;
	h = hold_new(u, o);
	if (h)
		h->keeps = g;
	else
		memory_unkeep(g);
	return h;
}

static struct dmsg_store_result pin(struct store_user *u, struct store_member *m,
				    struct store_key key, struct turns_share *share,
				    struct store_effort *e)
{
	struct store_object *o = item_find(m->space, key);
	struct hold *h = pin_find(u, m, key);
	bool pinned = h && h->object == o;
	struct dmsg_store_result r = { .status = DMSG_STORE_STATUS_NOT_FOUND };

	if (!o)
		return r;
	r.length = object_bytes(o);
	r.tier = (uint16_t)item_tier(o);
	if (!pinned && is_too_large(u, o)) {
		r.status = DMSG_STORE_STATUS_TOO_LARGE;
		return r;
	}
	r.status = item_fetch(o, share, e);
	if (r.status == DMSG_STORE_STATUS_BUSY)
		r.wait_ms = u->store->cfg.retry_ms;
	if (r.status)
		return r;
	item_own(o);
	if (pinned)
		return r;
	/* the one that is pinned was removed, and another one has its key */
	if (h)
		hold_free(h);
	h = pin_new(u, m, o);
	if (h)
		dray_map_add(&u->pins, &h->by_key, o->key, o->key_n);
	else
		r = (struct dmsg_store_result){ .status = DMSG_STORE_STATUS_BUSY,
						.wait_ms = u->store->cfg.retry_ms };
	return r;
}

/* False: it has to evict more. */
static bool load_one(struct store_user *u, struct store_member *m, struct store_key key,
		     struct turns_share *share, struct store_effort *e)
{
	struct store_object *o;

	e->more = false;
	pthread_mutex_lock(&u->store->lock);
	o = item_find(m->space, key);
	if (o && !is_too_large(u, o))
		item_fetch(o, share, e);
	pthread_mutex_unlock(&u->store->lock);
	return !e->more;
}

bool store_load(struct store_user *u, struct store_member *m, const struct store_key *keys,
		uint32_t n, uint32_t *at, struct turns_share *share, struct store_effort *e)
{
	share->member = m;
	for (; *at < n; ++*at) {
		if (!load_one(u, m, keys[*at], share, e))
			return false;
		e->of_key = 0;
	}
	return true;
}

uint32_t store_pin(struct store_user *u, struct store_member *m, const struct store_key *keys,
		   uint32_t n, struct dmsg_store_result *ret)
{
	struct turns_share share = { .member = m };
	struct store_effort e = { .max = EVICTIONS_MAX };

	for (uint32_t i = 0; i < n; i++) {
		e.of_key = 0;
		/* for each key, because one may evict thousands of objects */
		pthread_mutex_lock(&u->store->lock);
		ret[i] = pin(u, m, keys[i], &share, &e);
		trace(m->space, STORE_PIN, keys[i], ret[i].length, 0,
		      (enum dmsg_store_status)ret[i].status, (enum dmsg_store_tier)ret[i].tier);
		pthread_mutex_unlock(&u->store->lock);
	}
	return e.done;
}

void store_unpin(struct store_user *u, struct store_member *m, const struct store_key *keys,
		 uint32_t n, struct dmsg_store_result *ret)
{
	pthread_mutex_lock(&u->store->lock);
	for (uint32_t i = 0; i < n; i++) {
		struct hold *h = pin_find(u, m, keys[i]);

		ret[i] = (struct dmsg_store_result){
			.status = h ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND,
			.length = h ? object_bytes(h->object) : 0,
		};
		if (h)
			hold_free(h);
	}
	pthread_mutex_unlock(&u->store->lock);
}

/* Gives the user the segment's descriptor, if it has not got it. 0, or -errno. */
static int file_give(struct store_user *u, struct store_member *m, struct segment *g,
		     struct store_files *files, uint16_t *ret_index)
{
	struct given_file *given;
	bool keeps;

	*ret_index = UINT16_MAX;
	if (!u->files)
		u->files = calloc(u->store->n_slots, sizeof(*u->files));
	if (!u->files)
		return -ENOMEM;
	given = &u->files[g->slot];
	if (given->number == g->file && !given->lost)
		return 0;
	if (files->n == DRAY_ARRAY_SIZE(files->fd))
		return -EMFILE;
	keeps = given->number == g->file;
	if (!keeps && !memory_keep(g, m))
		return -EBUSY;
	files->fd[files->n] = fcntl(g->fd, F_DUPFD_CLOEXEC, 0);
	if (files->fd[files->n] < 0) {
		int r = -errno;

		if (!keeps)
			memory_unkeep(g);
		return r;
	}
	*ret_index = (uint16_t)files->n++;
	*given = (struct given_file){ .number = g->file };
	return 0;
}

static struct dmsg_store_place read_one(struct store_user *u, struct store_member *m,
					struct store_key key, struct store_files *files,
					struct turns_share *share, struct store_effort *e)
{
	struct store_object *o = item_find(m->space, key);
	struct dmsg_store_place p = { .status = DMSG_STORE_STATUS_NOT_FOUND,
				      .fd_index = UINT16_MAX };
	struct segment *g;
	struct hold *h;

	item_count(m->space, item_tier(o));
	if (!o)
		return p;
	if (is_too_large(u, o)) {
		p.status = DMSG_STORE_STATUS_TOO_LARGE;
		p.length = object_bytes(o);
		return p;
	}
	p.status = DMSG_STORE_STATUS_BUSY;
	p.wait_ms = u->store->cfg.retry_ms;
	/* the answer does not wait for the disk */
	if (!o->resident || o->loading || o->unread) {
		item_fetch(o, share, e);
		return p;
	}
	policy_use(m->space->policy, &o->policy);
	h = hold_new(u, o);
	if (!h)
		return p;
	g = u->store->slots[o->at.slot];
	if (dray_handles_add(&u->leases, h, &h->lease) < 0 ||
	    file_give(u, m, g, files, &p.fd_index) < 0) {
		hold_free(h);
		return p;
	}
	p.status = DMSG_STORE_STATUS_OK;
	p.wait_ms = 0;
	p.length = object_bytes(o);
	p.file = g->file;
	p.file_bytes = g->part.bytes;
	p.offset = (uint64_t)o->at.start * GRANULE;
	p.lease = h->lease;
	return p;
}

static void trace_read(struct store_space *sp, struct store_key key,
		       const struct dmsg_store_place *p)
{
	const struct store_object *o = sp->store->trace ? item_find(sp, key) : NULL;

	trace_object(sp, STORE_READ, key, o, (enum dmsg_store_status)p->status, item_tier(o));
}

uint32_t store_read(struct store_user *u, struct store_member *m, const struct store_key *keys,
		    uint32_t n, struct dmsg_store_place *ret, struct store_files *files)
{
	struct turns_share share = { .member = m };
	struct store_effort e = { .max = EVICTIONS_MAX };

	files->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		e.of_key = 0;
		/* as in store_pin() */
		pthread_mutex_lock(&u->store->lock);
		ret[i] = read_one(u, m, keys[i], files, &share, &e);
		trace_read(m->space, keys[i], &ret[i]);
		pthread_mutex_unlock(&u->store->lock);
	}
	return e.done;
}

uint32_t store_release(struct store_user *u, const struct dray_vec *leases, bool files_lost)
{
	uint32_t n = 0;

	pthread_mutex_lock(&u->store->lock);
	for (uint32_t i = 0; files_lost && u->files && i < u->store->n_slots; i++)
		u->files[i].lost = true;
	for (uint32_t i = 0; i < leases->n; i++) {
		struct dmsg_store_lease l;
		struct hold *h;

		dmsg_store_lease_get(leases->p + (size_t)i * DMSG_STORE_LEASE_SIZE, &l);
		h = dray_handles_get(&u->leases, l.lease);
		if (!h)
			continue;
		hold_free(h);
		n++;
	}
	pthread_mutex_unlock(&u->store->lock);
	return n;
}
