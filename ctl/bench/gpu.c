/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gpu/loader.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/time.h"

#define ENDS 2
/* Pinned host memory for copies to and from GPU memory. */
#define BOUNCE_BYTES (1u << 20)
#define LOOK_NS 20000
/* A copy that takes longer is lost, or the GPU is. */
#define COPY_NS (10 * DRAY_NS_PER_SEC)

struct bench_gpus {
	struct ctl *ctl;
	struct bench_gpu v[ENDS];
	unsigned n;
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
};

struct bench_gpu_memory {
	struct ctl *ctl;
	const struct bench_gpu *gpu;
	struct gpu_block *block;
	uint64_t address;
	uint8_t handle[GPU_HANDLE_BYTES];
	struct gpu_queue *queue;
	uint64_t submitted;
	uint8_t *bounce;
	struct dray_piece *piece;
};

static bool is_named(const struct gpu_device_info *info, const char *name)
{
	return !strcasecmp(info->uuid, name) || !strcasecmp(info->bdf, name);
}

static struct bench_gpu *find(struct bench_gpus *g, const char *name)
{
	for (unsigned i = 0; i < g->n; i++)
		if (is_named(&g->v[i].info, name))
			return &g->v[i];
	return NULL;
}

static int device_start(struct bench_gpus *g, const struct gpu_device_info *found, unsigned n,
			const char *name)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t bytes;
	uint32_t peers;
	unsigned i = 0;

	if (!name || find(g, name))
		return 0;
	while (i < n && !is_named(&found[i], name))
		i++;
	if (i == n)
		return ctl_failed(g->ctl,
				  "there is no GPU %s here; drayctl detect lists UUIDs and PCI "
				  "addresses",
				  name);
	if (!found[i].usable)
		return ctl_failed(g->ctl, "the plug-in has no code for GPU %s (%s)", name,
				  found[i].name);
	if (g->ops->start(g->plugin, i, &bytes, &peers, &err) < 0)
		return ctl_failed(g->ctl, "GPU %s cannot be used: %s", name, err.msg);
	g->v[g->n++] = (struct bench_gpu){
		.ops = g->ops, .plugin = g->plugin, .info = found[i], .index = i
	};
	return 0;
}

int bench_gpus_open(struct bench_gpus **ret, struct ctl *c, const char *plugin, const char *near,
		    const char *far)
{
	dray_auto_free struct gpu_device_info *found = calloc(GPU_DEVICES_MAX, sizeof(*found));
	struct bench_gpus *g = calloc(1, sizeof(*g));
	struct dray_err err = DRAY_ERR_NULL;
	unsigned n;

	*ret = g;
	if (!g || !found)
		return ctl_no_memory(c);
	g->ctl = c;
	if (plugin && !strcmp(plugin, "none"))
		return ctl_misuse(c,
				  "--gpu-plugin none and GPU memory exclude each other; name the "
				  "file of the plug-in");
	if (gpu_load(plugin, &g->ops, &err) < 0 || g->ops->open(&g->plugin, &err) < 0)
		return ctl_failed(c, "no GPU can be used: %s", err.msg);
	n = dray_min(g->ops->devices(g->plugin, found, GPU_DEVICES_MAX), (unsigned)GPU_DEVICES_MAX);
	return device_start(g, found, n, near) < 0 ? -1 : device_start(g, found, n, far);
}

void bench_gpus_close(struct bench_gpus *g)
{
	if (!g)
		return;
	while (g->n)
		g->ops->stop(g->plugin, g->v[--g->n].index);
	if (g->plugin)
		g->ops->close(g->plugin);
	free(g);
}

unsigned bench_gpus_n(const struct bench_gpus *g)
{
	return g ? g->n : 0;
}

const struct bench_gpu *bench_gpus_at(const struct bench_gpus *g, unsigned i)
{
	return &g->v[i];
}

/* --- memory -------------------------------------------------------------------------------------- */

