/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to an object from its PUT to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/internal.h"
#include "agent/store/policy/ghost.h"
#include "schema/gen/errors.h"

/*
 * The most that an object in memory takes beside its bytes and its key: its block, its bucket, and its part of what the policy `value` has
 * beside its entry. docs/store.md tells users.
 */
_Static_assert(offsetof(struct store_object, key) + SLAB_STEP - 1 + sizeof(struct store_object *) +
			       sizeof(struct dray_heap_node *) +
			       sizeof(struct ghost_set) / GHOST_WAYS <=
		       128,
	       "at most 128 bytes");
_Static_assert(sizeof(struct disk_part) + offsetof(struct store_object, key) + UINT8_MAX <=
		       SLAB_BLOCK_MAX,
	       "an object is a block");
_Static_assert(OBJECT_BYTES_MAX <= POLICY_BYTES_MAX, "the policy has its size");

/* Evictions by one PUT, for the number of objects, that give its owner no room. */
#define VAIN_MAX 16

int store_keys_split(struct store_key *keys, uint32_t max, struct dray_blob blob,
		     struct dray_err *reterr)
{
	uint32_t n = 0;

	for (uint32_t at = 0; at < blob.n; at += keys[n++].n) {
		if (n == max)
			return dray_err_set(reterr, -EINVAL, DRAY_E_TOO_LARGE,
					    "a request has at most %u keys", max);
		keys[n].n = blob.p[at++];
		keys[n].p = blob.p + at;
		if (!keys[n].n || keys[n].n > blob.n - at)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "key %u is empty, or exceeds the list of keys", n);
	}
	if (!n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "the request has no key");
	return (int)n;
}

struct store_object *item_find(struct store_space *sp, struct store_key key)
{
	return index_find(sp, key, item_hash(sp, key));
}

/* The bytes of an object enter memory, or leave it. */
static void count_memory(struct store_object *o, bool enters)
{
	struct store_space *sp = o->member->space;
	uint64_t n = enters ? object_bytes(o) : 0 - object_bytes(o);

	sp->memory_objects += enters ? 1 : UINT64_MAX;
	sp->bytes += n;
	sp->store->totals.bytes += n;
}

/* An object that is not on disk appears, or is not there any more, or is on disk now. */
void count_unsaved(struct store_object *o, bool enters)
{
	struct store_totals *t = &store_of(o)->totals;

	if (o->copy)
		return;
	t->unsaved_objects += enters ? 1 : UINT64_MAX;
	t->unsaved_bytes += enters ? object_bytes(o) : 0 - object_bytes(o);
}

void item_list(struct store_object *o)
{
	index_add(o->member->space, o);
	store_of(o)->totals.objects++;
	count_unsaved(o, true);
	if (o->resident)
		count_memory(o, true);
	change_add(o, true);
}

/* That a live object is in. */
static struct policy *policy_of(const struct store_object *o)
{
	const struct store_space *sp = o->member->space;

	return o->resident ? sp->policy : sp->disk_policy;
}

static void count_idle(struct store_object *o, bool more)
{
	uint32_t n = more ? 1 : -1u;

	if (!o->resident) {
		o->member->n_idle_on_disk += n;
		return;
	}
	o->member->n_idle += n;
	store_of(o)->slots[o->at.slot]->n_idle += n;
}

int item_enter(struct store_object *o)
{
	struct policy_entry *e = &o->policy;
	int r = policy_add(policy_of(o), e, policy_bytes(e), e->cost > 0 ? e->cost : 1, e->tag);

	if (r >= 0)
		count_idle(o, true);
	return r;
}

static void leave_policy(struct store_object *o, bool evicted)
{
	policy_remove(policy_of(o), &o->policy, evicted);
	if (!o->holds)
		count_idle(o, false);
}

/*
 * An object that nobody holds enters memory, where it has a place, or is only on disk from now on. 0, or -ENOMEM: nothing has changed.
 */
