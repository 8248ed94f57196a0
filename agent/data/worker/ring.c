/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of a session's ring. schema/data.yaml has the layout and says which side writes each word.
 *
 * Wake-ups from client to agent: the client stores its tail, then loads agent_sleeping. The agent stores
 * agent_sleeping, then loads the tail. All four accesses are sequentially consistent, so at least one side sees the
 * other. The opposite direction works alike with cq_tail and client_sleeping, with a fence between the agent's store and
 * its load. tests/model/doorbell.pml models the protocol for a model checker, and says what each part is for;
 * tests/model/run_ring proves that each memory order below is needed, and that none is missing.
 *
 * The client can write to every word at any time. The agent copies entries before it checks them and keeps its own
 * indices private. A client index that claims more than the ring holds ends the session.
 *
 * One poll of a ring is a load from memory that a client shares. This is negligible for one ring, but polling hundreds of idle
 * rings costs more than all the work of a busy one. So a ring that was polled often enough without a submission, while the
 * worker had other work, rests: it stays announced ("agent sleeping" is set) and is not polled until its client's doorbell rings. A
 * completion ends the rest too, because a client that sees a completion usually submits again.
 *
 * So every ring is on its owner's list `polled`, or rests empty and announced, or its doorbell is about to ring:
 * the client clears "agent sleeping" before it rings. While the worker sleeps, the rings on the list are announced
 * as well.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/internal.h"
#include "lib/cleanup.h"

/* At most so many submissions are taken in one turn. */
#define TAKE_MAX (TURN_WORK / ENTRY_WORK)

/* This many polls cost about as much as a doorbell and its event. */
#define IDLE_POLLS_MAX 256
/* An announcement and its end cost this many polls: a store that other processors must see, and a cache miss. */
#define ANNOUNCE_POLLS 8

static _Atomic uint32_t *word(const struct ring *r, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(r->m->ring + offset);
}

/*
 * Store-load fence. The client has the same fence on its side: if it does not see a later store of ours, its earlier load has
 * seen everything stored before the fence. A second store would take the line from the client, which spins on it.
 */
