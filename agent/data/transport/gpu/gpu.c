/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `gpu`: both regions belong to sessions of this agent, and at least one is GPU memory. Slices
 * become copies of a queue. One copy takes as many slices as it has room for, so that small transfers share
 * a launch. Several copies are in flight, so that the device always has the next one.
 */
#include "agent/data/transport/gpu/gpu.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/xfer.h"
#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"

/*
 * Copies of one path in flight, at most, for small transfers; large ones reach `under_way` before. Other
 * paths keep room.
 */
#define BATCHES 16
#define BATCHES_MAX (GPU_DEVICES_MAX * BATCHES * 2)
/* Lists of small pieces from the host must not end before the next one is there: two to three milliseconds. */
#define LISTS_UNDER_WAY (UINT64_C(64) << 20)
/* At least this number of whole slices is in flight. */
#define SLICES_UNDER_WAY 3
#define LOST \
	"a GPU of the transfer failed or was removed: register its memory again when it is back"

_Static_assert(GPU_LISTS_BYTES == OPS_PINNED_BYTES, "room for the store's slabs");

static int gpu_init(struct core *c, void **ret_state)
{
	dray_auto_free struct gpu_transport *g = calloc(1, sizeof(*g));
	int ret;

	if (!g)
		return -ENOMEM;
	ret = gpu_queues_init(c);
	if (ret < 0)
		return ret;
	for (unsigned i = 0; i < 2; i++)
		dray_list_init(&g->ready[i]);
	dray_list_init(&g->over);
	dray_list_init(&g->free);
	dray_list_init(&g->free_jobs);
	*ret_state = dray_take(g);
	return 0;
}

static void paths_free(struct gpu_path *paths)
{
	for (unsigned i = 0; paths && i < 2 * GPU_PATH_N; i++)
		channel_deinit(&paths[i].channel);
	free(paths);
}

static void gpu_deinit(struct core *c, void *state)
{
	struct gpu_transport *g = state;

	gpu_queues_deinit(c);
	for (unsigned i = 0; i < GPU_DEVICES_MAX; i++)
		paths_free(g->devices[i]);
	free(g->batches);
	free(g->jobs);
	gpu_relay_deinit(g);
	free(g);
}

static struct gpu_path *path_of(struct channel *ch)
{
	return dray_container_of(ch, struct gpu_path, channel);
}

void gpu_path_ready(struct gpu_path *p)
{
	if (dray_list_empty(&p->link))
		dray_list_add(&p->owner->ready[p->channel.class], &p->link);
}

static void buffer_ready(struct core *c, struct stage_waiter *w)
{
	struct gpu_path *p = dray_container_of(w, struct gpu_path, waiter);

	gpu_path_ready(p);
	p->owner->buffer_came = true;
}

static void paths_new(struct gpu_transport *g, unsigned device)
{
	struct gpu_path *paths = dray_calloc_sure(2 * GPU_PATH_N, sizeof(*paths));

	for (unsigned i = 0; i < 2 * GPU_PATH_N; i++) {
		struct gpu_path *p = &paths[i];

		channel_init(&p->channel, &transport_gpu, (enum dmsg_class)(i / GPU_PATH_N), NULL);
		dray_list_init(&p->link);
		dray_list_init(&p->batches);
		dray_list_init(&p->jobs);
		dray_list_init(&p->relays);
		dray_list_init(&p->waiter.link);
		p->waiter.ready = buffer_ready;
		p->owner = g;
		p->device = (uint8_t)device;
		p->kind = (enum gpu_path_kind)(i % GPU_PATH_N);
		p->channel.gpu_path = (uint8_t)gpu_plan_limits[p->kind].path;
	}
	g->devices[device] = paths;
}

static void batches_new(struct gpu_transport *g)
{
	g->batches = dray_calloc_sure(BATCHES_MAX, sizeof(*g->batches));
	for (unsigned i = 0; i < BATCHES_MAX; i++) {
		dray_list_init(&g->batches[i].slices);
		dray_list_init(&g->batches[i].stopped);
		dray_list_add(&g->free, &g->batches[i].link);
	}
}

