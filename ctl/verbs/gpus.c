/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl gpus: an empty list says why it is empty. */
#include "ctl/ctl.h"
#include "ctl/render/human.h"
#include "ctl/bus/list.h"
#include "ctl/bus/properties.h"
#include "schema/gen/dbus.h"

static int none(struct ctl *c, struct ctl_bus *b, struct ctl_err *reterr)
{
	struct ctl_properties p;
	char text[CTL_CELL_BYTES];

	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	fprintf(c->out, "no GPUs; CUDA plug-in: %s\n",
		ctl_show_text(p.gpu_plugin, text, sizeof(text)));
	ctl_properties_deinit(&p);
	return 0;
}

static const struct ctl_list gpus = {
	DRAY_DBUS_METHOD_LIST_GPUS,
	NULL,
	"gpus",
	dray_dbus_gpu_fields,
	DRAY_DBUS_GPU_FIELD_N,
	.columns = {
		{ "GPU", DRAY_DBUS_GPU_FIELD_INDEX, CTL_CELL_NUMBER },
		{ "NAME", DRAY_DBUS_GPU_FIELD_NAME, CTL_CELL_TEXT },
		{ "UUID", DRAY_DBUS_GPU_FIELD_UUID, CTL_CELL_TEXT },
		{ "PCI", DRAY_DBUS_GPU_FIELD_BDF, CTL_CELL_TEXT },
		{ "STATE", DRAY_DBUS_GPU_FIELD_STATE, CTL_CELL_STATE },
		{ "MEMORY", DRAY_DBUS_GPU_FIELD_MEMORY, CTL_CELL_SIZE },
		{ "CONTEXT", DRAY_DBUS_GPU_FIELD_CONTEXT_BYTES, CTL_CELL_SIZE },
		{ "REGIONS", DRAY_DBUS_GPU_FIELD_REGIONS, CTL_CELL_NUMBER },
		{ "BYTES", DRAY_DBUS_GPU_FIELD_BYTES, CTL_CELL_SIZE },
		{ "SMS", DRAY_DBUS_GPU_FIELD_MULTIPROCESSORS, CTL_CELL_NUMBER },
		{ "DMA-BUF", DRAY_DBUS_GPU_FIELD_DMABUF, CTL_CELL_YES_NO },
		{ "PEERS", DRAY_DBUS_GPU_FIELD_PEERS, CTL_CELL_TEXT },
		{ "REASON", DRAY_DBUS_GPU_FIELD_REASON, CTL_CELL_TEXT },
	},
	.empty = none,
};

int ctl_gpus(struct ctl *c)
{
	return ctl_list_run(c, &gpus);
}
