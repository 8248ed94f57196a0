/* SPDX-License-Identifier: Apache-2.0 */
/* What is on disk: its names, its accounts, what is evicted there for it, and what the disk has when the store starts. */
#include "agent/store/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hash.h"
#include "lib/wire.h"
#include "schema/gen/errors.h"

/* Evicted from disk at least when the file system is full of objects; else a part of them. */
#define GIVEN_MIN (4ull << 20)
#define GIVEN_PART 16
/* Objects that one PUT or load looks at to write them before they are evicted. */
#define CLEANED_AT_ONCE 16
/*
 * Evictions from disk that may give the owner of a written object no room: in a shared name space the victims may be of
 * others, who would lose all they have there for an owner whose own share is in use.
 */
#define VAIN_MAX 256
#define SEGMENT_MIN (16ull << 20)
#define SEGMENT_MAX (256ull << 20)

/* --- names of objects on disk: name space, owner and key ---------------------------------------------- */

static uint8_t *text_put(uint8_t *p, const char *text, size_t n)
{
	*p++ = (uint8_t)n;
	memcpy(p, text, n);
	return p + n;
}

uint32_t tier_name(uint8_t key[DISK_KEY_MAX], const struct store_object *o)
{
	const struct budget_account *a = &o->member->account->budget;
	uint8_t *p = text_put(key, o->member->space->name, strlen(o->member->space->name));

	p = text_put(p, a->tenant, strlen(a->tenant));
	dray_le_put32(p, a->uid);
	memcpy(p + 4, o->key, o->key_n);
	return (uint32_t)(p + 4 + o->key_n - key);
}

struct name {
	struct dray_str space, tenant;
	uint32_t uid;
	struct store_key key;
};

static bool text_get(const uint8_t **p, const uint8_t *end, struct dray_str *ret)
{
	if (*p == end || **p > end - *p - 1)
		return false;
	*ret = (struct dray_str){ (const char *)*p + 1, **p };
	*p += 1 + **p;
	return true;
}

static bool key_parse(const uint8_t *p, uint32_t n, struct name *ret)
{
	const uint8_t *end = p + n;

	if (!text_get(&p, end, &ret->space) || !text_get(&p, end, &ret->tenant) || end - p < 5 ||
	    end - p - 4 > DMSG_STORE_KEY_MAX || ret->space.n > DMSG_STORE_SPACE_MAX)
		return false;
	ret->uid = dray_le_get32(p);
	ret->key = (struct store_key){ p + 4, (uint32_t)(end - p - 4) };
	return true;
}

/* --- keys that are newer than what is on disk ------------------------------------------------------------- */

/* The same for a name space that was forgotten and comes back. */
static uint64_t space_id(const struct store_space *sp)
{
	const struct budget_account *a = sp->account ? &sp->account->budget : NULL;
	uint64_t h = dray_hash(a ? 1 + (uint64_t)a->uid : 0, sp->name, strlen(sp->name));

	return a ? dray_hash(h, a->tenant, strlen(a->tenant)) : h;
}

void tier_key_changed(const struct store_space *sp, struct store_key key)
{
	struct tier *t = sp->store->tier;

	if (t && t->absent)
		changed_add(&t->changed, space_id(sp), key.p, key.n);
}

static bool is_newer(const struct store_space *sp, struct store_key key)
{
	return changed_has(&sp->store->tier->changed, space_id(sp), key.p, key.n);
}

/* --- what is on disk ------------------------------------------------------------------------------------ */

void tier_count(struct store_object *o, bool enters)
{
	struct store_space *sp = o->member->space;
	uint64_t n = enters ? object_bytes(o) : 0 - object_bytes(o), one = enters ? 1 : UINT64_MAX;

	disk_part(o)->on_disk = enters;
	if (o->state == OBJECT_LIVE)
		count_unsaved(o, !enters);
	sp->disk_objects += one;
	sp->disk_bytes += n;
	sp->store->totals.disk_objects += one;
	sp->store->totals.disk_bytes += n;
}

/* Takes what it needs on disk from its owner's share. A refusal is counted. */
static bool take_room(struct store_object *o)
{
	struct dray_err err = DRAY_ERR_NULL;

	return budget_take(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES,
			   disk_blocks(object_bytes(o)), &err) == 0;
}

void tier_return_room(struct store_object *o)
{
	budget_put(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES,
		   disk_blocks(object_bytes(o)));
}

uint64_t tier_evict(struct store_space *sp)
{
	struct policy_entry *e = policy_victim(sp->disk_policy);
	uint64_t bytes = e ? disk_blocks(policy_bytes(e)) : 0;

	if (!e)
		return 0;
	sp->store->totals.disk_evictions++;
	sp->disk_evictions++;
	sp->disk_evicted_cost_us += (uint64_t)e->cost;
	item_remove(dray_container_of(e, struct store_object, policy), true);
	return bytes;
}