/*
 * Which devices reach each other changes as they come and go. A device may have started while the other one
 * was unreachable, so both must agree.
 */
static void peers_update(struct core *c, struct gpu_transport *g)
{
	for (unsigned i = 0; i < GPU_DEVICES_MAX; i++)
		g->peers[i] = gpu_queues_peers(c, i);
	for (unsigned i = 0; i < GPU_DEVICES_MAX; i++)
		for (unsigned k = 0; k < GPU_DEVICES_MAX; k++)
			if (g->peers[k] && !(g->peers[k] & 1u << i))
				g->peers[i] &= ~(1u << k);
}

static struct channel *gpu_channel(struct core *c, void *state, const struct xfer *x)
{
	struct gpu_transport *g = state;
	const struct object *from = x->local, *to = x->target;
	struct gpu_path_choice choice;

	if (!to ||
	    (object_region(from)->memory != REGION_GPU && object_region(to)->memory != REGION_GPU))
		return NULL;
	if (x->direction == DMSG_DIRECTION_READ) {
		from = x->target;
		to = x->local;
	}
	choice = gpu_plan_path(object_region(from), from->pinned, object_region(to), to->pinned,
			       g->peers, c->stage);
	if (choice.kind == GPU_PATH_NONE)
		return NULL;
	return &g->devices[choice.device][x->class * GPU_PATH_N + choice.kind].channel;
}

static void gpu_kick(struct core *c, void *state, struct channel *ch)
{
	gpu_path_ready(path_of(ch));
}

void gpu_slice_over(struct gpu_transport *g, struct slice *s, uint32_t code)
{
	s->end_code = code;
	dray_list_add(&g->over, &s->link);
}

/* Ends the session whose host memory is gone, and no other. */
static void report_fault(struct core *c, const struct xfer *x)
{
	const struct region_view *local = object_region(x->local);
	const struct object *o = local->memory == REGION_HOST ? x->local : x->target;

	xfer_memory_fault(c, o->view->session);
}

static void slice_end(struct core *c, struct slice *s)
{
	uint32_t code = s->end_code;
	const char *detail = code == DRAY_E_GPU_LOST ? LOST :
			     code == DRAY_E_INTERNAL ? s->refused :
						       XFER_FAULT_DETAIL;

	dray_list_del(&s->link);
	if (!code)
		core_count(c->counters, DRAY_METRIC_GPU_BYTES_TOTAL, s->bytes);
	if (code == DRAY_E_REGION_FAULT)
		report_fault(c, s->xfer);
	if (code == DRAY_E_CANCELLED)
		xfer_slice_done(c, s, s->xfer->code, NULL);
	else
		xfer_slice_done(c, s, code, detail);
}

/* The first slice of one transfer or (NULL) of any that is over. */
static struct slice *over_first(struct gpu_transport *g, const struct xfer *x)
{
	dray_list_for_each(&g->over, s, struct slice, link)
		if (!x || s->xfer == x)
			return s;
	return NULL;
}

/* Ends the slices in `over`. Each end may stop other transfers, so the list is read again after each. */
static bool end_over(struct core *c, struct gpu_transport *g, const struct xfer *x)
{
	bool any = false;
	struct slice *s;

	for (; (s = over_first(g, x)); any = true)
		slice_end(c, s);
	return any;
}

/* All slices of the list are over. refused: why, with DRAY_E_INTERNAL. */
static void slices_over(struct gpu_transport *g, struct dray_list *slices, uint32_t code,
			const char *refused)
{
	if (code)
		dray_list_for_each(slices, s, struct slice, link) {
			s->end_code = code;
			s->refused = refused;
		}
	dray_list_splice(&g->over, slices);
}

