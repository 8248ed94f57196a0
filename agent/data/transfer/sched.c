/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/sched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/wait.h"
#include "lib/assert.h"
#include "lib/cleanup.h"

/* Cost of a segment besides its bytes, so that a flow of tiny operations gets only its share of the worker. */
#define SEGMENT_COST 512
/*
 * A last slice may be longer by this part of slice_size: a few bytes behind whole slices, such as a header of 256, would take a message
 * or a work request of their own, and its answer.
 */
#define REMAINDER 64
/* Free slices kept for reuse. */
#define SLICES_KEPT 128

/*
 * For each byte that the other transfers of a flow get, the one with the fewest bytes left gets this many. The others take turns.
 * So transfers that are submitted together end after 4/3 of the time at most that they take if all share the flow equally, and
 * each gets at least a quarter of its equal share meanwhile.
 */
#define BYTES_OF_SHORTEST 3
/* A rank is the number of slices, up to this one, and behind it the order of arrival in so many bits. */
#define RANKED_SLICES (UINT64_C(1) << 24)
#define ARRIVAL_BITS 38
#define ARRIVAL_MASK ((UINT64_C(1) << ARRIVAL_BITS) - 1)

/* The transfers of one session on one channel. */
struct flow {
	struct dray_list link;         /* on channel->flows while active */
	struct dray_list channel_link; /* on channel->all */
	struct dray_list session_link; /* on session->flows */
	struct dray_list parked_link;  /* on the list of sched_park(): not on channel->flows then */
	struct dray_heap
		ranks; /* struct xfer: the one with the fewest bytes left first, then the oldest */
	struct dray_list
		turns; /* those that need more than one slice; the next one to get its turn first */
	struct xfer_session *session;
	struct channel *channel;
	int64_t deficit;
	int64_t owed; /* bytes of the shortest transfer, for which the others have not got theirs */
	uint64_t arrivals; /* transfers so far */
};

void channel_init(struct channel *ch, const struct transport_ops *ops, enum dmsg_class class,
		  struct peer_link *link)
{
	ch->ops = ops;
	ch->class = class;
	ch->gpu_path = DMSG_GPU_PATH_NONE;
	ch->link = link;
	dray_list_init(&ch->flows);
	dray_list_init(&ch->all);
}

static void leave(struct xfer *x)
{
	dray_heap_del(&x->flow->ranks, &x->rank);
	dray_list_del(&x->flow_link);
	x->flow = NULL;
}

static struct xfer *flow_shortest(const struct flow *f)
{
	struct dray_heap_node *first = dray_heap_first(&f->ranks);

	return first ? dray_container_of(first, struct xfer, rank) : NULL;
}

/* The most bytes of a slice that ends its transfer. */
static uint64_t last_slice(uint64_t slice_size)
{
	return dray_min(slice_size + slice_size / REMAINDER, (uint64_t)PMSG_FRAME_BYTES_MAX);
}

/*
 * Ranks the transfer by the slices that its rest needs. Those that need as many stay in their order of arrival, because to
 * overtake another one saves less than a slice, and clients expect small transfers in their order. 0 or -ENOMEM.
 */
static int rank(struct flow *f, struct xfer *x, uint64_t slice_size)
{
	uint64_t last = last_slice(slice_size);
	uint64_t more = x->left > last ? (x->left - last + slice_size - 1) / slice_size : 0;
	uint64_t slices = more + (x->left != 0);
	uint64_t arrival = (uint64_t)x->rank.key & ARRIVAL_MASK;

	return dray_heap_set(&f->ranks, &x->rank,
			     (int64_t)(dray_min(slices, RANKED_SLICES) << ARRIVAL_BITS | arrival));
}

static int join(struct flow *f, struct xfer *x, uint64_t slice_size)
{
	x->rank.key = (int64_t)(f->arrivals++ & ARRIVAL_MASK);
	if (rank(f, x, slice_size) < 0)
		return -ENOMEM;
	if (x->left > last_slice(slice_size))
		dray_list_add(&f->turns, &x->flow_link);
	x->flow = f;
	return 0;
}

