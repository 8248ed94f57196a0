/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in a queue end in the order of their submission. So the tasks of a queue are a list, and the pinned memory for
 * their pieces is a ring: each task returns its range when it leaves the list. A range is contiguous; what stays
 * unused at the end of the ring belongs to the next task.
 *
 * Completion is a word in memory that the worker loads once a turn. While a queue is about to run empty, by the expected time of its
 * copies, the worker polls if poll_time is not 0. Before it sleeps it asks the plug-in to wake it when the queue is done. With several copies in
 * flight it sleeps for a short time instead, so that it refills the queue before it runs empty.
 */
#include "agent/data/gpu_queue/gpu_queue.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/data/gpu_queue/load.h"
#include "agent/data/gpu_queue/way.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/timeout.h"
#include "lib/wake.h"

/* Copies of one queue in flight, at most: from about a thousand on drivers block the caller. */
#define COPIES_MAX 64
/* If a copy takes this long, the device is asked for its health, at this interval. */
#define CHECK_NS ((int64_t)DRAY_NS_PER_MS)
/* Interval between looks at a queue with several copies. */
#define LOOK_NS 50000
/*
 * A queue that should be empty within this time is polled, because sleeping and waking take as long. A queue without progress
 * for longer is not: other processes use the device.
 */
#define POLL_NS 200000
#define POLL_VAIN_NS (2 * POLL_NS)
/* Time of a copy besides its bytes. */
#define LAUNCH_NS 8000
/* Of a kernel beside large matrix products, until it was measured. */
#define WAIT_NS (2 * (int64_t)DRAY_NS_PER_MS)
#define FINISH_LIMIT_NS ((int64_t)DRAY_NS_PER_SEC)
/* Looks at a queue in an urgent gpu_task_stop() before the thread yields. */
#define FINISH_LOOKS 4096

struct lane {
	struct dray_list link; /* on gpu_worker->busy; poll() removes a lane without tasks */
	unsigned device;
	enum dmsg_class class;
	struct gpu_queue *queue;
	struct dray_piece *pieces;
	uint32_t n_pieces, head, used; /* of the ring */
	struct dray_list tasks;        /* oldest first */
	unsigned n_tasks;
	uint64_t submitted;        /* number of the last copy */
	uint64_t announced;        /* the plug-in reports when this one is done */
	int64_t since_ns;          /* last progress, while there are tasks */
	int64_t checked_ns;        /* the same, or when the device was asked for its health since */
	int64_t empty_ns;          /* when all tasks should be done */
	uint64_t awaited;          /* number of the last copy that was stopped and not urgent */
	struct dray_timeout limit; /* until it is done: of the time without progress */
	bool stalled;              /* the wait for the first task was noted as load */
	bool by_host;              /* the last one goes over the host bus, which is slow */
};

struct port {
	const struct gpu_queues *given; /* NULL: not up */
	const struct gpu_rates *rates;
	bool lost, going;
	struct lane lanes[GPU_LANE_COPY_N]; /* by enum gpu_lane */
	struct gpu_probe probe;
	int64_t refused_ns; /* when the control thread was told of a refused copy last; 0: never */
	char refusal[128];  /* why the driver refused a copy last, as a sentence */
};

struct gpu_worker {
	struct port ports[GPU_DEVICES_MAX];
	struct dray_list busy;  /* lanes with tasks, those of class latency first */
	uint32_t probes;        /* devices with a probe in flight */
	_Atomic unsigned armed; /* callbacks of the plug-in that are still due */
	int wake_fd;
	struct loop_source source;
};

static struct lane *lane_of(const struct core *c, unsigned device, unsigned lane)
{
	return &c->gpu->ports[device].lanes[lane];
}

static bool is_kernels(const struct core *c, const struct lane *l)
{
	return l - c->gpu->ports[l->device].lanes < GPU_LANE_ENGINE;
}

static bool is_latency(const struct lane *l)
{
	return l->class == DMSG_CLASS_LATENCY;
}

