/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices. The first announcement of a device, or memory on it, starts it. It stays started for gpu.idle_time without use,
 * because its context costs GPU memory, but the next engine does not wait for a start. When it is lost, its regions end.
 * The workers stop using a device that is lost or unused. A device without progress counts as lost if the end of a copy is
 * waited for, although its copies may go on. So its queues are freed first, which waits for these copies; then its memory is
 * closed. Without memory the device is stopped, and the next use starts it anew.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "agent/control/gpu/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Time limit for the copies of a lost device: the longest copies take a second. */
#define END_LIMIT_US (5 * UINT64_C(1000000))

struct address {
	unsigned domain, bus, slot, function;
};

/* With a domain of four digits (/sys) or eight (nvidia-smi), or without a domain. */
static bool parse_address(const char *text, struct address *a)
{
	int end = 0;

	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &a->domain, &a->bus, &a->slot, &a->function, &end) ==
		    4 &&
	    !text[end])
		return true;
	a->domain = 0;
	end = 0;
	return sscanf(text, "%2x:%2x.%1x%n", &a->bus, &a->slot, &a->function, &end) == 3 &&
	       !text[end];
}

static bool is_named(const struct gpu_device *d, const char *name)
{
	struct address a, b;

	if (!strcasecmp(d->info.uuid, name))
		return true;
	return parse_address(name, &a) && parse_address(d->info.bdf, &b) && a.domain == b.domain &&
	       a.bus == b.bus && a.slot == b.slot && a.function == b.function;
}

static struct gpu_device *find(struct gpus *g, const char *name)
{
	for (unsigned i = 0; i < g->n; i++)
		if (is_named(&g->devices[i], name))
			return &g->devices[i];
	return NULL;
}

static bool is_excluded(const struct gpu_device *d)
{
	const struct dray_strv *v = &d->gpus->cfg->gpu.devices;

	for (size_t i = 0; i < v->n; i++)
		if (is_named(d, v->v[i]))
			return false;
	return v->n;
}

void gpu_devices_find(struct gpus *g)
{
	const struct dray_strv *v = &g->cfg->gpu.devices;
	struct gpu_device_info info[GPU_DEVICES_MAX];

	memset(info, 0, sizeof(info));
	g->n = dray_min(g->ops->devices(g->plugin, info, GPU_DEVICES_MAX),
			(unsigned)GPU_DEVICES_MAX);
	for (unsigned i = 0; i < g->n; i++) {
		struct gpu_device *d = &g->devices[i];

		*d = (struct gpu_device){ .gpus = g, .index = i, .info = info[i] };
		d->excluded = is_excluded(d);
	}
	for (size_t i = 0; i < v->n; i++)
		if (!find(g, v->v[i]))
			log_warning(
				AREA,
				"gpu.devices names %s, which is not a GPU of this machine, ignoring",
				v->v[i]);
}

static const char *names(const struct gpus *g, char *buf, size_t size)
{
	size_t at = 0;

	snprintf(buf, size, "none");
	for (unsigned i = 0; i < g->n; i++) {
		const char *name = g->devices[i].info.uuid;

		if (at + strlen(name) + 16 > size) {
			snprintf(buf + at, size - at, " and %u more", g->n - i);
			break;
		}
		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "", name);
	}
	return buf;
}

struct gpu_device *gpu_device_get(struct gpus *g, const char *name, struct dray_err *reterr)
{
	struct gpu_device *d = find(g, name);
	char known[140];

	if (!d)
		dray_err_set(reterr, -ENODEV, DRAY_E_GPU_DEVICE,
			     "this agent does not see GPU %.64s; it sees %s", name,
			     names(g, known, sizeof(known)));
	else if (d->excluded)
		dray_err_set(reterr, -ENODEV, DRAY_E_GPU_DEVICE,
			     "this agent does not use GPU %.64s; add it to gpu.devices", name);
	else if (!d->info.usable)
		dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			     "the CUDA plug-in has no code for GPU %.64s (%s, compute capability "
			     "%u.%u)",
			     name, d->info.name, d->info.major, d->info.minor);
	else
		return d;
	return NULL;
}

static void start_run(struct dray_job *j)
{
	struct gpu_device *d = dray_container_of(j, struct gpu_device, job);
	struct gpus *g = d->gpus;

	d->error = g->ops->start(g->plugin, d->index, &d->context_bytes, &d->peers, &d->err);
	if (d->error < 0)
		return;
	d->started = true;
	d->peers_err = d->err;
	d->err = DRAY_ERR_NULL;
	d->error = queues_make(d, &d->err);
	if (d->error < 0)
		gpu_device_release(d);
	else if (!g->staging_tried) {
		staging_make(g, &d->staging_err);
		g->staging_tried = true;
	}
}