static int change_tier(struct store_object *o, bool evicted)
{
	struct store_space *sp = o->member->space;
	struct policy *to = o->resident ? sp->disk_policy : sp->policy;
	int r = policy_move(policy_of(o), to, &o->policy, evicted);

	if (r < 0)
		return r;
	count_idle(o, false);
	count_memory(o, !o->resident);
	o->resident = !o->resident;
	count_idle(o, true);
	return 0;
}

static void hold(struct store_object *o)
{
	policy_hold(policy_of(o), &o->policy);
	count_idle(o, false);
}

static size_t part_bytes(const struct store *s)
{
	return s->tier ? sizeof(struct disk_part) : 0;
}

struct store_object *item_new(struct store *s, struct store_key key)
{
	uint8_t *p = slabs_alloc(&s->objects,
				 part_bytes(s) + offsetof(struct store_object, key) + key.n);
	struct store_object *o;

	if (!p)
		return NULL;
	o = (void *)(p + part_bytes(s));
	o->key_n = (uint8_t)key.n;
	memcpy(o->key, key.p, key.n);
	if (s->tier) {
		dray_list_init(&disk_part(o)->link);
		dray_list_init(&disk_part(o)->waiters);
	}
	return o;
}

void item_dealloc(struct store *s, struct store_object *o)
{
	if (o)
		slabs_free(&s->objects, (uint8_t *)o - part_bytes(s));
}

void item_forget(struct store_object *o)
{
	struct store *s = store_of(o);

	o->member->refs--;
	item_dealloc(s, o);
}

/* Its place is free again. */
static void place_free(struct store_object *o)
{
	struct store_member *m = o->member;

	memory_free(m->space, o);
	budget_put(&m->account->budget, RESOURCE_STORE_BYTES, room(object_bytes(o)));
	o->resident = false;
}

static void item_free(struct store_object *o)
{
	struct store *s = store_of(o);

	if (o->resident)
		place_free(o);
	/* what waits for its removal from disk is never more than may be there, because the next writes come behind it */
	if (o->is_counted)
		budget_put(&o->member->account->budget, RESOURCE_STORE_OBJECTS, 1);
	if (is_on_disk(o) && !s->closing) {
		tier_remove(o);
		return;
	}
	item_forget(o);
}

/* Nobody finds it any more. It is freed unless it is held. */
static void unlist(struct store_object *o)
{
	index_del(o->member->space, o);
	store_of(o)->totals.objects--;
	if (!is_on_disk(o))
		count_unsaved(o, false);
	if (o->resident)
		count_memory(o, false);
	change_add(o, false);
	o->state = OBJECT_GONE;
	if (!o->holds)
		item_free(o);
}

static void count_eviction(struct store_object *o)
{
	struct store_space *sp = o->member->space;

	sp->evictions++;
	sp->evicted_cost_us += (uint64_t)o->policy.cost;
	sp->store->totals.evictions++;
	sp->store->totals.evicted_bytes += object_bytes(o);
	sp->store->totals.evicted_cost_us += (uint64_t)o->policy.cost;
}

void item_remove(struct store_object *o, bool evicted)
{
	leave_policy(o, evicted);
	if (evicted && o->resident)
		count_eviction(o);
	unlist(o);
}

void item_leave_memory(struct store_object *o, bool evicted)
{
	/* without memory for the policy nothing would ever evict it from disk */
	if (!is_on_disk(o) || change_tier(o, evicted) < 0) {
		item_remove(o, evicted);
		return;
	}
	place_free(o);
	if (evicted)
		count_eviction(o);
}

bool item_evict(struct store_space *sp)
{
	struct policy_entry *e = policy_victim(sp->policy);

	if (!e)
		return false;
	item_leave_memory(dray_container_of(e, struct store_object, policy), true);
	return true;
}

void item_hold(struct store_object *o)
{
	if (!o->holds++ && o->state == OBJECT_LIVE)
		hold(o);
}

