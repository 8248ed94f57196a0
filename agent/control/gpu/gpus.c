/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/gpu/gpus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/gpu/internal.h"
#include "gpu/loader.h"
#include "gpu/peers.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

int gpus_new(struct gpus **ret, const struct gpus_deps *deps)
{
	struct gpus *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->deps = *deps;
	g->cfg = deps->cfg;
	g->n_workers = deps->pool->n;
	dray_list_init(&g->memories);
	dray_list_init(&g->hosts);
	dray_list_init(&g->announcements);
	dray_list_init(&g->host_regions);
	dray_list_init(&g->pins);
	dray_list_init(&g->rates.known);
	dray_list_init(&g->rates.published);
	snprintf(g->plugin_text, sizeof(g->plugin_text), "%s",
		 g->cfg->gpu.enable ? "not loaded yet" : "not used (gpu.enable is false)");
	*ret = g;
	return 0;
}

static void load_run(struct dray_job *j)
{
	struct gpus *g = dray_container_of(j, struct gpus, job);

	g->error = g->ops ? 0 : gpu_load(g->cfg->gpu.plugin, &g->ops, &g->err);
	if (g->error >= 0)
		g->error = g->ops->open(&g->plugin, &g->err);
}

static void load_done(struct dray_job *j)
{
	struct gpus *g = dray_container_of(j, struct gpus, job);

	if (g->error < 0) {
		/* the next region retries */
		g->plugin_state = PLUGIN_UNUSED;
		dray_err_set(&g->err, g->error, DRAY_E_UNSUPPORTED,
			     "the CUDA plug-in cannot be used: %s", dray_errno_text(g->error));
		if (strcmp(g->plugin_text, g->err.msg) != 0)
			log_warning(AREA, "GPU memory cannot be used: %s", g->err.msg);
		snprintf(g->plugin_text, sizeof(g->plugin_text), "%s", g->err.msg);
		memories_step(g, &g->err);
		return;
	}
	g->plugin_state = PLUGIN_READY;
	snprintf(g->plugin_text, sizeof(g->plugin_text), "%s", g->ops->version(g->plugin));
	gpu_devices_find(g);
	gpu_rates_found(g);
	log_info(AREA, "plug-in %s is loaded: %s gpus=%u", g->ops->name, g->plugin_text, g->n);
	memories_step(g, NULL);
	announcements_step(g);
}

int gpus_load(struct gpus *g, struct dray_err *reterr)
{
	int ret = 0;

	if (!g->opener)
		ret = jobs_new(&g->opener, g->deps.event, "dray-gpu", STACK_BYTES);
	if (ret >= 0 && !g->pinner)
		ret = jobs_new(&g->pinner, g->deps.event, "dray-gpu-pin", STACK_BYTES);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY,
				    "a thread for GPUs cannot be started: %s",
				    dray_errno_text(ret));
	if (g->plugin_state == PLUGIN_UNUSED) {
		g->plugin_state = PLUGIN_LOADING;
		g->err = DRAY_ERR_NULL;
		dray_jobs_add(g->opener, &g->job, load_run, load_done);
	}
	return 0;
}

void gpus_tell(struct gpus *g, unsigned worker, enum gpu_command type, uint64_t id, void *arg)
{
	worker_post(g->deps.pool->workers[worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_GPU,
						    .type = type,
						    .id = id,
						    .arg = arg } });
}

void gpus_message(struct gpus *g, unsigned worker, const struct transport_message *m)
{
	if (m->id >= g->n)
		return;
	switch ((enum gpu_event)m->type) {
	case GPU_LOST:
		gpu_device_lost(&g->devices[m->id], "a copy failed");
		break;
	case GPU_REFUSED:
		log_limited(DRAY_LOG_WARNING, AREA,
			    "the driver refused a copy: %s gpu=%s address=%s", (const char *)m->arg,
			    g->devices[m->id].info.uuid, g->devices[m->id].info.bdf);
		break;
	case GPU_GONE:
		gpu_device_worker_gone(&g->devices[m->id]);
		break;
	case GPU_COPY_MEMORY_WANTED:
		copy_memory_wanted(&g->devices[m->id], worker);
		break;
	case GPU_COPY_MEMORY_BACK:
		copy_memory_back(&g->devices[m->id]);
		break;
	}
}

bool gpus_flush_rdma(struct gpus *g, unsigned device)
{
	struct gpu_device *d = device < g->n ? &g->devices[device] : NULL;
	int ret;

	if (!d || d->state != DEVICE_READY)
		return false;
	ret = d->info.rdma_ordered ? 0 : g->ops->flush_rdma(g->plugin, device);
	if (ret >= 0 || ret == -EOPNOTSUPP)
		return true;
	gpu_device_lost(d, "the writes of RDMA devices could not be flushed to it");
	return false;
}

