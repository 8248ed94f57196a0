/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged copies: through copy memory on the devices, which belongs to the agent. A kernel gathers the pieces of a slice there, copy
 * engines move them in large runs, and a kernel scatters them on the other device; a side whose bytes follow each other
 * needs no kernel. The control thread gives the memory when a worker asks for it, and gets it back after a while
 * without such copies. Each slice is a job with a part of the memory, and jobs overlap.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/sched.h"
#include "agent/data/transport/gpu/gpu.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"

/* Parts of a device's copy memory, one for each job: enough that kernels and copy engines work at the same time. */
#define PARTS 8u
#define JOBS 64
#define STEPS 3
/* Pieces that are merged at a time. */
#define PIECES 128
/* Operations that show how a transfer's bytes lie. */
#define SAMPLE 256
/* Without a staged copy for this time the memory is given back. */
#define IDLE_NS (10 * (int64_t)DRAY_NS_PER_SEC)
/* A device that gave memory is taken to have no more for this time. */
#define KNOWN_NS (60 * (int64_t)DRAY_NS_PER_SEC)
/* Until the next request if there was no memory. */
#define ASK_NS ((int64_t)DRAY_NS_PER_SEC)

/* One copy of a job. Ends are parts of the job, or NONE: the memory of the transfer. */
enum { NONE = -1 };

struct step {
	uint8_t device; /* whose queue copies */
	bool engines;
	enum gpu_route route;
	int8_t from, to;
};

struct part {
	uint64_t base; /* 0: not taken yet, or returned */
	uint8_t device;
};

struct job {
	struct gpu_task task;
	struct dray_list link; /* on its path, oldest first; or on the free list */
	struct gpu_path *path;
	struct slice *slice;
	struct step steps[STEPS];
	struct part parts[2];
	uint8_t n_steps, step;
	bool lists;             /* of struct gpu_copy */
	bool pads;              /* of struct gpu_way */
	bool grouped;           /* the kernel that empties its part does not wait for others */
	struct local_walk walk; /* what the current step has not submitted */
	uint64_t at;            /* position of the walk in the parts */
	/* pads: end in host memory of what was walked, and where its run begins in the part */
	const uint8_t *host_end;
	uint64_t run_at;
	uint64_t padding; /* bytes that the current copy reads besides the slice's own */
	bool busy;        /* a copy is in flight */
	uint32_t code;    /* of the last copy */
};

struct memory {
	uint64_t base, part; /* 0: none */
	uint32_t used;       /* a bit for each part of a job */
	uint32_t sources;    /* those of them whose bytes go on to another device's memory */
	bool asked;
	bool full; /* no part was free, or only the last one: kernels that fill parts wait until half of them are */
	bool leaving; /* given back when no job uses it: its device goes, or a lost one may still write it */
	uint64_t got;     /* bytes that the device gave last, perhaps fewer than the setting */
	int64_t known_ns; /* until then no copy asks it for more */
	int64_t due_ns; /* when it is given back unless it is used; without memory: when to ask again */
};

struct gpu_relay {
	struct memory memories[GPU_DEVICES_MAX];
	uint32_t there; /* a bit for each device with memory */
	struct dray_list free;
	struct job jobs[JOBS];
};

void gpu_relay_init(struct gpu_transport *g)
{
	g->relay = dray_calloc_sure(1, sizeof(*g->relay));
	dray_list_init(&g->relay->free);
	for (unsigned i = 0; i < JOBS; i++)
		dray_list_add(&g->relay->free, &g->relay->jobs[i].link);
}

void gpu_relay_deinit(struct gpu_transport *g)
{
	free(g->relay);
}

/* --- memory --- */

static void tell(struct core *c, enum gpu_event type, unsigned device)
{
	c->up->event(c, &(struct event){ .type = EVENT_TRANSPORT,
					 .message = { .transport = DMSG_TRANSPORT_GPU,
						      .type = type,
						      .id = device } });
}

static bool is_there(const struct memory *m)
{
	return m->base && !m->leaving;
}

static void memory_check(struct core *c, struct gpu_relay *r, unsigned device)
{
	struct memory *m = &r->memories[device];

	if (!m->leaving || m->used)
		return;
	*m = (struct memory){ .got = m->got, .known_ns = m->known_ns };
	r->there &= ~(1u << device);
	tell(c, GPU_COPY_MEMORY_BACK, device);
}

static void memory_leave(struct core *c, struct gpu_relay *r, unsigned device)
{
	struct memory *m = &r->memories[device];

	if (!m->base)
		return;
	m->leaving = true;
	memory_check(c, r, device);
}