/* A lost device may still read the lists. */
static void lists_lost(const struct gpu_batch *b)
{
	dray_list_for_each(&b->slices, s, struct slice, link)
		s->xfer->ops_lost = s->xfer->ops_pinned;
}

static void count_way(struct core *c, const struct gpu_batch *b)
{
	if (b->way == DMSG_GPU_WAY_COPY_ENGINE)
		core_count(c->counters, DRAY_METRIC_GPU_ENGINE_BYTES_TOTAL, b->bytes);
	if (b->way == DMSG_GPU_WAY_OTHER_KERNEL)
		core_count(c->counters, DRAY_METRIC_GPU_OTHER_KERNEL_BYTES_TOTAL, b->bytes);
}

static void batch_done(struct core *c, struct gpu_task *t, uint32_t code)
{
	struct gpu_batch *b = dray_container_of(t, struct gpu_batch, task);
	struct gpu_path *p = b->path;
	struct gpu_transport *g = p->owner;

	if (code == DRAY_E_GPU_LOST)
		lists_lost(b);
	if (!code)
		count_way(c, b);
	if (code && p->carrier == b) {
		p->open->refused = t->refused;
		gpu_slice_over(g, dray_take(p->open), code);
	}
	slices_over(g, &b->slices, code, t->refused);
	slices_over(g, &b->stopped, code ? code : DRAY_E_CANCELLED, t->refused);
	p->n_batches--;
	p->bytes -= b->bytes;
	if (p->carrier == b)
		p->carrier = NULL;
	dray_list_del(&b->link);
	dray_list_add_front(&g->free, &b->link);
	gpu_path_ready(p);
}

static uint8_t other_side(const struct gpu_path *p, const struct xfer *x)
{
	uint8_t local = object_region(x->local)->gpu, target = object_region(x->target)->gpu;

	return local == p->device ? target : local;
}

/* What the bytes of a transfer pass through. */
static enum gpu_bus bus_of(const struct core *c, const struct gpu_path *p, const struct xfer *x)
{
	static const enum gpu_bus buses[GPU_ROUTE_N] = { [GPU_WITHIN] = GPU_BUS_WITHIN,
							 [GPU_TO_HOST] = GPU_BUS_TO_HOST,
							 [GPU_FROM_HOST] = GPU_BUS_FROM_HOST };

	if (p->kind == GPU_PATH_PEER)
		return gpu_bus_between(c, p->device, other_side(p, x));
	return buses[gpu_plan_limits[p->kind].route];
}

/* The device on the other side of a copy between two, if it can make the copy too. */
static int other_device(const struct gpu_transport *g, const struct gpu_path *p,
			const struct xfer *x)
{
	uint8_t other = other_side(p, x);

	return p->kind == GPU_PATH_PEER && g->peers[other] >> p->device & 1 ? other : -1;
}

/* The choice, where a staged copy is one; asks for the memory that this needs. */
static struct gpu_way way_staged_too(struct core *c, struct gpu_path *p, struct slice *s,
				     struct gpu_way_question *q)
{
	if (q->route == GPU_TO_HOST || q->route == GPU_FROM_HOST) {
		if (p->whole && q->setting != DRAY_CONFIG_GPU_COPY_KERNEL)
			gpu_order(c, s);
		q->run = gpu_relay_host_run(s);
		q->can_pad = gpu_relay_can_pad(p, s);
	}
	if (gpu_way_wants_memory(q)) {
		q->memory = gpu_relay_memory(p, s->xfer);
		if (!q->memory)
			gpu_relay_want(c, p, s->xfer);
		/* what is submitted of the slice stays so */
		if (!p->whole || s->bytes > gpu_relay_slice(p))
			q->memory = 0;
	}
	return gpu_way_choose(q);
}