static void end_run(struct dray_job *j)
{
	struct gpus *g = dray_container_of(j, struct gpus, end_job);

	for (unsigned i = 0; i < g->n; i++)
		queues_free(&g->devices[i]);
	memories_release(g);
	pins_release(g);
	for (unsigned i = 0; i < g->n; i++)
		copy_memory_release(&g->devices[i]);
	for (unsigned i = 0; i < g->n; i++)
		gpu_device_release(&g->devices[i]);
	staging_free(g);
	gpu_hosts_release(g);
	if (g->plugin)
		g->ops->close(g->plugin);
}

bool gpus_free(struct gpus *g)
{
	bool ended;

	if (!g)
		return true;
	/* the queued jobs run to their end, and end_run() releases their results after them */
	ended = gpu_rates_free(g);
	ended = jobs_free(g->pinner) && ended;
	for (unsigned i = 0; i < g->n; i++) {
		sd_event_source_disable_unref(g->devices[i].idle);
		sd_event_source_disable_unref(g->devices[i].late);
		ended = jobs_free(g->devices[i].ender) && ended;
	}
	if (ended && g->opener)
		dray_jobs_add(g->opener, &g->end_job, end_run, NULL);
	ended = jobs_free(g->opener) && ended;
	if (!ended)
		return false;
	host_regions_free(g);
	announcements_free(g);
	gpu_rates_end(g);
	free(g);
	return true;
}

static const char *state_name(const struct gpu_device *d)
{
	static const char *const names[] = {
		[DEVICE_UNUSED] = "unused",     [DEVICE_STARTING] = "starting",
		[DEVICE_READY] = "ready",       [DEVICE_LEAVING] = "stopping",
		[DEVICE_ENDING] = "stopping",   [DEVICE_ENDED] = "stopping",
		[DEVICE_STOPPING] = "stopping",
	};

	if (d->state > DEVICE_READY && d->lost)
		return "lost";
	return d->excluded ? "excluded" : names[d->state];
}

static bool is_busy(const struct gpu_device *d)
{
	return d->state == DEVICE_READY &&
	       atomic_load_explicit(&d->load.busy, memory_order_relaxed);
}

/* Fills the bytes that transfers moved, of all workers. */
static void add_moved(const struct gpus *g, struct dray_dbus_gpu *gpu)
{
	for (unsigned i = 0; i < g->deps.pool->n; i++) {
		const struct data_gpu_bytes *moved =
			&worker_counters(g->deps.pool->workers[i])->gpus[gpu->index];

		gpu->read_bytes += atomic_load_explicit(&moved->read, memory_order_relaxed);
		gpu->written_bytes += atomic_load_explicit(&moved->written, memory_order_relaxed);
	}
}

void gpus_each(struct gpus *g, void (*fn)(void *arg, const struct dray_dbus_gpu *gpu), void *arg)
{
	for (unsigned i = 0; i < g->n; i++) {
		const struct gpu_device *d = &g->devices[i];
		char peers[GPU_PEERS_BYTES], rates[GPU_RATES_BYTES];
		struct dray_dbus_gpu gpu = {
			.index = i,
			.name = d->info.name,
			.uuid = d->info.uuid,
			.bdf = d->info.bdf,
			.memory = d->info.memory,
			.multiprocessors = d->info.multiprocessors,
			.dmabuf = d->info.dmabuf,
			.peers = gpu_peers_text(&d->info, i, peers),
			.state = state_name(d),
			.busy = is_busy(d),
			.rates = gpu_device_rates(d),
			.kernel_rates = gpu_device_rates_text(d, rates),
			.reason = d->excluded ? "not in gpu.devices" : d->reason,
			.context_bytes = d->state == DEVICE_STARTING ? 0 : d->context_bytes,
			.copy_memory_bytes = copy_memory_bytes(d),
			.bytes = d->bytes,
			.regions = d->regions,
		};

		add_moved(g, &gpu);
		fn(arg, &gpu);
	}
}

const char *gpus_uuid(const struct gpus *g, unsigned device)
{
	return device < g->n ? g->devices[device].info.uuid : "";
}

const char *gpus_plugin(const struct gpus *g)
{
	return g->plugin_text;
}

void gpus_metrics(const struct gpus *g, uint64_t v[DRAY_METRIC_N])
{
	v[DRAY_METRIC_GPU_LOST_TOTAL] = g->lost;
	v[DRAY_METRIC_GPU_PINNED_BYTES] = g->pinned_bytes;
	v[DRAY_METRIC_GPU_CONTEXTS] = 0;
	v[DRAY_METRIC_GPU_BUSY] = 0;
	v[DRAY_METRIC_GPU_COPY_MEMORY_BYTES] = 0;
	for (unsigned i = 0; i < g->n; i++) {
		v[DRAY_METRIC_GPU_CONTEXTS] += g->devices[i].state >= DEVICE_READY;
		v[DRAY_METRIC_GPU_BUSY] += is_busy(&g->devices[i]);
		v[DRAY_METRIC_GPU_COPY_MEMORY_BYTES] += copy_memory_bytes(&g->devices[i]);
	}
}