static void unhold(struct store_object *o,
		   void (*release)(struct policy *p, struct policy_entry *e))
{
	if (--o->holds)
		return;
	if (o->state != OBJECT_LIVE) {
		item_free(o);
		return;
	}
	release(policy_of(o), &o->policy);
	count_idle(o, true);
	if (o->unread) {
		o->unread = false;
		item_leave_memory(o, false);
	}
}

void item_put(struct store_object *o)
{
	unhold(o, policy_release);
}

void item_return(struct store_object *o)
{
	unhold(o, policy_return);
}

/* Of the one with the most memory among the others that can give a segment back by evictions. */
static struct segment *largest_clearable(struct store_space *sp)
{
	struct segment *largest = NULL;

	dray_list_for_each(&sp->store->spaces, other, struct store_space, link) {
		struct segment *g =
			other != sp && (!largest || other->memory > largest->space->memory) ?
				memory_clearable(other) :
				NULL;

		if (g)
			largest = g;
	}
	return largest;
}

/*
 * No memory is left for a new segment. One without objects moves to the name space. If the name space has less than half of
 * what the largest one has that has no objects in use in some segment, that one evicts for it. True: it has to evict more.
 */
static bool memory_claim(struct store_space *sp, struct store_effort *e)
{
	/* the other half is for its own objects: it need not wait until a segment with very many has been cleared */
	struct store_effort half = { .max = effort_left(e) / 2 };
	struct segment *g;

	dray_list_for_each(&sp->store->spaces, other, struct store_space, link)
		if (other != sp && memory_shrink(other))
			return false;
	g = largest_clearable(sp);
	if (!sp->store->cfg.evict || !g || sp->memory >= g->space->memory / 2)
		return false;
	if (half.max)
		memory_clear(g, &half);
	e->done += half.done;
	if (g->objects)
		return true;
	memory_shrink(g->space);
	return false;
}

/* One more for a key. */
static bool key_evicts(struct store_effort *e)
{
	if (e->of_key >= EVICTED_BY_KEY || !effort_evicts(e))
		return false;
	e->of_key++;
	return true;
}

/* A place for n granules. e NULL: without evictions. The thread of the store gives memory back, so that busy is no end. */
static bool place(struct store_space *sp, struct store_object *o, uint32_t n,
		  struct store_effort *e)
{
	bool claimed = false, more = false;

	while (!memory_alloc(sp, o, n) && !(memory_grow(sp, n) && memory_alloc(sp, o, n))) {
		if (!claimed && memory_reopen(sp))
			continue;
		if (!e)
			return false;
		/* what another try has claimed may still be on its way */
		if (!claimed && !sp->store->leaving)
			more = memory_claim(sp, e);
		claimed = true;
		if (sp->store->cfg.evict && !key_evicts(e))
			return false;
		if (!sp->store->cfg.evict || !item_evict(sp)) {
			/* empty segments of its own may be too small */
			memory_shrink(sp);
			e->more = more;
			return false;
		}
	}
	return true;
}

/*
 * Whether an eviction may give the owner room. Those of other owners' objects in a shared name space do so only where its share
 * depends on what the others have.
 */
static bool may_gain(const struct store_member *m, enum resource r)
{
	const struct budget_account *a = &m->account->budget;
	uint64_t own_max = atomic_load(&a->all->of[r].owner_max);

	return m->n_idle || (r == RESOURCE_STORE_OBJECTS && m->n_idle_on_disk) || !own_max ||
	       budget_limit(a, r) < own_max;
}

/* Evicts one object from memory and disk: what is only there is worth less than what is in memory. False: there is none to evict. */
static bool object_evict(struct store_space *sp)
{
	struct policy_entry *e;

	if (sp->disk_policy && tier_evict(sp))
		return true;
	e = policy_victim(sp->policy);
	if (e)
		item_remove(dray_container_of(e, struct store_object, policy), true);
	return e;
}