/* How the slice is copied, as devices are now. */
static struct gpu_way way_of(struct core *c, const struct gpu_transport *g, struct gpu_path *p,
			     struct slice *s)
{
	struct gpu_way_question q = {
		.route = gpu_plan_limits[p->kind].route,
		.bus = bus_of(c, p, s->xfer),
		.rates = gpu_rates(c, p->device),
		.setting = gpu_copy_setting(c, p->device),
		.device = p->device,
		.busy = gpu_is_busy(c, p->device),
		.other = -1,
		.pieces = s->xfer->n_ops,
		.bytes = s->xfer->bytes,
		.wait_ns = gpu_wait_ns(c, p->device),
		.could_have = gpu_relay_could_have(c, p),
	};

	gpu_watch(c, p->device);
	if (q.busy)
		q.other = other_device(g, p, s->xfer);
	if (q.other >= 0) {
		gpu_watch(c, (unsigned)q.other);
		q.other_busy = gpu_is_busy(c, (unsigned)q.other);
	}
	return q.busy || q.setting == DRAY_CONFIG_GPU_COPY_STAGED ? way_staged_too(c, p, s, &q) :
								    gpu_way_choose(&q);
}

/* Sets the slice that comes next, and how it is copied. False: there is none. */
static bool slice_open(struct core *c, const struct gpu_transport *g, struct gpu_path *p,
		       uint64_t max_bytes)
{
	if (!p->open) {
		p->open = sched_next(c, &p->channel, max_bytes);
		p->whole = true;
		p->carrier = NULL;
	}
	if (p->open && !p->carrier)
		p->way = way_of(c, g, p, p->open);
	return p->open;
}

static void slice_carried(struct gpu_path *p, struct gpu_batch *b)
{
	dray_list_add(&b->slices, &p->open->link);
	p->open = NULL;
	p->carrier = NULL;
}

/* Bytes of a copy, at most. */
static uint64_t slice_limit(const struct core *c, const struct gpu_path *p)
{
	const struct gpu_plan_limits *l = &gpu_plan_limits[p->kind];

	if (gpu_is_shared(c, p->device))
		return l->shared_slice;
	return p->way.engines ? l->engines_slice : l->slice;
}

/* Puts slices that are copied alike into one copy until it is full. True: it ends with a part of the open slice. */
static bool batch_fill(struct core *c, const struct gpu_transport *g, struct gpu_path *p,
		       struct gpu_batch *b, struct gpu_plan *plan)
{
	const struct gpu_way way = p->way;

	const uint64_t most = slice_limit(c, p);

	while (plan->copy.bytes < most) {
		uint64_t before = plan->copy.bytes;

		if (!slice_open(c, g, p, most - plan->copy.bytes))
			return false;
		if (p->way.device != way.device || p->way.engines != way.engines ||
		    p->way.lists != way.lists || p->way.staged)
			return false;
		if (p->whole && !way.engines && gpu_plan_add_ops(plan, p->open)) {
			slice_carried(p, b);
			return false;
		}
		if (p->whole)
			local_walk_slice(&p->walk, p->open);
		p->whole = false;
		if (!gpu_plan_add(plan, &p->walk)) {
			p->whole = p->walk.left == p->open->bytes;
			return plan->copy.bytes > before;
		}
		slice_carried(p, b);
	}
	return false;
}

static void batch_note_way(struct gpu_batch *b, const struct gpu_path *p, struct gpu_way way,
			   bool engines, bool part)
{
	b->way = engines                 ? DMSG_GPU_WAY_COPY_ENGINE :
		 way.device == p->device ? DMSG_GPU_WAY_KERNEL :
					   DMSG_GPU_WAY_OTHER_KERNEL;
	dray_list_for_each(&b->slices, s, struct slice, link)
		xfer_note_gpu_way(s->xfer, b->way);
	if (part)
		xfer_note_gpu_way(p->open->xfer, b->way);
}

/* Bytes of the path's next slice, at most: with copy memory it fits into a part of that. Staged copies go on with such slices. */
static uint64_t slice_most(const struct core *c, const struct gpu_path *p)
{
	uint64_t most = slice_limit(c, p), part = gpu_relay_slice(p);

	if (!part)
		return most;
	/* with the bytes behind its runs, too */
	if (p->way.pads)
		return part / 8 * 5;
	return p->way.staged ? part : dray_min(most, part);
}