static int parts_make(struct bench_gpu_memory *m, uint64_t bytes, struct dray_err *reterr)
{
	const struct bench_gpu *g = m->gpu;
	const struct gpu_queue_spec spec = { .device = g->index, .engines = true, .share = 100 };
	void *bounce = NULL, *piece = NULL;
	int ret = g->ops->block_alloc(g->plugin, g->index, bytes, &m->block, &m->address, reterr);

	if (ret >= 0)
		ret = g->ops->block_handle(m->block, m->handle, reterr);
	if (ret >= 0)
		ret = g->ops->host_alloc(g->plugin, BOUNCE_BYTES, &bounce, reterr);
	m->bounce = bounce;
	if (ret >= 0)
		ret = g->ops->host_alloc(g->plugin, sizeof(*m->piece), &piece, reterr);
	m->piece = piece;
	return ret < 0 ? ret : g->ops->queue_new(g->plugin, &spec, &m->queue, reterr);
}

int bench_gpu_memory_new(struct bench_gpus *g, const char *name, uint64_t bytes,
			 struct bench_gpu_memory **ret)
{
	struct bench_gpu_memory *m = calloc(1, sizeof(*m));
	struct dray_err err = DRAY_ERR_NULL;

	*ret = m;
	if (!m)
		return ctl_no_memory(g->ctl);
	m->ctl = g->ctl;
	m->gpu = find(g, name);
	dray_assert(m->gpu);
	if (parts_make(m, bytes, &err) < 0)
		return ctl_failed(g->ctl, "memory on GPU %s: %s", name, err.msg);
	return 0;
}

void bench_gpu_memory_free(struct bench_gpu_memory *m)
{
	const struct bench_gpu *g;

	if (!m)
		return;
	g = m->gpu;
	if (m->queue)
		g->ops->queue_free(m->queue);
	if (m->piece)
		g->ops->host_free(g->plugin, m->piece);
	if (m->bounce)
		g->ops->host_free(g->plugin, m->bounce);
	if (m->block)
		g->ops->block_free(m->block);
	free(m);
}

const uint8_t *bench_gpu_memory_handle(const struct bench_gpu_memory *m)
{
	return m->handle;
}

const char *bench_gpu_memory_device(const struct bench_gpu_memory *m)
{
	return m->gpu->info.uuid;
}

/* One copy between the bounce memory and this address. */
static int copy(struct bench_gpu_memory *m, uint64_t at, uint64_t bytes, bool put)
{
	uint8_t *there = (uint8_t *)(uintptr_t)(m->address + at);
	const struct gpu_copy list = { .pieces = m->piece,
				       .n = 1,
				       .swapped = !put,
				       .engine = true,
				       .route = put ? GPU_FROM_HOST : GPU_TO_HOST,
				       .bytes = bytes };
	int64_t until = dray_now().ns + COPY_NS;
	int ret;

	*m->piece = (struct dray_piece){ .to = there, .from = m->bounce, .bytes = bytes };
	ret = m->gpu->ops->submit(m->queue, &list);
	m->submitted++;
	while (ret >= 0 &&
	       atomic_load_explicit(m->queue->done, memory_order_acquire) < m->submitted) {
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
		ret = m->gpu->ops->check(m->queue);
		if (dray_now().ns > until)
			ret = -1;
	}
	return ret < 0 ? ctl_failed(m->ctl, "GPU %s is lost, or does not copy", m->gpu->info.uuid) :
			 0;
}

int bench_gpu_put(struct bench_gpu_memory *m, uint64_t at, const void *from, uint64_t bytes)
{
	for (uint64_t done = 0; done < bytes;) {
		uint64_t n = dray_min(bytes - done, (uint64_t)BOUNCE_BYTES);

		memcpy(m->bounce, (const uint8_t *)from + done, n);
		if (copy(m, at + done, n, true) < 0)
			return -1;
		done += n;
	}
	return 0;
}

int bench_gpu_get(struct bench_gpu_memory *m, uint64_t at, void *to, uint64_t bytes)
{
	for (uint64_t done = 0; done < bytes;) {
		uint64_t n = dray_min(bytes - done, (uint64_t)BOUNCE_BYTES);

		if (copy(m, at + done, n, false) < 0)
			return -1;
		memcpy((uint8_t *)to + done, m->bounce, n);
		done += n;
	}
	return 0;
}