/* Counts the bytes at the owner; evicts what it has in this name space, if e is not NULL. */
static bool charge(struct store_member *m, uint64_t bytes, struct store_effort *e)
{
	struct dray_err err = DRAY_ERR_NULL;

	while (!budget_try(&m->account->budget, RESOURCE_STORE_BYTES, bytes)) {
		bool may_evict = e && m->space->store->cfg.evict &&
				 may_gain(m, RESOURCE_STORE_BYTES);

		if (may_evict && key_evicts(e) && item_evict(m->space))
			continue;
		if (may_evict && e->more)
			return false;
		/* which counts the refusal */
		return budget_take(&m->account->budget, RESOURCE_STORE_BYTES, bytes, &err) == 0;
	}
	return true;
}

/*
 * Counts one more object at the owner; evicts others. In a shared name space the victims may be of other owners and give it no room: few
 * of those go for each PUT. An owner above its share, as after a restart, gets below it PUT by PUT.
 */
static bool charge_object(struct store_member *m, struct store_effort *e)
{
	struct budget_account *a = &m->account->budget;
	struct dray_err err = DRAY_ERR_NULL;
	unsigned own = 0;

	while (!budget_try(a, RESOURCE_STORE_OBJECTS, 1)) {
		uint64_t had = budget_used(a, RESOURCE_STORE_OBJECTS);
		int64_t left = budget_left(a, RESOURCE_STORE_OBJECTS);

		bool may_evict = e->vain < VAIN_MAX && m->space->store->cfg.evict &&
				 may_gain(m, RESOURCE_STORE_OBJECTS);

		if (!may_evict || !key_evicts(e) || !object_evict(m->space))
			/* which counts the refusal */
			return !(may_evict && e->more) &&
			       budget_take(a, RESOURCE_STORE_OBJECTS, 1, &err) == 0;
		own += budget_used(a, RESOURCE_STORE_OBJECTS) < had;
		e->vain += budget_left(a, RESOURCE_STORE_OBJECTS) <= left;
		if (own == 2 && left < 0 && budget_restore(a, RESOURCE_STORE_OBJECTS, 1))
			return true;
	}
	return true;
}

/*
 * The same for a copy of another agent's object, which must not cost one on disk: at most it takes the place of one that its owner has in
 * memory alone. False: it is not counted, and ends with its GET.
 */
static bool charge_copy(struct store_member *m, struct store_effort *effort)
{
	struct budget_account *a = &m->account->budget;
	struct policy_entry *e;
	struct store_object *o;

	if (budget_try(a, RESOURCE_STORE_OBJECTS, 1))
		return true;
	e = m->space->store->cfg.evict ? policy_victim(m->space->policy) : NULL;
	o = e ? dray_container_of(e, struct store_object, policy) : NULL;
	if (!o || is_on_disk(o) || o->member != m || !effort_evicts(effort))
		return false;
	item_remove(o, true);
	return budget_try(a, RESOURCE_STORE_OBJECTS, 1);
}

void item_own(struct store_object *o)
{
	o->kept = false;
	if (!o->copy)
		return;
	o->copy = 0;
	count_unsaved(o, true);
	tier_put(o);
}

enum put_kind {
	PUT_OWN,
	PUT_COPY,    /* of an object of another agent */
	PUT_KEPT,    /* the same, for a PUT there */
	PUT_FORWARD, /* it goes to another agent */
	PUT_PREFER,  /* likewise, and stays if that does not take it */
};

/* The share of a new object of its owner. */
static bool charge_new(struct store_member *m, uint64_t bytes, enum put_kind kind,
		       struct store_effort *e, bool *ret_counted)
{
	if (!charge(m, bytes, e))
		return false;
	*ret_counted = kind == PUT_COPY ? charge_copy(m, e) : charge_object(m, e);
	if (*ret_counted || (kind == PUT_COPY && !e->more))
		return true;
	budget_put(&m->account->budget, RESOURCE_STORE_BYTES, bytes);
	return false;
}

