/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works of the disk tier. Workers queue objects under the store's lock, and wake the control thread, which gives them to disk/ and
 * settles them when disk/ is done. An object has one work at a time, and is held meanwhile, apart from a removal: that of an object
 * which is in no index any more.
 *
 * What is written and not taken by the disk in time is bounded, so that a slow disk neither fills the memory nor delays a PUT:
 * an object beyond the share of its owner is not written now. It gets another chance before it is evicted.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/store/tier.h"
#include "lib/time.h"

/* Of reads, which have a turn's worth of bytes beside (turns.h), and of the others, that disk/ has at a time. */
#define IN_FLIGHT_MAX 64
/* The same of removals while the disk cannot be written: they wait for its return. */
#define REMOVALS_MAX 1024
/* Works that a turn of the control thread gives to disk/ or ends, and objects that it evicts from disk. */
#define TURN_MAX 256
/* Bytes a second of a disk whose rates are not known yet. */
#define RATE_UNKNOWN (1ull << 30)

static struct queue *queue_of(struct tier *t, uint8_t work)
{
	return work == WORK_READ ? &t->reads : &t->others;
}

/* --- queues ----------------------------------------------------------------------------------------------- */

static void on_kick(struct dray_job *j);

void works_kick(struct tier *t)
{
	if (!t->kicked)
		dray_jobs_finish(t->store->jobs, &t->kick, on_kick);
	t->kicked = true;
}

/* That a work moves; a removal moves none. */
static uint64_t work_bytes(struct disk_part *p)
{
	return p->work == WORK_READ || p->work == WORK_WRITE ?
		       disk_blocks(object_bytes(object_of_part(p))) :
		       0;
}

void work_remove(struct store_object *o, enum disk_work work)
{
	struct tier *t = store_of(o)->tier;

	disk_part(o)->work = work;
	dray_list_add(&t->removals, &disk_part(o)->link);
	t->removals_queued++;
	works_kick(t);
}

static struct disk_sharer *sharer_of(const struct tier *t, const struct queue *q,
				     struct store_member *m)
{
	return q == &t->reads ? &m->reads : &m->writes;
}

static uint64_t *progress_of(const struct tier *t, const struct queue *q,
			     const struct store_member *m)
{
	return q == &t->reads ? &m->account->store_read : &m->account->store_written;
}

/*
 * Owners share the disk by bytes: the next object is read or written for the owner that has had the least. An owner that comes back has
 * not saved up what it has not used meanwhile.
 */
static void sharer_add(struct tier *t, struct queue *q, struct store_member *m)
{
	struct disk_sharer *s = sharer_of(t, q, m);
	uint64_t *progress = progress_of(t, q, m);

	if (!dray_list_empty(&s->link))
		return;
	dray_list_add(&q->sharers, &s->link);
	m->refs++;
	*progress = dray_max(*progress, q->served);
}

/* It is the first one of the list from then on. NULL: there is none. */
static struct store_member *next_sharer(struct tier *t, struct queue *q)
{
	struct disk_sharer *next = NULL;

	dray_list_for_each(&q->sharers, s, struct disk_sharer, link)
		if (!next || *progress_of(t, q, s->member) < *progress_of(t, q, next->member))
			next = s;
	if (!next)
		return NULL;
	dray_list_del(&next->link);
	dray_list_add_front(&q->sharers, &next->link);
	return next->member;
}

/* The work goes to the disk now for the first of the list. An owner may have several name spaces, which take turns. */
static void sharer_take(struct tier *t, struct queue *q, struct disk_part *p)
{
	struct disk_sharer *s = dray_container_of(q->sharers.next, struct disk_sharer, link);
	struct store_member *m = s->member;
	uint64_t *progress = progress_of(t, q, m);
	bool more;

	dray_list_del(&s->link);
	if (q == &t->reads)
		turns_take(&m->to_read, &p->link, work_bytes(p));
	else
		dray_list_del(&p->link);
	more = q == &t->reads ? m->to_read.n > 0 : !dray_list_empty(&m->to_write);
	q->served = *progress;
	*progress += work_bytes(p);
	if (more)
		dray_list_add(&q->sharers, &s->link);
	else if (!--m->refs)
		t->unused = true;
}

/* The first one of its queue. */
static void dequeue(struct tier *t, struct disk_part *p)
{
	if (p->work == WORK_READ || p->work == WORK_WRITE) {
		sharer_take(t, queue_of(t, p->work), p);
		return;
	}
	dray_list_del(&p->link);
	t->removals_taken++;
}

