/* SPDX-License-Identifier: Apache-2.0 */
/* detect --watch. */
#include "ctl/detect/detect.h"
#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "netdetect/monitor.h"

DRAY_DEFINE_CLEANUP(struct nd_monitor *, nd_monitor_free);

/* Prints {"change": "..."} on a line of its own. */
static void json_line(FILE *f, const char *line)
{
	fputs("{\"change\": \"", f);
	for (; *line; line++) {
		unsigned char ch = (unsigned char)*line;

		/* Names of interfaces may contain any byte. */
		if (ch < ' ' || ch >= 0x7f)
			fprintf(f, "\\u%04x", ch);
		else
			fprintf(f, ch == '"' || ch == '\\' ? "\\%c" : "%c", ch);
	}
	fputs("\"}\n", f);
}

static void line_print(const char *line, void *arg)
{
	struct ctl *c = arg;
	char text[1024];

	if (c->format == CTL_JSON)
		json_line(c->out, line);
	else
		fprintf(c->out, "%s\n", ctl_show_text(line, text, sizeof(text)));
}

/* Scans again, and prints the differences from *scan, which the new scan replaces. */
static int look(struct ctl *c, const struct ctl_detect *d, struct nd_monitor *monitor,
		struct nd_scan **scan)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan *now;

	if (nd_scan_run(&d->source, &d->options, &now, &err) < 0)
		return ctl_failed(c, "%s", err.msg);
	nd_monitor_follow(monitor, now);
	if (*scan)
		nd_scan_diff(*scan, now, line_print, c);
	nd_scan_free(*scan);
	*scan = now;
	return ctl_flush(c);
}

int ctl_detect_watch(struct ctl *c, const struct ctl_detect *d)
{
	dray_auto(nd_monitor_free) struct nd_monitor *monitor = NULL;
	dray_auto(nd_scan_free) struct nd_scan *scan = NULL;
	struct dray_err e = DRAY_ERR_NULL;
	int ret;

	if (nd_monitor_new(&monitor, &e) < 0)
		return ctl_failed(c, "%s", e.msg);
	ret = look(c, d, monitor, &scan);
	if (!ret && c->format != CTL_JSON)
		fprintf(c->out, "watching by %s\n", nd_monitor_describe(monitor));
	while (!ret && (ret = ctl_flush(c)) == 0) {
		do
			ret = ctl_interrupt_wait(c, nd_monitor_fd(monitor), -1);
		while (ret == CTL_WAKE_READY && !nd_monitor_read(monitor));
		if (ret <= CTL_WAKE_END)
			return ret;
		ret = look(c, d, monitor, &scan);
	}
	return ret;
}
