/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `local`: both regions belong to sessions of this agent, and the worker of the requesting
 * session copies. A slice is copied within one call, unless its transfer is large and there are other
 * workers: then it is published as a job (transfer/workshare.h), copied by all workers, and ended in a
 * later turn.
 */
#include "agent/data/transport/local/local.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/xfer.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/*
 * Work of one turn, in bytes; an operation counts as OPERATION_COST. Rings, sockets and urgent work wait for
 * that long: some tens of microseconds.
 */
#define TURN_COST (256u << 10)
/* Bytes of a shared slice: it is cut again, so that many workers have tasks. */
#define SLICE_SHARED (1u << 20)
#define OPERATION_COST 512
/*
 * Transfers from this size on bypass the caches with their larger pieces (one copy finds less than this in
 * the last-level cache of any server), and it pays to wake other workers for them.
 */
#define LARGE (8u << 20)
/*
 * Transfers with cold memory bypass them from this size on: otherwise each cache line is read from memory before it is written. A client
 * that reads the same range on a processor after each GET loses up to a tenth by it, all others gain a third to a half.
 */
#define LARGE_COLD (256u << 10)
/* Pieces that are copied under one guard. */
#define PIECES 128

struct shared_slice {
	struct slice *slice;
	struct workshare_job *job;
};

struct local {
	struct channel channels[2];                 /* by class */
	struct shared_slice shared[WORKSHARE_JOBS]; /* oldest first */
	unsigned n_shared;
	dray_handle woken;     /* the last transfer that other workers were woken for */
	bool slept;            /* the worker slept since its last turn */
	bool member, assisted; /* counted as a helper; has helped since the last turn */
};

static int local_init(struct core *c, void **ret_state)
{
	struct local *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	channel_init(&l->channels[DMSG_CLASS_BULK], &transport_local, DMSG_CLASS_BULK, NULL);
	channel_init(&l->channels[DMSG_CLASS_LATENCY], &transport_local, DMSG_CLASS_LATENCY, NULL);
	*ret_state = l;
	return 0;
}

static void local_deinit(struct core *c, void *state)
{
	struct local *l = state;

	channel_deinit(&l->channels[DMSG_CLASS_BULK]);
	channel_deinit(&l->channels[DMSG_CLASS_LATENCY]);
	free(l);
}

static bool both_mapped(const struct xfer *x)
{
	return object_region(x->local)->memory == REGION_HOST &&
	       object_region(x->target)->memory == REGION_HOST;
}

static struct channel *local_channel(struct core *c, void *state, const struct xfer *x)
{
	struct local *l = state;

	return x->target && both_mapped(x) ? &l->channels[x->class] : NULL;
}

/* Ends the session whose memory is gone, and no other. */
static void report_fault(struct core *c, const struct xfer *x, const void *address)
{
	const struct object *o = local_walk_is_near(x, address) ? x->local : x->target;

	xfer_memory_fault(c, o->view->session);
}

static void fail(struct core *c, struct slice *s, const void *address)
{
	report_fault(c, s->xfer, address);
	xfer_slice_done(c, s, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL);
}

static void succeed(struct core *c, struct slice *s)
{
	core_count(c->counters, DRAY_METRIC_LOCAL_BYTES_TOTAL, s->bytes);
	xfer_slice_done(c, s, 0, NULL);
}

/* NULL, or the address that faulted. */
static const void *copy_all(struct local_walk *walk, bool stream)
{
	struct dray_piece pieces[PIECES];
	const void *address = NULL;
	unsigned n;

	while ((n = local_walk(walk, pieces, PIECES, UINT64_MAX)))
		if (fault_copy_pieces(pieces, n, stream, &address) < 0)
			return address;
	return NULL;
}

static bool bypasses_caches(const struct xfer *x)
{
	return x->bytes >= (object_region(x->target)->cold ? LARGE_COLD : LARGE);
}

static void copy_alone(struct core *c, struct slice *s)
{
	struct local_walk walk;
	const void *address;

	local_walk_slice(&walk, s);
	address = copy_all(&walk, bypasses_caches(s->xfer));
	if (address)
		fail(c, s, address);
	else
		succeed(c, s);
}

static bool local_at_once(struct core *c, void *state, struct xfer *x)
{
	struct local_walk walk;
	const void *address;

	if (!x->target || !both_mapped(x))
		return false;
	local_walk_init(&walk, x, (struct xfer_cursor){ 0 }, x->bytes);
	address = copy_all(&walk, false);
	if (address) {
		report_fault(c, x, address);
		x->code = DRAY_E_REGION_FAULT;
		x->detail = XFER_FAULT_DETAIL;
	} else {
		core_count(c->counters, DRAY_METRIC_LOCAL_BYTES_TOTAL, x->bytes);
	}
	return true;
}

/* False: the slice is not shared. */
static bool share(struct core *c, struct local *l, struct slice *s)
{
	struct xfer *x = s->xfer;
	struct local_walk walk;
	struct workshare_job *job;
	int node;

	if (x->bytes < LARGE)
		return false;
	job = workshare_job(c->workshare, c->index);
	local_walk_slice(&walk, s);
	if (!job || !local_walk_share(&walk, job, true))
		return false;
	node = local_walk_node(s);
	workshare_publish(c->workshare, c->index, job, node);
	l->shared[l->n_shared++] = (struct shared_slice){ s, job };
	if (l->woken != x->handle) {
		l->woken = x->handle;
		workshare_wake(c->workshare, c->index, job,
			       (unsigned)dray_min(x->bytes / WORKSHARE_TASK, 64ull));
	}
	return true;
}

