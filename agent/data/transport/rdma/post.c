/* SPDX-License-Identifier: Apache-2.0 */
/* From slices to work requests on queue pairs. */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/transport/rdma/rdma.h"
#include "lib/fault.h"

/* Slices with buffers, here or at the peer, that wait for a queue pair while others with buffers go on. */
#define BUFFERS_WAITING 4u

void rdma_channel_unpark(struct rdma_channel *ch)
{
	if (dray_list_empty(&ch->parked))
		return;
	/* what their sessions have besides may be posted now, and perhaps no completion comes */
	rdma_pull_later(ch);
	/* they are the oldest ones */
	dray_list_splice(&ch->parked, &ch->ch.retry);
	dray_list_splice(&ch->ch.retry, &ch->parked);
	sched_unpark(ch->peer->rdma->c, &ch->parked_flows);
}

int rdma_queue_new(struct rdma_peer *peer, const struct rdma_qp *qp)
{
	struct rdma_channel *ch = &peer->channels[qp->class];
	struct rdma_queue *p = calloc(1, sizeof(*p));
	uint32_t entries = 1;

	if (!p)
		return -ENOMEM;
	while (entries < qp->depth)
		entries *= 2;
	p->q = calloc(entries, sizeof(*p->q));
	if (!p->q || dray_handles_add(&peer->rdma->queues, p, &p->handle) < 0) {
		free(p->q);
		free(p);
		return -ENOMEM;
	}
	p->qp = *qp;
	p->rdma = peer->rdma;
	p->peer = peer;
	p->ch = ch;
	p->mask = entries - 1;
	dray_list_add(&ch->queues, &p->link);
	rdma_count(qp, queue_pairs, 1);
	rdma_channel_unpark(ch);
	rdma_pull_later(ch);
	return 0;
}

void rdma_queue_free(struct rdma_queue *p)
{
	dray_handles_del(&p->rdma->queues, p->handle);
	dray_list_del(&p->link);
	free(p->q);
	free(p);
}

struct slice *rdma_partial_take(struct rdma_queue *p)
{
	struct slice *s = p->partial;

	p->partial = NULL;
	p->keys[0] = rail_keys_unref(p->keys[0]);
	p->keys[1] = rail_keys_unref(p->keys[1]);
	p->limit_ns = 0;
	return s;
}

/* Makes an entry of the requests since the last one. */
static void entry_close(struct rdma_list *l, struct slice *s)
{
	struct rdma_queue *p = l->queue;

	*rdma_entry_at(p, p->tail++) = (struct rdma_entry){
		.slice = s,
		.keys = { rail_keys_ref(p->keys[0]), rail_keys_ref(p->keys[1]) },
		.bytes = l->bytes_open,
		.posted_ns = p->rdma->c->now_ns,
		.limit_ns = p->limit_ns,
		.requests = l->n_open,
	};
	if (p->limit_ns)
		rdma_timer(p->rdma, p->limit_ns);
	l->n_open = 0;
	l->bytes_open = 0;
}

/* Posts the list. */
static void list_post(struct rdma_list *l)
{
	struct rdma_queue *p = l->queue;
	struct rdma *r = p->rdma;
	struct data_counters *counters = r->c->counters;
	struct ibv_send_wr *bad;

	if (!l->n)
		return;
	if (l->n_open)
		entry_close(l, NULL);
	rdma_entry_at(p, p->tail - 1)->signalled = true;
	l->wr[l->n - 1].send_flags |= IBV_SEND_SIGNALED;
	l->wr[l->n - 1].next = NULL;
	p->used += l->n;
	p->in_flight += l->bytes;
	r->rails[p->qp.path.rail].in_flight += l->bytes;
	p->signalled++;
	r->rails[p->qp.path.rail].signalled++;
	core_count(counters, DRAY_METRIC_RDMA_WORK_REQUESTS_TOTAL, l->n);
	core_count(counters, DRAY_METRIC_RDMA_POSTS_TOTAL, 1);
	core_count(counters, DRAY_METRIC_RDMA_INLINED_TOTAL, l->inlines);
	rdma_timer(r, r->c->now_ns + r->c->cfg.slice_timeout_ns);
	p->reading = l->reads && p->qp.soft_roce;
	l->n = 0;
	l->inlines = 0;
	l->bytes = 0;
	l->reads = false;
	if (ibv_post_send(p->qp.qp, l->wr, &bad))
		rdma_queue_lose(p, RDMA_LOSS_POST);
}