static struct disk_part *first_read(struct tier *t)
{
	struct store_member *m = next_sharer(t, &t->reads);

	return m ? dray_container_of(turns_first(&m->to_read), struct disk_part, link) : NULL;
}

static struct disk_part *first_write(struct tier *t)
{
	struct store_member *m = next_sharer(t, &t->others);

	return m ? dray_list_first(&m->to_write, struct disk_part, link) : NULL;
}

static struct disk_part *first_removal(struct tier *t)
{
	return dray_list_first(&t->removals, struct disk_part, link);
}

/*
 * A write comes behind the removals that were queued before it: an object of the same key, perhaps of another owner, must not outlast the
 * new one. What disk/ has to write goes in order, so that it gets another write when threads have taken those before.
 */
static struct disk_part *first_of_others(struct tier *t)
{
	struct disk_part *removal = first_removal(t);
	struct disk_part *write = disk_may_write(t->disk) ? first_write(t) : NULL;

	return !write || (int32_t)(write->after - t->removals_taken) > 0 ? removal : write;
}

/* NULL: there is none that may go. */
static struct disk_part *first_of(struct tier *t, const struct queue *q)
{
	return q == &t->reads ? first_read(t) : first_of_others(t);
}

/* A write begins to wait for the disk, or has ended. */
static void count_pending(struct store_object *o, uint64_t bytes)
{
	store_of(o)->tier->pending += bytes;
	o->member->account->store_writing += bytes;
}

/* The owner may have so many bytes wait for the disk: half of what the others leave, or one object. */
static bool may_wait(const struct store_object *o, uint64_t bytes)
{
	const struct store *s = store_of(o);
	uint64_t own = o->member->account->store_writing;

	return !own || own + bytes <= budget_share(s->cfg.bytes / 2, s->tier->pending - own, 0);
}

bool work_write(struct store_object *o)
{
	struct store *s = store_of(o);
	struct tier *t = s->tier;
	uint64_t bytes = disk_blocks(object_bytes(o));

	if (t->down || !may_wait(o, bytes))
		return false;
	count_pending(o, bytes);
	disk_part(o)->vain = 0;
	disk_part(o)->work = WORK_WRITE;
	disk_part(o)->after = t->removals_queued;
	item_hold(o);
	sharer_add(t, &t->others, o->member);
	dray_list_add(&o->member->to_write, &disk_part(o)->link);
	works_kick(t);
	return true;
}

void work_read(struct store_object *o, struct turns_share *share)
{
	struct store *s = store_of(o);
	struct tier *t = s->tier;

	disk_part(o)->work = WORK_READ;
	if (!share->member)
		share->member = o->member;
	sharer_add(t, &t->reads, share->member);
	if (turns_add(&share->member->to_read, share, &disk_part(o)->link,
		      disk_blocks(object_bytes(o)), t->turn_bytes)) {
		s->totals.disk_turns++;
		s->totals.disk_batches += share->n == 1;
	}
	works_kick(t);
}

/* --- the ends of works: under the lock ------------------------------------------------------------------------ */

static void write_end(struct store_object *o, bool written)
{
	struct store *s = store_of(o);

	count_pending(o, 0 - disk_blocks(object_bytes(o)));
	disk_part(o)->work = WORK_NONE;
	if (written)
		tier_count(o, true);
	else if (o->state == OBJECT_LIVE)
		s->totals.disk_skipped++;
	if (!disk_part(o)->cleaned) {
		item_put(o);
		return;
	}
	disk_part(o)->cleaned = false;
	item_return(o);
}

static void tell_waiters(struct store_object *o, enum dmsg_store_status status)
{
	int64_t now_ns = dray_now().ns;
	struct store_get *g;

	while ((g = dray_list_pop(&disk_part(o)->waiters, struct store_get, link))) {
		g->status = status;
		g->wait->disk_ns = now_ns;
		__atomic_store_n(&g->here, 1, __ATOMIC_RELEASE);
		wait_less(g->wait);
	}
}