static bool goes_elsewhere(enum put_kind kind)
{
	return kind == PUT_FORWARD || kind == PUT_PREFER;
}

static enum dmsg_store_status put_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t cost_us, enum put_kind kind,
					struct store_effort *e, struct store_object **ret)
{
	struct store_space *sp = m->space;
	uint32_t h = item_hash(sp, key);
	struct store_object *o = index_find(sp, key, h);
	bool counted;

	if (o && goes_elsewhere(kind))
		return item_meets_forward(o, kind == PUT_PREFER);
	if (o) {
		if (kind == PUT_OWN)
			item_own(o);
		return DMSG_STORE_STATUS_EXISTS;
	}
	if (bytes > sp->store->cfg.bytes || bytes > OBJECT_BYTES_MAX ||
	    room(bytes) > budget_limit(&m->account->budget, RESOURCE_STORE_BYTES))
		return DMSG_STORE_STATUS_TOO_LARGE;
	if (!charge_new(m, room(bytes), kind, e, &counted))
		return DMSG_STORE_STATUS_BUSY;
	o = item_new(sp->store, key);
	if (!o || !place(sp, o, granules(bytes), e)) {
		item_dealloc(sp->store, o);
		budget_put(&m->account->budget, RESOURCE_STORE_OBJECTS, counted);
		budget_put(&m->account->budget, RESOURCE_STORE_BYTES, room(bytes));
		return DMSG_STORE_STATUS_BUSY;
	}
	o->member = m;
	m->refs++;
	o->state = OBJECT_WRITING;
	o->resident = true;
	o->is_counted = counted;
	o->prefers = kind == PUT_PREFER;
	policy_set_bytes(&o->policy, bytes);
	o->policy.cost = (float)cost_us;
	o->policy.tag = h;
	*ret = o;
	return DMSG_STORE_STATUS_OK;
}

static enum dmsg_store_status put_of_client(struct store_member *m, struct store_key key,
					    uint64_t bytes, uint32_t cost_us, enum put_kind kind,
					    struct store_effort *e, struct store_object **ret)
{
	struct store *s = m->space->store;
	enum dmsg_store_status status;

	pthread_mutex_lock(&s->lock);
	status = put_begin(m, key, bytes, cost_us, kind, e, ret);
	if (status && !e->more)
		trace(m->space, STORE_PUT, key, bytes, (float)cost_us, status,
		      DMSG_STORE_TIER_NONE);
	pthread_mutex_unlock(&s->lock);
	return status;
}

enum dmsg_store_status store_put_begin(struct store_member *m, struct store_key key, uint64_t bytes,
				       uint32_t cost_us, struct store_effort *e,
				       struct store_object **ret)
{
	return put_of_client(m, key, bytes, cost_us, PUT_OWN, e, ret);
}

enum dmsg_store_status store_forward_put(struct store_member *m, struct store_key key,
					 uint64_t bytes, uint32_t cost_us, bool prefers,
					 struct store_effort *e, struct store_object **ret)
{
	return put_of_client(m, key, bytes, cost_us, prefers ? PUT_PREFER : PUT_FORWARD, e, ret);
}

enum dmsg_store_status store_copy_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t cost_us, struct store_effort *e,
					struct store_object **ret)
{
	struct store *s = m->space->store;
	enum dmsg_store_status status;

	pthread_mutex_lock(&s->lock);
	status = put_begin(m, key, bytes, cost_us, PUT_COPY, e, ret);
	pthread_mutex_unlock(&s->lock);
	return status;
}

