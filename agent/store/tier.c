/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the store and its disk tier. Workers queue objects under the store's lock, and wake the control thread, which gives
 * them to disk/ and settles them when disk/ is done. An object has one work at a time, and is held meanwhile, apart from a
 * removal: that of an object which is in no index any more.
 *
 * What is written and not taken by the disk in time is bounded, so that a slow disk neither fills the memory nor delays a PUT:
 * an object beyond the bound is not written now. It gets another chance before it is evicted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/changed.h"
#include "agent/store/internal.h"
#include "lib/hash.h"
#include "lib/time.h"
#include "lib/wire.h"
#include "schema/gen/errors.h"

/* Of reads, which have a turn's worth of bytes beside (turns.h), and of the others, that disk/ has at a time. */
#define IN_FLIGHT_MAX 64
/* The same of removals while the disk cannot be written: they wait for its return. */
#define REMOVALS_MAX 1024
/* Evicted from disk at least when the file system is full of objects; else a part of them. */
#define GIVEN_MIN (4ull << 20)
#define GIVEN_PART 16
/* Objects that one PUT or load looks at to write them before they are evicted. */
#define CLEANED_AT_ONCE 16
/* Works that a turn of the control thread gives to disk/ or ends, and objects that it evicts from disk. */
#define TURN_MAX 256
/*
 * Evictions from disk that may give the owner of a written object no room: in a shared name space the victims may be of
 * others, who would lose all they have there for an owner whose own share is in use.
 */
#define VAIN_MAX 256
/* Bytes a second of a disk whose rates are not known yet. */
#define RATE_UNKNOWN (1ull << 30)
#define SEGMENT_MIN (16ull << 20)
#define SEGMENT_MAX (256ull << 20)

/* A work that disk/ has. */
struct op {
	struct dray_list link; /* alone: it is not used */
	struct disk_request request;
	struct store_object *object;
	uint64_t bytes; /* that it moves */
	uint8_t key[DISK_KEY_MAX];
};

struct queue {
	unsigned in_flight;
	uint64_t bytes;         /* of these, that are read or written */
	uint64_t budget;        /* of a turn; UINT64_MAX: no limit */
	uint64_t rate;          /* bytes a second that are never exceeded; 0: no limit */
	int64_t due_ns;         /* with a limit, when the next one may begin */
	sd_event_source *timer; /* the same; NULL: without a limit */
	struct op spare; /* without memory the works of the queue go on, one after the other */
};

struct tier {
	struct store *store;
	struct disk *disk;
	struct queue reads, others;
	struct turns turns;     /* struct disk_part, that are to be read */
	struct dray_list parts; /* the others */
	struct dray_list ops;   /* in flight */
	struct dray_job kick;
	bool kicked;
	bool down;   /* disk/ cannot write */
	bool full;   /* because its file system is */
	bool absent; /* what is on disk is not known yet */
	struct changed_keys changed;
	unsigned writes;  /* on parts */
	uint64_t give;    /* bytes to evict from disk, because its file system is full of objects */
	uint64_t pending; /* bytes on disk, of objects whose work is a write */
};

static struct queue *queue_of(struct tier *t, uint8_t work)
{
	return work == WORK_READ ? &t->reads : &t->others;
}

/* --- names of objects on disk: name space, owner and key ---------------------------------------------- */

static uint8_t *text_put(uint8_t *p, const char *text, size_t n)
{
	*p++ = (uint8_t)n;
	memcpy(p, text, n);
	return p + n;
}

static uint32_t key_build(uint8_t key[DISK_KEY_MAX], const struct store_object *o)
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

static void count_disk(struct store_object *o, bool enters)
{
	struct store_space *sp = o->member->space;
	uint64_t n = enters ? o->policy.bytes : 0 - o->policy.bytes, one = enters ? 1 : UINT64_MAX;

	disk_part(o)->on_disk = enters;
	if (o->state == OBJECT_LIVE)
		count_unsaved(o, !enters);
	sp->disk_objects += one;
	sp->disk_bytes += n;
	sp->store->totals.disk_objects += one;
	sp->store->totals.disk_bytes += n;
}