/* False: nothing to copy, or no room. */
static bool batch_send(struct core *c, struct gpu_transport *g, struct gpu_path *p)
{
	struct gpu_batch *b = dray_list_first(&g->free, struct gpu_batch, link);
	unsigned lane = p->channel.class;
	struct gpu_plan plan;
	struct gpu_way way;
	uint32_t room;
	bool part;

	if (!b || !slice_open(c, g, p, slice_most(c, p)))
		return false;
	way = p->way;
	if (way.staged) {
		struct slice *s = p->open;

		if (!gpu_relay_take(c, p))
			return false;
		xfer_note_gpu_way(s->xfer, DMSG_GPU_WAY_STAGED);
		return true;
	}
	lane += way.engines ? GPU_LANE_ENGINE : GPU_LANE_KERNEL;
	room = gpu_room(c, way.device, lane);
	if (!room)
		return false;
	gpu_plan_init(&plan, p->kind, gpu_pieces(c, way.device, lane), room);
	plan.engines = way.engines;
	plan.copy.lists = way.lists;
	part = batch_fill(c, g, p, b, &plan);
	if (!plan.n)
		return false;
	b->task.done = batch_done;
	b->path = p;
	b->bytes = plan.copy.bytes;
	batch_note_way(b, p, way, plan.copy.engine, part);
	if (gpu_submit(c, way.device, lane, &plan.copy, plan.n, &b->task) < 0) {
		lists_lost(b);
		slices_over(g, &b->slices, DRAY_E_GPU_LOST, NULL);
		/* with a copy in flight it ends after that one */
		if (part && !p->carrier)
			gpu_slice_over(g, dray_take(p->open), DRAY_E_GPU_LOST);
		else if (part)
			p->open->end_code = DRAY_E_GPU_LOST;
		return false;
	}
	if (part && b->task.refused) {
		p->open->end_code = DRAY_E_INTERNAL;
		p->open->refused = b->task.refused;
	}
	if (part)
		p->carrier = b;
	dray_list_move(&p->batches, &b->link);
	p->n_batches++;
	p->bytes += b->bytes;
	return true;
}

/* Its device is not up: ends all waiting slices. Copies in flight end by themselves. */
static void path_fail(struct core *c, struct gpu_transport *g, struct gpu_path *p)
{
	struct slice *s;

	gpu_staged_fail(p);
	gpu_relay_fail(c, p);
	if (p->open && p->carrier)
		return;
	if (p->open)
		gpu_slice_over(g, dray_take(p->open), DRAY_E_GPU_LOST);
	while ((s = sched_next(c, &p->channel, gpu_plan_limits[p->kind].slice)))
		gpu_slice_over(g, s, DRAY_E_GPU_LOST);
}

/* Bytes in flight, at most. */
static uint64_t under_way(const struct core *c, const struct gpu_path *p)
{
	if (p->way.lists)
		return LISTS_UNDER_WAY;
	return dray_max(gpu_plan_limits[p->kind].under_way, SLICES_UNDER_WAY * slice_limit(c, p));
}

/* Does a bounded part of the path's work. True: there is more to do at once. */
static bool path_run(struct core *c, struct gpu_transport *g, struct gpu_path *p)
{
	bool more = false;

	if (!gpu_is_up(c, p->device))
		path_fail(c, g, p);
	else if (p->kind >= GPU_PATH_TO_HOST_STAGED)
		more = gpu_staged_run(c, p);
	else {
		gpu_relay_run(c, p);
		while (p->n_batches < BATCHES && p->bytes < under_way(c, p) && batch_send(c, g, p))
			;
	}
	if (!p->open && dray_list_empty(&p->jobs) && dray_list_empty(&p->relays) &&
	    !channel_pending(&p->channel))
		dray_list_del(&p->link);
	return more;
}

