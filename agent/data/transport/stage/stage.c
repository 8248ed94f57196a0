/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/stage/stage.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"

/* Enough buffers for a pipeline, even if slices are long. */
#define BUFFERS_MIN 8
#define BUFFERS_MAX 512
/*
 * Average range from which on copy engines are used: a call for each range costs less than occupying
 * multiprocessors.
 */
#define ENGINE_BYTES (128u << 10)
#define ALIGNMENT 4096u

struct stage {
	struct stage_buffer *buffers;
	uint32_t n;
	uint64_t unit;
	struct dray_list free; /* by link; the last one given back, which is in the cache, first */
	struct dray_list lost; /* by link: given back, but a lost device may still access them */
	uint32_t held[STAGE_USE_N][2];            /* by class */
	struct dray_list waiters[STAGE_USE_N][2]; /* by class */
	struct dray_list starved; /* by copy_link: copies that wait for room in their queue */
	struct dray_list failed;  /* by copy_link: copies that failed, done() has not run */
};

uint64_t stage_cut(const struct core *c, uint64_t bytes, uint64_t n_min)
{
	uint64_t unit = dray_min(c->cfg.slice_size, (uint64_t)PMSG_FRAME_BYTES_MAX);

	return dray_min(unit, bytes / n_min) & ~(uint64_t)(ALIGNMENT - 1);
}

void stage_up(struct core *c, const struct gpu_staging *staging)
{
	struct stage *st = dray_calloc_sure(1, sizeof(*st));
	uint64_t unit = stage_cut(c, staging->bytes, BUFFERS_MIN);

	dray_assert(!c->stage && unit);
	st->unit = unit;
	st->n = (uint32_t)dray_min(staging->bytes / unit, (uint64_t)BUFFERS_MAX);
	st->buffers = dray_calloc_sure(st->n, sizeof(*st->buffers));
	dray_list_init(&st->free);
	dray_list_init(&st->lost);
	dray_list_init(&st->starved);
	dray_list_init(&st->failed);
	for (unsigned i = 0; i < STAGE_USE_N * 2; i++)
		dray_list_init(&st->waiters[i / 2][i % 2]);
	for (uint32_t i = 0; i < st->n; i++) {
		struct stage_buffer *b = &st->buffers[i];

		b->base = staging->base + i * unit;
		dray_list_init(&b->copy_link);
		dray_list_add(&st->free, &b->link);
	}
	c->stage = st;
}

void stage_deinit(struct core *c)
{
	if (!c->stage)
		return;
	free(c->stage->buffers);
	free(c->stage);
	c->stage = NULL;
}

bool stage_reaches(const struct core *c, const struct region_view *r)
{
	return r->memory == REGION_GPU && c->stage && gpu_is_up(c, r->gpu);
}

uint64_t stage_unit(const struct core *c)
{
	return c->stage ? c->stage->unit : 0;
}

static bool share_allows(const struct stage *st, enum stage_use use, enum dmsg_class class)
{
	const uint32_t *held = st->held[use];
	uint32_t share = st->n / STAGE_USE_N, spare = share / 4;

	return held[0] + held[1] < share &&
	       (class == DMSG_CLASS_LATENCY || held[DMSG_CLASS_BULK] < share - spare);
}

/* Half of the share is enough for a pipeline. Latency may use half of the rest too. */
static bool account_allows(const struct stage *st, const struct stage_account *a,
			   enum dmsg_class class)
{
	uint32_t share = st->n / STAGE_USE_N;

	if (!a)
		return true;
	return class == DMSG_CLASS_LATENCY ? a->held[0] + a->held[1] < share - share / 4 :
					     a->held[DMSG_CLASS_BULK] < share / 2;
}

void stage_charge(struct stage_buffer *b, struct stage_account *account)
{
	if (b->account)
		b->account->held[b->class]--;
	if (account)
		account->held[b->class]++;
	b->account = account;
}

