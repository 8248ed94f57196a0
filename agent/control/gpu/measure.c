/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of the kernel is the best of some copies, because others may have been disturbed. That of copy engines is the middle
 * one: a driver may pass pieces through its own buffer, so that the first list is faster than those that follow. Pieces for copy
 * engines have gaps between them, because copy engines could join neighbours; in lists for the kernel they follow each other.
 */
#include "agent/control/gpu/measure.h"

#include <errno.h>
#include <sched.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/time.h"
#include "lib/timeout.h"
#include "schema/gen/errors.h"

#define MIB (1ull << 20)
#define ROUNDS 3
#define LIMIT_NS (250 * (int64_t)DRAY_NS_PER_MS)
#define CHECK_NS ((int64_t)DRAY_NS_PER_MS)
/* A kernel that copies nothing and takes longer waits for its turn beside another process. */
#define IDLE_NS 120000
#define LOOKS 4096
/* Memory on each side: more than the cache of the device, but a small part of its memory. */
#define MEMORY_SHARE 1024
#define MEMORY_MAX (64 * MIB)
#define MEMORY_MIN MIB
#define HOST_MAX (16 * MIB)
#define KERNEL_PIECE 32768u
#define ENGINE_PIECES 256u
/* Bytes of a copy, at most, so that it takes about a millisecond. */
#define FAR_BYTES (32 * MIB)
#define HOST_BYTES (8 * MIB)
#define PIECES_MAX (MEMORY_MAX / KERNEL_PIECE)

struct lab {
	struct gpu_measure *m;
	struct dray_timeout timeout;
	struct gpu_queue *kernels, *engines;
	struct gpu_block *near_block, *far_block;
	uint64_t near, far; /* addresses, on the device and its peer */
	uint64_t bytes, host_bytes;
	uint8_t *host;
	struct dray_piece *pieces;
	int64_t empty_ns; /* of a copy of nothing */
};

static void lab_deinit(struct lab *l)
{
	const struct gpu_plugin_ops *ops = l->m->ops;

	if (l->kernels)
		ops->queue_free(l->kernels);
	if (l->engines)
		ops->queue_free(l->engines);
	if (l->far_block)
		ops->block_free(l->far_block);
	if (l->near_block)
		ops->block_free(l->near_block);
	if (l->host)
		ops->host_free(l->m->plugin, l->host);
	if (l->pieces)
		ops->host_free(l->m->plugin, l->pieces);
}

static bool is_between(enum gpu_bus bus)
{
	return bus == GPU_BUS_NVLINK || bus == GPU_BUS_PCIE;
}

static bool wants_peer(const struct gpu_measure *m)
{
	return m->buses & (1u << GPU_BUS_NVLINK | 1u << GPU_BUS_PCIE);
}

static int queue_make(struct lab *l, bool engines, struct gpu_queue **ret, struct dray_err *reterr)
{
	const struct gpu_queue_spec spec = { .device = l->m->device,
					     .engines = engines,
					     .share = l->m->share };

	return l->m->ops->queue_new(l->m->plugin, &spec, ret, reterr);
}

static int lab_init(struct lab *l, struct dray_err *reterr)
{
	const struct gpu_measure *m = l->m;
	const struct gpu_plugin_ops *ops = m->ops;
	void *host = NULL, *pieces = NULL;
	int ret;

	l->bytes = dray_min(m->memory / MEMORY_SHARE / MIB * MIB, MEMORY_MAX);
	l->bytes = dray_max(l->bytes, MEMORY_MIN);
	l->host_bytes = dray_min(l->bytes, HOST_MAX);
	ret = ops->host_alloc(m->plugin, PIECES_MAX * sizeof(*l->pieces), &pieces, reterr);
	l->pieces = pieces;
	if (ret >= 0)
		ret = ops->host_alloc(m->plugin, l->host_bytes, &host, reterr);
	l->host = host;
	/* for copies within the device: both sides */
	if (ret >= 0)
		ret = ops->block_alloc(m->plugin, m->device, 2 * l->bytes, &l->near_block, &l->near,
				       reterr);
	if (ret >= 0 && wants_peer(m))
		ret = ops->block_alloc(m->plugin, m->peer, l->bytes, &l->far_block, &l->far,
				       reterr);
	if (ret >= 0)
		ret = queue_make(l, false, &l->kernels, reterr);
	return ret >= 0 ? queue_make(l, true, &l->engines, reterr) : ret;
}