static bool budget_has_room(struct store_object *o)
{
	struct dray_err err = DRAY_ERR_NULL;

	return budget_take(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES,
			   disk_blocks(o->policy.bytes), &err) == 0;
}

static void budget_return(struct store_object *o)
{
	budget_put(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES,
		   disk_blocks(o->policy.bytes));
}

/* Evicts an object of the name space that is only on disk. Returns its bytes there; 0: there is none. */
static uint64_t disk_evict(struct store_space *sp)
{
	struct policy_entry *e = policy_victim(sp->disk_policy);
	uint64_t bytes = e ? disk_blocks(e->bytes) : 0;

	if (!e)
		return 0;
	sp->store->totals.disk_evictions++;
	sp->disk_evictions++;
	sp->disk_evicted_cost_us += (uint64_t)e->cost;
	item_remove(dray_container_of(e, struct store_object, policy), true);
	return bytes;
}

/* What its owner may still take; negative: it has more than its share. */
static int64_t room_left(const struct store_object *o)
{
	const struct budget_account *a = &o->member->account->budget;

	return (int64_t)(budget_limit(a, RESOURCE_STORE_DISK_BYTES) -
			 atomic_load(&a->of[RESOURCE_STORE_DISK_BYTES].used));
}

/* False: there is nothing to evict, or it does not help. */
static bool evict_for(struct store_object *o)
{
	int64_t before = room_left(o);

	if (disk_part(o)->vain >= VAIN_MAX || !disk_evict(o->member->space))
		return false;
	if (room_left(o) <= before)
		disk_part(o)->vain++;
	return true;
}

/* Takes room for it on disk, for which it evicts others. -EAGAIN: the turn is over; -ENOSPC: no more is to be had. */
static int take_room(struct store_object *o, unsigned *turn)
{
	if (disk_blocks(o->policy.bytes) >
	    budget_limit(&o->member->account->budget, RESOURCE_STORE_DISK_BYTES))
		return -ENOSPC;
	while (!budget_has_room(o)) {
		if (!*turn)
			return -EAGAIN;
		--*turn;
		if (!evict_for(o))
			return -ENOSPC;
	}
	return 0;
}

/* --- queues ----------------------------------------------------------------------------------------------- */

static void on_kick(struct dray_job *j);

/* The control thread looks at the queues in its next turn. */
static void kick(struct tier *t)
{
	if (!t->kicked)
		dray_jobs_finish(t->store->jobs, &t->kick, on_kick);
	t->kicked = true;
}

/* That a work moves; a removal moves none. */
static uint64_t work_bytes(struct disk_part *p)
{
	return p->work == WORK_READ || p->work == WORK_WRITE ?
		       disk_blocks(object_of_part(p)->policy.bytes) :
		       0;
}

static void enqueue(struct store_object *o, enum disk_work work)
{
	struct tier *t = store_of(o)->tier;

	disk_part(o)->work = (uint8_t)work;
	dray_list_add(&t->parts, &disk_part(o)->link);
	t->writes += work == WORK_WRITE;
	kick(t);
}

static void dequeue(struct tier *t, struct disk_part *p)
{
	if (p->work == WORK_READ)
		turns_take(&t->turns, &p->link, work_bytes(p));
	else
		dray_list_del(&p->link);
	t->writes -= p->work == WORK_WRITE;
}

/* NULL: there is none. */
static struct disk_part *first_of(struct tier *t, const struct queue *q)
{
	struct dray_list *read;

	if (q == &t->others)
		return dray_list_first(&t->parts, struct disk_part, link);
	read = turns_first(&t->turns);
	return read ? dray_container_of(read, struct disk_part, link) : NULL;
}