static void tell_staging(struct gpu_device *d)
{
	struct gpus *g = d->gpus;

	if (g->staging_told)
		return;
	g->staging_told = true;
	if (d->staging_err.code)
		log_warning(AREA,
			    "no staging memory, so GPU memory moves over the network only by "
			    "RDMA: %s",
			    d->staging_err.msg);
	for (unsigned w = 0; w < g->n_workers; w++) {
		if (g->lists[w])
			gpus_tell(g, w, GPU_LISTS, 0, g->lists[w]);
		if (!g->staging[w].base)
			continue;
		gpus_tell(g, w, GPU_STAGING, 0, &g->staging[w]);
		g->deps.up->staging(*g->deps.rails, w, g->staging[w].base, g->staging[w].bytes);
	}
}

static void start_done(struct dray_job *j)
{
	struct gpu_device *d = dray_container_of(j, struct gpu_device, job);
	struct gpus *g = d->gpus;

	if (d->error < 0) {
		d->state = DEVICE_UNUSED;
		dray_err_set(&d->err, d->error, DRAY_E_NO_MEMORY, "GPU %s cannot be used: %s",
			     d->info.uuid, dray_errno_text(d->error));
		snprintf(d->reason, sizeof(d->reason), "%s", d->err.msg);
		log_limited(DRAY_LOG_WARNING, AREA, "the GPU cannot be started: %s gpu=%s",
			    d->err.msg, d->info.uuid);
		memories_refuse(d);
		return;
	}
	d->state = DEVICE_READY;
	d->reason[0] = '\0';
	log_info(AREA,
		 "the GPU is started, its context takes %" PRIu64
		 " MiB of GPU memory gpu=%s address=%s name=\"%s\"",
		 d->context_bytes >> 20, d->info.uuid, d->info.bdf, d->info.name);
	if (d->info.peers & ~d->peers)
		log_warning(
			AREA,
			"copies between the GPU and some of its peers are staged: %s gpu=%s peers=%x",
			d->peers_err.msg, d->info.uuid, d->info.peers & ~d->peers);
	tell_staging(d);
	for (unsigned w = 0; w < g->n_workers; w++) {
		d->queues[w].rates = d->rates;
		gpus_tell(g, w, GPU_UP, d->index, &d->queues[w]);
	}
	pins_begin(g);
	memories_step(g, NULL);
	gpu_device_check(d);
	gpu_rates_step(g);
}

void gpu_device_start(struct gpu_device *d)
{
	if (d->state != DEVICE_UNUSED)
		return;
	d->state = DEVICE_STARTING;
	d->lost = false;
	d->err = DRAY_ERR_NULL;
	d->context_bytes = 0;
	dray_jobs_add(d->gpus->opener, &d->job, start_run, start_done);
}

void gpu_device_release(struct gpu_device *d)
{
	if (!d->started)
		return;
	queues_free(d);
	d->gpus->ops->stop(d->gpus->plugin, d->index);
	d->started = false;
}

static void stop_run(struct dray_job *j)
{
	gpu_device_release(dray_container_of(j, struct gpu_device, job));
}

static void stop_done(struct dray_job *j)
{
	struct gpu_device *d = dray_container_of(j, struct gpu_device, job);

	d->state = DEVICE_UNUSED;
	d->context_bytes = 0;
	log_info(AREA, "the GPU is stopped gpu=%s", d->info.uuid);
	pins_end(d->gpus);
	memories_step(d->gpus, NULL);
	/* announced while it was stopped; what is lost waits for memory, which is told the reason if it does not start */
	if (d->announced && !d->lost)
		gpu_device_start(d);
}

/* The workers release the queues of a device that is leaving: gpu_device_worker_gone(). */
static void tell_down(struct gpu_device *d)
{
	struct gpus *g = d->gpus;

	d->in_use_by = g->n_workers;
	for (unsigned w = 0; w < g->n_workers; w++)
		gpus_tell(g, w, GPU_DOWN, d->index, NULL);
}

static bool is_needed(const struct gpu_device *d)
{
	return d->memories || d->announced || d->gpus->cfg->gpu.keep;
}

static int handle_idle(sd_event_source *source, uint64_t usec, void *arg)
{
	struct gpu_device *d = arg;

	d->idle = sd_event_source_disable_unref(d->idle);
	if (d->state != DEVICE_READY || is_needed(d))
		return 0;
	/* It takes requests as long as it is started, so it does not leave before its measurement has ended. */
	if (d->measured) {
		gpu_rates_stop(d->gpus);
		return 0;
	}
	d->state = DEVICE_LEAVING;
	tell_down(d);
	return 0;
}

/* A device that is needed again keeps its timer, which then has no effect. */
static void idle_begin(struct gpu_device *d)
{
	uint64_t us = (uint64_t)d->gpus->cfg->gpu.idle_time / 1000;

	sd_event_source_disable_unref(d->idle);
	/* without the timer it stays started; all else works */
	if (sd_event_add_time_relative(d->gpus->deps.event, &d->idle, CLOCK_MONOTONIC, us, 0,
				       handle_idle, d) < 0)
		d->idle = NULL;
}

