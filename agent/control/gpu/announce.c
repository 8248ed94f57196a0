/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that are started before memory on them comes: those that sessions announce, and all with gpu.keep. A device that
 * cannot be used is refused only when memory on it comes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "agent/control/gpu/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

struct gpu_announcement {
	struct dray_list link;
	struct gpus *gpus;
	struct gpu_device *device; /* NULL: not known yet, or refused */
	bool refused;
	char name[GPU_NAME_BYTES];
};

static void refuse(struct gpu_announcement *a, const struct dray_err *why)
{
	char name[GPU_NAME_BYTES];

	a->refused = true;
	log_limited(DRAY_LOG_INFO, AREA, "a session announced a GPU that cannot be used: %s gpu=%s",
		    dray_error_name(why->code), dray_log_word(a->name, name, sizeof(name)));
}

static void step(struct gpu_announcement *a)
{
	struct dray_err err = DRAY_ERR_NULL;

	a->device = gpu_device_get(a->gpus, a->name, &err);
	if (!a->device) {
		refuse(a, &err);
		return;
	}
	a->device->announced++;
	gpu_device_start(a->device);
}

void announcements_step(struct gpus *g)
{
	dray_list_for_each(&g->announcements, a, struct gpu_announcement, link)
		if (!a->device && !a->refused)
			step(a);
	for (unsigned i = 0; g->cfg->gpu.keep && i < g->n; i++)
		if (!g->devices[i].excluded && g->devices[i].info.usable)
			gpu_device_start(&g->devices[i]);
}

struct gpu_announcement *gpus_announce(struct gpus *g, const char *device)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct gpu_announcement *a;

	if (!g->cfg->gpu.enable)
		return NULL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->gpus = g;
	snprintf(a->name, sizeof(a->name), "%s", device);
	dray_list_add(&g->announcements, &a->link);
	if (g->plugin_state == PLUGIN_READY)
		step(a);
	else if (gpus_load(g, &err) < 0)
		refuse(a, &err);
	return a;
}

void gpus_announce_end(struct gpu_announcement *a)
{
	struct gpu_device *d;

	if (!a)
		return;
	d = a->device;
	dray_list_del(&a->link);
	free(a);
	if (d) {
		d->announced--;
		gpu_device_check(d);
	}
}

void gpus_keep(struct gpus *g)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (g->cfg->gpu.enable && g->cfg->gpu.keep && gpus_load(g, &err) < 0)
		log_warning(AREA, "GPUs cannot be started (gpu.keep): %s", err.msg);
}

void announcements_free(struct gpus *g)
{
	dray_list_for_each(&g->announcements, a, struct gpu_announcement, link)
		free(a);
}