static struct ibv_send_wr *request_add(struct rdma_list *l, enum ibv_wr_opcode opcode,
				       uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr *wr = &l->wr[l->n];

	*wr = (struct ibv_send_wr){
		.wr_id = l->queue->handle,
		.next = wr + 1,
		.sg_list = l->sge[l->n],
		.opcode = opcode,
		.wr.rdma = { remote, rkey },
	};
	l->n++;
	l->n_open++;
	return wr;
}

/* Gathers up to `want` further bytes of the slice. Returns their number. */
static uint64_t gather(struct rdma_queue *p, struct ibv_send_wr *wr, uint64_t want)
{
	struct iovec staged;
	unsigned n_memory;
	const struct iovec *memory = slice_memory(p->partial, &staged, &n_memory);
	struct rdma_cursor *at = &p->at;
	uint32_t max = dray_min(p->qp.sges, RDMA_SGES);
	struct ibv_sge *sge = wr->sg_list;
	uint64_t got = 0;
	uint32_t n = 0;

	while (got < want) {
		uint64_t base = (uintptr_t)memory[at->li].iov_base + at->lo;
		const struct rail_key *k = rail_keys_find(p->keys[0], p->qp.path.rail, base);
		uint64_t bytes = dray_min(memory[at->li].iov_len - at->lo, want - got);

		bytes = dray_min(bytes, k->length - (base - k->base));
		if (n && sge[n - 1].lkey == k->key && sge[n - 1].addr + sge[n - 1].length == base)
			sge[n - 1].length += (uint32_t)bytes;
		else if (n < max)
			sge[n++] = (struct ibv_sge){ base, (uint32_t)bytes, k->key };
		else
			break;
		got += bytes;
		at->lo += bytes;
		if (at->lo == memory[at->li].iov_len) {
			at->li++;
			at->lo = 0;
		}
	}
	wr->num_sge = (int)n;
	return got;
}

/*
 * Copies the bytes into the request. If the client has taken the memory away, the request stays as it is:
 * the device holds the former pages.
 */
static void try_inline(struct rdma_list *l, struct ibv_send_wr *wr, uint64_t bytes)
{
	uint8_t *to = l->inlined[wr - l->wr];
	uint64_t at = 0;

	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];

		if (fault_copy(to + at, (const void *)(uintptr_t)g->addr, g->length) < 0)
			return;
		at += g->length;
	}
	wr->sg_list[0] = (struct ibv_sge){ (uintptr_t)to, (uint32_t)bytes, 0 };
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_INLINE;
	l->inlines++;
}

/* Segments of the slice at the peer. */
static const struct pmsg_seg *segs(const struct rdma_queue *p)
{
	return p->partial->window ? &p->windowed : p->partial->remote;
}

static uint32_t n_segs(const struct slice *s)
{
	return s->window ? 1 : s->n_remote;
}

/* Adds the next work request of the slice. */
static void slice_request(struct rdma_queue *p, struct rdma_list *l)
{
	const struct slice *s = p->partial;
	const struct region_view *local = object_region(s->xfer->local);
	bool write = s->xfer->direction == DMSG_DIRECTION_WRITE;
	const struct pmsg_seg *seg = segs(p) + p->at.ri;
	uint64_t offset = seg->offset + p->at.ro;
	const struct rail_key *k = rail_keys_find(p->keys[1], p->qp.path.to_rail, offset);
	uint64_t bytes = dray_min(seg->length - p->at.ro, k->length - (offset - k->offset));
	struct ibv_send_wr *wr;

	bytes = dray_min(bytes, write ? p->qp.write_max : p->qp.read_max);
	wr = request_add(l, write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
			 k->base + (offset - k->offset), k->key);
	bytes = gather(p, wr, bytes);
	if (write && bytes <= dray_min(p->qp.inline_bytes, RDMA_INLINE) &&
	    (s->staged || local->memory == REGION_HOST))
		try_inline(l, wr, bytes);
	p->at.ro += bytes;
	if (p->at.ro == seg->length) {
		p->at.ri++;
		p->at.ro = 0;
	}
	p->at.begun = true;
	l->reads |= !write;
	l->bytes += bytes;
	l->bytes_open += bytes;
}

/*
 * Adds a read that flushes the slice's bytes. A notification takes another way than the bytes, and a
 * completion only says that the peer's device has them; a read on the same queue pair is answered after
 * they are in memory. It reads the byte that was written last: only a read of the same GPU pushes writes
 * into GPU memory. Without read access it reads a word of the peer, which is enough for host memory. Bytes
 * for a window must be in memory before the owner copies them. For a device with unreliable completions,
 * the answer of a read confirms the reads before it. An engine tells no word for that, but all that it has may be read.
 */