/* 0; -EAGAIN: there is no time left, or something else wants the device; -EIO. */
static int await(struct lab *l, struct gpu_queue *q, uint64_t number)
{
	for (unsigned looks = 0; atomic_load_explicit(q->done, memory_order_acquire) < number;
	     looks++) {
		int64_t now_ns;

		if (looks < LOOKS) {
			dray_cpu_relax();
			continue;
		}
		sched_yield();
		now_ns = dray_now().ns;
		if (now_ns - l->timeout.checked_ns < CHECK_NS)
			continue;
		if (dray_timeout_passed(&l->timeout, now_ns))
			return -EAGAIN;
		if (l->m->ops->check(q) < 0)
			return -EIO;
	}
	return 0;
}

static bool goes_on(const struct gpu_measure *m)
{
	return atomic_load_explicit(m->go, memory_order_relaxed) &&
	       (!m->peer_go || atomic_load_explicit(m->peer_go, memory_order_relaxed));
}

static int copy(struct lab *l, const struct gpu_copy *c, int64_t *ret_ns)
{
	struct gpu_queue *q = c->engine ? l->engines : l->kernels;
	uint64_t number = atomic_load_explicit(q->done, memory_order_acquire) + 1;
	int64_t from_ns = dray_now().ns;
	int ret;

	if (!goes_on(l->m) || dray_timeout_passed(&l->timeout, from_ns))
		return -EAGAIN;
	ret = l->m->ops->submit(q, c);
	if (ret < 0)
		return ret;
	ret = await(l, q, number);
	*ret_ns = dray_now().ns - from_ns;
	return ret;
}

/* Times of copies, the shortest first. */
static int copies(struct lab *l, const struct gpu_copy *c, int64_t ns[ROUNDS])
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		int64_t took_ns;
		int ret = copy(l, c, &took_ns);
		unsigned at = i;

		if (ret < 0)
			return ret;
		for (; at && ns[at - 1] > took_ns; at--)
			ns[at] = ns[at - 1];
		ns[at] = took_ns;
	}
	return 0;
}

/* Measures the time of a copy of nothing. -EAGAIN: the device is busy, as most of them show. */
static int look(struct lab *l)
{
	const struct gpu_copy nothing = { .route = GPU_WITHIN };
	int64_t ns[ROUNDS];
	int ret = copies(l, &nothing, ns);

	if (ret < 0)
		return ret;
	l->empty_ns = ns[0];
	return ns[ROUNDS / 2] > IDLE_NS ? -EAGAIN : 0;
}

/* Fills in a copy over a bus, of n pieces whose begins are `step` bytes apart. */
static void pieces_make(struct lab *l, enum gpu_bus bus, uint32_t n, uint64_t size, uint64_t step,
			struct gpu_copy *c)
{
	static const enum gpu_route routes[GPU_BUS_N] = { [GPU_BUS_WITHIN] = GPU_WITHIN,
							  [GPU_BUS_NVLINK] = GPU_PEER,
							  [GPU_BUS_PCIE] = GPU_PEER,
							  [GPU_BUS_TO_HOST] = GPU_TO_HOST,
							  [GPU_BUS_FROM_HOST] = GPU_FROM_HOST };
	uint64_t host = (uintptr_t)l->host, to = l->near, from = l->near + l->bytes;