static bool port_is_up(const struct port *p)
{
	return p->given && !p->lost && !p->going;
}

bool gpu_is_up(const struct core *c, unsigned device)
{
	return c->gpu && port_is_up(&c->gpu->ports[device]);
}

uint32_t gpu_queues_peers(const struct core *c, unsigned device)
{
	const struct port *p = &c->gpu->ports[device];

	return port_is_up(p) ? p->given->peers | 1u << device : 0;
}

/* Only wakes the worker: every turn looks at the tasks. */
static void woken(struct loop_source *source, uint32_t events)
{
	dray_wake_clear(source->fd);
}

int gpu_queues_init(struct core *c)
{
	struct gpu_worker *g = calloc(1, sizeof(*g));
	int ret;

	if (!g)
		return -ENOMEM;
	dray_list_init(&g->busy);
	for (unsigned i = 0; i < GPU_DEVICES_MAX * GPU_LANE_COPY_N; i++) {
		struct lane *l = &g->ports[i / GPU_LANE_COPY_N].lanes[i % GPU_LANE_COPY_N];

		dray_list_init(&l->link);
		dray_list_init(&l->tasks);
		l->device = i / GPU_LANE_COPY_N;
		l->class = (enum dmsg_class)(i % GPU_LANE_ENGINE);
	}
	g->wake_fd = dray_wake_new();
	ret = g->wake_fd < 0 ? g->wake_fd :
			       loop_add(&c->loop, &g->source, g->wake_fd, EPOLLIN, woken);
	if (ret < 0) {
		dray_close(g->wake_fd);
		free(g);
		return ret;
	}
	c->gpu = g;
	return 0;
}

void gpu_queues_deinit(struct core *c)
{
	struct gpu_worker *g = c->gpu;
	struct dray_timeout timeout = dray_timeout_start(FINISH_LIMIT_NS);

	if (!g)
		return;
	while (atomic_load_explicit(&g->armed, memory_order_acquire)) {
		/* a callback that is still due writes to the descriptor and the counter, so both stay */
		if (dray_timeout_passed(&timeout, dray_now().ns))
			return;
		sched_yield();
	}
	loop_del(&c->loop, &g->source);
	dray_close(g->wake_fd);
	free(g);
	c->gpu = NULL;
}

/* arg: of GPU_REFUSED, or NULL. */
static void tell(struct core *c, enum gpu_event type, unsigned device, const char *arg)
{
	c->up->event(c, &(struct event){ .type = EVENT_TRANSPORT,
					 .message = { .transport = DMSG_TRANSPORT_GPU,
						      .type = type,
						      .id = device,
						      .arg = (void *)(uintptr_t)arg } });
}

void gpu_queues_up(struct core *c, const struct gpu_queues *q)
{
	struct port *p = &c->gpu->ports[q->device];

	dray_assert(!p->given);
	p->given = q;
	p->rates = q->rates;
	p->lost = p->going = false;
	p->probe = (struct gpu_probe){ 0 };
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++) {
		struct lane *l = &p->lanes[k];

		l->queue = q->queue[k];
		l->pieces = q->pieces[k];
		l->n_pieces = k < GPU_LANE_ENGINE ? q->n_pieces : q->n_engine_pieces;
		l->head = l->used = 0;
		l->submitted = l->announced =
			atomic_load_explicit(l->queue->done, memory_order_acquire);
		l->awaited = 0;
	}
}

void gpu_queues_rates(struct core *c, unsigned device, const struct gpu_rates *rates)
{
	c->gpu->ports[device].rates = rates;
}

/* The device's queues are no longer used. A task's done() may end other tasks and get here first. */
static void port_leave(struct core *c, unsigned device)
{
	struct port *p = &c->gpu->ports[device];

	if (!p->given || !p->going)
		return;
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++)
		if (p->lanes[k].n_tasks)
			return;
	p->given = NULL;
	tell(c, GPU_GONE, device, NULL);
}