static void read_end(struct store_object *o, enum disk_result result)
{
	o->loading = false;
	o->member->account->store_loading -= room(object_bytes(o));
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

void works_set_turn(struct tier *t)
{
	uint64_t rate = t->disk ? disk_info(t->disk).read_rate : t->reads.rate;

	t->turn_bytes =
		dray_max((rate ? rate : RATE_UNKNOWN) / 1000 * DISK_TURN_MS, (uint64_t)DISK_BLOCK);
}

static void op_done(struct disk_request *r)
{
	struct op *op = dray_container_of(r, struct op, request);
	struct store_object *o = op->object;
	struct store *s = store_of(o);
	uint8_t work = disk_part(o)->work;
	struct queue *q = queue_of(s->tier, work);
	bool last = false;

	pthread_mutex_lock(&s->lock);
	q->in_flight--;
	q->bytes -= op->bytes;
	works_set_turn(s->tier);
	if (work == WORK_WRITE) {
		if (r->result != DISK_OK)
			tier_return_room(o);
		write_end(o, r->result == DISK_OK);
	} else if (work == WORK_READ) {
		read_end(o, r->result);
	} else if (work == WORK_REPLACE) {
		replace_end(o);
	} else {
		last = o->member->refs == 1;
		item_forget(o);
	}
	op_free(q, op);
	works_kick(s->tier);
	pthread_mutex_unlock(&s->lock);
	/* its session may have ended long ago */
	if (last)
		store_sweep(s);
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
		.key_bytes = tier_name(op->key, o),
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
	return o->state == OBJECT_LIVE && !store_of(o)->tier->down ? tier_take_room(o, turn) :
								     -ECANCELED;
}

/*
 * The disk gets so many reads at a time as it does in a turn, so that what comes next does not wait for longer behind them; but each
 * thread has something to do. Writes have no such bound: they are in flight until they are durable, so that the rate of a disk whose
 * commits take longer than a turn would be that of the bound itself, which would sink with each measurement.
 */
static bool has_room(const struct tier *t, const struct queue *q, uint64_t bytes)
{
	return q == &t->others || q->in_flight < t->store->cfg.disk.threads ||
	       q->bytes + bytes <= t->turn_bytes;
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
				tier_return_room(o);
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

/* Writes that wait end when the disk cannot be written. */
static void end_writes(struct store *s, unsigned *turn)
{
	struct tier *t = s->tier;
	struct disk_part *p;

	pthread_mutex_lock(&s->lock);
	while (t->down && *turn && (p = first_write(t))) {
		--*turn;
		dequeue(t, p);
		write_end(object_of_part(p), false);
	}
	if (t->down && !dray_list_empty(&t->others.sharers))
		works_kick(t);
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
		works_kick(s->tier);
	pthread_mutex_unlock(&s->lock);
	return op;
}

/* A work may end within its start. */
static void pump(struct store *s)
{
	struct tier *t = s->tier;
	/* Works go on beside what is ended and evicted. */
	unsigned part = TURN_MAX / 2, turn = TURN_MAX - part;
	bool unused;
	struct op *op;

	end_writes(s, &part);
	tier_give(s, &part);
	turn += part;
	while (t->disk && (op = next(s, &turn))) {
		uint8_t work = disk_part(op->object)->work;

		if (work == WORK_WRITE)
			disk_write(t->disk, &op->request, object_bytes(op->object));
		else if (work == WORK_READ)
			disk_read(t->disk, &op->request);
		else
			disk_remove(t->disk, &op->request);
	}
	pthread_mutex_lock(&s->lock);
	unused = t->unused;
	t->unused = false;
	pthread_mutex_unlock(&s->lock);
	if (unused)
		store_sweep(s);
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

/* --- start and end ------------------------------------------------------------------------------------------------ */

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

int works_init(struct tier *t)
{
	const struct store_disk_config *cfg = &t->store->cfg.disk;
	int r;

	dray_list_init(&t->reads.sharers);
	dray_list_init(&t->others.sharers);
	dray_list_init(&t->removals);
	dray_list_init(&t->reads.spare.link);
	dray_list_init(&t->others.spare.link);
	dray_list_init(&t->ops);
	r = set_rate(t, &t->reads, cfg->read_rate);
	if (r == 0)
		r = set_rate(t, &t->others, cfg->write_rate);
	works_set_turn(t);
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

void works_deinit(struct tier *t)
{
	struct disk_part *p;

	dray_list_for_each(&t->ops, op, struct op, link) {
		struct queue *q = queue_of(t, disk_part(op->object)->work);

		drop(disk_part(op->object));
		op_free(q, op);
	}
	while ((p = first_read(t)) || (p = first_write(t)) || (p = first_removal(t))) {
		dequeue(t, p);
		drop(p);
	}
	sd_event_source_disable_unref(t->reads.timer);
	sd_event_source_disable_unref(t->others.timer);
}
