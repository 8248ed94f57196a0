/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged paths: between GPU memory and host memory that no device reaches, and between GPUs that do not
 * reach each other. Each slice is a job of two steps, into a buffer of pinned memory and out of it. This
 * worker does the step at host memory itself, under a guard; the other steps are copies of a queue. Jobs
 * overlap.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/gpu/gpu.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/ballast.h"

#define JOBS 64
/* Jobs of one path in flight, at most. */
#define PATH_JOBS 8
/* Bytes that the worker copies itself for one path in one turn. */
#define TURN_BYTES (1u << 20)
/* Pieces that are copied under one guard. */
#define PIECES 128

void gpu_staged_init(struct gpu_transport *g)
{
	g->jobs = dray_calloc_sure(JOBS, sizeof(*g->jobs));
	for (unsigned i = 0; i < JOBS; i++)
		dray_list_add(&g->free_jobs, &g->jobs[i].link);
}

static void job_end(struct gpu_job *j, uint32_t code)
{
	struct gpu_transport *g = j->path->owner;

	j->slice->refused = j->task.refused;
	gpu_slice_over(g, j->slice, code);
	j->slice = NULL;
	dray_list_del(&j->link);
	dray_list_add_front(&g->free_jobs, &j->link);
}

static void step_begin(struct gpu_job *j, bool second)
{
	j->second = second;
	j->at = 0;
	local_walk_slice(&j->walk, j->slice);
}

/* Puts the buffer in place of the side that this step does not touch. */
static struct dray_piece via_buffer(struct gpu_job *j, const struct dray_piece *p)
{
	uint8_t *buffer = j->slice->staged->base + j->at;

	j->at += p->bytes;
	return j->second ? (struct dray_piece){ p->to, buffer, p->bytes } :
			   (struct dray_piece){ buffer, p->from, p->bytes };
}

static bool step_is_host(const struct gpu_job *j)
{
	enum gpu_path_kind kind = j->path->kind;

	return j->second ? kind == GPU_PATH_TO_HOST_STAGED : kind == GPU_PATH_FROM_HOST_STAGED;
}

/* False: the memory is gone. */
static bool copy_host(struct gpu_job *j)
{
	struct dray_piece pieces[PIECES];
	const void *address;
	unsigned n;

	while ((n = local_walk(&j->walk, pieces, PIECES, UINT64_MAX))) {
		for (unsigned i = 0; i < n; i++)
			pieces[i] = via_buffer(j, &pieces[i]);
		if (fault_copy_pieces(pieces, n, false, &address) < 0)
			return false;
	}
	return true;
}

static unsigned step_device(const struct gpu_job *j)
{
	const struct xfer *x = j->slice->xfer;
	const struct object *to = x->direction == DMSG_DIRECTION_WRITE ? x->target : x->local;

	return j->second && j->path->kind == GPU_PATH_PEER_STAGED ? object_region(to)->gpu :
								    j->path->device;
}

static void copy_done(struct core *c, struct gpu_task *t, uint32_t code)
{
	struct gpu_job *j = dray_container_of(t, struct gpu_job, task);

	j->busy = false;
	j->code = code;
	if (code == DRAY_E_GPU_LOST)
		stage_lose(j->slice->staged, t->device);
	gpu_path_ready(j->path);
}

/* Submits the step as far as there is room. 0; -EAGAIN: no room; -EIO. */
static int copy_submit(struct core *c, struct gpu_job *j)
{
	enum dmsg_class class = j->path->channel.class;
	unsigned device = step_device(j), lane;
	struct gpu_copy copy = { .route = j->second ? GPU_FROM_HOST : GPU_TO_HOST };
	struct dray_piece *pieces;
	uint32_t room, n;
	int ret;

	if (!gpu_is_up(c, device))
		return -EIO;
	copy.engine = gpu_row_by_engines(c, device, copy.route, j->slice->bytes, j->slice->n_ops);
	lane = class + (copy.engine ? GPU_LANE_ENGINE : GPU_LANE_KERNEL);
	room = gpu_room(c, device, lane);
	if (!room)
		return -EAGAIN;
	pieces = gpu_pieces(c, device, lane);
	copy.bytes = j->walk.left;
	n = local_walk(&j->walk, pieces, room, copy.engine ? UINT64_MAX : GPU_PIECE_MAX);
	copy.bytes -= j->walk.left;
	for (uint32_t i = 0; i < n; i++)
		pieces[i] = via_buffer(j, &pieces[i]);
	j->task.done = copy_done;
	ret = gpu_submit(c, device, lane, &copy, n, &j->task);
	j->busy = ret >= 0;
	/* a part of it may be in flight */
	if (ret == -EIO)
		stage_lose(j->slice->staged, device);
	if (j->busy)
		xfer_note_gpu_way(j->slice->xfer,
				  copy.engine ? DMSG_GPU_WAY_COPY_ENGINE : DMSG_GPU_WAY_KERNEL);
	return ret;
}

