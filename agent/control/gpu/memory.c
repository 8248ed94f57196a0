/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of clients: opened on its device, and closed after its last use. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/control/gpu/internal.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define PAGE 4096ull
/* Time of a job that opens memory: others wait for it. */
#define OPEN_NS (5 * (int64_t)DRAY_NS_PER_MS)

enum memory_state {
	MEMORY_WAITING, /* for the plug-in, the device, or other memory of the owner */
	MEMORY_OPENING, /* a job imports its parts, or its refusal is under way */
	MEMORY_OPEN,
	MEMORY_CLOSING, /* a job releases its parts */
};

struct gpu_memory {
	struct dray_list link;
	struct gpus *gpus;
	struct gpu_device *device; /* NULL: not known yet */
	char name[GPU_NAME_BYTES];
	enum memory_state state;
	const void *owner; /* of the client */
	bool counted;      /* in device->memories */
	bool used;         /* parts are used as soon as they are open */
	bool open;         /* parts are open; after an error, some may be */
	bool cancelled;    /* closed after its job */
	bool held;         /* closed after gpu_copies_ended() */
	uint64_t bytes;
	gpu_opened_fn done;
	void *arg;
	void (*closed)(void *arg);
	void *closed_arg;
	int error;
	struct dray_err err;
	struct dray_job job;
	unsigned n, imported, exported; /* parts; those that are done, or failed */
	struct gpu_part parts[];
};

static void close_fds(struct gpu_memory *m)
{
	for (unsigned i = 0; i < m->n; i++)
		if (m->parts[i].spec.fd >= 0)
			m->gpus->deps.up->close_fds(m->arg, &m->parts[i].spec.fd, 1);
}

static void memory_free(struct gpu_memory *m)
{
	close_fds(m);
	if (m->counted)
		m->device->memories--;
	dray_list_del(&m->link);
	free(m);
}

/* Frees the memory, then runs the callback that waits for that, if any. */
static void memory_end(struct gpu_memory *m)
{
	struct gpu_memory ended = *m;

	memory_free(m);
	if (ended.closed)
		ended.closed(ended.closed_arg);
	else if (ended.error < 0)
		ended.done(ended.arg, NULL, NULL, &ended.err);
	if (ended.device)
		gpu_device_check(ended.device);
}

/* On the opener's thread. */
static void release(struct gpu_memory *m)
{
	for (unsigned i = 0; i < m->n; i++) {
		struct gpu_part *p = &m->parts[i];

		p->dmabuf = dray_close(p->dmabuf);
		if (p->import)
			m->gpus->ops->release(p->import);
		p->import = NULL;
	}
}

static void close_run(struct dray_job *j)
{
	release(dray_container_of(j, struct gpu_memory, job));
}

static void close_done(struct dray_job *j)
{
	memory_end(dray_container_of(j, struct gpu_memory, job));
}

static void memory_close(struct gpu_memory *m)
{
	m->state = MEMORY_CLOSING;
	m->held = !gpu_copies_ended(m->gpus, m->device);
	if (!m->held)
		dray_jobs_add(m->gpus->opener, &m->job, close_run, close_done);
}

void memories_close_held(struct gpus *g)
{
	dray_list_for_each(&g->memories, m, struct gpu_memory, link)
		if (m->held)
			memory_close(m);
}

void gpu_close(struct gpu_memory *m, void (*done)(void *arg), void *done_arg)
{
	m->device->regions--;
	m->device->bytes -= m->bytes;
	m->closed = done;
	m->closed_arg = done_arg;
	memory_close(m);
}

static int import(struct gpu_memory *m, struct gpu_part *p)
{
	const struct gpus *g = m->gpus;
	uint64_t address, bytes;
	int ret;

	p->spec.device = m->device->index;
	ret = g->ops->import(g->plugin, &p->spec, &p->import, &address, &bytes, &m->err);
	if (ret < 0)
		return ret;
	if (bytes < p->spec.bytes)
		return dray_err_set(&m->err, -EINVAL, DRAY_E_REGION_TOO_SMALL,
				    "extents end at %llu, their allocation has %llu bytes",
				    (unsigned long long)p->spec.bytes, (unsigned long long)bytes);
	g->deps.up->part_opened(m->arg, m->device->index, (unsigned)(p - m->parts), address);
	return 0;
}

/* Without a DMA-BUF RDMA devices cannot reach it, and all else works. */
static int export_dmabuf(struct gpu_memory *m, struct gpu_part *p)
{
	int ret = m->gpus->ops->export_dmabuf(p->import, 0,
					      (p->spec.bytes + PAGE - 1) / PAGE * PAGE, NULL);

	p->dmabuf = dray_max(ret, -1);
	return ret != -EIO ? 0 : dray_err_set(&m->err, -EIO, DRAY_E_GPU_LOST, "the GPU is lost");
}