void gpu_queues_down(struct core *c, unsigned device)
{
	c->gpu->ports[device].going = true;
	port_leave(c, device);
}

static void port_lost(struct core *c, unsigned device)
{
	struct port *p = &c->gpu->ports[device];

	if (p->lost)
		return;
	p->lost = true;
	tell(c, GPU_LOST, device, NULL);
	/* all queues: the plug-in releases their waiters */
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++)
		p->given->ops->check(p->lanes[k].queue);
}

int gpu_flush_rdma(struct core *c, unsigned device)
{
	const struct gpu_queues *q;
	int ret;

	if (!gpu_is_up(c, device))
		return -EIO;
	q = c->gpu->ports[device].given;
	ret = q->rdma_ordered ? 0 : q->ops->flush_rdma(q->plugin, device);
	if (ret >= 0 || ret == -EOPNOTSUPP)
		return 0;
	port_lost(c, device);
	return -EIO;
}

/* The range for a copy's pieces: how many there are, and how many are skipped at the end of the ring. */
static uint32_t room(const struct lane *l, uint32_t *ret_skip)
{
	uint32_t behind, tail;

	*ret_skip = 0;
	if (l->n_tasks == COPIES_MAX)
		return 0;
	if (!l->used) {
		*ret_skip = l->n_pieces - l->head;
		return l->n_pieces;
	}
	tail = l->head >= l->used ? l->head - l->used : l->head + l->n_pieces - l->used;
	if (l->head <= tail)
		return tail - l->head;
	behind = l->n_pieces - l->head;
	if (behind >= tail || behind >= l->n_pieces / 8)
		return behind;
	*ret_skip = behind;
	return tail;
}

uint32_t gpu_room(const struct core *c, unsigned device, unsigned lane)
{
	uint32_t skip;

	return gpu_is_up(c, device) ? room(lane_of(c, device, lane), &skip) : 0;
}

struct dray_piece *gpu_pieces(struct core *c, unsigned device, unsigned lane)
{
	struct lane *l = lane_of(c, device, lane);
	uint32_t skip;

	room(l, &skip);
	return &l->pieces[skip ? 0 : l->head];
}

/* Expected time of a copy on an otherwise idle device; rather too short. */
static int64_t duration(const struct gpu_copy *copy)
{
	static const uint32_t bytes_a_ns[GPU_ROUTE_N] = {
		[GPU_WITHIN] = 2000, [GPU_PEER] = 400, [GPU_TO_HOST] = 55, [GPU_FROM_HOST] = 55
	};

	return LAUNCH_NS + (int64_t)(copy->bytes / bytes_a_ns[copy->route]);
}

/* Rates are measured only while there is nothing to copy. */
static void measurement_ends(const struct port *p)
{
	struct gpu_load *l = p->given->load;

	if (l && atomic_load_explicit(&l->measured, memory_order_relaxed))
		atomic_store_explicit(&l->measured, false, memory_order_relaxed);
}

/* The reason, as a sentence in memory of the worker. A driver may refuse all copies. */
static const char *note_refusal(struct core *c, const struct lane *l)
{
	struct port *p = &c->gpu->ports[l->device];

	snprintf(p->refusal, sizeof(p->refusal),
		 "the GPU driver refused a copy of the transfer: %s", l->queue->refusal);
	if (!p->refused_ns || c->now_ns >= p->refused_ns + DRAY_NS_PER_SEC) {
		p->refused_ns = c->now_ns;
		tell(c, GPU_REFUSED, l->device, l->queue->refusal);
	}
	return p->refusal;
}

int gpu_submit(struct core *c, unsigned device, unsigned lane, struct gpu_copy *copy, uint32_t n,
	       struct gpu_task *t)
{
	struct lane *l = lane_of(c, device, lane);
	struct port *p = &c->gpu->ports[device];
	uint32_t skip, at;
	bool own;
	int ret;