/* Computes the checksum of an object that may have these bytes, if nothing else says what its own are. Lets go of the lock meanwhile. */
static void sum_unknown(struct store_object *o, uint64_t bytes, uint64_t *turn)
{
	struct store *s = store_of(o);
	struct summing sum = { 0 };
	bool done;

	if (o->has_crc || is_on_disk(o) || object_bytes(o) != bytes || bytes > *turn)
		return;
	item_hold(o);
	pthread_mutex_unlock(&s->lock);
	done = sum_go_on(&sum, o, turn);
	pthread_mutex_lock(&s->lock);
	if (done)
		object_set_crc(o, sum.crc);
	item_put(o);
}

/* False also if it is not known. */
static bool has_bytes(struct store_object *o, uint64_t bytes, uint32_t crc)
{
	if (object_bytes(o) != bytes)
		return false;
	return o->has_crc ? o->crc == crc : is_on_disk(o) && tier_has_crc(o, crc);
}

static enum dmsg_store_status keep_meets(struct store_object *o, uint64_t bytes, uint32_t crc)
{
	struct store_space *sp = o->member->space;
	bool kept = o->kept || (o->copy && !o->forwards);

	if (has_bytes(o, bytes, crc)) {
		item_own(o);
		o->kept = kept;
		return DMSG_STORE_STATUS_EXISTS;
	}
	if (!kept)
		return DMSG_STORE_STATUS_BUSY;
	tier_key_changed(sp, (struct store_key){ o->key, o->key_n });
	item_remove(o, false);
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status store_keep_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t crc, uint32_t cost_us,
					uint64_t *turn, struct store_effort *e,
					struct store_object **ret)
{
	struct store *s = m->space->store;
	enum dmsg_store_status status = DMSG_STORE_STATUS_OK;
	struct store_object *o;

	pthread_mutex_lock(&s->lock);
	o = item_find(m->space, key);
	if (o) {
		sum_unknown(o, bytes, turn);
		o = item_find(m->space, key);
	}
	if (o)
		status = keep_meets(o, bytes, crc);
	if (!status)
		status = put_begin(m, key, bytes, cost_us, PUT_KEPT, e, ret);
	m->space->keeps++;
	if (!status)
		(*ret)->crc = m->space->keeps;
	else if (status == DMSG_STORE_STATUS_EXISTS)
		m->space->last_kept = m->space->keeps;
	pthread_mutex_unlock(&s->lock);
	return status;
}

static struct store_object *is_there(const struct store_object *o)
{
	return index_find(o->member->space, (struct store_key){ o->key, o->key_n }, o->policy.tag);
}

bool item_appear(struct store_object *o)
{
	struct store_space *sp = o->member->space;

	if (is_there(o) || !index_room(sp) || item_enter(o) < 0)
		return false;
	o->state = OBJECT_LIVE;
	item_list(o);
	if (o->holds)
		hold(o);
	return true;
}

/* All its bytes are in place. */
static enum dmsg_store_status put_appear(struct store_object *o)
{
	struct store_space *sp = o->member->space;
	struct store_object *other = is_there(o);

	/* it may have come meanwhile by another PUT, or from another agent: that one stays */
	if (other) {
		item_own(other);
		return DMSG_STORE_STATUS_EXISTS;
	}
	if (!item_appear(o))
		return DMSG_STORE_STATUS_BUSY;
	tier_key_changed(sp, (struct store_key){ o->key, o->key_n });
	tier_put(o);
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status store_put_end(struct store_object *o, bool done)
{
	struct store *s = store_of(o);
	enum dmsg_store_status status;

	pthread_mutex_lock(&s->lock);
	status = done ? put_appear(o) : DMSG_STORE_STATUS_NOT_TRIED;
	o->member->space->puts += !status;
	if (done)
		trace_object(o->member->space, STORE_PUT, (struct store_key){ o->key, o->key_n }, o,
			     status, DMSG_STORE_TIER_NONE);
	if (status)
		item_free(o);
	pthread_mutex_unlock(&s->lock);
	return status;
}

enum dmsg_store_status store_keep_end(struct store_object *o, uint32_t crc)
{
	struct store *s = store_of(o);
	struct store_space *sp = o->member->space;
	enum dmsg_store_status status = DMSG_STORE_STATUS_OK;
	struct store_object *other;
	uint32_t number = o->crc;
	bool is_last;