static bool is_complete(const struct gpu_memory *m)
{
	return m->imported == m->n && (m->exported == m->n || !m->gpus->cfg->rdma.enable);
}

/* Opens parts for some time; for the rest the job is added again, behind those of other owners. */
static void open_run(struct dray_job *j)
{
	struct gpu_memory *m = dray_container_of(j, struct gpu_memory, job);
	int64_t until_ns = dray_now().ns + OPEN_NS;

	m->error = 0;
	while (m->error >= 0 && !is_complete(m) && dray_now().ns < until_ns)
		m->error = m->imported < m->n ? import(m, &m->parts[m->imported++]) :
						export_dmabuf(m, &m->parts[m->exported++]);
	m->open = m->error >= 0 || m->used;
	if (!m->open)
		release(m);
}

static void opened(struct gpu_memory *m)
{
	struct gpu_device *d = m->device;

	m->state = MEMORY_OPEN;
	close_fds(m);
	d->regions++;
	d->bytes += m->bytes;
	m->done(m->arg, m, m->parts, m->error < 0 ? &m->err : NULL);
}

static void open_end(struct gpu_memory *m)
{
	struct gpu_device *d = m->device;

	if (m->error == -EIO && m->counted)
		gpu_device_lost(d, m->err.msg[0] ? m->err.msg : "a handle could not be opened");
	/* another job may have found the device lost meanwhile */
	if (m->error >= 0 && !m->cancelled && d->state != DEVICE_READY)
		m->error = dray_err_set(&m->err, -EIO, DRAY_E_GPU_LOST, "the GPU is lost: %s",
					d->reason);
	if (m->error < 0)
		dray_err_set(&m->err, m->error,
			     m->error == -EIO ? DRAY_E_GPU_LOST : DRAY_E_INTERNAL,
			     "the GPU memory cannot be opened: %s", dray_errno_text(m->error));
	if (m->error < 0 && !m->open) {
		memory_end(m);
		return;
	}
	if (m->error < 0 && !m->used && !m->cancelled) {
		m->cancelled = true;
		m->error = 0;
		close_fds(m);
		m->done(m->arg, NULL, NULL, &m->err);
	}
	if (m->cancelled)
		memory_close(m);
	else
		opened(m);
}

static void owner_next(struct gpus *g, const void *owner);

static void open_done(struct dray_job *j)
{
	struct gpu_memory *m = dray_container_of(j, struct gpu_memory, job);
	struct gpus *g = m->gpus;
	const void *owner = m->owner;

	if (m->error >= 0 && !m->cancelled && !is_complete(m) && m->device->state == DEVICE_READY) {
		dray_jobs_add(g->opener, &m->job, open_run, open_done);
		return;
	}
	open_end(m);
	owner_next(g, owner);
}

/* Its done() or cancelled() runs later. */
static void refuse(struct gpu_memory *m, int error)
{
	m->error = error;
	m->state = MEMORY_OPENING;
	dray_jobs_finish(m->gpus->opener, &m->job, open_done);
}

static int check_kinds(const struct gpu_memory *m, struct dray_err *reterr)
{
	const struct gpu_device_info *info = &m->device->info;

	for (unsigned i = 0; i < m->n; i++) {
		bool ipc = m->parts[i].spec.kind == GPU_IMPORT_IPC;

		if (ipc ? !info->ipc : !info->vmm)
			return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
					    "GPU %.64s does not take kind %s", m->name,
					    ipc ? "cuda_ipc" : "cuda_vmm");
	}
	return 0;
}

static bool owner_opens(const struct gpus *g, const void *owner)
{
	dray_list_for_each(&g->memories, m, const struct gpu_memory, link)
		if (m->owner == owner && m->state == MEMORY_OPENING)
			return true;
	return false;
}

/* The next step towards MEMORY_OPENING. 0, or -errno with reterr: refused. */
static int memory_step(struct gpu_memory *m, struct dray_err *reterr)
{
	struct gpus *g = m->gpus;

	if (g->plugin_state != PLUGIN_READY)
		return gpus_load(g, reterr);
	if (!m->device) {
		m->device = gpu_device_get(g, m->name, reterr);
		if (!m->device)
			return -ENODEV;
		if (check_kinds(m, reterr) < 0)
			return -EOPNOTSUPP;
	}
	if (m->device->hangs)
		return dray_err_set(reterr, -EIO, DRAY_E_GPU_LOST, "%s", m->device->err.msg);
	if (m->device->state != DEVICE_READY) {
		gpu_device_start(m->device);
		return 0;
	}
	/* owners take turns at the opener */
	if (owner_opens(g, m->owner))
		return 0;
	m->state = MEMORY_OPENING;
	m->counted = true;
	m->device->memories++;
	dray_jobs_add(g->opener, &m->job, open_run, open_done);
	return 0;
}