/* The driver does not return, so the device cannot be stopped and started again: requests that wait for that are refused. */
static void set_hanging(struct gpu_device *d, const char *what)
{
	d->hangs = true;
	d->error = -EIO;
	d->err = DRAY_ERR_NULL;
	dray_err_set(&d->err, d->error, DRAY_E_GPU_LOST, "GPU %s hangs: its %s; restart the agent",
		     d->info.uuid, what);
	snprintf(d->reason, sizeof(d->reason), "%s", d->err.msg);
	memories_refuse(d);
}

void gpu_device_check(struct gpu_device *d)
{
	if (d->state == DEVICE_READY && !is_needed(d))
		idle_begin(d);
	if (d->state != DEVICE_ENDED)
		return;
	if (d->measured) {
		if (gpu_rates_hang(d))
			set_hanging(d, "measurement does not end");
		return;
	}
	d->hangs = false;
	if (d->memories)
		return;
	d->state = DEVICE_STOPPING;
	dray_jobs_add(d->gpus->opener, &d->job, stop_run, stop_done);
}

void gpu_device_lost(struct gpu_device *d, const char *why)
{
	struct gpus *g = d->gpus;

	if (d->state != DEVICE_READY)
		return;
	d->state = DEVICE_LEAVING;
	d->lost = true;
	g->lost++;
	gpu_rates_stop(g);
	snprintf(d->reason, sizeof(d->reason), "%s", why);
	log_error(AREA, "the GPU is lost, %" PRIu32 " regions on it end: %s gpu=%s address=%s",
		  d->regions, why, d->info.uuid, d->info.bdf);
	g->deps.up->lost(*g->deps.regions, d->index);
	tell_down(d);
}

bool gpu_copies_ended(const struct gpus *g, const struct gpu_device *of)
{
	for (unsigned i = 0; i < g->n; i++) {
		const struct gpu_device *d = &g->devices[i];

		if (!d->lost || (d->state != DEVICE_LEAVING && d->state != DEVICE_ENDING))
			continue;
		if (!of || d == of || d->peers >> of->index & 1)
			return false;
	}
	return true;
}

static void log_lost_hangs(const struct gpu_device *d)
{
	uint32_t own = d->copy_memory.state != COPY_MEMORY_NONE;

	log_error(
		AREA,
		"the GPU hangs, its copies do not end, and the memory that they may access is not released: "
		"%" PRIu32 " regions on it, regions of its peers, pinned host memory; restart the "
		"agent gpu=%s address=%s",
		d->memories - own, d->info.uuid, d->info.bdf);
}

/*
 * The queues of a device have not ended in time. Of a lost one, copies in flight may access memory, which is not released.
 * New requests are refused.
 */
static int handle_late(sd_event_source *source, uint64_t usec, void *arg)
{
	struct gpu_device *d = arg;

	set_hanging(d, d->lost ? "copies do not end" : "queues do not end");
	if (d->lost)
		log_lost_hangs(d);
	else
		log_error(
			AREA,
			"the unused GPU does not stop, because the driver does not release its queues; restart the agent gpu=%s address=%s",
			d->info.uuid, d->info.bdf);
	return 0;
}

static void queues_end_run(struct dray_job *j)
{
	queues_free(dray_container_of(j, struct gpu_device, job));
}

static void queues_end_done(struct dray_job *j)
{
	struct gpu_device *d = dray_container_of(j, struct gpu_device, job);

	d->late = sd_event_source_disable_unref(d->late);
	if (d->hangs) {
		log_notice(AREA, "the %s of the GPU have ended after all gpu=%s",
			   d->lost ? "copies" : "queues", d->info.uuid);
		if (!d->lost)
			d->reason[0] = '\0';
	}
	d->hangs = false;
	d->state = DEVICE_ENDED;
	for (unsigned w = 0; w < d->gpus->n_workers; w++)
		gpus_tell(d->gpus, w, GPU_ENDED, d->index, NULL);
	memories_close_held(d->gpus);
	copy_memories_free_held(d->gpus);
	if (gpu_copies_ended(d->gpus, NULL))
		pins_drop_held(d->gpus);
	gpu_device_check(d);
}

void gpu_device_worker_gone(struct gpu_device *d)
{
	struct gpus *g = d->gpus;

	if (d->state != DEVICE_LEAVING || --d->in_use_by)
		return;
	d->state = DEVICE_ENDING;
	if (!d->ender && jobs_new(&d->ender, g->deps.event, "dray-gpu-end", STACK_BYTES) < 0)
		log_warning(
			AREA,
			"no thread can be started for the end of the GPU, so other GPUs may wait for it gpu=%s",
			d->info.uuid);
	/* without the timer a hang is not reported; all else works */
	if (sd_event_add_time_relative(g->deps.event, &d->late, CLOCK_MONOTONIC, END_LIMIT_US, 0,
				       handle_late, d) < 0)
		d->late = NULL;
	dray_jobs_add(d->ender ? d->ender : g->opener, &d->job, queues_end_run, queues_end_done);
}
