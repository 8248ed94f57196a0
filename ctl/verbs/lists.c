/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that print lists in a way of their own: gpus, segments, transfers. */
#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"

/* An empty list for people says why it is empty. */
int ctl_gpus(struct ctl *c)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	char text[CTL_CELL_BYTES];

	if (ctl_list_get(c, &ctl_list_gpus, &rows, NULL) < 0)
		return -1;
	if (rows.n || c->format != CTL_TEXT)
		return ctl_list_print(c, &ctl_list_gpus, &rows);
	if (ctl_properties_get(c, &p) < 0)
		return -1;
	fprintf(c->out, "no GPUs; CUDA plug-in: %s\n",
		ctl_show_text(p.v.gpu_plugin, text, sizeof(text)));
	return CTL_EXIT_OK;
}

int ctl_segments(struct ctl *c)
{
	const char *scope = c->values[CTL_OPTION_SCOPE], *object = c->values[CTL_OPTION_OBJECT];
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	if (object) {
		if (ctl_list_get(c, &ctl_list_replicas, &rows, "s", object) < 0)
			return -1;
		return ctl_list_print(c, &ctl_list_replicas, &rows);
	}
	if (!c->values[CTL_OPTION_CANDIDATES])
		return ctl_list_run(c, &ctl_list_segments);
	if (ctl_list_get(c, &ctl_list_candidates, &rows, "s", scope ? scope : "") < 0)
		return -1;
	return ctl_list_print(c, &ctl_list_candidates, &rows);
}

static int transfers_print(struct ctl *c, void *arg)
{
	return ctl_list_run(c,
			    c->values[CTL_OPTION_RECENT] ? &ctl_list_ended : &ctl_list_transfers);
}

int ctl_transfers(struct ctl *c)
{
	if (c->values[CTL_OPTION_REPEAT])
		return ctl_watch(c, &(struct ctl_watched){ .print = transfers_print }, NULL);
	return transfers_print(c, NULL);
}