	if (!gpu_is_up(c, device))
		return -EIO;
	measurement_ends(p);
	copy->n = n;
	own = copy->pieces;
	if (room(l, &skip) < (own ? 1 : n))
		return -EAGAIN;
	at = skip ? 0 : l->head;
	if (!own)
		copy->pieces = &l->pieces[at];
	ret = p->given->ops->submit(l->queue, copy);
	if (ret == -EIO) {
		port_lost(c, device);
		return -EIO;
	}
	t->refused = ret < 0 ? note_refusal(c, l) : NULL;
	t->n_pieces = 0;
	if (!own) {
		/* without copies in flight the skipped range was free already */
		t->n_pieces = n + (l->used ? skip : 0);
		l->used += t->n_pieces;
		l->head = at + n == l->n_pieces ? 0 : at + n;
	}
	t->device = (uint8_t)device;
	t->lane = (uint8_t)(l - p->lanes);
	t->number = ++l->submitted;
	if (!l->n_tasks++) {
		l->since_ns = l->checked_ns = l->empty_ns = c->now_ns;
		l->stalled = false;
	}
	l->empty_ns = dray_max(l->empty_ns, c->now_ns) + duration(copy);
	l->by_host = copy->route == GPU_TO_HOST || copy->route == GPU_FROM_HOST;
	if (dray_list_empty(&l->link) && is_latency(l))
		dray_list_add_front(&c->gpu->busy, &l->link);
	else if (dray_list_empty(&l->link))
		dray_list_add(&c->gpu->busy, &l->link);
	dray_list_init(&t->link);
	dray_list_add(&l->tasks, &t->link);
	core_count(c->counters, DRAY_METRIC_GPU_LAUNCHES_TOTAL, 1);
	return 0;
}

static bool is_done(const struct lane *l, const struct gpu_task *t)
{
	/* acquire: every byte of the copy is in place */
	return atomic_load_explicit(l->queue->done, memory_order_acquire) >= t->number;
}

/* Takes the task off and calls done(). Pieces return in order: those of a task in the middle go to the one before. */
static void task_end(struct core *c, struct lane *l, struct gpu_task *t, bool done)
{
	uint32_t code = !done ? DRAY_E_GPU_LOST : t->refused ? DRAY_E_INTERNAL : 0;

	if (l->tasks.next == &t->link)
		l->used -= t->n_pieces;
	else
		dray_list_entry(t->link.prev, struct gpu_task, link)->n_pieces += t->n_pieces;
	dray_list_del(&t->link);
	l->n_tasks--;
	t->done(c, t, code);
}

/* By the time of the turn, as the looks at it. */
static void limit_start(const struct core *c, struct lane *l)
{
	l->limit = (struct dray_timeout){ .limit_ns = c->cfg.slice_timeout_ns,
					  .checked_ns = c->now_ns };
}

static bool lane_poll(struct core *c, struct lane *l)
{
	const struct port *p = &c->gpu->ports[l->device];
	struct gpu_task *t;
	bool any = false;

	while ((t = dray_list_first(&l->tasks, struct gpu_task, link))) {
		bool done = is_done(l, t);

		if (!done && !p->lost) {
			if (!l->stalled && is_kernels(c, l))
				l->stalled = gpu_load_stalled(p->given, c->now_ns - l->since_ns,
							      c->now_ns);
			break;
		}
		l->stalled = false;
		l->since_ns = l->checked_ns = c->now_ns;
		limit_start(c, l);
		any = true;
		task_end(c, l, t, done);
	}
	if (any && p->going)
		port_leave(c, l->device);
	return any;
}

enum dray_config_gpu_copy gpu_copy_setting(const struct core *c, unsigned device)
{
	return c->gpu->ports[device].given->copy;
}

bool gpu_is_busy(const struct core *c, unsigned device)
{
	const struct port *p = &c->gpu->ports[device];

	return port_is_up(p) && p->given->load &&
	       atomic_load_explicit(&p->given->load->busy, memory_order_relaxed);
}

bool gpu_is_shared(const struct core *c, unsigned device)
{
	return c->gpu->ports[device].given->shared;
}