/* Runs the job as far as possible. False: the budget ended before the job. */
static bool job_run(struct core *c, struct gpu_job *j, uint64_t *budget)
{
	int ret;

	while (!j->busy) {
		if (j->code || !slice_wanted(j->slice)) {
			job_end(j, j->code ? j->code : DRAY_E_CANCELLED);
			return true;
		}
		if (local_walk_ended(&j->walk)) {
			if (j->second) {
				core_count(c->counters, DRAY_METRIC_GPU_STAGED_BYTES_TOTAL,
					   j->slice->bytes);
				job_end(j, 0);
				return true;
			}
			step_begin(j, true);
		}
		if (step_is_host(j)) {
			if (!*budget)
				return false;
			*budget -= dray_min(*budget, j->slice->bytes);
			if (!copy_host(j)) {
				job_end(j, DRAY_E_REGION_FAULT);
				return true;
			}
			continue;
		}
		ret = copy_submit(c, j);
		if (ret < 0 && ret != -EAGAIN)
			job_end(j, DRAY_E_GPU_LOST);
		if (ret < 0)
			return true;
	}
	return true;
}

/* A job for the next slice, with a buffer. NULL: there is no slice, or no buffer is free. */
static struct gpu_job *job_new(struct core *c, struct gpu_path *p)
{
	struct gpu_job *j = dray_list_first(&p->owner->free_jobs, struct gpu_job, link);
	enum dmsg_class class = p->channel.class;
	struct stage_buffer *b;
	struct slice *s;

	if (!j || !channel_pending(&p->channel))
		return NULL;
	b = stage_get(c, STAGE_OWN, class, NULL);
	if (!b) {
		stage_wait(c, &p->waiter, STAGE_OWN, class);
		return NULL;
	}
	s = sched_next(c, &p->channel, dray_min(gpu_plan_limits[p->kind].slice, stage_unit(c)));
	if (!s) {
		stage_put(c, b);
		return NULL;
	}
	s->staged = b;
	dray_list_move(&p->jobs, &j->link);
	j->path = p;
	j->slice = s;
	j->busy = false;
	j->code = 0;
	step_begin(j, false);
	return j;
}

bool gpu_staged_run(struct core *c, struct gpu_path *p)
{
	uint64_t budget = TURN_BYTES;
	struct gpu_job *j;
	unsigned n = 0;

	dray_list_for_each(&p->jobs, it, struct gpu_job, link)
		if (!job_run(c, it, &budget))
			return true;
	dray_list_for_each(&p->jobs, it, struct gpu_job, link)
		n++;
	for (; n < PATH_JOBS && budget && (j = job_new(c, p)); n++)
		if (!job_run(c, j, &budget))
			return true;
	return !budget;
}

void gpu_staged_stop(struct core *c, struct gpu_path *p, const struct xfer *x, bool urgent)
{
	dray_list_for_each(&p->jobs, j, struct gpu_job, link) {
		if (j->slice->xfer != x)
			continue;
		if (j->busy)
			gpu_task_stop(c, &j->task, urgent);
		if (!j->busy)
			job_end(j, DRAY_E_CANCELLED);
	}
}

void gpu_staged_fail(struct gpu_path *p)
{
	dray_list_for_each(&p->jobs, j, struct gpu_job, link)
		if (!j->busy)
			job_end(j, DRAY_E_GPU_LOST);
}