static uint64_t used_by_owner_of(const struct store_object *o, enum resource r)
{
	return budget_used(&o->member->account->budget, r);
}

/*
 * All have as much as the agent may have: the owner with the most gives an object up for an owner that has less with n more. Objects come in
 * the order of their names, and so one owner's after the other's. False: this owner has as much.
 */
static bool evict_of_largest(const struct store_object *o, enum resource r, uint64_t n)
{
	const struct budget *b = &o->member->account->budget.all->of[r];
	uint64_t owner_max = atomic_load(&b->owner_max), most = used_by_owner_of(o, r) + n;
	struct store_space *from = NULL;

	if (most > (owner_max ? owner_max : atomic_load(&b->max)))
		return false;
	dray_list_for_each(&store_of(o)->spaces, sp, struct store_space, link) {
		struct policy_entry *e = policy_victim(sp->disk_policy);
		uint64_t has =
			e ? used_by_owner_of(dray_container_of(e, struct store_object, policy), r) :
			    0;

		if (has <= most)
			continue;
		most = has;
		from = sp;
	}
	return from && tier_evict(from);
}

/*
 * Counts what was on disk before the start. The shares of owners depend on what the others have, and that comes one after the other: an
 * owner that is above its own evicts when it writes.
 */
static bool restore_share(struct store_object *o, enum resource r, uint64_t n)
{
	while (!budget_restore(&o->member->account->budget, r, n))
		if (!evict_of_largest(o, r, n))
			return false;
	return true;
}

static bool restore_room(struct store_object *o)
{
	return restore_share(o, RESOURCE_STORE_DISK_BYTES, disk_blocks(object_bytes(o)));
}

static bool restore(struct store_object *o)
{
	if (!restore_room(o))
		return false;
	if (restore_share(o, RESOURCE_STORE_OBJECTS, 1))
		return true;
	tier_return_room(o);
	return false;
}

/* False: there is nothing to evict, or it does not help. */
static bool evict_for(struct store_object *o)
{
	const struct budget_account *a = &o->member->account->budget;
	int64_t before = budget_left(a, RESOURCE_STORE_DISK_BYTES);

	if (disk_part(o)->vain >= VAIN_MAX || !tier_evict(o->member->space))
		return false;
	if (budget_left(a, RESOURCE_STORE_DISK_BYTES) <= before)
		disk_part(o)->vain++;
	return true;
}

int tier_take_room(struct store_object *o, unsigned *turn)
{
	if (disk_blocks(object_bytes(o)) >
	    budget_limit(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES))
		return -ENOSPC;
	while (!budget_try(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES,
			   disk_blocks(object_bytes(o)))) {
		if (!*turn)
			return -EAGAIN;
		--*turn;
		if (!evict_for(o))
			return take_room(o) ? 0 : -ENOSPC;
	}
	return 0;
}

/* The name space with the most bytes on disk of which some are only there. NULL: there is none. */
static struct store_space *largest_on_disk(struct store *s)
{
	struct store_space *largest = NULL;

	dray_list_for_each(&s->spaces, sp, struct store_space, link)
		if ((!largest || sp->disk_bytes > largest->disk_bytes) &&
		    policy_victim(sp->disk_policy))
			largest = sp;
	return largest;
}

void tier_give(struct store *s, unsigned *turn)
{
	struct tier *t = s->tier;
	struct store_space *sp;

	pthread_mutex_lock(&s->lock);
	sp = t->give ? largest_on_disk(s) : NULL;
	if (!sp)
		t->give = 0;
	while (t->give && *turn) {
		uint64_t bytes = tier_evict(sp);

		if (!bytes)
			break;
		t->give -= dray_min(t->give, bytes);
		--*turn;
	}
	if (t->give)
		works_kick(t);
	pthread_mutex_unlock(&s->lock);
}

/* --- what comes to the disk and leaves it --------------------------------------------------------------------- */

bool tier_is_dirty(struct store_object *o)
{
	return !o->copy && !disk_part(o)->on_disk && !disk_part(o)->work;
}

static bool nearly_full(const struct store_space *sp)
{
	const struct store *s = sp->store;

	/* no room for a new segment, so objects of this space are evicted when its segments are full */
	if (s->totals.memory + s->slot_bytes > s->cfg.bytes && sp->bytes > sp->memory / 2)
		return true;
	dray_list_for_each(&sp->members, m, struct store_member, link) {
		const struct budget_account *a = &m->account->budget;

		if (budget_used(a, RESOURCE_STORE_BYTES) >
		    budget_limit(a, RESOURCE_STORE_BYTES) / 8 * 7)
			return true;
	}
	return false;
}