static void slice_flush(struct rdma_queue *p, struct rdma_list *l)
{
	const struct slice *s = p->partial;
	const struct pmsg_seg *seg = segs(p) + n_segs(s) - 1;
	uint64_t last = seg->offset + seg->length - 1;
	const struct rail_key *k = rail_keys_find(p->keys[1], p->qp.path.to_rail, last);
	bool bytes = p->peer->engine ||
		     (s->xfer->direction == DMSG_DIRECTION_WRITE &&
		      (s->window || s->xfer->remote->view->access & DMSG_ACCESS_READ));
	struct ibv_send_wr *wr = request_add(
		l, IBV_WR_RDMA_READ, bytes ? k->base + (last - k->offset) : p->qp.flush_remote,
		bytes ? k->key : p->qp.flush_rkey);

	wr->sg_list[0] = (struct ibv_sge){ p->qp.flush_local, bytes ? 1 : 8, p->qp.flush_lkey };
	wr->num_sge = 1;
	p->at.flushed = true;
}

static bool wants_flush(const struct rdma_queue *p, const struct slice *s)
{
	return s->xfer->direction == DMSG_DIRECTION_WRITE ? s->xfer->notify || s->window :
							    p->qp.soft_roce;
}

/*
 * Requests that the queue pair takes now. A list begins only if there is room for a whole one: a queue that
 * is always full would otherwise get short lists, each with its doorbell and completion.
 */
static uint32_t room(const struct rdma_queue *p, const struct rdma_list *l)
{
	uint32_t open = l->queue == p ? l->n : 0;
	uint32_t left = p->qp.depth - p->used - open;

	if (p->lost || p->reading || (!open && left < dray_min(RDMA_LIST, (p->qp.depth + 1) / 2)))
		return 0;
	return left;
}

/* Posts the partial slice as far as there is room. */
static void slice_post(struct rdma_queue *p, struct rdma_list *l)
{
	const struct slice *s = p->partial;
	bool flush = wants_flush(p, s);

	if (l->queue != p) {
		if (l->queue)
			list_post(l);
		l->queue = p;
	}
	while (p->at.ri < n_segs(s) || (flush && !p->at.flushed)) {
		if (l->n == RDMA_LIST)
			list_post(l);
		if (!room(p, l))
			break;
		if (p->at.ri < n_segs(s))
			slice_request(p, l);
		else
			slice_flush(p, l);
	}
	if (p->at.ri < n_segs(s) || (flush && !p->at.flushed)) {
		list_post(l);
		return;
	}
	s->xfer->rails |= 1ull << p->qp.path.rail;
	entry_close(l, p->partial);
	rdma_partial_take(p);
	/* a completion with an error names the list: one slice in each tells which an engine has refused */
	if (p->peer->engine)
		list_post(l);
}

/* Keys of the memory that the slice is sent from or received into. */
static struct rail_keys *local_keys(const struct rdma_queue *p, const struct slice *s)
{
	if (s->staged)
		return p->rdma->staging;
	return p->peer->engine ? s->xfer->local->engine_keys : s->xfer->local->keys;
}

/* Keys of the memory at the peer. */
static struct rail_keys *remote_keys(const struct slice *s)
{
	return s->window ? s->window->window->keys : s->xfer->remote->keys;
}

static void slice_begin(struct rdma_queue *p, struct slice *s)
{
	struct core *c = p->rdma->c;

	if (s->retried) {
		core_count(c->counters, DRAY_METRIC_SLICES_RESENT_TOTAL, 1);
		rdma_count(&p->qp, retries, 1);
	}
	s->posted_ns = c->now_ns;
	p->partial = s;
	p->at = (struct rdma_cursor){ 0 };
	p->keys[0] = rail_keys_ref(local_keys(p, s));
	p->keys[1] = rail_keys_ref(remote_keys(s));
	if (s->window)
		p->windowed = (struct pmsg_seg){ s->window->offset, s->bytes };
}

/* It takes another slice now, and none waits for it. */
static bool has_room(const struct rdma_queue *p, const struct rdma_list *l)
{
	uint64_t max = RDMA_QUEUE_SLICES * p->rdma->c->cfg.slice_size;
	bool mine = l->queue == p;

	return !p->awaited && !p->partial && p->in_flight + (mine ? l->bytes : 0) < max &&
	       room(p, l);
}

/* Its rails have registered the memory on both sides. */
static bool has_both(const struct rdma_queue *p, const struct rail_keys *local,
		     const struct rail_keys *remote)
{
	return rail_keys_have(local, p->qp.path.rail) && rail_keys_have(remote, p->qp.path.to_rail);
}

