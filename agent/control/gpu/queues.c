/* SPDX-License-Identifier: Apache-2.0 */
/* For each worker: the queues of a device and room for their pieces, and staging memory. */

#include "agent/control/gpu/internal.h"

static uint32_t peer_mask(const struct gpu_device *d)
{
	const struct gpus *g = d->gpus;
	uint32_t mask = 1u << d->index;

	for (unsigned i = 0; i < g->n; i++)
		if (d->peers >> i & 1 && g->devices[i].info.peers >> d->index & 1)
			mask |= 1u << i;
	return mask;
}

static int queue_make(struct gpu_device *d, struct gpu_queues *q, unsigned lane,
		      struct dray_err *reterr)
{
	const struct gpus *g = d->gpus;
	const struct gpu_queue_spec spec = {
		.device = d->index,
		.latency = lane == GPU_LANE_PROBE || lane % GPU_LANE_ENGINE == DMSG_CLASS_LATENCY,
		.engines = lane >= GPU_LANE_ENGINE && lane < GPU_LANE_COPY_N,
		.share = (unsigned)g->cfg->gpu.multiprocessors
	};
	uint32_t n = lane < GPU_LANE_ENGINE ? QUEUE_PIECES : ENGINE_PIECES;
	void *pieces = NULL;
	int ret = g->ops->queue_new(g->plugin, &spec, &q->queue[lane], reterr);

	if (ret >= 0 && lane < GPU_LANE_COPY_N)
		ret = g->ops->host_alloc(g->plugin, n * sizeof(struct dray_piece), &pieces, reterr);
	if (ret >= 0 && lane < GPU_LANE_COPY_N)
		q->pieces[lane] = pieces;
	return ret;
}

bool gpu_device_follows_load(const struct gpu_device *d)
{
	return d->gpus->cfg->gpu.copy == DRAY_CONFIG_GPU_COPY_AUTO && !d->info.shared;
}

int queues_make(struct gpu_device *d, struct dray_err *reterr)
{
	struct gpus *g = d->gpus;
	int ret = 0;

	atomic_init(&d->load.due_ns, 0);
	atomic_init(&d->load.busy, false);
	atomic_init(&d->load.wait_ns, 0);
	atomic_init(&d->load.measured, false);
	d->load.quick = d->load.slow = 0;
	for (unsigned w = 0; w < g->n_workers; w++) {
		struct gpu_queues *q = &d->queues[w];

		*q = (struct gpu_queues){ .ops = g->ops,
					  .plugin = g->plugin,
					  .device = d->index,
					  .rdma_ordered = d->info.rdma_ordered,
					  .peers = peer_mask(d),
					  .n_pieces = QUEUE_PIECES,
					  .n_engine_pieces = ENGINE_PIECES,
					  .load = &d->load,
					  .shared = d->info.shared,
					  .nvlink = d->info.nvlink,
					  .copy = (enum dray_config_gpu_copy)g->cfg->gpu.copy,
					  .copy_memory = copy_memory_most(d) };
		for (unsigned lane = 0; lane < GPU_LANE_N && ret >= 0; lane++)
			if (lane != GPU_LANE_PROBE || gpu_device_follows_load(d))
				ret = queue_make(d, q, lane, reterr);
	}
	return ret;
}

void queues_free(struct gpu_device *d)
{
	const struct gpus *g = d->gpus;

	for (unsigned w = 0; w < g->n_workers; w++) {
		struct gpu_queues *q = &d->queues[w];

		for (unsigned lane = 0; lane < GPU_LANE_N; lane++) {
			if (q->queue[lane])
				g->ops->queue_free(q->queue[lane]);
			if (lane < GPU_LANE_COPY_N && q->pieces[lane])
				g->ops->host_free(g->plugin, q->pieces[lane]);
		}
		*q = (struct gpu_queues){ 0 };
	}
}

void staging_make(struct gpus *g, struct dray_err *reterr)
{
	struct dray_err lists_err;

	dray_err_init(&lists_err);
	for (unsigned w = 0; w < g->n_workers; w++) {
		struct gpu_staging *s = &g->staging[w];
		void *base = NULL;

		/* without it the lists are copied into the room of their queue */
		g->ops->host_alloc(g->plugin, GPU_LISTS_BYTES, &g->lists[w], &lists_err);
		if (g->ops->host_alloc(g->plugin, (uint64_t)g->cfg->gpu.staging, &base, reterr) < 0)
			continue;
		*s = (struct gpu_staging){ base, (uint64_t)g->cfg->gpu.staging };
	}
}

void staging_free(struct gpus *g)
{
	for (unsigned w = 0; w < g->n_workers; w++) {
		if (g->staging[w].base)
			g->ops->host_free(g->plugin, g->staging[w].base);
		g->staging[w] = (struct gpu_staging){ 0 };
		if (g->lists[w])
			g->ops->host_free(g->plugin, g->lists[w]);
		g->lists[w] = NULL;
	}
}