void tier_clean(struct store_space *sp)
{
	struct store_object *looked[CLEANED_AT_ONCE];
	unsigned n = 0;

	if (!sp->store->tier || sp->store->tier->down || !nearly_full(sp))
		return;
	while (n < CLEANED_AT_ONCE) {
		struct policy_entry *e = policy_victim(sp->policy);
		struct store_object *o;

		if (!e)
			break;
		o = dray_container_of(e, struct store_object, policy);
		/* so that the next victim is another one */
		item_hold(o);
		looked[n++] = o;
		/* an owner whose share of what may wait is used holds up no other one */
		if (tier_is_dirty(o) && work_write(o))
			disk_part(o)->cleaned = true;
	}
	while (n)
		item_return(looked[--n]);
}

void tier_put(struct store_object *o)
{
	const struct store *s = store_of(o);

	if (!s->tier)
		return;
	if (!s->cfg.disk.write_back && !work_write(o))
		store_of(o)->totals.disk_skipped++;
	tier_clean(o->member->space);
}

static void leave_disk(struct store_object *o, enum disk_work work)
{
	tier_return_room(o);
	tier_count(o, false);
	work_remove(o, work);
}

void tier_remove(struct store_object *o)
{
	leave_disk(o, WORK_REMOVE);
}

void tier_damaged(struct store_object *o)
{
	/* the read will find it, too */
	if (o->loading)
		return;
	disk_count_corrupt(store_of(o)->tier->disk);
	if (item_tier(o) != DMSG_STORE_TIER_MEMORY) {
		item_remove(o, false);
		return;
	}
	item_hold(o);
	leave_disk(o, WORK_REPLACE);
}

void tier_verify(struct store_object *o, struct disk_request *r, uint8_t name[DISK_KEY_MAX])
{
	r->object = &disk_part(o)->at;
	r->key = name;
	r->key_bytes = tier_name(name, o);
	disk_verify(store_of(o)->tier->disk, r);
}

bool tier_has_crc(struct store_object *o, uint32_t crc)
{
	uint8_t name[DISK_KEY_MAX];
	uint32_t n = tier_name(name, o);

	/* the control thread fills objects that it finds later without the lock */
	return !store_of(o)->tier->absent && disk_is_sum(&disk_part(o)->at, crc, name, n);
}

/* --- start and end ------------------------------------------------------------------------------------------------ */

static void crowded(void *arg, uint64_t bytes)
{
	struct store *s = arg;

	pthread_mutex_lock(&s->lock);
	/* The removals of what was evicted before, or by clients, may make room enough. */
	if (!s->tier->give && dray_list_empty(&s->tier->removals) &&
	    dray_list_empty(&s->tier->others.sharers)) {
		s->tier->give = dray_max(bytes / GIVEN_PART, GIVEN_MIN);
		works_kick(s->tier);
	}
	pthread_mutex_unlock(&s->lock);
}

static void writes_taken(void *arg)
{
	struct store *s = arg;

	pthread_mutex_lock(&s->lock);
	works_kick(s->tier);
	pthread_mutex_unlock(&s->lock);
}

static void state_changed(void *arg, enum disk_state state, const struct dray_err *why)
{
	struct store *s = arg;

	pthread_mutex_lock(&s->lock);
	s->tier->full = state == DISK_STATE_FULL;
	s->tier->down = state != DISK_STATE_OK;
	s->tier->absent = state == DISK_STATE_ABSENT;
	if (!s->tier->absent)
		changed_forget(&s->tier->changed);
	if (!s->tier->down)
		flush_restart(s);
	works_kick(s->tier);
	pthread_mutex_unlock(&s->lock);
	if (s->cfg.disk.state_changed)
		s->cfg.disk.state_changed(s->cfg.disk.arg, state, why);
}

/* 0 or -ENOMEM. NULL: its owner may not use the name space. */
static int member_found(struct store *s, const struct name *n, struct store_member **ret)
{
	char tenant[DISK_KEY_MAX];
	struct owner_account *a;
	struct dray_err err = DRAY_ERR_NULL;

	*ret = NULL;
	if (n->space.n &&
	    store_may_use(s, &(struct store_asker){ n->space, n->tenant, n->uid }, &err) < 0)
		return 0;
	memcpy(tenant, n->tenant.p, n->tenant.n);
	tenant[n->tenant.n] = '\0';
	a = s->cfg.disk.account(s->cfg.disk.arg, tenant, n->uid);
	if (!a)
		return -ENOMEM;
	*ret = store_member_get(s, a, n->space);
	s->cfg.release(a);
	return *ret ? 0 : -ENOMEM;
}

