/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that print lists in a way of their own: gpus, segments, transfers. */
#include "ctl/render/human.h"
#include "ctl/render/screen.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"

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
	const char *scope = c->values[CTL_OPTION_SCOPE];
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	if (!c->values[CTL_OPTION_CANDIDATES])
		return ctl_list_run(c, &ctl_list_segments);
	if (ctl_list_get(c, &ctl_list_candidates, &rows, "s", scope ? scope : "") < 0)
		return -1;
	return ctl_list_print(c, &ctl_list_candidates, &rows);
}

/* An output that replaces the last one, cut to the size that the terminal has now. */
static int screen_print(struct ctl *c, ctl_print_fn print, void *arg)
{
	FILE *out = c->out;
	dray_auto_free char *text = NULL;
	size_t n;
	int ret;

	c->out = open_memstream(&text, &n);
	if (!c->out) {
		c->out = out;
		return ctl_no_memory(c);
	}
	ret = print(c, arg);
	if (fclose(c->out) && ret >= 0)
		ret = ctl_no_memory(c);
	c->out = out;
	if (ret >= 0)
		ctl_screen_show(out, text);
	return ret;
}

int ctl_watch(struct ctl *c, ctl_print_fn print, void *arg)
{
	int64_t interval_ns = c->numbers[CTL_OPTION_INTERVAL], count = c->numbers[CTL_OPTION_TIMES];

	for (int64_t outputs = 0;;) {
		int ret = c->env->terminal && c->format == CTL_TEXT ? screen_print(c, print, arg) :
								      print(c, arg);

		if (ret < 0 || ctl_flush(c) < 0)
			return -1;
		outputs += ret == 0;
		if (count && outputs == count)
			return CTL_EXIT_OK;
		ret = ctl_interrupt_wait(c, -1, interval_ns);
		if (ret <= CTL_WAKE_END)
			return ret;
	}
}

static int transfers_print(struct ctl *c, void *arg)
{
	return ctl_list_run(c,
			    c->values[CTL_OPTION_RECENT] ? &ctl_list_ended : &ctl_list_transfers);
}

int ctl_transfers(struct ctl *c)
{
	if (c->values[CTL_OPTION_REPEAT])
		return ctl_watch(c, transfers_print, NULL);
	return transfers_print(c, NULL);
}