/* The path stages only while both sides have memory, so each copy keeps that of both, whichever it goes through. */
static void memory_keep(struct core *c, struct gpu_relay *r, unsigned device)
{
	struct memory *m = &r->memories[device];

	/* without memory it is the time of the next request */
	if (is_there(m))
		m->due_ns = c->now_ns + IDLE_NS;
}

static uint64_t part_bytes(uint64_t memory)
{
	return memory / PARTS / 4096 * 4096;
}

void gpu_relay_given(struct core *c, struct gpu_transport *g, unsigned device,
		     const struct gpu_copy_memory *m)
{
	if (m)
		g->relay->there |= 1u << device;
	g->relay->memories[device] = (struct memory){
		.base = m ? m->address : 0,
		.part = m ? part_bytes(m->bytes) : 0,
		.due_ns = c->now_ns + (m ? IDLE_NS : ASK_NS),
		.got = m ? part_bytes(m->bytes) * PARTS : UINT64_MAX,
		.known_ns = m ? c->now_ns + KNOWN_NS : 0,
	};
}

void gpu_relay_down(struct core *c, struct gpu_transport *g, unsigned device)
{
	if (g->relay)
		memory_leave(c, g->relay, device);
}

int64_t gpu_relay_tick(struct core *c, struct gpu_transport *g)
{
	int64_t next = INT64_MAX;

	for (uint32_t left = g->relay ? g->relay->there : 0; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctz(left);
		struct memory *m = &g->relay->memories[i];

		if (!is_there(m))
			continue;
		if (m->used)
			m->due_ns = c->now_ns + IDLE_NS;
		if (c->now_ns >= m->due_ns)
			memory_leave(c, g->relay, i);
		else
			next = dray_min(next, m->due_ns);
	}
	return next;
}

static void ask(struct core *c, struct gpu_relay *r, unsigned device)
{
	struct memory *m = &r->memories[device];

	if (m->base || m->asked || c->now_ns < m->due_ns)
		return;
	m->asked = true;
	tell(c, GPU_COPY_MEMORY_WANTED, device);
}

static unsigned parts_free(const struct memory *m)
{
	return PARTS - (unsigned)__builtin_popcount(m->used);
}

/* False: no part is free, or they are smaller than these bytes. */
static bool part_take(struct gpu_relay *r, struct part *p, uint64_t bytes, bool source)
{
	struct memory *m = &r->memories[p->device];
	unsigned i;

	if (p->base)
		return true;
	if (!is_there(m) || !parts_free(m) || bytes > m->part)
		return false;
	i = (unsigned)__builtin_ctz(~m->used);
	m->used |= 1u << i;
	m->sources |= (uint32_t)source << i;
	m->full |= !parts_free(m);
	p->base = m->base + i * m->part;
	return true;
}

static void part_return(struct core *c, struct gpu_relay *r, struct part *p)
{
	struct memory *m = &r->memories[p->device];

	if (!p->base)
		return;
	m->used &= ~(1u << (p->base - m->base) / m->part);
	m->sources &= m->used;
	if (parts_free(m) >= PARTS / 2)
		m->full = false;
	p->base = 0;
	memory_check(c, r, p->device);
}

/* --- what a transfer needs --- */

static const struct region_view *region_from(const struct xfer *x)
{
	return object_region(x->direction == DMSG_DIRECTION_READ ? x->target : x->local);
}

static const struct region_view *region_to(const struct xfer *x)
{
	return object_region(x->direction == DMSG_DIRECTION_READ ? x->local : x->target);
}

uint64_t gpu_relay_memory(const struct gpu_path *p, const struct xfer *x)
{
	const struct region_view *sides[2] = { region_from(x), region_to(x) };
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; i < 2; i++) {
		const struct memory *m = &p->owner->relay->memories[sides[i]->gpu];

		if (sides[i]->memory == REGION_GPU)
			least = dray_min(least, is_there(m) ? m->part * PARTS : 0);
	}
	return least;
}

uint64_t gpu_relay_could_have(const struct core *c, const struct gpu_path *p)
{
	const struct memory *m = &p->owner->relay->memories[p->device];
	uint64_t most = part_bytes(gpu_copy_memory_setting(c, p->device)) * PARTS;

	return c->now_ns < m->known_ns ? dray_min(most, m->got) : most;
}