/* Another transfer than this one is waiting for a turn. */
static bool others_wait(const struct flow *f, const struct xfer *x)
{
	const struct dray_list *first = f->turns.next;

	return first != &f->turns && (first != &x->flow_link || first->next != &f->turns);
}

/*
 * The transfer whose turn it is. The shortest one gets its part first: a slice of another one may be larger than several transfers
 * that need only one.
 */
static struct xfer *flow_next(struct flow *f, uint64_t slice_size)
{
	struct xfer *shortest = flow_shortest(f);
	struct dray_list *first = f->turns.next;

	if (f->owed < (int64_t)(BYTES_OF_SHORTEST * slice_size) || dray_list_empty(&f->turns))
		return shortest;
	if (first == &shortest->flow_link)
		dray_list_move(&f->turns, first);
	return dray_list_first(&f->turns, struct xfer, flow_link);
}

/* The transfer, which flow_next() has chosen and which still is in the flow, got a slice of that cost. */
static void flow_charge(struct flow *f, struct xfer *x, int64_t cost, uint64_t slice_size)
{
	f->deficit -= cost;
	if (x != flow_shortest(f)) {
		f->owed -= BYTES_OF_SHORTEST * cost;
		dray_list_move(&f->turns, &x->flow_link);
	} else if (others_wait(f, x)) {
		f->owed += cost;
	} else {
		f->owed = dray_min(f->owed, (int64_t)0);
	}
	if (x->left <= last_slice(slice_size))
		dray_list_del(&x->flow_link);
	/* it has fewer bytes left than when it joined, and its node stays in the heap: this cannot fail */
	rank(f, x, slice_size);
}

static void flow_free(struct flow *f)
{
	dray_list_del(&f->link);
	dray_list_del(&f->channel_link);
	dray_list_del(&f->session_link);
	dray_list_del(&f->parked_link);
	dray_heap_deinit(&f->ranks);
	free(f);
}

struct xfer *channel_first(const struct channel *ch)
{
	const struct flow *f = dray_list_first(&ch->flows, struct flow, link);

	return f ? flow_shortest(f) : NULL;
}

void channel_deinit(struct channel *ch)
{
	dray_list_for_each(&ch->all, f, struct flow, channel_link) {
		struct xfer *x;

		while ((x = flow_shortest(f)))
			leave(x);
		flow_free(f);
	}
}

void sched_session_deinit(struct xfer_session *s)
{
	dray_list_for_each(&s->flows, f, struct flow, session_link)
		flow_free(f);
}

static struct flow *flow_get(struct xfer_session *s, struct channel *ch)
{
	struct flow *f;

	dray_list_for_each(&s->flows, it, struct flow, session_link)
		if (it->channel == ch)
			return it;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	dray_list_init(&f->link);
	dray_list_init(&f->turns);
	dray_list_init(&f->parked_link);
	f->session = s;
	f->channel = ch;
	dray_list_add(&s->flows, &f->session_link);
	dray_list_add(&ch->all, &f->channel_link);
	return f;
}

void sched_assign(struct xfer *x, unsigned index, struct channel *ch)
{
	const struct region_view *local = object_region(x->local);

	x->transport_index = (uint8_t)index;
	x->channel = ch;
	x->gpu_path = ch->gpu_path;
	if (!x->gpu_path && local->memory != REGION_HOST)
		x->gpu_path = ch->ops->id == DMSG_TRANSPORT_RDMA ? DMSG_GPU_PATH_DIRECT :
								   DMSG_GPU_PATH_STAGED;
}

/* Its session is below its limit of slices, or these bytes come anyway. */
static bool may_send(const struct core *c, const struct flow *f)
{
	return f->channel->trailing ||
	       f->session->slices[f->channel->class] < c->cfg.slices_per_session;
}

/* The flow, which has transfers, joins the others of its channel if it may. True: it did. */
static bool activate(const struct core *c, struct flow *f)
{
	if (!dray_list_empty(&f->link) || !dray_list_empty(&f->parked_link) || !may_send(c, f))
		return false;
	dray_list_add(&f->channel->flows, &f->link);
	return true;
}