bool tier_write(struct store_object *o)
{
	struct store *s = store_of(o);
	struct tier *t = s->tier;
	uint64_t bytes = disk_blocks(o->policy.bytes), limit = s->cfg.bytes / 4;

	if (t->down || (t->pending && t->pending + bytes > limit))
		return false;
	t->pending += bytes;
	disk_part(o)->vain = 0;
	item_hold(o);
	enqueue(o, WORK_WRITE);
	return true;
}

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

		if (atomic_load(&a->of[RESOURCE_STORE_BYTES].used) >
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
		if (!tier_is_dirty(o))
			continue;
		if (!tier_write(o))
			break;
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
	if (!s->cfg.disk.write_back && !tier_write(o))
		store_of(o)->totals.disk_skipped++;
	tier_clean(o->member->space);
}

void tier_read(struct store_object *o, struct turns_share *share)
{
	struct store *s = store_of(o);
	struct tier *t = s->tier;

	disk_part(o)->work = WORK_READ;
	if (turns_add(&t->turns, share, &disk_part(o)->link, disk_blocks(o->policy.bytes),
		      t->reads.budget)) {
		s->totals.disk_turns++;
		s->totals.disk_batches += share->n == 1;
	}
	kick(t);
}

static void leave_disk(struct store_object *o, enum disk_work work)
{
	budget_return(o);
	count_disk(o, false);
	enqueue(o, work);
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
	r->key_bytes = key_build(name, o);
	disk_verify(store_of(o)->tier->disk, r);
}

/* --- the ends of works: under the lock ------------------------------------------------------------------------ */

static void write_end(struct store_object *o, bool written)
{
	struct store *s = store_of(o);

	s->tier->pending -= disk_blocks(o->policy.bytes);
	disk_part(o)->work = WORK_NONE;
	if (written)
		count_disk(o, true);
	else if (o->state == OBJECT_LIVE)
		s->totals.disk_skipped++;
	if (dray_take(disk_part(o)->cleaned))
		item_return(o);
	else
		item_put(o);
}

static void tell_waiters(struct store_object *o, enum dmsg_store_status status)
{
	int64_t now_ns = dray_now().ns;
	struct store_get *g;

	while ((g = dray_list_pop(&disk_part(o)->waiters, struct store_get, link))) {
		g->status = status;
		g->wait->disk_ns = now_ns;
		wait_less(g->wait);
	}
}

static void read_end(struct store_object *o, enum disk_result result)
{
	o->loading = false;
	o->member->account->store_loading -= room(o->policy.bytes);
	disk_part(o)->work = WORK_NONE;
	tell_waiters(o, result == DISK_OK      ? DMSG_STORE_STATUS_OK :
			result == DISK_CORRUPT ? DMSG_STORE_STATUS_CORRUPT :
						 DMSG_STORE_STATUS_LOST);
	o->unread = result != DISK_OK;
	/* it may have been removed meanwhile */
	if (result == DISK_CORRUPT && o->state == OBJECT_LIVE)
		item_remove(o, false);
	item_put(o);
}

static void replace_end(struct store_object *o)
{
	disk_part(o)->work = WORK_NONE;
	if (o->state == OBJECT_LIVE)
		tier_put(o);
	item_put(o);
}

/* --- control thread ----------------------------------------------------------------------------------------------- */

static void op_free(struct queue *q, struct op *op)
{
	dray_list_del(&op->link);
	if (op != &q->spare)
		free(op);
}

static uint64_t turn_bytes(uint64_t rate)
{
	return dray_max((rate ? rate : RATE_UNKNOWN) / 1000 * DISK_TURN_MS, (uint64_t)DISK_BLOCK);
}

/*
 * By the rate that disk/ has learned so far. Writes have none: they are in flight until they are durable, so that the rate of a disk
 * whose commits take longer than a turn would be that of the budget itself, which would sink with each measurement.
 */
static void budgets_set(struct tier *t)
{
	t->reads.budget = turn_bytes(t->disk ? disk_info(t->disk).read_rate : t->reads.rate);
	t->others.budget = UINT64_MAX;
}