void gpu_relay_want(struct core *c, struct gpu_path *p, const struct xfer *x)
{
	if (region_from(x)->memory == REGION_GPU)
		ask(c, p->owner->relay, region_from(x)->gpu);
	if (region_to(x)->memory == REGION_GPU)
		ask(c, p->owner->relay, region_to(x)->gpu);
}

uint64_t gpu_relay_slice(const struct gpu_path *p)
{
	const struct gpu_relay *r = p->owner->relay;
	const struct memory *m = &r->memories[p->device];
	uint64_t least = is_there(m) ? m->part : 0;

	if (p->kind != GPU_PATH_PEER)
		return least;
	/* the other side's may be smaller, and which one it is depends on the transfer */
	for (uint32_t left = r->there; left; left &= left - 1) {
		m = &r->memories[__builtin_ctz(left)];
		if (is_there(m))
			least = dray_min(least, m->part);
	}
	return least;
}

/* Bytes that follow each other on one side, on average over the first operations of the slice. */
static uint64_t run_of(const struct slice *s, bool local)
{
	const struct xfer_op *op = &s->xfer->ops[s->from.op];
	uint32_t n = dray_min(s->n_ops, (uint32_t)SAMPLE), runs = 1;
	uint64_t bytes = op->length;

	for (uint32_t i = 1; i < n; i++) {
		uint64_t end = (local ? op[i - 1].local : op[i - 1].remote) + op[i - 1].length;

		runs += (local ? op[i].local : op[i].remote) != end;
		bytes += op[i].length;
	}
	return bytes / runs;
}

uint64_t gpu_relay_host_run(const struct slice *s)
{
	return run_of(s, object_region(s->xfer->local)->memory == REGION_HOST);
}

/* --- jobs --- */

static void step_begin(struct job *j)
{
	j->grouped = false;
	j->at = 0;
	j->run_at = 0;
	j->host_end = NULL;
	local_walk_slice(&j->walk, j->slice);
}

static void job_end(struct core *c, struct job *j, uint32_t code)
{
	struct gpu_transport *g = j->path->owner;

	j->slice->refused = j->task.refused;
	gpu_slice_over(g, dray_take(j->slice), code);
	for (unsigned i = 0; i < 2; i++)
		part_return(c, g->relay, &j->parts[i]);
	dray_list_del(&j->link);
	dray_list_add_front(&g->relay->free, &j->link);
}

/* A lost device may still copy into parts and out of them. */
static void parts_lose(struct core *c, struct job *j)
{
	for (unsigned i = 0; i < 2; i++)
		if (j->parts[i].base)
			memory_leave(c, j->path->owner->relay, j->parts[i].device);
}

static void copy_done(struct core *c, struct gpu_task *t, uint32_t code)
{
	struct job *j = dray_container_of(t, struct job, task);

	j->busy = false;
	j->code = code;
	if (code == DRAY_E_GPU_LOST)
		parts_lose(c, j);
	gpu_path_ready(j->path);
}

/* The piece's run begins with it: it gets its place behind the room of the last one. Both steps find the same places. */
static void run_begin(struct job *j)
{
	if (j->at)
		j->at = dray_max(j->at, j->run_at + GPU_RUN_LEAST);
	j->run_at = j->at;
}

/* Puts the job's parts in place of the sides that the step does not touch. */
static struct dray_piece via_parts(struct job *j, const struct step *s, const struct dray_piece *p)
{
	struct dray_piece r = *p;

	if (j->pads && p->from != j->host_end)
		run_begin(j);
	j->host_end = p->from + p->bytes;
	if (s->to != NONE)
		r.to = (uint8_t *)(uintptr_t)(j->parts[s->to].base + j->at);
	if (s->from != NONE)
		r.from = (const uint8_t *)(uintptr_t)(j->parts[s->from].base + j->at);
	j->at += p->bytes;
	return r;
}

/* Adds a piece, to the last one if it follows that on both sides. */
static uint32_t add(struct dray_piece *v, uint32_t n, const struct dray_piece *p, bool merge)
{
	struct dray_piece *last = n ? &v[n - 1] : NULL;

	if (merge && last && last->to + last->bytes == p->to &&
	    last->from + last->bytes == p->from) {
		last->bytes += p->bytes;
		return n;
	}
	v[n] = *p;
	return n + 1;
}

/* The side of the transfer that the step touches, where the other one is a part. */
static const struct region_view *touched(const struct job *j, const struct step *s)
{
	return s->from == NONE ? region_from(j->slice->xfer) : region_to(j->slice->xfer);
}