static void step_or_refuse(struct gpu_memory *m)
{
	int ret = memory_step(m, &m->err);

	if (ret < 0)
		refuse(m, ret);
}

/* Memory of the owner waits for what was opened. */
static void owner_next(struct gpus *g, const void *owner)
{
	dray_list_for_each(&g->memories, m, struct gpu_memory, link)
		if (m->owner == owner && m->state == MEMORY_WAITING) {
			step_or_refuse(m);
			/* one whose device is not ready yet holds up no other */
			if (m->state != MEMORY_WAITING)
				return;
		}
}

void memories_step(struct gpus *g, const struct dray_err *why)
{
	dray_list_for_each(&g->memories, m, struct gpu_memory, link) {
		if (m->state != MEMORY_WAITING)
			continue;
		if (!why) {
			step_or_refuse(m);
			continue;
		}
		m->err = *why;
		refuse(m, -EOPNOTSUPP);
	}
}

void memories_refuse(struct gpu_device *d)
{
	dray_list_for_each(&d->gpus->memories, m, struct gpu_memory, link)
		if (m->state == MEMORY_WAITING && m->device == d) {
			m->err = d->err;
			refuse(m, d->error);
		}
}

static struct gpu_memory *memory_new(struct gpus *g, const char *device,
				     const struct gpu_part *parts, unsigned n)
{
	struct gpu_memory *m = calloc(1, sizeof(*m) + n * sizeof(m->parts[0]));

	if (!m)
		return NULL;
	m->gpus = g;
	snprintf(m->name, sizeof(m->name), "%s", device);
	for (unsigned i = 0; i < n; i++) {
		m->parts[i] = parts[i];
		m->parts[i].spec.fd = -1;
		m->parts[i].dmabuf = -1;
		m->bytes += parts[i].spec.bytes;
	}
	m->n = n;
	dray_list_add(&g->memories, &m->link);
	return m;
}

int gpu_open(struct gpus *g, const void *owner, const char *device, const struct gpu_part *parts,
	     unsigned n, bool used, gpu_opened_fn done, void *arg, struct dray_err *reterr)
{
	struct gpu_memory *m;
	int ret = 0;

	if (!g->cfg->gpu.enable)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this agent takes no GPU memory (gpu.enable is false)");
	m = memory_new(g, device, parts, n);
	if (!m)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the handles of GPU memory");
	m->owner = owner;
	m->used = used;
	m->done = done;
	m->arg = arg;
	for (unsigned i = 0; i < n && ret >= 0; i++) {
		if (parts[i].spec.kind != GPU_IMPORT_VMM)
			continue;
		m->parts[i].spec.fd = ret = fcntl(parts[i].spec.fd, F_DUPFD_CLOEXEC, 3);
		if (ret < 0)
			ret = dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
					   "the descriptor of a handle cannot be duplicated: %s",
					   dray_errno_text(errno));
	}
	if (ret >= 0)
		ret = memory_step(m, reterr);
	if (ret < 0)
		memory_free(m);
	return dray_min(ret, 0);
}

bool gpu_opens_on(const struct gpus *g, const void *arg, unsigned device)
{
	dray_list_for_each(&g->memories, m, const struct gpu_memory, link)
		if (m->arg == arg && m->state <= MEMORY_OPENING)
			return m->device && m->device->index == device;
	return false;
}

void gpu_open_cancel(struct gpus *g, void *arg, void (*cancelled)(void *arg))
{
	dray_list_for_each(&g->memories, m, struct gpu_memory, link) {
		if (m->arg != arg || m->cancelled || m->state > MEMORY_OPENING)
			continue;
		m->cancelled = true;
		m->closed = cancelled;
		m->closed_arg = arg;
		if (m->state == MEMORY_WAITING)
			refuse(m, -ECANCELED);
		return;
	}
}

void memories_release(struct gpus *g)
{
	dray_list_for_each(&g->memories, m, struct gpu_memory, link) {
		release(m);
		for (unsigned i = 0; i < m->n; i++)
			dray_close(m->parts[i].spec.fd);
		free(m);
	}
}
