/* SPDX-License-Identifier: Apache-2.0 */
/* A queue is a stream. The last block of each kernel writes the number of its copy to host memory when it is done. */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/copy.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

_Static_assert(sizeof(struct copy_piece) == sizeof(struct dray_piece),
	       "the kernel reads dray_piece as copy_piece");

/* Launch sizes that tests/gpu/ceiling_gpu.c measured as best on an H200. */
#define THREADS 256u
/* More blocks than fit at once: the device hands them out as others end, which evens out what they have to do. */
#define BLOCKS_PER_MULTIPROCESSOR 4u
/* A copy with a limited share gets one large block for each of its multiprocessors. */
#define THREADS_BOUNDED COPY_THREADS_MAX
#define THREADS_HOST 512u
/*
 * Enough blocks to saturate PCIe. For writes few are enough, and each multiprocessor with pending writes slows other
 * kernels down: under MPS a matrix product took 1.30 times as long beside 16 blocks, 1.03 times beside 4.
 */
#define BLOCKS_TO_HOST 4u
#define BLOCKS_FROM_HOST 16u
/* Bytes that a warp copies in one step. */
#define PART_MIN (2u << 10)
#define PART_MAX (8u << 10)
#define PARTS_LOG2_MAX 7u
#define BATCH_MAX 2u

#define DONE_BYTES 4096u
/* After a loss, for copies that the driver no longer reports on. */
#define END_WAIT_NS INT64_C(2000000000)
#define END_LOOK_NS 1000000

struct shape {
	uint32_t threads, blocks; /* at most */
	bool alone;
};

struct waiter {
	struct waiters *all;
	_Atomic bool armed;
	void (*fn)(void *arg);
	void *arg;
};

/* In a lost context the driver makes its callbacks when the context ends, which may be after the end of the queue. */
struct waiters {
	_Atomic unsigned refs; /* of the queue and of each pending callback */
	struct waiter v[GPU_NOTIFY_MAX];
};

struct queue {
	struct gpu_queue head;
	struct gpu_plugin *plugin;
	struct cuda_device *device;
	struct cuda_context *context;
	cudaStream_t stream;
	struct cuda_engines *engines; /* NULL: it is not for lists */
	void *control;                /* struct copy_control, in GPU memory */
	uint64_t *done;
	uint64_t submitted;
	bool overlap; /* a kernel may start before the previous one has ended */
	struct shape shapes[GPU_ROUTE_N];
	unsigned next_waiter;
	struct waiters *waiters;
};

static struct queue *queue_of(struct gpu_queue *head)
{
	return dray_container_of(head, struct queue, head);
}

static struct waiters *waiters_new(void)
{
	struct waiters *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->refs = 1;
	for (unsigned i = 0; i < GPU_NOTIFY_MAX; i++)
		w->v[i].all = w;
	return w;
}

static void waiters_unref(struct waiters *w)
{
	if (atomic_fetch_sub(&w->refs, 1) == 1)
		free(w);
}

/* Runs fn once, even if callback and queue call this at the same time. */
static void waiter_end(struct waiter *w)
{
	void (*fn)(void *arg) = w->fn;
	void *arg = w->arg;

	if (atomic_exchange(&w->armed, false))
		fn(arg);
}

static void waiters_end(struct waiters *w)
{
	for (unsigned i = 0; i < GPU_NOTIFY_MAX; i++)
		waiter_end(&w->v[i]);
}

/*
 * True if no copy is in flight. A driver that refuses the whole process no longer reports that, but the number of the
 * last copy still arrives.
 */
static bool is_settled(const struct queue *q)
{
	return (cuda_context_set(q->context->cu) == cudaSuccess &&
		cudaStreamQuery(q->stream) == cudaSuccess && cuda_engines_idle(q->engines)) ||
	       atomic_load(q->head.done) >= q->submitted;
}

/* Marks the queue as lost. Copies in flight may go on until queue_end(). */
static int queue_lost(struct queue *q)
{
	cuda_lost(q->context);
	waiters_end(q->waiters);
	return -EIO;
}

/*
 * Waits until no copy is in flight, without a timeout. If the driver refuses to wait, copies on working devices have
 * ended after some seconds, and the others were on the failed device.
 */
static void queue_end(struct queue *q)
{
	const struct timespec pause = { .tv_nsec = END_LOOK_NS };

	/* a list that failed in its middle may have pieces in flight on other streams */
	if (cuda_context_set(q->context->cu) == cudaSuccess &&
	    cuda_engines_join(q->engines, q->stream) == cudaSuccess &&
	    cudaStreamSynchronize(q->stream) == cudaSuccess)
		return;
	cuda_lost(q->context);
	while (!is_settled(q) && dray_now().ns - q->context->lost_ns < END_WAIT_NS)
		nanosleep(&pause, NULL);
}