/* Takes the slice off the list before its end is reported, which may stop other transfers. */
static struct slice *shared_remove(struct local *l, unsigned i)
{
	struct slice *s = l->shared[i].slice;

	workshare_job_put(l->shared[i].job);
	l->n_shared--;
	for (; i < l->n_shared; i++)
		l->shared[i] = l->shared[i + 1];
	return s;
}

/* Ends slices whose job is over. */
static void reap(struct core *c, struct local *l)
{
	const void *fault = NULL;

	for (unsigned i = 0; i < l->n_shared;) {
		struct slice *s;

		if (!workshare_job_over(l->shared[i].job, &fault)) {
			i++;
			continue;
		}
		s = shared_remove(l, i);
		if (fault)
			fail(c, s, fault);
		else
			succeed(c, s);
		i = 0;
	}
}

/* Does one task, of the oldest job first. Returns bytes; 0: other workers hold all tasks. */
static uint64_t copy_shared(struct local *l)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < l->n_shared; i++)
		if (workshare_work(l->shared[i].job, &bytes))
			break;
	return bytes;
}

/* Each helper holds at most one task, so the drain is short. After it no worker touches the memory. */
static void local_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct local *l = state;

	for (unsigned i = 0; i < l->n_shared;) {
		if (l->shared[i].slice->xfer != x) {
			i++;
			continue;
		}
		workshare_drain(l->shared[i].job);
		xfer_slice_done(c, shared_remove(l, i), x->code, NULL);
		i = 0;
	}
	if (c->workshare)
		workshare_rest(c->workshare, c->index);
}

static bool channel_run(struct core *c, struct channel *ch)
{
	uint64_t cost = 0;
	struct slice *s;

	while (cost < TURN_COST && (s = sched_next(c, ch, TURN_COST))) {
		cost += s->bytes + (uint64_t)s->n_ops * OPERATION_COST;
		copy_alone(c, s);
	}
	return channel_pending(ch);
}

/*
 * The same with helpers: as many slices as possible are published while this worker copies, so that no
 * worker runs out of tasks at the end of a slice.
 */
static bool channel_run_shared(struct core *c, struct local *l, struct channel *ch)
{
	uint64_t cost = 0;

	while (cost < TURN_COST) {
		struct slice *s = l->n_shared < WORKSHARE_JOBS ? sched_next(c, ch, SLICE_SHARED) :
								 NULL;
		uint64_t copied;

		if (s && share(c, l, s))
			continue;
		if (s) {
			cost += s->bytes + (uint64_t)s->n_ops * OPERATION_COST;
			copy_alone(c, s);
			continue;
		}
		copied = copy_shared(l);
		if (!copied)
			break;
		cost += copied;
		reap(c, l);
	}
	reap(c, l);
	if (!l->n_shared)
		workshare_rest(c->workshare, c->index);
	else if (!cost)
		sched_yield(); /* a helper that holds a last task may wait for this CPU */
	return l->n_shared || channel_pending(ch);
}

static bool local_progress(struct core *c, void *state)
{
	struct local *l = state;
	struct channel *bulk = &l->channels[DMSG_CLASS_BULK];
	bool more = false;

	if (c->workshare) {
		if (l->slept)
			workshare_awake(c->workshare, c->index);
		l->slept = false;
		if (l->member && !l->assisted)
			workshare_leave(c->workshare, &l->member);
		l->assisted = false;
	}
	if (channel_pending(&l->channels[DMSG_CLASS_LATENCY]))
		more = channel_run(c, &l->channels[DMSG_CLASS_LATENCY]);
	if (l->n_shared || (c->workshare && channel_pending(bulk)))
		more |= channel_run_shared(c, l, bulk);
	else if (channel_pending(bulk))
		more |= channel_run(c, bulk);
	return more;
}

static bool local_assist(struct core *c, void *state)
{
	struct local *l = state;
	enum workshare_help did;
	uint64_t bytes;

	if (!c->workshare)
		return false;
	did = workshare_help(c->workshare, c->index, &l->member, &bytes);
	l->assisted = true;
	if (did == WORKSHARE_HELPED)
		core_count(c->counters, DRAY_METRIC_LOCAL_HELPED_BYTES_TOTAL, bytes);
	else if (did == WORKSHARE_STAY)
		sched_yield(); /* the owner of the job may wait for this CPU */
	return did != WORKSHARE_NOTHING;
}

static bool local_announce(struct core *c, void *state)
{
	struct local *l = state;

	if (!c->workshare)
		return false;
	workshare_leave(c->workshare, &l->member);
	l->slept = true;
	return workshare_sleep(c->workshare, c->index);
}

const struct transport_ops transport_local = {
	.id = DMSG_TRANSPORT_LOCAL,
	.walks_ops = 1024,
	.init = local_init,
	.deinit = local_deinit,
	.channel = local_channel,
	.at_once = local_at_once,
	.progress = local_progress,
	.assist = local_assist,
	.announce = local_announce,
	.stop = local_stop,
};