int64_t gpu_wait_ns(const struct core *c, unsigned device)
{
	const struct port *p = &c->gpu->ports[device];
	int64_t ns = 0;

	if (port_is_up(p) && p->given->load)
		ns = atomic_load_explicit(&p->given->load->wait_ns, memory_order_relaxed);
	return ns ? ns : WAIT_NS;
}

const struct gpu_rates *gpu_rates(const struct core *c, unsigned device)
{
	const struct port *p = &c->gpu->ports[device];

	return p->rates ? p->rates : &gpu_rates_built_in;
}

enum gpu_bus gpu_bus_between(const struct core *c, unsigned device, unsigned other)
{
	const struct port *p = &c->gpu->ports[device];

	return port_is_up(p) && p->given->nvlink >> other & 1 ? GPU_BUS_NVLINK : GPU_BUS_PCIE;
}

uint64_t gpu_copy_memory_setting(const struct core *c, unsigned device)
{
	return c->gpu->ports[device].given->copy_memory;
}

/* Are kernels of this worker in flight? Small ones have the device for this process, too. */
static bool has_kernels(const struct port *p)
{
	for (unsigned k = GPU_LANE_KERNEL; k < GPU_LANE_ENGINE; k++)
		if (p->lanes[k].n_tasks)
			return true;
	return false;
}

void gpu_watch(struct core *c, unsigned device)
{
	struct port *p = &c->gpu->ports[device];

	if (!port_is_up(p))
		return;
	if (gpu_probe_send(&p->probe, p->given, !has_kernels(p), c->now_ns) < 0)
		port_lost(c, device);
	if (p->probe.sent_ns)
		c->gpu->probes |= 1u << device;
}

bool gpu_row_by_engines(struct core *c, unsigned device, enum gpu_route route, uint64_t bytes,
			uint32_t pieces)
{
	struct gpu_way_question q = {
		.route = route,
		.bus = route == GPU_TO_HOST ? GPU_BUS_TO_HOST : GPU_BUS_FROM_HOST,
		.rates = gpu_rates(c, device),
		.setting = gpu_copy_setting(c, device),
		.device = (uint8_t)device,
		.busy = gpu_is_busy(c, device),
		.other = -1,
		.pieces = pieces,
		.bytes = bytes,
		.wait_ns = gpu_wait_ns(c, device),
	};

	gpu_watch(c, device);
	return gpu_way_choose(&q).engines;
}

/* Looks at the probes in flight. Those of a device that is lost or goes end with it. */
static void probes_look(struct core *c)
{
	struct gpu_worker *g = c->gpu;

	for (uint32_t left = g->probes; left; left &= left - 1) {
		unsigned device = (unsigned)__builtin_ctz(left);
		struct port *p = &g->ports[device];

		if (port_is_up(p))
			gpu_probe_look(&p->probe, p->given, c->now_ns);
		if (!port_is_up(p) || !p->probe.sent_ns)
			g->probes &= ~(1u << device);
	}
}

bool gpu_queues_poll(struct core *c)
{
	bool any = false;

	probes_look(c);

	dray_list_for_each(&c->gpu->busy, l, struct lane, link) {
		any |= lane_poll(c, l);
		if (!l->n_tasks)
			dray_list_del(&l->link);
	}
	return any;
}

/* Kernels of an engine may take all of a shared device for as long as they run. */
static bool hangs(struct lane *l, const struct port *p, int64_t now_ns)
{
	return l->awaited > atomic_load_explicit(l->queue->done, memory_order_relaxed) &&
	       !p->given->shared && dray_timeout_passed(&l->limit, now_ns);
}

