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
#include "agent/data/transport/gpu/plan.h"

#include "agent/model/gpu_message.h"
#include "lib/cleanup.h"

/* What an engine loses by each time slice that it does not get, besides the work done in it. */
#define SLICE_NS 200000
#define ENGINES_SHARE 50
#define TIME_SHARE 8

/* Sizes of pieces in a table of rates: 4 KiB << i. */
#define RATE_SIZES 9u
#define RATE_SIZE_MIN 4096u

/* What an idle H200 does, in bytes a microsecond. Others differ, but the ratios between the ways less. */
static const struct {
	uint32_t kernel[GPU_ROUTE_N];
	uint32_t engines[GPU_ROUTE_N][RATE_SIZES]; /* lists of pieces of that size */
} rates = {
	.kernel = { [GPU_WITHIN] = 1100000,
		    [GPU_PEER] = 320000,
		    [GPU_TO_HOST] = 52000,
		    [GPU_FROM_HOST] = 51000 },
	.engines = { [GPU_WITHIN] = { 750, 1500, 3000, 6000, 12000, 24000, 48000, 96000, 190000 },
		     [GPU_PEER] = { 7400, 14800, 29600, 59000, 110000, 200000, 320000, 350000,
				    370000 },
		     [GPU_TO_HOST] = { 4900, 9800, 22000, 39000, 46000, 49000, 52000, 53000,
				       54000 },
		     [GPU_FROM_HOST] = { 1000, 2000, 3900, 34000, 48000, 51000, 53000, 54000,
					 54500 } },
};

/* Bytes at a rate, in ns. */
static uint64_t time_of(uint64_t bytes, uint64_t rate)
{
	return bytes / rate * 1000 + bytes % rate * 1000 / rate;
}

/* Time of copy engines for bytes in pieces of an average size; in between two sizes of the table, the smaller one's part is linear. */
static uint64_t engines_ns(enum gpu_path_kind kind, uint64_t bytes, uint64_t size)
{
	const uint32_t *rate = rates.engines[gpu_plan_limits[kind].route];
	uint64_t step = RATE_SIZE_MIN, small, large;
	unsigned i = 0;

	size = dray_max(size, UINT64_C(1));
	while (i < RATE_SIZES - 1 && step * 2 <= size) {
		i++;
		step *= 2;
	}
	if (i == RATE_SIZES - 1)
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
	uint64_t runs = time_of(q->bytes, rates.kernel[gpu_plan_limits[q->kind].route]);

	return SLICE_NS + runs + ((uint64_t)q->wait_ns + 2 * runs) / TIME_SHARE;
}

static uint64_t engines_cost(const struct gpu_way_question *q)
{
	uint64_t ns = engines_ns(q->kind, q->bytes, q->bytes / q->pieces);

	return ns / ENGINES_SHARE + ns / TIME_SHARE;
}

static uint64_t staged_cost(const struct gpu_way_question *q, uint64_t memory)
{
	bool peer = q->kind == GPU_PATH_PEER;
	uint64_t rounds = (q->bytes + memory - 1) / memory;
	uint64_t slices = rounds * (uint64_t)q->wait_ns;
	uint64_t engines = engines_ns(q->kind, q->bytes, peer ? UINT64_MAX : q->run);

	return rounds * SLICE_NS + time_of(q->bytes, rates.kernel[GPU_WITHIN]) +
	       engines / ENGINES_SHARE +
	       (dray_max(slices, engines) + (uint64_t)q->wait_ns * (peer ? 2 : 1)) / TIME_SHARE;
}

static bool can_stage(enum gpu_path_kind kind)
{
	return kind == GPU_PATH_PEER || kind == GPU_PATH_TO_HOST || kind == GPU_PATH_FROM_HOST;
}

static struct gpu_way cheapest(const struct gpu_way_question *q, uint64_t memory)
{
	struct gpu_way way = { .device = q->device };
	uint64_t cost = kernel_cost(q), engines = engines_cost(q);

	if (engines <= cost) {
		way.engines = true;
		cost = engines;
	}
	if (memory && can_stage(q->kind) && staged_cost(q, memory) < cost)
		way = (struct gpu_way){ .device = q->device, .staged = true };
	return way;
}

/* Whether the load decides: it is followed, the device is busy, and the one on the other side is no better. */
static bool follows_load(const struct gpu_way_question *q)
{
	return q->setting == DRAY_CONFIG_GPU_COPY_AUTO && q->busy &&
	       (q->other < 0 || q->other_busy);
}

struct gpu_way gpu_plan_way(const struct gpu_way_question *q)
{
	struct gpu_way way = { .device = q->device };

	if (follows_load(q))
		return cheapest(q, q->memory);
	if (q->setting == DRAY_CONFIG_GPU_COPY_COPY_ENGINE)
		way.engines = true;
	else if (q->setting == DRAY_CONFIG_GPU_COPY_STAGED)
		way.staged = q->memory && can_stage(q->kind);
	else if (q->setting == DRAY_CONFIG_GPU_COPY_AUTO && q->busy)
		/* a busy device that only reads or is written hardly notices */
		way.device = (uint8_t)q->other;
	return way;
}

bool gpu_plan_wants_memory(const struct gpu_way_question *q)
{
	if (!q->could_have || !can_stage(q->kind))
		return false;
	return q->setting == DRAY_CONFIG_GPU_COPY_STAGED ||
	       (follows_load(q) && cheapest(q, q->could_have).staged);
}