static void fence(struct ring *r)
{
#ifdef __SANITIZE_THREAD__
	/* ThreadSanitizer does not model fences */
	atomic_store_explicit(word(r, DMSG_RING_CQ_TAIL), r->cq_tail, memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

void ring_awake(struct ring *r)
{
	if (!r->announced)
		return;
	r->announced = false;
	atomic_store_explicit(word(r, DMSG_RING_AGENT_SLEEPING), 0, memory_order_relaxed);
}

/* The ring is polled from now on. */
static void ring_wake(struct ring *r)
{
	r->idle_polls = 0;
	ring_awake(r);
	if (dray_list_empty(&r->polled_link))
		dray_list_add(&r->session->xs.owner->polled, &r->polled_link);
}

static void doorbell(struct loop_source *source, uint32_t events)
{
	struct ring *r = dray_container_of(source, struct ring, doorbell);

	/* edge-triggered and never read, because the client can change the flags of a shared eventfd */
	core_count(&r->session->worker->counters, DRAY_METRIC_DOORBELLS_RECEIVED_TOTAL, 1);
	ring_wake(r);
}

int ring_open(struct wsession *s, const struct ring_memory *m)
{
	struct ring *r;
	int ret;

	s->memory = m;
	if (!m->ring)
		return 0;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->m = m;
	r->session = s;
	dray_list_init(&r->polled_link);
	dray_list_init(&r->completed_link);
	ret = loop_add(&s->worker->core.loop, &r->doorbell, m->doorbell_fd, EPOLLIN, doorbell);
	if (ret < 0) {
		free(r);
		return ret;
	}
	s->ring = r;
	ring_wake(r);
	return 0;
}

void ring_close(struct wsession *s)
{
	if (!s->ring)
		return;
	loop_del(&s->worker->core.loop, &s->ring->doorbell);
	dray_list_del(&s->ring->polled_link);
	dray_list_del(&s->ring->completed_link);
	free(s->ring);
	s->ring = NULL;
}

/* Finds the operations and the notification of an entry. Returns 0 or an error code; a drain comes first. */
static inline uint32_t entry_read(const struct wsession *s, const struct dmsg_sqe *e,
				  uint8_t op[DMSG_OP_SIZE], struct xfer_request *r)
{
	if (s->worker->draining)
		return DRAY_E_DRAINING;
	/* a number over its limit is too_large wherever it points to */
	if (e->flags & DMSG_TRANSFER_FLAG_ARENA) {
		if (e->op_count > DMSG_OPS_MAX)
			return DRAY_E_TOO_LARGE;
		r->ops = arena_at(s, e->arena_offset, (uint64_t)e->op_count * DMSG_OP_SIZE);
		if (!r->ops)
			return DRAY_E_RANGE;
	} else if (e->op_count == 1) {
		dmsg_op_put(op, &(struct dmsg_op){ e->op_local, e->op_remote, e->op_length });
		r->ops = op;
		r->ops_ours = true;
	} else {
		return DRAY_E_INVALID;
	}
	if (e->flags & DMSG_TRANSFER_FLAG_NOTIFY) {
		if (e->notify_length > DMSG_NOTIFY_MAX)
			return DRAY_E_TOO_LARGE;
		r->notify = arena_at(s, e->notify_offset, e->notify_length);
		if (!r->notify)
			return DRAY_E_RANGE;
	}
	return 0;
}

static void submit(struct wsession *s, const struct dmsg_sqe *e)
{
	uint8_t op[DMSG_OP_SIZE];
	struct dray_err err;
	struct xfer_request r = {
		.spec = e->spec,
		.request_id = e->user_data,
		.n_ops = e->op_count,
		.notify_length = e->notify_length,
		.from_ring = true,
	};

	dray_err_init(&err);
	err.code = (int)entry_read(s, e, op, &r);
	if (!err.code)
		request_start(s, &r, &err);
	if (err.code)
		ring_complete(s, &(struct dmsg_cqe){ .user_data = e->user_data,
						     .status = (uint32_t)err.code });
}

static void break_invalid(struct wsession *s, uint32_t tail)
{
	const struct ring *r = s->ring;
	struct dray_err err = DRAY_ERR_NULL;

	dray_err_set(
		&err, -EPROTO, DRAY_E_PROTOCOL,
		"the ring's indices are impossible: submission tail %u of %u entries from %u, completion head %u "
		"behind %u",
		tail, r->m->sq_entries, r->sq_head, r->cq_head, r->cq_tail);
	wsession_break(s, &err);
}

/* Completion entries that are neither filled nor reserved. Loads the client's index only if the known ones do not suffice. */
static uint32_t cq_room(struct ring *r, uint32_t wanted)
{
	uint32_t used = r->cq_tail - r->cq_head + r->outstanding;

	if (used + wanted > r->m->cq_entries)
		/* acquire: the client has copied the entries that it returns */
		r->cq_head = atomic_load_explicit(word(r, DMSG_RING_CQ_HEAD), memory_order_acquire);
	return r->m->cq_entries - r->outstanding - (r->cq_tail - r->cq_head);
}

/* The client's index claims more than was completed, or goes back: entries that it had returned are reserved again. */
static bool cq_head_invalid(const struct ring *r)
{
	return r->cq_tail - r->cq_head > r->m->cq_entries - r->outstanding;
}

/* Takes submissions while the owner may work. True if there were any, and room for their completions. */
static bool ring_poll(struct wsession *s)
{
	struct ring *r = s->ring;
	const struct ring_memory *m = r->m;
	uint32_t tail, room;
	bool took;

	if (s->dead)
		return false;
	/* acquire: the entries up to tail are complete */
	tail = atomic_load_explicit(word(r, DMSG_RING_SQ_TAIL), memory_order_acquire);
	if (tail == r->sq_head) {
		r->idle_polls += s->worker->busy;
		return false;
	}
	r->idle_polls = 0;
	room = cq_room(r, dray_min(tail - r->sq_head, (uint32_t)TAKE_MAX));
	if (tail - r->sq_head > m->sq_entries || cq_head_invalid(r)) {
		break_invalid(s, tail);
		return false;
	}
	took = room;
	s->worker->core.moved_ns = s->worker->core.now_ns;
	/* no free completion entry: the submission stays until the client has reaped some */
	/* a long list is read on with the session's socket, and a batch of the store begun */
	while (r->sq_head != tail && room && !s->xs.read && !s->begins &&
	       owner_may_work(s->xs.owner)) {
		uint8_t copy[DMSG_SQE_SIZE];
		struct dmsg_sqe e;

		memcpy(copy,
		       m->ring + m->sq_offset +
			       (size_t)(r->sq_head & (m->sq_entries - 1)) * DMSG_SQE_SIZE,
		       sizeof(copy));
		dmsg_sqe_get(copy, &e);
		r->sq_head++;
		r->outstanding++;
		room--;
		owner_charge(s->xs.owner, ENTRY_WORK);
		/*
		 * release: the entry was read, so the client may fill it again. This store comes before the completion, because
		 * a client that sees the completion expects a free entry.
		 */
		atomic_store_explicit(word(r, DMSG_RING_SQ_HEAD), r->sq_head, memory_order_release);
		if (e.spec.flags & DMSG_ENTRY_FLAG_MESSAGE)
			store_entry(s, copy);
		else
			submit(s, &e);
		if (s->n_cancels && !s->begins)
			cancels_taken(s, e.user_data);
		if (s->dead)
			return false;
	}
	return took;
}

bool ring_unread(struct wsession *s, uint32_t *ret_tail)
{
	struct ring *r = s->ring;

	if (!r)
		return false;
	/* relaxed: no entry is read here, and the client's message came after its submissions */
	*ret_tail = atomic_load_explicit(word(r, DMSG_RING_SQ_TAIL), memory_order_relaxed);
	if (*ret_tail == r->sq_head)
		return false;
	ring_wake(r);
	return true;
}

void ring_complete(struct wsession *s, const struct dmsg_cqe *cqe)
{
	struct ring *r = s->ring;
	const struct ring_memory *m = r->m;

	if (dray_list_empty(&r->completed_link)) {
		dray_list_add(&s->worker->completed, &r->completed_link);
		/* before the client sees the entry, so that its next submission needs no doorbell */
		ring_wake(r);
	}
	dmsg_cqe_put(m->ring + m->cq_offset +
			     (size_t)(r->cq_tail & (m->cq_entries - 1)) * DMSG_CQE_SIZE,
		     cqe);
	r->cq_tail++;
	r->outstanding--;
	/* release: the entry is complete */
	atomic_store_explicit(word(r, DMSG_RING_CQ_TAIL), r->cq_tail, memory_order_release);
}

bool ring_announce(struct ring *r)
{
	uint32_t tail;

	if (r->session->dead)
		return false;
	r->announced = true;
	atomic_store_explicit(word(r, DMSG_RING_AGENT_SLEEPING), 1, memory_order_seq_cst);
	tail = atomic_load_explicit(word(r, DMSG_RING_SQ_TAIL), memory_order_seq_cst);
	if (tail == r->sq_head)
		return false;
	r->idle_polls = 0;
	if (cq_room(r, 1) || cq_head_invalid(r))
		return true;
	/* no completion entry is free, and reaping rings no doorbell: the worker must look again */
	r->session->worker->stalled = true;
	return false;
}

/* True if the ring rests: it is announced and still empty. */
static bool rest(struct ring *r)
{
	ring_announce(r);
	/* a new submission resets the count */
	if (r->idle_polls > IDLE_POLLS_MAX)
		return true;
	ring_awake(r);
	return false;
}

bool rings_poll(struct xfer_owner *o)
{
	bool did = false;

	dray_list_for_each(&o->polled, r, struct ring, polled_link) {
		if (!owner_may_work(o)) {
			/* the first one of the next turn */
			dray_list_rotate(&o->polled, &r->polled_link);
			return true;
		}
		if (ring_poll(r->session))
			did = true;
		else if (r->idle_polls > IDLE_POLLS_MAX && rest(r))
			dray_list_del(&r->polled_link);
	}
	return did;
}

bool rings_polled(const struct worker *w)
{
	dray_list_for_each(&w->core.owners, o, const struct xfer_owner, link)
		if (!dray_list_empty(&o->polled))
			return true;
	return false;
}

void rings_flush(struct worker *w)
{
	dray_list_for_each(&w->completed, r, struct ring, completed_link) {
		dray_list_del(&r->completed_link);
		fence(r);
		/* relaxed: the fence orders it behind cq_tail, and nothing that is read later depends on it */
		if (!atomic_load_explicit(word(r, DMSG_RING_CLIENT_SLEEPING), memory_order_relaxed))
			continue;
		dray_wake(r->m->completion_fd);
		core_count(&w->counters, DRAY_METRIC_DOORBELLS_SENT_TOTAL, 1);
	}
}

bool rings_announce(struct worker *w)
{
	bool work = false;

	dray_list_for_each(&w->core.owners, o, struct xfer_owner, link)
		dray_list_for_each(&o->polled, r, struct ring, polled_link) {
			w->announced = true;
			if (ring_announce(r))
				work = true;
			else if (r->idle_polls)
				r->idle_polls += ANNOUNCE_POLLS;
		}
	return work;
}

void rings_awake(struct worker *w)
{
	if (!w->announced)
		return;
	w->announced = false;
	dray_list_for_each(&w->core.owners, o, struct xfer_owner, link)
		dray_list_for_each(&o->polled, r, struct ring, polled_link) {
			if (r->announced && r->idle_polls > IDLE_POLLS_MAX)
				dray_list_del(&r->polled_link);
			else
				ring_awake(r);
		}
}