/* Checks the device of a queue without progress. */
static int64_t lane_tick(struct core *c, struct lane *l)
{
	const struct port *p = &c->gpu->ports[l->device];
	int64_t poll_ns;

	if (!l->n_tasks)
		return INT64_MAX;
	if (p->lost)
		return c->now_ns;
	if (c->now_ns - l->checked_ns >= CHECK_NS) {
		l->checked_ns = c->now_ns;
		if (p->given->ops->check(l->queue) < 0 || hangs(l, p, c->now_ns)) {
			port_lost(c, l->device);
			return c->now_ns;
		}
	}
	poll_ns = l->empty_ns - POLL_NS;
	/* then polls for a while; if copies take long, occasional looks keep the queue filled */
	if (!c->cfg.poll_time_ns || c->now_ns - l->since_ns >= POLL_VAIN_NS ||
	    (l->by_host && l->n_tasks > 1))
		poll_ns = INT64_MAX;
	poll_ns = dray_max(poll_ns, c->now_ns);
	return dray_min(poll_ns, l->n_tasks > 1 ? c->now_ns + LOOK_NS : l->checked_ns + CHECK_NS);
}

int64_t gpu_queues_tick(struct core *c)
{
	int64_t next = c->gpu->probes ? c->now_ns + GPU_PROBE_LOOK_NS : INT64_MAX;

	dray_list_for_each(&c->gpu->busy, l, struct lane, link)
		next = dray_min(next, lane_tick(c, l));
	return next;
}

/* Runs on a thread of the plug-in. */
static void wake(void *arg)
{
	struct gpu_worker *g = arg;

	dray_wake(g->wake_fd);
	/* release: the last access to g */
	atomic_fetch_sub_explicit(&g->armed, 1, memory_order_release);
}

static bool lane_announce(struct core *c, struct lane *l)
{
	struct gpu_worker *g = c->gpu;
	const struct gpu_task *first = dray_list_first(&l->tasks, struct gpu_task, link);
	const struct port *p = &g->ports[l->device];
	int ret;

	if (!first)
		return false;
	if (p->lost || is_done(l, first))
		return true;
	/* several copies: the worker sleeps for LOOK_NS */
	if (l->n_tasks > 1 || l->announced == l->submitted)
		return false;
	atomic_fetch_add_explicit(&g->armed, 1, memory_order_relaxed);
	ret = p->given->ops->notify(l->queue, wake, g);
	if (ret < 0)
		atomic_fetch_sub_explicit(&g->armed, 1, memory_order_relaxed);
	/* an earlier callback is still due: the tick looks next */
	if (ret == -EAGAIN)
		return false;
	if (ret < 0) {
		port_lost(c, l->device);
		return true;
	}
	l->announced = l->submitted;
	return false;
}

bool gpu_queues_announce(struct core *c)
{
	bool work = false;

	dray_list_for_each(&c->gpu->busy, l, struct lane, link)
		work |= lane_announce(c, l);
	return work;
}

/* True: it is done; false: the device is lost, or counts as lost for lack of progress. */
static bool wait_for(struct core *c, struct port *p, struct lane *l, const struct gpu_task *t)
{
	struct dray_timeout timeout = dray_timeout_start(FINISH_LIMIT_NS);

	for (unsigned looks = 0; !is_done(l, t); looks++) {
		int64_t now_ns;

		if (p->lost)
			return false;
		if (looks < FINISH_LOOKS) {
			dray_cpu_relax();
			continue;
		}
		sched_yield();
		now_ns = dray_now().ns;
		if (now_ns - timeout.checked_ns < CHECK_NS)
			continue;
		if (dray_timeout_passed(&timeout, now_ns) || p->given->ops->check(l->queue) < 0)
			port_lost(c, t->device);
	}
	return true;
}

void gpu_task_stop(struct core *c, struct gpu_task *t, bool urgent)
{
	struct port *p = &c->gpu->ports[t->device];
	struct lane *l = &p->lanes[t->lane];

	if (urgent) {
		task_end(c, l, t, wait_for(c, p, l, t));
		port_leave(c, l->device);
		return;
	}
	if (l->awaited <= atomic_load_explicit(l->queue->done, memory_order_relaxed))
		limit_start(c, l);
	l->awaited = dray_max(l->awaited, t->number);
}
