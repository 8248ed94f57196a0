/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/time.h"

/* A launch reads as much, and writes as much elsewhere: more than the caches of a GPU hold. */
#define LAUNCH_BYTES_MAX (256ull << 20)
#define MEMORY_SHARE 256 /* of the GPU's memory, for a launch */
/* Launches of a step: about two milliseconds on an H100. */
#define LAUNCHES 8
#define PAUSE_NS 500000
#define LOOK_NS 20000
/* A GPU that ends no launch for longer hangs. */
#define HANG_NS (10 * DRAY_NS_PER_SEC)

/* Of one GPU. */
struct work {
	const struct bench_gpu *gpu;
	enum bench_load_kind kind;
	struct gpu_block *block;
	uint64_t address, bytes; /* of a launch */
	struct dray_piece *pieces;
	uint32_t n;
	struct gpu_queue *queue;
	pthread_t thread;
	bool started;
	atomic_bool stops, failed;
	_Atomic uint64_t launches; /* that are done */
	uint64_t marked;
	int64_t marked_ns;
};

struct bench_load {
	struct ctl *ctl;
	unsigned n;
	struct work v[];
};

static void look(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
}

static int step_submit(struct work *w)
{
	const struct gpu_copy launch = {
		.pieces = w->pieces, .n = w->n, .route = GPU_WITHIN, .bytes = w->bytes
	};
	int ret = 0;

	for (unsigned i = 0; i < LAUNCHES && ret >= 0; i++)
		ret = w->gpu->ops->submit(w->queue, &launch);
	return ret;
}

/* Waits until at most `ahead` of the steps that were submitted are not done. */
static int step_wait(struct work *w, uint64_t submitted, uint64_t ahead)
{
	int64_t since_ns = dray_now().ns;

	for (;;) {
		uint64_t done = atomic_load_explicit(w->queue->done, memory_order_acquire);

		if (done != atomic_load_explicit(&w->launches, memory_order_relaxed))
			since_ns = dray_now().ns;
		atomic_store_explicit(&w->launches, done, memory_order_relaxed);
		if (done / LAUNCHES + ahead >= submitted)
			return 0;
		look();
		if (w->gpu->ops->check(w->queue) < 0 || dray_now().ns - since_ns > HANG_NS)
			return -1;
	}
}

static void *work_run(void *arg)
{
	struct work *w = arg;
	/* The next step is there before the GPU has finished one. */
	uint64_t ahead = w->kind == BENCH_LOAD_STEADY ? 1 : 0, submitted = 0;

	while (!atomic_load(&w->stops)) {
		if (step_submit(w) < 0 || step_wait(w, ++submitted, ahead) < 0) {
			atomic_store(&w->failed, true);
			break;
		}
		if (w->kind == BENCH_LOAD_STEPS)
			nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
	}
	return NULL;
}

static void list_make(struct work *w)
{
	uint8_t *base = (uint8_t *)(uintptr_t)w->address;

	for (uint32_t i = 0; i < w->n; i++)
		w->pieces[i] = (struct dray_piece){
			.to = base + w->bytes + (uint64_t)i * GPU_PIECE_MAX,
			.from = base + (uint64_t)i * GPU_PIECE_MAX,
			.bytes = GPU_PIECE_MAX,
		};
}

static int work_make(struct work *w, struct dray_err *reterr)
{
	const struct bench_gpu *g = w->gpu;
	const struct gpu_queue_spec spec = { .device = g->index, .share = 100 };
	uint64_t bytes = dray_min(g->info.memory / MEMORY_SHARE, LAUNCH_BYTES_MAX);
	void *pieces = NULL;
	int ret;

	w->n = (uint32_t)dray_max(bytes / GPU_PIECE_MAX, (uint64_t)1);
	w->bytes = (uint64_t)w->n * GPU_PIECE_MAX;
	ret = g->ops->block_alloc(g->plugin, g->index, 2 * w->bytes, &w->block, &w->address,
				  reterr);
	if (ret >= 0)
		ret = g->ops->host_alloc(g->plugin, w->n * sizeof(*w->pieces), &pieces, reterr);
	w->pieces = pieces;
	if (ret >= 0)
		ret = g->ops->queue_new(g->plugin, &spec, &w->queue, reterr);
	if (ret < 0)
		return ret;
	list_make(w);
	ret = -pthread_create(&w->thread, NULL, work_run, w);
	w->started = !ret;
	return ret ? dray_err_set(reterr, ret, 0, "no thread: %s", dray_errno_text(ret)) : 0;
}

static void work_end(struct work *w)
{
	const struct bench_gpu *g = w->gpu;

	if (w->started) {
		atomic_store(&w->stops, true);
		pthread_join(w->thread, NULL);
	}
	if (w->queue)
		g->ops->queue_free(w->queue);
	if (w->pieces)
		g->ops->host_free(g->plugin, w->pieces);
	if (w->block)
		g->ops->block_free(w->block);
}

static int failed(struct bench_load *l, const struct work *w)
{
	return ctl_failed(l->ctl, "--load: GPU %s is lost, or hangs", w->gpu->info.uuid);
}

/* The first step is slower than the others. */
static int first_step(struct bench_load *l, struct work *w)
{
	while (atomic_load(&w->launches) <= LAUNCHES) {
		if (atomic_load(&w->failed))
			return failed(l, w);
		look();
	}
	return 0;
}

int bench_load_start(struct bench_load **ret, struct ctl *c, const struct bench_gpus *g,
		     enum bench_load_kind kind)
{
	unsigned n = bench_gpus_n(g);
	struct bench_load *l = calloc(1, sizeof(*l) + n * sizeof(*l->v));
	struct dray_err err = DRAY_ERR_NULL;

	*ret = l;
	if (!l)
		return ctl_no_memory(c);
	l->ctl = c;
	for (; l->n < n; l->n++) {
		l->v[l->n].gpu = bench_gpus_at(g, l->n);
		l->v[l->n].kind = kind;
		if (work_make(&l->v[l->n], &err) < 0) {
			work_end(&l->v[l->n]);
			return ctl_failed(c, "--load on GPU %s: %s", l->v[l->n].gpu->info.uuid,
					  err.msg);
		}
	}
	for (unsigned i = 0; i < n; i++)
		if (first_step(l, &l->v[i]) < 0)
			return -1;
	return 0;
}

void bench_load_free(struct bench_load *l)
{
	for (unsigned i = 0; l && i < l->n; i++)
		work_end(&l->v[i]);
	free(l);
}

bool bench_load_has_failed(const struct bench_load *l)
{
	for (unsigned i = 0; i < l->n; i++)
		if (atomic_load_explicit(&l->v[i].failed, memory_order_relaxed))
			return true;
	return false;
}

void bench_load_mark(struct bench_load *l)
{
	for (unsigned i = 0; i < l->n; i++) {
		l->v[i].marked = atomic_load_explicit(&l->v[i].launches, memory_order_relaxed);
		l->v[i].marked_ns = dray_now().ns;
	}
}

int bench_load_rates(struct bench_load *l, double *ret)
{
	for (unsigned i = 0; i < l->n; i++) {
		struct work *w = &l->v[i];
		uint64_t n = atomic_load_explicit(&w->launches, memory_order_relaxed) - w->marked;
		int64_t ns = dray_now().ns - w->marked_ns;

		if (atomic_load(&w->failed))
			return failed(l, w);
		ret[i] = (double)n / LAUNCHES * 1e9 / (double)dray_max(ns, (int64_t)1);
	}
	return 0;
}