/*
 * What is on disk of owner m is found of an object that is there already: a copy that has come from another agent is no mere copy any more.
 * False: it is removed there.
 */
static bool is_found_of(struct store_object *o, const struct store_member *m, uint64_t bytes)
{
	/* a PUT that goes to another agent is newer */
	if (!o->copy || o->forwards)
		return false;
	/* the owner is part of what the disk's checksum covers */
	if (o->member != m || object_bytes(o) != bytes || !restore_room(o)) {
		/* it is written instead */
		item_own(o);
		return false;
	}
	o->copy = 0;
	count_unsaved(o, true);
	tier_count(o, true);
	return true;
}

/* An object that is on disk only. -ENOMEM, or 0; then NULL: it exceeds its owner's limit. */
static int object_add(struct store_member *m, struct store_key key, uint64_t bytes, float cost,
		      struct store_object **ret)
{
	struct store_space *sp = m->space;
	struct store_object *o = index_room(sp) ? item_new(sp->store, key) : NULL;

	if (!o)
		return -ENOMEM;
	o->member = m;
	o->state = OBJECT_LIVE;
	o->is_counted = true;
	policy_set_bytes(&o->policy, bytes);
	o->policy.cost = cost;
	o->policy.tag = item_hash(sp, key);
	if (!restore(o)) {
		item_dealloc(sp->store, o);
		return 0;
	}
	if (item_enter(o) < 0) {
		tier_return_room(o);
		budget_put(&m->account->budget, RESOURCE_STORE_OBJECTS, 1);
		item_dealloc(sp->store, o);
		return -ENOMEM;
	}
	m->refs++;
	item_list(o);
	tier_count(o, true);
	*ret = o;
	return 0;
}

/* 0 or -ENOMEM. NULL: it is unwanted. */
static int object_found(struct store *s, const struct name *n, uint64_t bytes, float cost,
			struct store_object **ret)
{
	struct store_member *m;
	struct store_object *o;
	int r = member_found(s, n, &m);

	if (!m || bytes > OBJECT_BYTES_MAX || is_newer(m->space, n->key))
		return r;
	o = item_find(m->space, n->key);
	if (!o)
		return object_add(m, n->key, bytes, cost, ret);
	if (is_found_of(o, m, bytes))
		*ret = o;
	return 0;
}

static int found(void *arg, const void *key, uint32_t n, uint64_t bytes, float cost,
		 struct disk_object **ret)
{
	struct store *s = arg;
	struct store_object *o = NULL;
	struct name name;
	int r;

	*ret = NULL;
	if (!key_parse(key, n, &name))
		return 0;
	pthread_mutex_lock(&s->lock);
	r = object_found(s, &name, bytes, cost, &o);
	pthread_mutex_unlock(&s->lock);
	if (o)
		*ret = &disk_part(o)->at;
	return r;
}

int tier_new(struct store *s, struct dray_err *reterr)
{
	const struct store_disk_config *cfg = &s->cfg.disk;
	uint64_t segment = dray_max(cfg->bytes / 16, SEGMENT_MIN);
	struct tier *t;
	int r;

	if (!cfg->dir || !*cfg->dir)
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the disk tier");
	t->store = s;
	s->tier = t;
	if (works_init(t) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no timer for the rates of the disk tier");
	r = disk_open(&t->disk,
		      &(struct disk_config){
			      .event = cfg->event,
			      .dir = cfg->dir,
			      .segment_bytes = dray_min(segment, SEGMENT_MAX),
			      .threads = cfg->threads,
			      .read_rate = cfg->read_rate,
			      .write_rate = cfg->write_rate,
			      .state_changed = state_changed,
			      .crowded = crowded,
			      .writes_taken = writes_taken,
			      .arg = s,
			      .fault = cfg->fault,
		      },
		      found, s, reterr);
	works_set_turn(t);
	return r;
}

bool tier_free(struct store *s)
{
	struct tier *t = s->tier;

	if (!t)
		return true;
	if (!disk_close(dray_take(t->disk)))
		return false;
	works_deinit(t);
	changed_forget(&t->changed);
	verify_free(s->verify);
	return true;
}

bool tier_can_write(const struct store *s)
{
	return s->tier && !s->tier->down;
}

bool tier_is_full(const struct store *s)
{
	return s->tier && s->tier->full;
}

uint64_t tier_pending(const struct store *s)
{
	return s->tier->pending;
}

void tier_totals(struct store *s, struct store_totals *ret)
{
	if (!s->tier || !s->tier->disk)
		return;
	ret->disk_pending_bytes = s->tier->pending;
	ret->has_disk = true;
	ret->disk = disk_info(s->tier->disk);
}