/* Its extent that holds the last piece of the walk. */
static const struct extent_view *touched_extent(const struct job *j, const struct step *s)
{
	return (s->from == NONE) == j->walk.write ? j->walk.near : j->walk.far;
}

/* Reads more behind a piece for copy engines if it is a short run, and as far as its region goes. */
static void piece_pad(struct job *j, const struct step *s, struct dray_piece *p)
{
	const struct extent_view *e = &region_from(j->slice->xfer)->extents[0];
	uint64_t more = GPU_RUN_LEAST - p->bytes, left = (uint64_t)(e->base + e->length - p->from);

	/* a piece that continues a run of the copy before has no room of its own */
	if ((uint64_t)(uintptr_t)p->to != j->parts[s->to].base + j->run_at || left < GPU_RUN_LEAST)
		return;
	p->bytes += more;
	j->padding += more;
}

/*
 * Pieces of a step on one side of which is the transfer's memory. Those for copy engines are merged within an extent: two
 * extents may be two allocations, even if they are neighbours, and no piece may lie in both. `room` limits also the pieces
 * before they are merged, which are the work.
 */
static uint32_t pieces_walk(struct job *j, const struct step *s, struct dray_piece *v,
			    uint32_t room)
{
	/* one by one, the walk tells the extent of each */
	const uint32_t most = s->engines && touched(j, s)->n_extents > 1 ? 1 : PIECES;
	const struct extent_view *last = touched_extent(j, s), *extent;
	const bool pads = j->pads && s->engines;
	struct dray_piece some[PIECES];
	uint32_t n = 0, walked = 0;
	unsigned got;

	while (walked < room && (got = local_walk(&j->walk, some, dray_min(room - walked, most),
						  s->engines ? UINT64_MAX : GPU_PIECE_MAX))) {
		extent = touched_extent(j, s);
		for (unsigned i = 0; i < got; i++) {
			bool pad = pads && n && v[n - 1].bytes < GPU_RUN_LEAST &&
				   some[i].from != j->host_end;
			struct dray_piece p;

			if (pad)
				piece_pad(j, s, &v[n - 1]);
			p = via_parts(j, s, &some[i]);
			n = add(v, n, &p, s->engines && extent == last);
		}
		walked += got;
		last = extent;
	}
	if (pads && n && v[n - 1].bytes < GPU_RUN_LEAST)
		piece_pad(j, s, &v[n - 1]);
	return n;
}

static uint32_t pieces_fill(struct job *j, const struct step *s, struct dray_piece *v,
			    uint32_t room)
{
	if (s->from == NONE || s->to == NONE)
		return pieces_walk(j, s, v, room);
	v[0] = via_parts(j, s, &(struct dray_piece){ .bytes = j->walk.left });
	j->walk.left = 0;
	return 1;
}

/* Slices that no job has. */
static bool path_has_more(const struct gpu_path *p)
{
	return p->open || channel_pending(&p->channel);
}

/* Parts of each device that a path with jobs leaves to others: the last one, while another path has slices and no job. */
static unsigned parts_left(const struct gpu_path *p)
{
	for (unsigned i = 0; i < 2; i++)
		dray_list_for_each(&p->owner->ready[i], other, struct gpu_path, link)
			if (other != p && dray_list_empty(&other->relays) && path_has_more(other))
				return 1;
	return 0;
}

/*
 * Takes the part that the step writes. False: none is free now, or the last one is left to another path. Copy engines write the
 * transfer's own memory instead if the part's memory is being given back, or came again with smaller parts; and if all its parts are
 * sources, which may wait for parts of this device.
 */
static bool step_room(struct core *c, struct job *j)
{
	struct gpu_relay *r = j->path->owner->relay;
	struct step *s = &j->steps[j->step];
	const struct memory *m = s->to == NONE ? NULL : &r->memories[j->parts[s->to].device];

	if (s->to == NONE || j->parts[s->to].base)
		return true;
	if (is_there(m) && m->used != m->sources && parts_free(m) <= parts_left(j->path))
		return false;
	if (part_take(r, &j->parts[s->to], j->slice->bytes, false))
		return true;
	s->to = NONE;
	j->n_steps = (uint8_t)(j->step + 1);
	return true;
}

static bool is_scatter(const struct job *j)
{
	return !j->steps[j->step].engines && j->steps[j->step].from != NONE;
}