static void kick(struct core *c, const struct xfer *x, struct channel *ch)
{
	c->kicked = true;
	if (ch->ops->kick)
		ch->ops->kick(c, c->transport_state[x->transport_index], ch);
}

int sched_enqueue(struct core *c, struct xfer *x)
{
	struct channel *ch = x->channel;
	struct flow *f = flow_get(x->session, ch);

	if (!f || join(f, x, c->cfg.slice_size) < 0)
		return -ENOMEM;
	/* a session at its limit of slices gets its flow back when one of them ends (session_resume) */
	activate(c, f);
	kick(c, x, ch);
	return 0;
}

void sched_dequeue(struct xfer *x)
{
	struct flow *f = x->flow;

	if (!f)
		return;
	leave(x);
	if (!flow_shortest(f)) {
		dray_list_del(&f->link);
		f->deficit = f->owed = 0;
	}
}

void sched_set_aside(const struct xfer *x, struct dray_list *aside)
{
	dray_list_for_each(&x->session->flows, f, struct flow, session_link)
		if (f->channel == x->channel && !dray_list_empty(&f->link))
			dray_list_move(aside, &f->link);
}

void sched_go_on(struct dray_list *aside)
{
	struct flow *f;

	while ((f = dray_list_pop(aside, struct flow, link)))
		dray_list_add(&f->channel->flows, &f->link);
}

void sched_park(const struct xfer *x, struct dray_list *parked)
{
	dray_list_for_each(&x->session->flows, f, struct flow, session_link) {
		if (f->channel != x->channel)
			continue;
		dray_list_del(&f->link);
		dray_list_move(parked, &f->parked_link);
	}
}

void sched_unpark(struct core *c, struct dray_list *parked)
{
	struct flow *f;

	while ((f = dray_list_pop(parked, struct flow, parked_link)))
		if (flow_shortest(f))
			activate(c, f);
}

static struct slice *slice_new(struct core *c)
{
	struct slice *s = dray_list_pop(&c->free_slices, struct slice, link);

	if (s)
		c->slices_free--;
	else if (!(s = malloc(sizeof(*s))))
		return NULL;
	memset(s, 0, offsetof(struct slice, local));
	dray_list_init(&s->link);
	s->id = ++c->next_slice_id;
	s->posted_ns = c->now_ns;
	return s;
}

/*
 * Adds [offset, offset+n) of the region to the iovecs until they are full. Returns the bytes added. *extent is
 * where the last search ended, because most pieces of a layer follow each other. GPU memory is joined within an extent only: two
 * extents may be two allocations, even if they are neighbours, and no copy may lie in both.
 */
static uint64_t add_local(struct slice *s, const struct region_view *r, uint32_t *extent,
			  uint64_t offset, uint64_t n)
{
	const struct extent_view *e = &r->extents[*extent];
	uint64_t done = 0;

	if (offset < e->start || offset - e->start >= e->length) {
		*extent = region_view_find(r, offset);
		e = &r->extents[*extent];
	}
	while (done < n) {
		uint64_t skip = offset + done - e->start;
		uint64_t piece = dray_min(n - done, e->length - skip);
		uint8_t *base = e->base + skip;
		struct iovec *last = s->n_local ? &s->local[s->n_local - 1] : NULL;

		if (last && (uint8_t *)last->iov_base + last->iov_len == base &&
		    (skip || r->memory != REGION_GPU)) {
			last->iov_len += piece;
		} else {
			if (s->n_local == SLICE_SEGS_MAX)
				break;
			s->local[s->n_local++] = (struct iovec){ base, piece };
		}
		done += piece;
		if (done < n) {
			e++;
			(*extent)++;
		}
	}
	return done;
}