/* Makes the context of the queue current. 0, or -EIO if it is lost. */
static int queue_enter(struct queue *q)
{
	if (q->context->lost || cuda_context_set(q->context->cu) != cudaSuccess)
		return queue_lost(q);
	return 0;
}

static uint64_t clamp(uint64_t least, uint64_t v, uint64_t most)
{
	return v < least ? least : v > most ? most : v;
}

static void shapes_set(struct queue *q, unsigned share)
{
	unsigned all = q->device->info.multiprocessors;
	uint32_t allowed = (uint32_t)clamp(1, (uint64_t)all * share / 100, all);
	struct shape inside = { THREADS, allowed * BLOCKS_PER_MULTIPROCESSOR, false };

	if (allowed < all)
		inside = (struct shape){ THREADS_BOUNDED, allowed, true };
	q->shapes[GPU_WITHIN] = q->shapes[GPU_PEER] = inside;
	q->shapes[GPU_TO_HOST] =
		(struct shape){ THREADS_HOST, dray_min(BLOCKS_TO_HOST, allowed), true };
	q->shapes[GPU_FROM_HOST] =
		(struct shape){ THREADS_HOST, dray_min(BLOCKS_FROM_HOST, allowed), true };
}

static int queue_make(struct queue *q, const struct gpu_queue_spec *spec, struct dray_err *reterr)
{
	int priority = spec->latency ? q->context->priority_high : q->context->priority_low;
	cudaError_t r = cuda_context_set(q->context->cu);

	if (r == cudaSuccess)
		r = cudaStreamCreateWithPriority(&q->stream, cudaStreamNonBlocking, priority);
	if (r == cudaSuccess && spec->engines && q->plugin->lists)
		r = cuda_engines_new(&q->engines, priority);
	if (r == cudaSuccess)
		r = cudaMalloc(&q->control, sizeof(struct copy_control));
	if (r == cudaSuccess)
		r = cudaMemsetAsync(q->control, 0, sizeof(struct copy_control), q->stream);
	if (r == cudaSuccess)
		r = cudaStreamSynchronize(q->stream);
	return r == cudaSuccess ? 0 : cuda_fail(reterr, r, "a queue on the GPU cannot be made");
}

void cuda_queue_free(struct gpu_queue *head)
{
	struct queue *q = queue_of(head);

	if (q->stream)
		queue_end(q);
	if (q->context && cuda_context_set(q->context->cu) == cudaSuccess) {
		cuda_engines_free(q->engines);
		q->engines = NULL;
		if (q->stream)
			cudaStreamDestroy(q->stream);
		if (q->control)
			cudaFree(q->control);
	}
	if (q->waiters) {
		waiters_end(q->waiters);
		waiters_unref(q->waiters);
	}
	if (q->context) {
		pthread_mutex_lock(&q->plugin->lock);
		cuda_context_unref(q->context);
		pthread_mutex_unlock(&q->plugin->lock);
	}
	if (q->done)
		cuda_unpin(q->plugin, q->done);
	free(q->engines); /* a context that is lost has ended its streams */
	free(q);
}

static void queue_freep(struct queue **q)
{
	if (*q)
		cuda_queue_free(&(*q)->head);
}

int cuda_queue_new(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		   struct dray_err *reterr)
{
	dray_auto(queue_free) struct queue *q = calloc(1, sizeof(*q));
	struct cuda_context *c;
	void *done;
	int r;

	if (q)
		q->waiters = waiters_new();
	if (!q || !q->waiters)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	q->plugin = p;
	pthread_mutex_lock(&p->lock);
	r = cuda_enter(p, spec->device, &c, reterr);
	if (r == 0)
		q->context = cuda_context_ref(c);
	pthread_mutex_unlock(&p->lock);
	if (r < 0)
		return r;
	q->device = &p->devices[spec->device];
	q->overlap = q->device->info.major >= 9;
	shapes_set(q, spec->share);
	r = cuda_host_alloc(p, DONE_BYTES, &done, reterr);
	if (r < 0)
		return r;
	q->done = done;
	q->head.done = (const _Atomic uint64_t *)done;
	r = queue_make(q, spec, reterr);
	if (r < 0)
		return r;
	*ret = &q->head;
	q = NULL;
	return 0;
}

/* Divides pieces into parts, and parts into even batches for warps. Returns the number of blocks. */
static uint32_t launch_plan(const struct shape *s, const struct gpu_copy *c, struct copy_args *a)
{
	uint32_t per_block = s->threads / 32, warps = s->blocks * per_block;
	uint64_t average = c->n ? c->bytes / c->n : 0;
	uint64_t part = clamp(PART_MIN, c->bytes / warps, PART_MAX), units;

	while (a->parts < PARTS_LOG2_MAX && average >> a->parts > part)
		a->parts++;
	units = (uint64_t)c->n << a->parts;
	a->batch = 1;
	while (a->batch < BATCH_MAX && a->batch * per_block < COPY_TILE_MAX &&
	       units / warps >= 2 * a->batch)
		a->batch *= 2;
	return (uint32_t)clamp(1, (units + a->batch * per_block - 1) / (a->batch * per_block),
			       s->blocks);
}

