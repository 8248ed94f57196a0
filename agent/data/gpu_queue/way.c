/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice beside a busy engine. A way costs what the engine loses by it, and an eighth of the time that it takes: seven eighths
 * are the engine's, because it serves requests all the time, and few wait for a copy.
 *
 * A kernel waits for its time slice and then takes the device from the engine as long as it runs, and a little for each
 * slice. Copy engines cost it two percent while they copy, and are slow with small pieces. A staged copy gathers small pieces in
 * memory of the device by a kernel that is as short as can be, and lets copy engines do the rest; each round through that
 * memory waits for a time slice, between devices for one on each.
 */
#include "agent/data/gpu_queue/way.h"

#include "agent/model/gpu_message.h"
#include "lib/cleanup.h"

_Static_assert(GPU_RUN_LEAST > GPU_SMALL_FROM_HOST, "padded runs are not small");

/* What an engine loses by each time slice that it does not get, besides the work done in it. */
#define SLICE_NS 200000
#define ENGINES_SHARE 50
#define TIME_SHARE 8

/* Bytes at a rate, in ns. */
static uint64_t time_of(uint64_t bytes, uint64_t rate)
{
	return bytes / rate * 1000 + bytes % rate * 1000 / rate;
}

/* Time of copy engines for bytes in pieces of an average size; in between two sizes of the table, the smaller one's part is linear. */
static uint64_t engines_ns(const struct gpu_way_question *q, enum gpu_bus bus, uint64_t size)
{
	const uint32_t *rate = q->rates->engines[bus];
	uint64_t bytes = q->bytes, step = GPU_RATE_SIZE_MIN, small, large;
	unsigned i = 0;

	size = dray_max(size, UINT64_C(1));
	while (i < GPU_RATE_SIZES - 1 && step * 2 <= size) {
		i++;
		step *= 2;
	}
	if (i == GPU_RATE_SIZES - 1)
		return time_of(bytes, rate[i]);
	small = time_of(step, rate[i]);
	if (size <= step)
		return bytes / size * small;
	large = time_of(2 * step, rate[i + 1]);
	/* the time of a larger piece may be the shorter one */
	return bytes / size * ((small * (2 * step - size) + large * (size - step)) / step);
}

static uint64_t kernel_cost(const struct gpu_way_question *q)
{
	uint64_t runs = time_of(q->bytes, q->rates->kernel[q->bus]);

	return SLICE_NS + runs + ((uint64_t)q->wait_ns + 2 * runs) / TIME_SHARE;
}

/* The same where lists of small pieces from the host are a choice: they are as fast as those to it, but wait for a time slice. */
static uint64_t engines_best_ns(const struct gpu_way_question *q, uint64_t size, bool *ret_lists)
{
	uint64_t ns = engines_ns(q, q->bus, size), lists;

	*ret_lists = false;
	if (q->route != GPU_FROM_HOST || size > GPU_SMALL_FROM_HOST)
		return ns;
	lists = engines_ns(q, GPU_BUS_TO_HOST, size) + (uint64_t)q->wait_ns;
	*ret_lists = lists < ns;
	return dray_min(lists, ns);
}

static uint64_t engines_cost(const struct gpu_way_question *q, bool *ret_lists)
{
	uint64_t ns = engines_best_ns(q, q->bytes / q->pieces, ret_lists);

	return (*ret_lists ? SLICE_NS : 0) + ns / ENGINES_SHARE + ns / TIME_SHARE;
}

/*
 * Time of copy engines for runs of host memory in their order, and a row on the device: that of the quickest pieces from this size, or
 * that of the bytes.
 */