static bool gpu_progress(struct core *c, void *state)
{
	struct gpu_transport *g = state;
	bool any = gpu_queues_poll(c), more = false;

	g->buffer_came = false;
	/* First, because it makes room, and clients may send more. */
	any |= end_over(c, g, NULL);
	for (unsigned i = 0; i < 2; i++) {
		enum dmsg_class class = i ? DMSG_CLASS_BULK : DMSG_CLASS_LATENCY;

		dray_list_for_each(&g->ready[class], p, struct gpu_path, link)
			more |= path_run(c, g, p);
	}
	return any || more || !dray_list_empty(&g->over);
}

static bool batch_has(const struct gpu_batch *b, const struct xfer *x)
{
	dray_list_for_each(&b->slices, s, struct slice, link)
		if (s->xfer == x)
			return true;
	dray_list_for_each(&b->stopped, s, struct slice, link)
		if (s->xfer == x)
			return true;
	return false;
}

static void gpu_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct gpu_transport *g = state;
	struct gpu_path *p = path_of(x->channel);

	if (p->open && p->open->xfer == x) {
		if (p->carrier)
			dray_list_add(&p->carrier->stopped, &p->open->link);
		else
			gpu_slice_over(g, p->open, DRAY_E_CANCELLED);
		p->open = NULL;
		p->carrier = NULL;
	}
	dray_list_for_each(&p->batches, b, struct gpu_batch, link)
		if (batch_has(b, x))
			gpu_task_stop(c, &b->task, urgent);
	gpu_staged_stop(c, p, x, urgent);
	gpu_relay_stop(c, p, x, urgent);
	end_over(c, g, x);
}

static int64_t gpu_tick(struct core *c, void *state)
{
	return dray_min(gpu_queues_tick(c), gpu_relay_tick(c, state));
}

static bool gpu_announce(struct core *c, void *state)
{
	struct gpu_transport *g = state;

	return gpu_queues_announce(c) || g->buffer_came;
}

static void gpu_message(struct core *c, void *state, const struct transport_message *m)
{
	struct gpu_transport *g = state;
	struct object *o;

	switch ((enum gpu_command)m->type) {
	case GPU_UP:
		if (!g->batches)
			batches_new(g);
		if (!g->relay)
			gpu_relay_init(g);
		if (!g->devices[m->id])
			paths_new(g, (unsigned)m->id);
		gpu_queues_up(c, m->arg);
		peers_update(c, g);
		xfers_retry(c);
		break;
	case GPU_DOWN:
		gpu_relay_down(c, g, (unsigned)m->id);
		gpu_queues_down(c, (unsigned)m->id);
		peers_update(c, g);
		break;
	case GPU_ENDED:
		stage_device_ended(c, (unsigned)m->id);
		break;
	case GPU_COPY_MEMORY:
		gpu_relay_given(c, g, (unsigned)m->id, m->arg);
		break;
	case GPU_RATES:
		gpu_queues_rates(c, (unsigned)m->id, m->arg);
		break;
	case GPU_PINNED:
	case GPU_UNPINNED:
		o = object_get(c, OBJECT_REGION, m->id);
		if (o)
			o->pinned = m->type == GPU_PINNED;
		break;
	case GPU_STAGING:
		stage_up(c, m->arg);
		gpu_staged_init(g);
		break;
	case GPU_LISTS:
		xfers_pinned(c, m->arg);
		break;
	}
}

const struct transport_ops transport_gpu = {
	.id = DMSG_TRANSPORT_GPU,
	.walks_ops = 32768,
	.init = gpu_init,
	.deinit = gpu_deinit,
	.channel = gpu_channel,
	.kick = gpu_kick,
	.progress = gpu_progress,
	.announce = gpu_announce,
	.stop = gpu_stop,
	.tick = gpu_tick,
	.message = gpu_message,
};