	pthread_mutex_lock(&s->lock);
	is_last = (int32_t)(number - sp->last_kept) > 0;
	object_set_crc(o, crc);
	o->kept = true;
	other = is_there(o);
	/* one that has begun after it is newer */
	if (other)
		status = is_last || has_bytes(other, object_bytes(o), crc) ?
				 keep_meets(other, object_bytes(o), crc) :
				 DMSG_STORE_STATUS_BUSY;
	if (!status)
		status = put_appear(o);
	if (status != DMSG_STORE_STATUS_BUSY && is_last)
		sp->last_kept = number;
	sp->kept += !status;
	if (status)
		item_free(o);
	pthread_mutex_unlock(&s->lock);
	return status;
}

/*
 * Objects of an owner that are being read have a quarter of its memory at most: a disk that hangs leaves it the rest. A large
 * one is read alone.
 */
static bool may_load(const struct store_member *m, uint64_t bytes)
{
	uint64_t loading = m->account->store_loading;

	return !loading ||
	       loading + bytes <= budget_limit(&m->account->budget, RESOURCE_STORE_BYTES) / 4;
}

static void read_begin(struct store_object *o, struct turns_share *share)
{
	o->member->account->store_loading += room(object_bytes(o));
	o->loading = true;
	o->unread = false;
	item_hold(o);
	work_read(o, share);
}

/* e NULL: without evictions. */
static enum dmsg_store_status load(struct store_object *o, struct turns_share *share,
				   struct store_effort *e)
{
	struct store_member *m = o->member;
	struct store_space *sp = m->space;
	uint64_t bytes = room(object_bytes(o));
	enum dmsg_store_status no_room = e ? DMSG_STORE_STATUS_BUSY : DMSG_STORE_STATUS_NOT_TRIED;

	if (bytes > sp->store->cfg.bytes ||
	    bytes > budget_limit(&m->account->budget, RESOURCE_STORE_BYTES))
		return DMSG_STORE_STATUS_TOO_LARGE;
	if (!may_load(m, bytes))
		return DMSG_STORE_STATUS_BUSY;
	/* without evictions another owner may have room */
	if (!charge(m, bytes, e))
		return e ? DMSG_STORE_STATUS_BUSY : DMSG_STORE_STATUS_TOO_LARGE;
	if (!place(sp, o, granules(bytes), e)) {
		budget_put(&m->account->budget, RESOURCE_STORE_BYTES, bytes);
		return no_room;
	}
	if (change_tier(o, false) < 0) {
		place_free(o);
		return no_room;
	}
	read_begin(o, share);
	tier_clean(sp);
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status item_fetch(struct store_object *o, struct turns_share *share,
				  struct store_effort *e)
{
	if (!o->resident)
		return load(o, share, e);
	/* somebody holds its place */
	if (o->unread)
		read_begin(o, share);
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status item_load_spare(struct store_object *o, struct turns_share *share)
{
	return load(o, share, NULL);
}

enum dmsg_store_tier item_tier(const struct store_object *o)
{
	if (!o)
		return DMSG_STORE_TIER_NONE;
	return !o->resident || o->loading || o->unread ? DMSG_STORE_TIER_DISK :
							 DMSG_STORE_TIER_MEMORY;
}

void item_count(struct store_space *sp, enum dmsg_store_tier tier)
{
	sp->hits += tier != DMSG_STORE_TIER_NONE;
	sp->misses += tier == DMSG_STORE_TIER_NONE;
	sp->disk_hits += tier == DMSG_STORE_TIER_DISK;
}

void wait_less(struct store_wait *w)
{
	if (--w->pending)
		return;
	__atomic_store_n(&w->ready, 1, __ATOMIC_RELEASE);
	if (w->then)
		w->then(w);
}

enum dmsg_store_status item_get(struct store_object *o, struct store_wait *w, struct store_get *g)
{
	struct store_space *sp = o->member->space;
	struct store_wait alone = { .pending = 0 };
	enum dmsg_store_status status;