static uint64_t runs_ns(const struct gpu_way_question *q, uint64_t least)
{
	const uint32_t *rate = q->rates->engines[q->bus];
	uint64_t piece = UINT64_MAX, size = GPU_RATE_SIZE_MIN, run = dray_max(q->run, UINT64_C(1));

	for (unsigned i = 0; i < GPU_RATE_SIZES; i++, size *= 2)
		if (size >= least)
			piece = dray_min(piece, time_of(size, rate[i]));
	return dray_max(q->bytes / run * piece, time_of(q->bytes, rate[GPU_RATE_SIZES - 1]));
}

/* The same of a staged copy; sets how they copy. */
static uint64_t staged_engines_ns(const struct gpu_way_question *q, struct gpu_way *way)
{
	uint64_t ns = engines_best_ns(q, q->route == GPU_PEER ? UINT64_MAX : q->run, &way->lists);
	uint64_t runs;

	way->pads = false;
	if (q->route == GPU_PEER || q->run >= GPU_ROW_MIN)
		return ns;
	if (q->route == GPU_TO_HOST)
		return dray_min(ns, runs_ns(q, 0));
	runs = runs_ns(q, GPU_RUN_LEAST);
	/* where some runs are long, the short ones are what takes the time */
	if (!q->can_pad || (runs >= ns && q->run <= GPU_SMALL_FROM_HOST))
		return ns;
	way->pads = true;
	way->lists = false;
	return runs;
}

/* Sets how copy engines copy in way. */
static uint64_t staged_cost(const struct gpu_way_question *q, uint64_t memory, struct gpu_way *way)
{
	bool peer = q->route == GPU_PEER;
	uint64_t rounds = (q->bytes + memory - 1) / memory;
	uint64_t slices = rounds * (uint64_t)q->wait_ns;
	uint64_t engines = staged_engines_ns(q, way);

	return rounds * SLICE_NS + time_of(q->bytes, q->rates->kernel[GPU_BUS_WITHIN]) +
	       engines / ENGINES_SHARE +
	       (dray_max(slices, engines) + (uint64_t)q->wait_ns * (peer ? 2 : 1)) / TIME_SHARE;
}

static bool can_stage(enum gpu_route route)
{
	return route != GPU_WITHIN;
}

static struct gpu_way cheapest(const struct gpu_way_question *q, uint64_t memory)
{
	struct gpu_way way = { .device = q->device };
	struct gpu_way staged = { .device = q->device, .staged = true };
	bool lists;
	uint64_t cost = kernel_cost(q), engines = engines_cost(q, &lists);

	if (engines <= cost) {
		way.engines = true;
		way.lists = lists;
		cost = engines;
	}
	if (memory && can_stage(q->route) && staged_cost(q, memory, &staged) < cost)
		way = staged;
	return way;
}

/* Whether the load decides: it is followed, the device is busy, and the one on the other side is no better. */
static bool follows_load(const struct gpu_way_question *q)
{
	return q->setting == DRAY_CONFIG_GPU_COPY_AUTO && q->busy &&
	       (q->other < 0 || q->other_busy);
}

struct gpu_way gpu_way_choose(const struct gpu_way_question *q)
{
	struct gpu_way way = { .device = q->device };

	if (follows_load(q))
		return cheapest(q, q->memory);
	if (q->setting == DRAY_CONFIG_GPU_COPY_COPY_ENGINE) {
		way.engines = true;
		engines_cost(q, &way.lists);
	} else if (q->setting == DRAY_CONFIG_GPU_COPY_STAGED) {
		way.staged = q->memory && can_stage(q->route);
		if (way.staged)
			staged_cost(q, q->memory, &way);
	} else if (q->setting == DRAY_CONFIG_GPU_COPY_AUTO && q->busy) {
		/* a busy device that only reads or is written hardly notices */
		way.device = (uint8_t)q->other;
	}
	return way;
}

bool gpu_way_wants_memory(const struct gpu_way_question *q)
{
	if (!q->could_have || !can_stage(q->route))
		return false;
	return q->setting == DRAY_CONFIG_GPU_COPY_STAGED ||
	       (follows_load(q) && cheapest(q, q->could_have).staged);
}