/* Fills the slice with the next pieces of the transfer. */
static void slice_fill(struct slice *s, struct xfer *x, uint64_t max_bytes)
{
	const struct region_view *r = object_region(x->local);
	uint32_t extent = 0;

	while (x->cursor.op < x->n_ops && s->bytes < max_bytes) {
		const struct xfer_op *op = &x->ops[x->cursor.op];
		uint64_t want = dray_min(op->length - x->cursor.offset, max_bytes - s->bytes);
		uint64_t remote = op->remote + x->cursor.offset;
		struct pmsg_seg *last = s->n_remote ? &s->remote[s->n_remote - 1] : NULL;
		bool joins = last && last->offset + last->length == remote;
		uint64_t got;

		if (!joins && s->n_remote == SLICE_SEGS_MAX)
			break;
		got = add_local(s, r, &extent, op->local + x->cursor.offset, want);
		if (!got)
			break;
		if (joins)
			last->length += got;
		else
			s->remote[s->n_remote++] =
				(struct pmsg_seg){ .offset = remote, .length = got };
		s->bytes += got;
		x->cursor.offset += got;
		if (x->cursor.offset == op->length) {
			x->cursor.op++;
			x->cursor.offset = 0;
		}
		if (got < want)
			break;
	}
}

/* The same as a range of operations, for transports that walk them. */
static void slice_span(struct slice *s, struct xfer *x, uint32_t max_ops, uint64_t max_bytes)
{
	uint32_t op = x->cursor.op, end = x->n_ops;
	uint64_t bytes = x->ops[op].length - x->cursor.offset;

	s->from = x->cursor;
	if (end - op > max_ops)
		end = op + max_ops;
	op++;
	/* all operations have the same length: no need to read each */
	if (bytes < max_bytes && x->longest * x->n_ops == x->bytes) {
		uint64_t n = dray_min((max_bytes - bytes + x->longest - 1) / x->longest,
				      (uint64_t)(end - op));

		op += (uint32_t)n;
		bytes += n * x->longest;
	}
	for (; bytes < max_bytes && op < end; op++)
		bytes += x->ops[op].length;
	s->n_ops = op - x->cursor.op;
	x->cursor = (struct xfer_cursor){ op, 0 };
	if (bytes > max_bytes) {
		x->cursor =
			(struct xfer_cursor){ op - 1, x->ops[op - 1].length - (bytes - max_bytes) };
		bytes = max_bytes;
	}
	s->bytes = bytes;
}

/* Bytes that the next slice of the transfer may have. max_bytes: as of sched_next(). */
static uint64_t next_bytes(const struct core *c, const struct xfer *x, uint64_t max_bytes)
{
	uint64_t ready = xfer_ready(x), size = c->cfg.slice_size;

	if (x->arrived && x->channel->checked_max)
		size = dray_min(size, x->channel->checked_max);
	if (max_bytes)
		return dray_min(ready, max_bytes);
	if (ready == x->left && ready <= last_slice(size))
		return ready;
	return dray_min(ready, size);
}

struct slice *sched_next(struct core *c, struct channel *ch, uint64_t max_bytes)
{
	struct flow *f;

	while ((f = dray_list_first(&ch->flows, struct flow, link))) {
		struct xfer *x;
		struct slice *s;
		uint64_t ready;

		if (!may_send(c, f)) {
			dray_list_del(&f->link);
			continue;
		}
		if (f->deficit <= 0) {
			f->deficit += (int64_t)c->cfg.slice_size;
			/* a slice larger than the quantum is paid off in several rounds, while other flows take their turns */
			if (f->deficit <= 0) {
				dray_list_move(&ch->flows, &f->link);
				continue;
			}
		}
		x = flow_next(f, c->cfg.slice_size);
		dray_assert(x);
		ready = next_bytes(c, x, max_bytes);
		if (!ready) {
			sched_dequeue(x);
			wait_add(c, x);
			continue;
		}
		s = slice_new(c);
		if (!s)
			return NULL;
		if (ch->ops->walks_ops)
			slice_span(s, x, ch->ops->walks_ops, ready);
		else
			slice_fill(s, x, ready);
		s->xfer = x;
		s->at = x->bytes - x->left;
		x->left -= s->bytes;
		x->slices++;
		x->n_slices++;
		xfer_enter(x, XFER_PHASE_MOVE, c->now_ns);
		f->session->slices[ch->class]++;
		flow_charge(f, x,
			    (int64_t)(s->bytes + (uint64_t)(s->n_ops + s->n_remote) * SEGMENT_COST),
			    c->cfg.slice_size);
		if (x->cursor.op == x->n_ops)
			sched_dequeue(x);
		if (f->deficit <= 0 && flow_shortest(f))
			dray_list_move(&ch->flows, &f->link);
		return s;
	}
	return NULL;
}

