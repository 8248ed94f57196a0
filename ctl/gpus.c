/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl gpus: an empty list says why it is empty. */
#include "ctl/ctl.h"
#include "ctl/human.h"
#include "ctl/list.h"
#include "ctl/properties.h"

static int print(struct ctl *c, struct ctl_bus *bus, const struct ctl_rows *rows,
		 struct ctl_err *reterr)
{
	struct ctl_properties p;
	char text[CTL_CELL_BYTES];

	if (rows->n || c->format != CTL_TEXT)
		return ctl_list_print(c, &ctl_list_gpus, rows, reterr);
	if (ctl_properties_get(&p, bus, reterr) < 0)
		return -1;
	fprintf(c->out, "no GPUs; CUDA plug-in: %s\n",
		ctl_show_text(p.gpu_plugin, text, sizeof(text)));
	ctl_properties_deinit(&p);
	return 0;
}

int ctl_gpus(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_list_get(&bus, &ctl_list_gpus, 0, &rows, &reply, &err);
	if (!ret)
		ret = print(c, &bus, &rows, &err);
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