struct stage_buffer *stage_get(struct core *c, enum stage_use use, enum dmsg_class class,
			       struct stage_account *account)
{
	struct stage *st = c->stage;
	struct stage_buffer *b;

	if (!st || !share_allows(st, use, class) || !account_allows(st, account, class))
		return NULL;
	b = dray_list_pop(&st->free, struct stage_buffer, link);
	if (!b)
		return NULL;
	st->held[use][class]++;
	b->use = (uint8_t)use;
	b->class = (uint8_t) class;
	b->account = NULL;
	stage_charge(b, account);
	b->n_ranges = 0;
	b->bytes = 0;
	b->code = 0;
	return b;
}

void stage_buffer_init(struct stage_buffer *b, uint8_t *base, enum dmsg_class class)
{
	*b = (struct stage_buffer){ .base = base, .class = (uint8_t) class };
	dray_list_init(&b->link);
	dray_list_init(&b->copy_link);
}

/* A waiter that finds no buffer waits again, at the end of the list. */
static void wake_waiters(struct core *c, struct dray_list *waiters)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct stage_waiter *w;

	dray_list_splice(&now, waiters);
	while ((w = dray_list_pop(&now, struct stage_waiter, link)))
		w->ready(c, w);
}

void stage_put(struct core *c, struct stage_buffer *b)
{
	struct stage *st = c->stage;
	bool was_empty = dray_list_empty(&st->free);

	dray_assert(!b->busy);
	dray_list_del(&b->link);
	dray_list_add_front(b->lost ? &st->lost : &st->free, &b->link);
	st->held[b->use][b->class]--;
	stage_charge(b, NULL);
	/* within its share the other use waits only for a free buffer, while lost ones are missing */
	for (unsigned i = 0; i < STAGE_USE_N * 2; i++)
		if ((i / 2 == b->use || was_empty) &&
		    share_allows(st, (enum stage_use)(i / 2), (enum dmsg_class)(i % 2)))
			wake_waiters(c, &st->waiters[i / 2][i % 2]);
}

void stage_wait(struct core *c, struct stage_waiter *w, enum stage_use use, enum dmsg_class class)
{
	if (dray_list_empty(&w->link))
		dray_list_add(&c->stage->waiters[use][class], &w->link);
}

static void finished(struct core *c, struct stage_buffer *b, uint32_t code)
{
	dray_list_del(&b->copy_link);
	b->busy = false;
	b->code = code;
	if (!code)
		core_count(c->counters, DRAY_METRIC_GPU_STAGED_BYTES_TOTAL, b->bytes);
	b->done(c, b);
}

static void task_done(struct core *c, struct gpu_task *t, uint32_t code)
{
	struct stage_buffer *b = dray_container_of(t, struct stage_buffer, task);

	b->lost |= code == DRAY_E_GPU_LOST;
	finished(c, b, code);
}

void stage_lose(struct stage_buffer *b, unsigned device)
{
	b->lost = true;
	b->device = (uint8_t)device;
}

void stage_device_ended(struct core *c, unsigned device)
{
	struct stage *st = c->stage;

	if (!st)
		return;
	dray_list_for_each(&st->lost, b, struct stage_buffer, link)
		if (b->device == device)
			dray_list_move(&st->free, &b->link);
	/* those that are not given back yet, too */
	for (uint32_t i = 0; i < st->n; i++)
		if (st->buffers[i].device == device)
			st->buffers[i].lost = false;
	for (unsigned i = 0; i < STAGE_USE_N * 2; i++)
		wake_waiters(c, &st->waiters[i / 2][i % 2]);
}

/* Copy engines make it beside the device's load, in their own queue; or, if the ranges are large, in the place of a kernel. */
static bool by_engines(struct core *c, const struct stage_buffer *b, unsigned *ret_lane)
{
	bool engines = gpu_row_by_engines(c, b->device, b->to_gpu ? GPU_FROM_HOST : GPU_TO_HOST,
					  b->bytes, b->n_ranges);

	*ret_lane = b->class + (engines ? GPU_LANE_ENGINE : GPU_LANE_KERNEL);
	return engines || b->bytes / b->n_ranges >= ENGINE_BYTES;
}