/* Its copy, which is in flight or has just ended, brings bytes to a part that a kernel will empty, or is the one before that. */
static bool is_coming(const struct job *j)
{
	const struct step *s = &j->steps[j->step];

	if (!j->busy && !local_walk_ended(&j->walk))
		return false;
	return s->engines ? s->to != NONE : j->step == 0 && j->n_steps == STEPS;
}

static bool waits_for_kernel(const struct job *j)
{
	return is_scatter(j) && !j->busy && !j->grouped;
}

/*
 * Kernels that empty parts go in groups, as long as more bytes are coming: each time slice costs the engine something besides the
 * work done in it. Groups are a half of the parts, so that copy engines fill the others meanwhile, and at last all that is left. What
 * comes while a group waits for its time slice may miss that, so it waits for the next group. Only copies in flight count as coming:
 * they end, whatever other jobs wait for.
 */
static bool waits_for_group(const struct job *j)
{
	struct dray_list *jobs = &j->path->relays;
	unsigned waiting = 0, coming = 0;

	if (!waits_for_kernel(j))
		return false;
	dray_list_for_each(jobs, other, struct job, link) {
		waiting += waits_for_kernel(other);
		coming += is_coming(other);
	}
	if (coming && (waiting < PARTS / 2 || !path_has_more(j->path)))
		return true;
	dray_list_for_each(jobs, other, struct job, link)
		other->grouped |= waits_for_kernel(other);
	return false;
}

/* Submits the step as far as there is room. 0; -EAGAIN: no room; -EIO. */
static int copy_submit(struct core *c, struct job *j)
{
	const struct step *s = &j->steps[j->step];
	unsigned lane = j->path->channel.class + (s->engines ? GPU_LANE_ENGINE : GPU_LANE_KERNEL);
	struct gpu_copy copy = { .route = s->route, .engine = s->engines, .lists = j->lists };
	uint32_t room, n;
	int ret;

	if (!gpu_is_up(c, s->device))
		return -EIO;
	room = gpu_room(c, s->device, lane);
	if (!room || waits_for_group(j) || !step_room(c, j))
		return -EAGAIN;
	copy.bytes = j->walk.left;
	j->padding = 0;
	n = pieces_fill(j, s, gpu_pieces(c, s->device, lane), room);
	copy.bytes += j->padding - j->walk.left;
	j->task.done = copy_done;
	ret = gpu_submit(c, s->device, lane, &copy, n, &j->task);
	j->busy = ret >= 0;
	return ret;
}

/* True: the job goes on with its next step. */
static bool step_next(struct core *c, struct job *j)
{
	const struct step *s = &j->steps[j->step];

	if (s->from != NONE)
		part_return(c, j->path->owner->relay, &j->parts[s->from]);
	if (++j->step == j->n_steps) {
		core_count(c->counters, DRAY_METRIC_GPU_COPY_STAGED_BYTES_TOTAL, j->slice->bytes);
		job_end(c, j, 0);
		return false;
	}
	step_begin(j);
	return true;
}

/* Runs the job as far as possible. True: it ended, began a step or submitted a copy. */
static bool job_run(struct core *c, struct job *j)
{
	bool any = false;
	int ret;

	for (; !j->busy; any = true) {
		if (j->code || !slice_wanted(j->slice)) {
			job_end(c, j, j->code ? j->code : DRAY_E_CANCELLED);
			return true;
		}
		if (local_walk_ended(&j->walk)) {
			any = true;
			if (!step_next(c, j))
				return true;
		}
		ret = copy_submit(c, j);
		if (ret == -EAGAIN)
			return any;
		if (ret < 0) {
			parts_lose(c, j);
			job_end(c, j, DRAY_E_GPU_LOST);
			return true;
		}
	}
	return any;
}

static void step_add(struct job *j, struct step s)
{
	j->steps[j->n_steps++] = s;
}

/* Which device's copy engines move bytes between the two. */
static uint8_t mover(const struct gpu_transport *g, uint8_t from, uint8_t to)
{
	return g->peers[from] >> to & 1 ? from : to;
}

static void steps_between(const struct gpu_transport *g, struct job *j, uint8_t from, uint8_t to)
{
	const struct slice *s = j->slice;
	bool read = s->xfer->direction == DMSG_DIRECTION_READ;
	bool gather = run_of(s, !read) < GPU_ROW_MIN, scatter = run_of(s, read) < GPU_ROW_MIN;

	j->parts[0].device = from;
	j->parts[1].device = to;
	if (!scatter)
		gather = true;
	if (gather)
		step_add(j, (struct step){ from, false, GPU_WITHIN, NONE, 0 });
	step_add(j, (struct step){ mover(g, from, to), true, GPU_PEER, gather ? 0 : NONE,
				   scatter ? 1 : NONE });
	if (scatter)
		step_add(j, (struct step){ to, false, GPU_WITHIN, 1, NONE });
}