static bool suits(const struct rdma_queue *p, const struct slice *s)
{
	return has_both(p, local_keys(p, s), remote_keys(s));
}

bool rdma_has_way(const struct stage_channel *p, const struct slice *s)
{
	const struct rdma_channel *ch = p->staged.owner;
	const struct rdma_window *w = ch->peer->window;
	unsigned route = rdma_route(ch, s->xfer);
	const struct rail_keys *local = route & RDMA_ROUTE_STAGED ? ch->peer->rdma->staging :
								    s->xfer->local->keys;
	const struct rail_keys *remote = s->xfer->remote->keys;

	if (route & RDMA_ROUTE_WINDOWED)
		remote = w ? w->keys : NULL;
	dray_list_for_each(&ch->queues, it, struct rdma_queue, link)
		if (has_both(it, local, remote))
			return true;
	return false;
}

void rdma_slice_restart(struct rdma_channel *ch, struct slice *s)
{
	bool windowed = rdma_route(ch, s->xfer) & RDMA_ROUTE_WINDOWED;
	struct stage_channel *p = windowed ? &ch->win : &ch->ch;
	bool staged = s->staged != NULL;

	slice_release_buffers(ch->peer->rdma->c, s);
	dray_list_add(staged ? &p->unstaged : &p->retry, &s->link);
}

static void return_from(struct rdma_channel *ch, struct dray_list *waiting)
{
	dray_list_for_each(waiting, s, struct slice, link) {
		if ((!s->staged && !s->window) || rdma_has_way(&ch->ch, s))
			continue;
		dray_list_del(&s->link);
		rdma_slice_restart(ch, s);
	}
}

/*
 * Others may need the buffers of slices that no queue pair suits. Few slices are ready. Those that are about to move take their buffers to the
 * next transport.
 */
static void buffers_return(struct rdma_channel *ch)
{
	if (ch->moving)
		return;
	return_from(ch, &ch->ch.ready);
	return_from(ch, &ch->win.ready);
	if (ch->bereft)
		return_from(ch, &ch->ch.retry);
	ch->bereft = false;
}

/* The slice can be posted there now. */
static bool takes(const struct rdma_queue *p, const struct rdma_list *l, const struct slice *s)
{
	if (p->qp.soft_roce && p->used && s->xfer->direction == DMSG_DIRECTION_READ)
		return false;
	return has_room(p, l) && suits(p, s);
}

/* Compares the rails' load, then the queue pairs', then the rank of paths. */
static bool less_loaded(const struct rdma_queue *a, const struct rdma_queue *b)
{
	const struct rdma *r = a->rdma;
	uint64_t penalty = RDMA_FAR_SLICES * r->c->cfg.slice_size;
	uint64_t load_a = r->rails[a->qp.path.rail].in_flight + (a->qp.far ? penalty : 0);
	uint64_t load_b = r->rails[b->qp.path.rail].in_flight + (b->qp.far ? penalty : 0);

	if (load_a != load_b)
		return load_a < load_b;
	if (a->in_flight != b->in_flight)
		return a->in_flight < b->in_flight;
	return a->qp.rank < b->qp.rank;
}

/*
 * The list takes no further slice. Reads on Soft-RoCE wait until the list before them has completed. Meanwhile the queue pair is
 * idle, so their list takes as many slices as the queue pair has room for.
 */
static bool list_full(const struct rdma_list *l)
{
	return l->bytes >= RDMA_LIST_BYTES && !(l->reads && l->queue->qp.soft_roce);
}

/*
 * The queue pair of the open list if the slice fits in there, else the least loaded one that can take the slice. On Soft-RoCE a list
 * has only reads, or none.
 */
static struct rdma_queue *choose_queue(struct rdma_channel *ch, struct rdma_list *l,
				       const struct slice *s)
{
	struct rdma_queue *best = NULL;

	if (l->n && l->queue->qp.soft_roce &&
	    l->reads != (s->xfer->direction == DMSG_DIRECTION_READ))
		list_post(l);
	if (l->n && !list_full(l) && l->n + n_segs(s) <= RDMA_LIST && l->queue->ch == ch &&
	    takes(l->queue, l, s))
		return l->queue;
	dray_list_for_each(&ch->queues, p, struct rdma_queue, link) {
		if (!takes(p, l, s))
			continue;
		if (!best || less_loaded(p, best))
			best = p;
	}
	return best;
}