/* Sets the pieces of the copy, whole ranges if a copy engine makes it. Returns their number. to NULL: only counts them. */
static uint32_t pieces(const struct stage_buffer *b, bool engine, struct dray_piece *to)
{
	uint8_t *host = b->base;
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->n_ranges; i++) {
		uint8_t *gpu = b->ranges[i].iov_base;

		for (size_t left = b->ranges[i].iov_len, piece; left; left -= piece, n++) {
			piece = engine ? left : dray_min(left, (size_t)GPU_PIECE_MAX);
			if (to)
				to[n] = b->to_gpu ? (struct dray_piece){ gpu, host, piece } :
						    (struct dray_piece){ host, gpu, piece };
			gpu += piece;
			host += piece;
		}
	}
	return n;
}

/* 0, -EAGAIN or -EIO: the device may access the buffer if it was lost meanwhile. */
static int submit(struct core *c, struct stage_buffer *b)
{
	struct gpu_copy copy = {
		.route = b->to_gpu ? GPU_FROM_HOST : GPU_TO_HOST,
		.bytes = b->bytes,
	};
	unsigned lane;
	int ret;

	if (!gpu_is_up(c, b->device))
		return -EIO;
	copy.engine = b->engines = by_engines(c, b, &lane);
	if (pieces(b, copy.engine, NULL) > gpu_room(c, b->device, lane))
		return -EAGAIN;
	b->task.done = task_done;
	ret = gpu_submit(c, b->device, lane, &copy,
			 pieces(b, copy.engine, gpu_pieces(c, b->device, lane)), &b->task);
	b->lost |= ret == -EIO;
	return ret;
}

/* Copies that already wait for the same queue go first. */
static bool must_queue(const struct stage *st, const struct stage_buffer *b)
{
	dray_list_for_each(&st->starved, it, struct stage_buffer, copy_link)
		if (it->device == b->device && it->class == b->class)
			return true;
	return false;
}

void stage_copy(struct core *c, struct stage_buffer *b, unsigned device, bool to_gpu,
		void (*done)(struct core *c, struct stage_buffer *b))
{
	struct stage *st = c->stage;
	int ret = -EAGAIN;

	dray_assert(!b->busy && b->n_ranges && b->bytes <= PMSG_FRAME_BYTES_MAX);
	b->busy = true;
	b->done = done;
	b->device = (uint8_t)device;
	b->to_gpu = to_gpu;
	if (!must_queue(st, b))
		ret = submit(c, b);
	if (ret < 0)
		dray_list_add(ret == -EAGAIN ? &st->starved : &st->failed, &b->copy_link);
}

void stage_stop(struct core *c, struct stage_buffer *b, bool urgent)
{
	if (!b->busy)
		return;
	if (dray_list_empty(&b->copy_link))
		gpu_task_stop(c, &b->task, urgent);
	else
		finished(c, b, DRAY_E_CANCELLED);
	dray_assert(!urgent || !b->busy);
}

bool stage_wants(const struct core *c)
{
	return c->stage && !dray_list_empty(&c->stage->failed);
}

void stage_progress(struct core *c)
{
	struct stage *st = c->stage;
	struct stage_buffer *b;

	if (!st)
		return;
	dray_list_for_each(&st->starved, it, struct stage_buffer, copy_link) {
		int ret = submit(c, it);

		/* Another device or class may have room. */
		if (ret == -EAGAIN)
			continue;
		dray_list_del(&it->copy_link);
		if (ret < 0)
			dray_list_add(&st->failed, &it->copy_link);
	}
	while ((b = dray_list_first(&st->failed, struct stage_buffer, copy_link)))
		finished(c, b, DRAY_E_GPU_LOST);
}