	if (bus == GPU_BUS_TO_HOST)
		to = host;
	else if (bus == GPU_BUS_FROM_HOST)
		from = host;
	else if (is_between(bus))
		from = l->far;
	for (uint32_t i = 0; i < n; i++)
		l->pieces[i] = (struct dray_piece){ .to = (uint8_t *)(uintptr_t)(to + i * step),
						    .from = (uint8_t *)(uintptr_t)(from + i * step),
						    .bytes = size };
	c->pieces = l->pieces;
	c->n = n;
	c->route = routes[bus];
	c->bytes = n * size;
}

static uint64_t bytes_of(const struct lab *l, enum gpu_bus bus)
{
	if (bus == GPU_BUS_WITHIN)
		return l->bytes;
	return dray_min(l->bytes, bus == GPU_BUS_NVLINK ? FAR_BYTES : HOST_BYTES);
}

static uint32_t rate_of(const struct lab *l, uint64_t bytes, int64_t ns)
{
	uint64_t rate;

	/* without the time that each copy takes */
	ns = dray_max(ns - l->empty_ns, ns / 2);
	rate = bytes * 1000 / (uint64_t)dray_max(ns, (int64_t)1);
	rate = dray_min(rate, (uint64_t)UINT32_MAX);
	return (uint32_t)dray_max(rate, UINT64_C(1));
}

static int kernel_rate(struct lab *l, enum gpu_bus bus, uint32_t *ret_rate)
{
	struct gpu_copy c = { .engine = false };
	int64_t ns[ROUNDS];
	int ret;

	pieces_make(l, bus, (uint32_t)(bytes_of(l, bus) / KERNEL_PIECE), KERNEL_PIECE, KERNEL_PIECE,
		    &c);
	ret = copies(l, &c, ns);
	if (ret >= 0)
		*ret_rate = rate_of(l, c.bytes, ns[0]);
	return ret;
}

static int engines_rate(struct lab *l, enum gpu_bus bus, uint64_t size, uint32_t *ret_rate)
{
	bool host = bus == GPU_BUS_TO_HOST || bus == GPU_BUS_FROM_HOST;
	uint64_t n =
		dray_min((host ? l->host_bytes : l->bytes) / (2 * size), bytes_of(l, bus) / size);
	struct gpu_copy c = { .engine = true };
	int64_t ns[ROUNDS];
	int ret;

	n = dray_min(n, (uint64_t)ENGINE_PIECES);
	n = dray_max(n, UINT64_C(1));
	pieces_make(l, bus, (uint32_t)n, size, 2 * size, &c);
	ret = copies(l, &c, ns);
	if (ret >= 0)
		*ret_rate = rate_of(l, c.bytes, ns[ROUNDS / 2]);
	return ret;
}

static int bus_rates(struct lab *l, enum gpu_bus bus)
{
	struct gpu_rates *rates = &l->m->rates;
	int ret = kernel_rate(l, bus, &rates->kernel[bus]);

	for (unsigned i = 0; i < GPU_RATE_SIZES && ret >= 0; i++)
		ret = engines_rate(l, bus, (uint64_t)GPU_RATE_SIZE_MIN << i,
				   &rates->engines[bus][i]);
	return ret;
}

int gpu_measure(struct gpu_measure *m, struct dray_err *reterr)
{
	struct lab l = { .m = m };
	int ret = lab_init(&l, reterr);

	/* this may have been the peer, or any other device that is lost; a copy shows whether this one is */
	if (ret == -EIO)
		ret = -EAGAIN;
	if (ret >= 0) {
		l.timeout = dray_timeout_start(LIMIT_NS);
		ret = look(&l);
	}
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N && ret >= 0; bus++)
		if (m->buses >> bus & 1)
			ret = bus_rates(&l, bus);
	/* what began meanwhile has slowed down copies */
	if (ret >= 0)
		ret = look(&l);
	lab_deinit(&l);
	if (ret == -EIO && !reterr->code)
		dray_err_set(reterr, ret, DRAY_E_GPU_LOST, "a copy that measures rates failed");
	return ret;
}
