/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory for windows. */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/gpu/internal.h"

struct gpu_host {
	struct dray_list link;
	struct gpus *gpus;
	uint64_t bytes;
	void *base; /* NULL: not allocated, or freed */
	gpu_host_fn done;
	void *arg;
	int error;
	struct dray_err err;
	struct dray_job job;
};

static struct gpu_host *host_of(struct dray_job *j)
{
	return dray_container_of(j, struct gpu_host, job);
}

static void release(struct gpu_host *h)
{
	if (h->base)
		h->gpus->ops->host_free(h->gpus->plugin, h->base);
	h->base = NULL;
}

static void make_run(struct dray_job *j)
{
	struct gpu_host *h = host_of(j);

	h->error = h->gpus->ops->host_alloc(h->gpus->plugin, h->bytes, &h->base, &h->err);
}

static void make_done(struct dray_job *j)
{
	struct gpu_host *h = host_of(j);

	if (h->error >= 0) {
		h->done(h->arg, h, h->base, NULL);
		return;
	}
	dray_list_del(&h->link);
	h->done(h->arg, NULL, NULL, &h->err);
	free(h);
}

int gpus_host_new(struct gpus *g, uint64_t bytes, gpu_host_fn done, void *arg)
{
	struct gpu_host *h;

	if (g->plugin_state != PLUGIN_READY)
		return -ENODEV;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->gpus = g;
	h->bytes = bytes;
	h->done = done;
	h->arg = arg;
	dray_list_add(&g->hosts, &h->link);
	dray_jobs_add(g->opener, &h->job, make_run, make_done);
	return 0;
}

static void free_run(struct dray_job *j)
{
	release(host_of(j));
}

static void free_done(struct dray_job *j)
{
	struct gpu_host *h = host_of(j);

	dray_list_del(&h->link);
	free(h);
}

void gpus_host_free(struct gpu_host *h)
{
	dray_jobs_add(h->gpus->opener, &h->job, free_run, free_done);
}

void gpu_hosts_release(struct gpus *g)
{
	dray_list_for_each(&g->hosts, h, struct gpu_host, link) {
		release(h);
		free(h);
	}
}