static void steps_set(const struct gpu_transport *g, struct job *j)
{
	uint8_t device = j->path->device;

	j->n_steps = j->step = 0;
	j->parts[0] = j->parts[1] = (struct part){ 0, device };
	if (j->path->kind == GPU_PATH_TO_HOST) {
		step_add(j, (struct step){ device, false, GPU_WITHIN, NONE, 0 });
		step_add(j, (struct step){ device, true, GPU_TO_HOST, 0, NONE });
	} else if (j->path->kind == GPU_PATH_FROM_HOST) {
		step_add(j, (struct step){ device, true, GPU_FROM_HOST, NONE, 0 });
		step_add(j, (struct step){ device, false, GPU_WITHIN, 0, NONE });
	} else {
		steps_between(g, j, region_from(j->slice->xfer)->gpu,
			      region_to(j->slice->xfer)->gpu);
	}
}

bool gpu_relay_can_pad(const struct gpu_path *p, const struct slice *s)
{
	return p->kind == GPU_PATH_FROM_HOST && region_from(s->xfer)->n_extents == 1;
}

/* Bytes of a part that the slice fills if its short runs are padded, at most. */
static uint64_t padded_bytes(const struct slice *s)
{
	const struct xfer *x = s->xfer;
	const struct xfer_op *op = &x->ops[s->from.op];
	bool local = x->direction == DMSG_DIRECTION_WRITE;
	/* the first and the last operation may be cut */
	uint64_t bytes = s->bytes + 2 * GPU_RUN_LEAST, run = 0, end = 0;

	for (uint32_t i = 0; i < s->n_ops; i++) {
		uint64_t at = local ? op[i].local : op[i].remote;

		if (i && at != end) {
			bytes += run < GPU_RUN_LEAST ? GPU_RUN_LEAST - run : 0;
			run = 0;
		}
		run += op[i].length;
		end = at + op[i].length;
	}
	return bytes;
}

bool gpu_relay_take(struct core *c, struct gpu_path *p)
{
	struct gpu_relay *r = p->owner->relay;
	struct job *j = dray_list_first(&r->free, struct job, link);
	bool gathers, more = !dray_list_empty(&p->relays);
	struct memory *m;
	uint64_t bytes;

	if (!j)
		return false;
	j->path = p;
	j->slice = p->open;
	j->lists = p->way.lists;
	j->busy = false;
	j->code = 0;
	steps_set(p->owner, j);
	gathers = !j->steps[0].engines;
	m = &r->memories[j->parts[j->steps[0].to].device];
	bytes = p->way.pads ? padded_bytes(j->slice) : 0;
	j->pads = p->way.pads && bytes <= m->part;
	if (!j->pads)
		bytes = j->slice->bytes;
	/* the first step's part is the room that counts: later steps wait for theirs in the job */
	if (more && parts_free(m) <= parts_left(p)) {
		m->full = true;
		return false;
	}
	if ((more && gathers && m->full) ||
	    !part_take(r, &j->parts[j->steps[0].to], bytes, j->n_steps == STEPS))
		return false;
	for (unsigned i = 0; i < 2; i++)
		memory_keep(c, r, j->parts[i].device);
	p->open = NULL;
	dray_list_move(&p->relays, &j->link);
	step_begin(j);
	job_run(c, j);
	return true;
}

void gpu_relay_run(struct core *c, struct gpu_path *p)
{
	bool any;

	/* again, because a job may take others along, or return the part that one before it waits for */
	do {
		any = false;
		dray_list_for_each(&p->relays, j, struct job, link)
			any |= job_run(c, j);
	} while (any);
}

void gpu_relay_stop(struct core *c, struct gpu_path *p, const struct xfer *x, bool urgent)
{
	dray_list_for_each(&p->relays, j, struct job, link) {
		if (j->slice->xfer != x)
			continue;
		if (j->busy)
			gpu_task_stop(c, &j->task, urgent);
		if (!j->busy)
			job_end(c, j, DRAY_E_CANCELLED);
	}
}

void gpu_relay_fail(struct core *c, struct gpu_path *p)
{
	dray_list_for_each(&p->relays, j, struct job, link)
		if (!j->busy)
			job_end(c, j, DRAY_E_GPU_LOST);
}
