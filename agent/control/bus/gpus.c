/* SPDX-License-Identifier: Apache-2.0 */
/* The dictionaries of GPUs. */
#include "agent/control/bus/internal.h"
#include "agent/control/bus/dictionaries.h"
#include "agent/control/gpu/gpus.h"
#include "gpu/peers.h"
#include "lib/cleanup.h"

static void gpu_append(void *arg, const struct gpu_info *i)
{
	const struct gpu_device_info *d = i->device;
	char peers[GPU_PEERS_BYTES];
	const union value v[DRAY_DBUS_GPU_FIELD_N] = {
		[DRAY_DBUS_GPU_FIELD_INDEX] = { .n = i->index },
		[DRAY_DBUS_GPU_FIELD_NAME] = { .s = d->name },
		[DRAY_DBUS_GPU_FIELD_UUID] = { .s = d->uuid },
		[DRAY_DBUS_GPU_FIELD_BDF] = { .s = d->bdf },
		[DRAY_DBUS_GPU_FIELD_STATE] = { .s = i->state },
		[DRAY_DBUS_GPU_FIELD_REASON] = { .s = i->reason },
		[DRAY_DBUS_GPU_FIELD_MEMORY] = { .n = d->memory },
		[DRAY_DBUS_GPU_FIELD_CONTEXT_BYTES] = { .n = i->context_bytes },
		[DRAY_DBUS_GPU_FIELD_REGIONS] = { .n = i->regions },
		[DRAY_DBUS_GPU_FIELD_BYTES] = { .n = i->bytes },
		[DRAY_DBUS_GPU_FIELD_MULTIPROCESSORS] = { .n = d->multiprocessors },
		[DRAY_DBUS_GPU_FIELD_DMABUF] = { .n = d->dmabuf },
		[DRAY_DBUS_GPU_FIELD_PEERS] = { .s = gpu_peers_text(d, i->index, peers) },
	};

	row_append(arg, dray_dbus_gpu_fields, v, DRAY_ARRAY_SIZE(v));
}

int control_records_gpus(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			 size_t *ret_bytes)
{
	struct rows r = rows_open(reply);

	gpus_each(a->gpus, gpu_append, &r);
	return rows_close(&r, ret_bytes);
}

struct wanted {
	unsigned index;
	const char *uuid;
};

static void gpu_match(void *arg, const struct gpu_info *i)
{
	struct wanted *w = arg;

	if (i->index == w->index)
		w->uuid = i->device->uuid;
}

const char *control_gpu_uuid(struct agent *a, int index)
{
	struct wanted w = { .index = (unsigned)index, .uuid = "" };

	if (index >= 0)
		gpus_each(a->gpus, gpu_match, &w);
	return w.uuid;
}