static bool any_has_room(struct rdma_channel *ch, const struct rdma_list *l)
{
	dray_list_for_each(&ch->queues, p, struct rdma_queue, link)
		if (has_room(p, l))
			return true;
	return false;
}

/* The next new slice: direct, staged, and windowed slices in turn. */
static struct slice *next_slice(struct core *c, struct rdma_channel *ch, bool buffers)
{
	struct slice *s = NULL;

	if (!buffers)
		return sched_next(c, &ch->ch.direct, 0);
	stage_channel_fill(c, &ch->ch);
	for (unsigned i = 0; i < 3 && !s; i++) {
		ch->kind = (ch->kind + 1) % 3;
		if (ch->kind == 0)
			s = sched_next(c, &ch->ch.direct, 0);
		else
			s = ch->kind == 1 ? stage_channel_take(&ch->ch) : window_channel_next(ch);
	}
	return s;
}

/*
 * Posts the slice. False: no queue pair takes it now. Then those that will, when they have room, take nothing behind it: on
 * Soft-RoCE a read would wait for ever for its queue pair to be idle.
 */
static bool slice_place(struct rdma_channel *ch, struct rdma_list *l, struct slice *s)
{
	struct rdma_queue *p = choose_queue(ch, l, s);

	if (!p) {
		dray_list_for_each(&ch->queues, it, struct rdma_queue, link)
			it->awaited |= suits(it, s);
		return false;
	}
	dray_list_del(&s->link);
	slice_begin(p, s);
	slice_post(p, l);
	/* Small slices wait for each other. A list that is long enough is posted at once. */
	if (list_full(l))
		list_post(l);
	return true;
}

/* Sessions whose slices wait there for a queue pair give no further ones. */
static void set_aside(const struct stage_channel *p, const struct dray_list *waiting)
{
	dray_list_for_each(waiting, s, struct slice, link)
		if (!rdma_has_way(p, s))
			sched_set_aside(s->xfer, p->aside);
}

/* Takes the slice, which holds no buffer, off `retry` if no queue pair can have it, so that completions of others do not look at it. */
static bool park(struct rdma_channel *ch, struct slice *s)
{
	if (s->staged || s->window)
		return false;
	dray_list_for_each(&ch->queues, p, struct rdma_queue, link)
		if (suits(p, s))
			return false;
	dray_list_move(&ch->parked, &s->link);
	sched_park(s->xfer, &ch->parked_flows);
	return true;
}

/*
 * Slices without a queue pair stay on the list `retry`, which comes first. Meanwhile their sessions give no further ones but those that have
 * buffers already, and others go on. What holds buffers may wait only in small numbers. The first queue pair with room, a new one, other keys
 * or paths, and the end of a transfer pull again.
 */
static void slices_place(struct rdma_channel *ch, struct rdma_list *l)
{
	struct core *c = ch->peer->rdma->c;
	struct dray_list aside = DRAY_LIST_INIT(aside);
	unsigned buffers = 0;
	struct slice *s;

	ch->ch.aside = ch->win.aside = &aside;
	buffers_return(ch);
	set_aside(&ch->ch, &ch->ch.unstaged);
	set_aside(&ch->win, &ch->win.unstaged);
	set_aside(&ch->win, &ch->win.retry);
	dray_list_for_each(&ch->ch.retry, r, struct slice, link) {
		if (!any_has_room(ch, l))
			break;
		if (slice_place(ch, l, r) || park(ch, r))
			continue;
		buffers += r->staged || r->window;
		sched_set_aside(r->xfer, &aside);
	}
	while (any_has_room(ch, l) && (s = next_slice(c, ch, buffers < BUFFERS_WAITING))) {
		if (slice_place(ch, l, s) || park(ch, s))
			continue;
		dray_list_add(&ch->ch.retry, &s->link);
		buffers += s->staged || s->window;
		sched_set_aside(s->xfer, &aside);
	}
	sched_go_on(&aside);
	ch->ch.aside = ch->win.aside = NULL;
}

void rdma_channel_pull(struct rdma_channel *ch)
{
	struct rdma *r = ch->peer->rdma;
	struct rdma_list *l = r->list;

	stage_channel_collect(r->c, &ch->ch);
	stage_channel_collect(r->c, &ch->win);
	rdma_channel_review(ch);
	if (!l)
		return;
	l->queue = NULL;
	dray_list_for_each(&ch->queues, p, struct rdma_queue, link) {
		p->awaited = false;
		if (p->partial && room(p, l))
			slice_post(p, l);
	}
	slices_place(ch, l);
	if (l->queue)
		list_post(l);
}