static void op_done(struct disk_request *r)
{
	struct op *op = dray_container_of(r, struct op, request);
	struct store_object *o = op->object;
	struct store *s = store_of(o);
	uint8_t work = disk_part(o)->work;
	struct queue *q = queue_of(s->tier, work);

	pthread_mutex_lock(&s->lock);
	q->in_flight--;
	q->bytes -= op->bytes;
	budgets_set(s->tier);
	if (work == WORK_WRITE) {
		if (r->result != DISK_OK)
			budget_return(o);
		write_end(o, r->result == DISK_OK);
	} else if (work == WORK_READ) {
		read_end(o, r->result);
	} else if (work == WORK_REPLACE) {
		replace_end(o);
	} else {
		item_forget(o);
	}
	op_free(q, op);
	kick(s->tier);
	pthread_mutex_unlock(&s->lock);
}

static struct op *op_alloc(const struct store *s, struct queue *q)
{
	int r = s->cfg.disk.fault ? s->cfg.disk.fault(DISK_CALL_ALLOC) : 0;
	struct op *op = r < 0 ? NULL : malloc(sizeof(*op));

	return op || !dray_list_empty(&q->spare.link) ? op : &q->spare;
}

/* NULL: no memory, and the end of another op of the queue makes the next try. */
static struct op *op_new(struct store *s, struct queue *q, struct store_object *o)
{
	struct op *op = op_alloc(s, q);

	if (!op)
		return NULL;
	*op = (struct op){ .object = o, .bytes = work_bytes(disk_part(o)) };
	op->request = (struct disk_request){
		.object = &disk_part(o)->at,
		.key = op->key,
		.key_bytes = key_build(op->key, o),
		.cost = o->policy.cost,
		.buffer = o->resident ? s->base + store_object_offset(o) : NULL,
		.done = op_done,
	};
	dray_list_add(&s->tier->ops, &op->link);
	return op;
}

/* The object of a work that is to be done now; else the work has ended, or (-EAGAIN) waits for the next turn. */
static int work_check(struct store_object *o, unsigned *turn)
{
	if (disk_part(o)->work != WORK_WRITE)
		return 0;
	return o->state == OBJECT_LIVE && !store_of(o)->tier->down ? take_room(o, turn) :
								     -ECANCELED;
}

/*
 * The disk gets so much at a time as it does in a turn, so that what comes next does not wait for longer behind it; but each thread has
 * something to do.
 */
static bool has_room(const struct tier *t, const struct queue *q, uint64_t bytes)
{
	return q->in_flight < t->store->cfg.disk.threads || !bytes || q->bytes + bytes <= q->budget;
}

/* A rate that is configured allows the work now; else the timer looks at it again. */
static bool is_due(const struct queue *q, uint64_t bytes)
{
	if (!q->rate || !bytes || q->due_ns <= dray_now().ns)
		return true;
	sd_event_source_set_time(q->timer, (uint64_t)q->due_ns / 1000 + 1);
	sd_event_source_set_enabled(q->timer, SD_EVENT_ONESHOT);
	return false;
}

static void start(struct queue *q, uint64_t bytes)
{
	q->in_flight++;
	q->bytes += bytes;
	if (q->rate)
		q->due_ns = dray_max(q->due_ns, dray_now().ns) +
			    (int64_t)((double)bytes / (double)q->rate * DRAY_NS_PER_SEC);
}

/* The next work of the queue; under the lock. left: of the turn of the control thread. NULL: none, nothing is left, or no memory now. */
static struct op *next_of(struct store *s, struct queue *q, unsigned *left)
{
	unsigned most = s->tier->down && q == &s->tier->others ? REMOVALS_MAX : IN_FLIGHT_MAX;
	struct disk_part *p;

	while (*left && q->in_flight < most && (p = first_of(s->tier, q))) {
		struct store_object *o = object_of_part(p);
		uint64_t bytes = work_bytes(p);
		struct op *op = NULL;
		int r;

		if (!has_room(s->tier, q, bytes) || !is_due(q, bytes))
			return NULL;
		--*left;
		r = work_check(o, left);
		if (r == -EAGAIN)
			return NULL;
		if (r == 0) {
			op = op_new(s, q, o);
			if (!op && p->work == WORK_WRITE)
				budget_return(o);
			if (!op)
				return NULL;
		}
		dequeue(s->tier, p);
		if (op) {
			start(q, bytes);
			return op;
		}
		write_end(o, false);
	}
	return NULL;
}