	g->tier = item_tier(o);
	status = item_fetch(o, w ? &w->share : &alone.share, w ? &w->effort : &alone.effort);
	if (status)
		return status;
	policy_use(sp->policy, &o->policy);
	item_hold(o);
	g->object = o;
	g->loads = o->loading;
	dray_list_init(&g->link);
	if (!o->loading)
		return DMSG_STORE_STATUS_OK;
	g->wait = w;
	/* one more than objects, until store_get_waits() */
	w->pending += w->pending ? 1 : 2;
	dray_list_add(&disk_part(o)->waiters, &g->link);
	return DMSG_STORE_STATUS_OK;
}

enum dmsg_store_status store_get_begin(struct store_member *m, struct store_key key,
				       struct store_wait *w, struct store_get *ret)
{
	struct store *s = m->space->store;
	enum dmsg_store_status status = DMSG_STORE_STATUS_NOT_FOUND;
	enum dmsg_store_tier tier;
	struct store_object *o;

	if (w)
		w->share.member = m;
	pthread_mutex_lock(&s->lock);
	o = item_find(m->space, key);
	tier = item_tier(o);
	if (o)
		status = item_get(o, w, ret);
	if (!status || !w || !w->effort.more) {
		item_count(m->space, tier);
		trace_object(m->space, STORE_GET, key, o, status, ret->tier);
	}
	pthread_mutex_unlock(&s->lock);
	return status;
}

bool store_get_waits(struct store *s, struct store_wait *w)
{
	bool waits;

	pthread_mutex_lock(&s->lock);
	waits = --w->pending;
	pthread_mutex_unlock(&s->lock);
	return waits;
}

enum dmsg_store_status store_get_end(struct store_get *g)
{
	struct store_object *o = dray_take(g->object);
	struct store *s = store_of(o);

	pthread_mutex_lock(&s->lock);
	if (!dray_list_empty(&g->link)) {
		dray_list_del(&g->link);
		wait_less(g->wait);
	}
	item_put(o);
	pthread_mutex_unlock(&s->lock);
	return g->status;
}

uint64_t store_object_bytes(const struct store_object *o)
{
	return object_bytes(o);
}

dray_handle store_object_segment(const struct store_object *o)
{
	return store_of(o)->slots[o->at.slot]->name;
}

uint64_t store_object_offset(const struct store_object *o)
{
	return o->at.slot * store_of(o)->slot_bytes + (uint64_t)o->at.start * GRANULE;
}

void store_exists(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret)
{
	struct store *s = m->space->store;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		const struct store_object *o = item_find(m->space, keys[i]);

		ret[i] = (struct dmsg_store_result){
			.status = o ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND,
			.tier = (uint16_t)item_tier(o),
			.length = o ? object_bytes(o) : 0,
		};
		trace_object(m->space, STORE_EXISTS, keys[i], o,
			     (enum dmsg_store_status)ret[i].status, item_tier(o));
	}
	pthread_mutex_unlock(&s->lock);
}

void store_remove(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret)
{
	struct store *s = m->space->store;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		struct store_object *o = item_find(m->space, keys[i]);

		tier_key_changed(m->space, keys[i]);
		ret[i] = (struct dmsg_store_result){
			.status = o ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_FOUND,
			.length = o ? object_bytes(o) : 0,
		};
		trace_object(m->space, STORE_REMOVE, keys[i], o,
			     (enum dmsg_store_status)ret[i].status, item_tier(o));
		if (o)
			item_remove(o, false);
	}
	pthread_mutex_unlock(&s->lock);
}
