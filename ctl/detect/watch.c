/* SPDX-License-Identifier: Apache-2.0 */
/* detect --watch. */
#include "ctl/detect/detect.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "lib/time.h"
#include "netdetect/monitor.h"

#define AGAIN_NS DRAY_NS_PER_SEC

static void line_print(const char *line, void *arg)
{
	struct ctl *c = arg;
	char text[1024];

	/* each change is an object on a line of its own */
	if (c->format == CTL_JSON) {
		fputs("{\"change\": ", c->out);
		ctl_json_text(c->out, line);
		fputs("}\n", c->out);
	} else {
		fprintf(c->out, "%s\n", ctl_show_text(line, text, sizeof(text)));
	}
}

struct watch {
	struct nd_monitor *monitor;
	struct nd_scan *scan; /* the last one that succeeded */
	bool failing;         /* a scan since then did not */
};

/* The first scan must succeed. Standard error has the reason of a later one that fails, once until one succeeds. */
static int report_failure(struct ctl *c, struct watch *w, int error, const char *why)
{
	if (!w->scan)
		return ctl_failed(c, "%s; %s", why, nd_scan_remedy(error));
	if (!w->failing)
		fprintf(c->err, "%s; trying again every second\n", why);
	w->failing = true;
	return 0;
}

/* Scans again, and prints the differences from the last scan, which the new one replaces. */
static int look(struct ctl *c, const struct ctl_detect *d, struct watch *w)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan *now;
	int r = nd_scan_run(&d->source, &d->options, &now, &err);

	if (r < 0)
		return report_failure(c, w, r, err.msg);
	/* a device that is not opened now is when something else changes */
	(void)nd_monitor_follow(w->monitor, now);
	if (w->scan)
		nd_scan_diff(w->scan, now, line_print, c);
	nd_scan_free(w->scan);
	w->scan = now;
	w->failing = false;
	return ctl_flush(c);
}

/* Until something has changed, or for AGAIN_NS if the last scan failed. As ctl_interrupt_wait(). */
static int wait_for_change(struct ctl *c, struct watch *w)
{
	int64_t again_ns = dray_now().ns + AGAIN_NS;
	int ret;

	do
		ret = ctl_interrupt_wait(
			c, nd_monitor_fd(w->monitor),
			w->failing ? dray_max(again_ns - dray_now().ns, (int64_t)0) : -1);
	while (ret == CTL_WAKE_READY && !nd_monitor_read(w->monitor));
	return ret;
}

int ctl_detect_watch(struct ctl *c, const struct ctl_detect *d)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct watch w = { .scan = NULL };
	int ret = nd_monitor_new(&w.monitor, &e) < 0 ? ctl_failed(c, "%s", e.msg) : 0;

	if (!ret)
		ret = look(c, d, &w);
	if (!ret && c->format != CTL_JSON)
		fprintf(c->out, "watching by %s\n", nd_monitor_describe(w.monitor));
	while (!ret && (ret = ctl_flush(c)) == 0) {
		ret = wait_for_change(c, &w);
		if (ret <= CTL_WAKE_END)
			break;
		ret = look(c, d, &w);
	}
	nd_scan_free(w.scan);
	nd_monitor_free(w.monitor);
	return ret;
}