static cudaError_t launch(struct queue *q, const struct gpu_copy *c, uint64_t number)
{
	const struct shape *s = &q->shapes[c->route];
	/* includes every import that the agent knew when it submitted this copy */
	uint32_t n_aliases = c->route == GPU_PEER ? q->context->n_aliases : 0;
	struct copy_args a = {
		.to_base = c->to_base,
		.from_base = c->from_base,
		.done = q->done,
		.number = number,
		.control = q->control,
		.n = c->n,
		.swapped = c->swapped,
		.alone = s->alone,
		.n_aliases = n_aliases,
		.aliases = n_aliases ? q->context->aliases : NULL,
	};
	void *args[] = { &a };
	cudaLaunchAttribute early = {
		.id = cudaLaunchAttributeProgrammaticStreamSerialization,
		.val.programmaticStreamSerializationAllowed = 1,
	};
	cudaLaunchConfig_t config = {
		.gridDim = { 1, 1, 1 },
		.blockDim = { s->threads, 1, 1 },
		.stream = q->stream,
		.attrs = &early,
		.numAttrs = q->overlap,
	};

	if (c->n > COPY_FEW)
		a.pieces = (const struct copy_piece *)(const void *)c->pieces;
	else if (c->n)
		memcpy(a.few, c->pieces, c->n * sizeof(a.few[0]));
	config.gridDim.x = launch_plan(s, c, &a);
	return cudaLaunchKernelExC(&config, (const void *)(uintptr_t)dray_copy, args);
}

/* The number is written when all work of the stream is done. */
static cudaError_t write_number(struct queue *q, uint64_t number)
{
	static const struct gpu_copy nothing = { .route = GPU_WITHIN };

	if (!q->device->write64)
		return launch(q, &nothing, number);
	return CUDA_DRIVER_CALL(stream_write64, q->stream, cuda_address(q->done), number,
				CU_STREAM_WRITE_VALUE_DEFAULT);
}

static cudaError_t by_engines(struct queue *q, const struct gpu_copy *c, uint64_t number)
{
	cudaError_t r = cuda_engines_copy(q->engines, q->context, q->stream, c);

	return r == cudaSuccess ? write_number(q, number) : r;
}

int cuda_queue_submit(struct gpu_queue *head, const struct gpu_copy *c)
{
	struct queue *q = queue_of(head);
	cudaError_t r;

	if (queue_enter(q) < 0)
		return -EIO;
	r = c->engine ? by_engines(q, c, ++q->submitted) : launch(q, c, ++q->submitted);
	if (r == cudaSuccess)
		return 0;
	/* without a fault of the device the copy alone fails, after what was submitted of it */
	if (cuda_is_lost(r) || cuda_engines_join(q->engines, q->stream) != cudaSuccess ||
	    write_number(q, q->submitted) != cudaSuccess)
		return queue_lost(q);
	head->refusal = cudaGetErrorName(r);
	return -EINVAL;
}

int cuda_queue_check(struct gpu_queue *head)
{
	struct queue *q = queue_of(head);
	cudaError_t r;

	if (queue_enter(q) < 0)
		return -EIO;
	r = cudaStreamQuery(q->stream);
	return r == cudaSuccess || r == cudaErrorNotReady ? 0 : queue_lost(q);
}

/* Also runs if the context is lost, with an error, unlike functions of cudaLaunchHostFunc(). */
static void CUDART_CB waiter_run(cudaStream_t stream, cudaError_t status, void *arg)
{
	struct waiter *w = arg;

	waiter_end(w);
	waiters_unref(w->all);
}

int cuda_queue_notify(struct gpu_queue *head, void (*fn)(void *arg), void *arg)
{
	struct queue *q = queue_of(head);
	struct waiter *w = &q->waiters->v[q->next_waiter];
	cudaError_t r;

	if (queue_enter(q) < 0)
		return -EIO;
	if (w->armed)
		return -EAGAIN;
	w->fn = fn;
	w->arg = arg;
	w->armed = true;
	atomic_fetch_add(&q->waiters->refs, 1);
	r = cudaStreamAddCallback(q->stream, waiter_run, w, 0);
	if (r != cudaSuccess) {
		w->armed = false;
		waiters_unref(q->waiters);
		return queue_lost(q);
	}
	q->next_waiter = (q->next_waiter + 1) % GPU_NOTIFY_MAX;
	return 0;
}