static void split_local(struct slice *s, struct slice *rest, uint64_t bytes)
{
	uint16_t i = 0, n = s->n_local;

	for (; bytes >= s->local[i].iov_len; i++)
		bytes -= s->local[i].iov_len;
	s->n_local = i + (bytes > 0);
	for (uint16_t k = i; k < n; k++)
		rest->local[rest->n_local++] = s->local[k];
	rest->local[0].iov_base = (uint8_t *)rest->local[0].iov_base + bytes;
	rest->local[0].iov_len -= bytes;
	s->local[i].iov_len = bytes;
}

static void split_remote(struct slice *s, struct slice *rest, uint64_t bytes)
{
	uint16_t i = 0, n = s->n_remote;

	for (; bytes >= s->remote[i].length; i++)
		bytes -= s->remote[i].length;
	s->n_remote = i + (bytes > 0);
	for (uint16_t k = i; k < n; k++)
		rest->remote[rest->n_remote++] = s->remote[k];
	rest->remote[0].offset += bytes;
	rest->remote[0].length -= bytes;
	s->remote[i].length = bytes;
}

struct slice *sched_split(struct core *c, struct slice *s, uint64_t bytes)
{
	struct slice *rest = slice_new(c);
	struct xfer *x = s->xfer;

	if (!rest)
		return NULL;
	dray_assert(!s->n_ops && bytes && bytes < s->bytes);
	split_local(s, rest, bytes);
	split_remote(s, rest, bytes);
	rest->at = s->at + bytes;
	rest->bytes = s->bytes - bytes;
	s->bytes = bytes;
	rest->retried = s->retried;
	rest->xfer = x;
	x->slices++;
	x->n_slices++;
	x->session->slices[x->class]++;
	return rest;
}

struct slice *sched_copy(struct core *c, const struct slice *s, struct xfer *x)
{
	struct slice *copy = slice_new(c);

	if (!copy)
		return NULL;
	copy->xfer = x;
	copy->at = s->at;
	copy->bytes = s->bytes;
	copy->n_local = s->n_local;
	copy->n_remote = s->n_remote;
	memcpy(copy->local, s->local, s->n_local * sizeof(s->local[0]));
	memcpy(copy->remote, s->remote, s->n_remote * sizeof(s->remote[0]));
	return copy;
}

void sched_recut(struct slice *s)
{
	struct xfer *x = s->xfer;

	dray_assert(s->n_ops && !s->at && s->bytes + x->left == x->bytes);
	x->cursor = (struct xfer_cursor){ 0 };
	x->left += s->bytes;
	slice_span(s, x, x->channel->ops->walks_ops, s->bytes);
	x->left -= s->bytes;
}

/* The session fell below its limit of slices in this class: its flows join their channels again. */
static void session_resume(struct core *c, struct xfer_session *s, enum dmsg_class class)
{
	dray_list_for_each(&s->flows, f, struct flow, session_link) {
		const struct xfer *x = flow_shortest(f);

		if (x && f->channel->class == class && activate(c, f))
			kick(c, x, f->channel);
	}
}

void sched_slice_over(struct core *c, const struct xfer *x)
{
	if (x->session->slices[x->class]-- == c->cfg.slices_per_session)
		session_resume(c, x->session, x->class);
}

void sched_slice_free(struct core *c, struct slice *s)
{
	const struct xfer *x = s->xfer;

	dray_list_del(&s->link);
	if (s->staged || s->window)
		c->up->release_buffers(c, s);
	if (c->slices_free < SLICES_KEPT) {
		dray_list_add_front(&c->free_slices, &s->link);
		c->slices_free++;
	} else {
		free(s);
	}
	if (x)
		sched_slice_over(c, x);
}

void sched_deinit(struct core *c)
{
	dray_list_for_each(&c->free_slices, s, struct slice, link)
		free(s);
	dray_list_init(&c->free_slices);
	c->slices_free = 0;
}
