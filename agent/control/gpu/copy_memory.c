/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy memory, on a device for staged copies: one block, which one worker has at a time. It asks when the load makes it
 * copy so, and gives it back after a while without such copies; other workers copy in other ways until then. Its device is not
 * stopped meanwhile.
 */
#include <errno.h>
#include <inttypes.h>

#include "agent/control/gpu/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"

/* Share of a device's memory, at most: what an engine leaves free on a small one is little. */
#define SHARE 32
/* Less is not asked for where the device has no room for more: a time slice would move too little. */
#define LEAST (UINT64_C(64) << 20)

static struct gpu_device *device_of(struct dray_job *j)
{
	return dray_container_of(j, struct gpu_device, copy_memory.job);
}

static void answer(struct gpu_device *d, unsigned worker, struct gpu_copy_memory *memory)
{
	gpus_tell(d->gpus, worker, GPU_COPY_MEMORY, d->index, memory);
}

void copy_memory_release(struct gpu_device *d)
{
	struct copy_memory *m = &d->copy_memory;

	if (m->block)
		d->gpus->ops->block_free(m->block);
	m->block = NULL;
}

static void ended(struct gpu_device *d)
{
	d->copy_memory.state = COPY_MEMORY_NONE;
	d->memories--;
	gpu_device_check(d);
}

static void free_run(struct dray_job *j)
{
	copy_memory_release(device_of(j));
}

static void free_done(struct dray_job *j)
{
	ended(device_of(j));
}

void copy_memory_back(struct gpu_device *d)
{
	struct copy_memory *m = &d->copy_memory;
	bool held = !gpu_copies_ended(d->gpus, d);

	m->state = held ? COPY_MEMORY_HELD : COPY_MEMORY_FREEING;
	if (!held)
		dray_jobs_add(d->gpus->opener, &m->job, free_run, free_done);
}

void copy_memories_free_held(struct gpus *g)
{
	for (unsigned i = 0; i < g->n; i++)
		if (g->devices[i].copy_memory.state == COPY_MEMORY_HELD)
			copy_memory_back(&g->devices[i]);
}

uint64_t copy_memory_most(const struct gpu_device *d)
{
	return dray_min((uint64_t)d->gpus->cfg->gpu.copy_memory, d->info.memory / SHARE);
}

static int block_make(struct gpu_device *d)
{
	struct copy_memory *m = &d->copy_memory;

	return d->gpus->ops->block_alloc(d->gpus->plugin, d->index, m->given.bytes, &m->block,
					 &m->given.address, &m->err);
}

static void make_run(struct dray_job *j)
{
	struct gpu_device *d = device_of(j);
	struct copy_memory *m = &d->copy_memory;

	while ((m->error = block_make(d)) == -ENOMEM && m->given.bytes / 2 >= LEAST)
		m->given.bytes /= 2;
}

static void make_done(struct dray_job *j)
{
	struct gpu_device *d = device_of(j);
	struct copy_memory *m = &d->copy_memory;

	if (m->error == -EIO)
		gpu_device_lost(d, m->err.msg[0] ? m->err.msg : "copy memory cannot be allocated");
	else if (m->error < 0)
		log_limited(DRAY_LOG_WARNING, AREA,
			    "no copy memory on the GPU, so transfers beside its load "
			    "are copied in other ways: %s; make gpu.copy_memory smaller, or 0 "
			    "gpu=%s bytes=%" PRIu64,
			    m->err.msg, d->info.uuid, m->given.bytes);
	if (m->error < 0) {
		answer(d, m->worker, NULL);
		ended(d);
	} else if (d->state != DEVICE_READY) {
		answer(d, m->worker, NULL);
		copy_memory_back(d);
	} else {
		m->state = COPY_MEMORY_GIVEN;
		answer(d, m->worker, &m->given);
	}
}

void copy_memory_wanted(struct gpu_device *d, unsigned worker)
{
	struct copy_memory *m = &d->copy_memory;
	uint64_t bytes = copy_memory_most(d);

	if (!bytes || m->state != COPY_MEMORY_NONE || d->state != DEVICE_READY) {
		answer(d, worker, NULL);
		return;
	}
	*m = (struct copy_memory){ .state = COPY_MEMORY_MAKING,
				   .worker = worker,
				   .given.bytes = bytes };
	d->memories++;
	dray_jobs_add(d->gpus->opener, &m->job, make_run, make_done);
}

uint64_t copy_memory_bytes(const struct gpu_device *d)
{
	return d->copy_memory.state >= COPY_MEMORY_GIVEN ? d->copy_memory.given.bytes : 0;
}