/* Writes that wait end when the disk cannot be written: not behind removals, which wait for its return. */
static void end_writes(struct store *s, unsigned *turn)
{
	struct tier *t = s->tier;
	struct disk_part *p;

	pthread_mutex_lock(&s->lock);
	while (t->down && t->writes && *turn &&
	       (p = dray_list_first(&t->parts, struct disk_part, link))) {
		--*turn;
		dequeue(t, p);
		if (p->work == WORK_WRITE)
			write_end(object_of_part(p), false);
		else
			dray_list_add(&t->parts, &p->link);
	}
	if (t->down && t->writes)
		kick(t);
	pthread_mutex_unlock(&s->lock);
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

/* Evicts from disk what the full file system wants: of one name space in a turn. */
static void give(struct store *s, unsigned *turn)
{
	struct tier *t = s->tier;
	struct store_space *sp;

	pthread_mutex_lock(&s->lock);
	sp = t->give ? largest_on_disk(s) : NULL;
	if (!sp)
		t->give = 0;
	while (t->give && *turn) {
		uint64_t bytes = disk_evict(sp);

		if (!bytes)
			break;
		t->give -= dray_min(t->give, bytes);
		--*turn;
	}
	if (t->give)
		kick(t);
	pthread_mutex_unlock(&s->lock);
}

static struct op *next(struct store *s, unsigned *turn)
{
	struct op *op;

	pthread_mutex_lock(&s->lock);
	op = next_of(s, &s->tier->reads, turn);
	if (!op)
		op = next_of(s, &s->tier->others, turn);
	if (!*turn)
		kick(s->tier);
	pthread_mutex_unlock(&s->lock);
	return op;
}

/* A work may end within its start. */
static void pump(struct store *s)
{
	struct tier *t = s->tier;
	/* Works go on beside what is ended and evicted. */
	unsigned part = TURN_MAX / 2, turn = TURN_MAX - part;
	struct op *op;

	end_writes(s, &part);
	give(s, &part);
	turn += part;
	while (t->disk && (op = next(s, &turn))) {
		uint8_t work = disk_part(op->object)->work;

		if (work == WORK_WRITE)
			disk_write(t->disk, &op->request, op->object->policy.bytes);
		else if (work == WORK_READ)
			disk_read(t->disk, &op->request);
		else
			disk_remove(t->disk, &op->request);
	}
}

static void on_kick(struct dray_job *j)
{
	struct tier *t = dray_container_of(j, struct tier, kick);
	struct store *s = t->store;

	pthread_mutex_lock(&s->lock);
	t->kicked = false;
	pthread_mutex_unlock(&s->lock);
	pump(s);
}

static void crowded(void *arg, uint64_t bytes)
{
	struct store *s = arg;

	pthread_mutex_lock(&s->lock);
	/* The removals of what was evicted before, or by clients, may make room enough. */
	if (!s->tier->give && dray_list_empty(&s->tier->parts)) {
		s->tier->give = dray_max(bytes / GIVEN_PART, GIVEN_MIN);
		kick(s->tier);
	}
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
	kick(s->tier);
	pthread_mutex_unlock(&s->lock);
	if (s->cfg.disk.state_changed)
		s->cfg.disk.state_changed(s->cfg.disk.arg, state, why);
}

/* --- start and end ------------------------------------------------------------------------------------------------ */

static struct store_member *member_found(struct store *s, const struct name *n)
{
	char tenant[DISK_KEY_MAX];
	struct owner_account *a;
	struct store_member *m;

	memcpy(tenant, n->tenant.p, n->tenant.n);
	tenant[n->tenant.n] = '\0';
	a = s->cfg.disk.account(s->cfg.disk.arg, tenant, n->uid);
	if (!a)
		return NULL;
	m = store_member_get(s, a, n->space);
	s->cfg.release(a);
	return m;
}

/* An object that is on disk only. NULL: it is unwanted. */
static struct store_object *object_found(struct store_member *m, struct store_key key,
					 uint64_t bytes, float cost)
{
	struct store_space *sp = m->space;
	struct store_object *o;

	if (item_find(sp, key) || is_newer(sp, key) || !index_room(sp))
		return NULL;
	o = item_new(sp->store, key);
	if (!o)
		return NULL;
	o->member = m;
	o->state = OBJECT_LIVE;
	o->policy.bytes = bytes;
	o->policy.cost = cost;
	o->policy.tag = item_hash(sp, key);
	if (!budget_has_room(o)) {
		item_dealloc(sp->store, o);
		return NULL;
	}
	if (item_enter(o) < 0) {
		budget_return(o);
		item_dealloc(sp->store, o);
		return NULL;
	}
	m->refs++;
	index_add(sp, o);
	count_disk(o, true);
	return o;
}

static struct disk_object *found(void *arg, const void *key, uint32_t n, uint64_t bytes, float cost)
{
	struct store *s = arg;
	struct store_member *m;
	struct store_object *o;
	struct name name;

	if (!key_parse(key, n, &name))
		return NULL;
	pthread_mutex_lock(&s->lock);
	m = member_found(s, &name);
	o = m ? object_found(m, name.key, bytes, cost) : NULL;
	pthread_mutex_unlock(&s->lock);
	return o ? &disk_part(o)->at : NULL;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	pump(arg);
	return 0;
}

/* 0 or -errno. */
static int set_rate(struct tier *t, struct queue *q, uint64_t rate)
{
	int r = 0;

	if (rate)
		r = sd_event_add_time(t->store->cfg.disk.event, &q->timer, CLOCK_MONOTONIC, 0, 1,
				      on_timer, t->store);
	q->rate = rate;
	return r < 0 || !rate ? r : sd_event_source_set_enabled(q->timer, SD_EVENT_OFF);
}

int tier_new(struct store *s, struct dray_err *reterr)
{
	const struct store_disk_config *cfg = &s->cfg.disk;
	uint64_t segment = dray_max(cfg->bytes / 16, SEGMENT_MIN);
	struct tier *t;
	int r;

	if (!cfg->dir || !*cfg->dir)
		return 0;
	if (!cfg->bytes)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"store.disk_dir is set and limits.store_disk_bytes is 0; set the "
			"bytes that the disk tier may use");
	t = calloc(1, sizeof(*t));
	if (!t)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the disk tier");
	turns_init(&t->turns);
	dray_list_init(&t->parts);
	dray_list_init(&t->reads.spare.link);
	dray_list_init(&t->others.spare.link);
	dray_list_init(&t->ops);
	t->store = s;
	s->tier = t;
	if (set_rate(t, &t->reads, cfg->read_rate) < 0 ||
	    set_rate(t, &t->others, cfg->write_rate) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no timer for the rates of the disk tier");
	budgets_set(t);
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
			      .arg = s,
			      .fault = cfg->fault,
		      },
		      found, s, reterr);
	budgets_set(t);
	return r;
}

/* The work will not be done. */
static void drop(struct disk_part *p)
{
	struct store_object *o = object_of_part(p);

	if (p->work == WORK_REMOVE)
		item_forget(o);
	else
		item_put(o);
}

bool tier_free(struct store *s)
{
	struct tier *t = s->tier;
	struct disk_part *p;

	if (!t)
		return true;
	if (!disk_close(dray_take(t->disk)))
		return false;
	dray_list_for_each(&t->ops, op, struct op, link) {
		struct queue *q = queue_of(t, disk_part(op->object)->work);

		drop(disk_part(op->object));
		op_free(q, op);
	}
	while ((p = first_of(t, &t->reads)) || (p = first_of(t, &t->others))) {
		dequeue(t, p);
		drop(p);
	}
	sd_event_source_disable_unref(t->reads.timer);
	sd_event_source_disable_unref(t->others.timer);
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
