/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl detect --watch */
#include <errno.h>

#include "ctl/detect/detect.h"
#include "ctl/render/human.h"
#include "ctl/interrupt.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "netdetect/monitor.h"

DRAY_DEFINE_CLEANUP(struct nd_monitor *, nd_monitor_free);

struct watch {
	struct ctl *c;
	const struct ctl_detect *d;
	struct nd_monitor *monitor;
	struct nd_scan *now;
	struct ctl_interrupt interrupt;
};

/* {"change": "..."}, on a line of its own */
static void json_line(FILE *f, const char *line)
{
	fputs("{\"change\": \"", f);
	for (; *line; line++) {
		unsigned char ch = (unsigned char)*line;

		/* names of interfaces may hold any byte */
		if (ch < ' ' || ch >= 0x7f)
			fprintf(f, "\\u%04x", ch);
		else
			fprintf(f, ch == '"' || ch == '\\' ? "\\%c" : "%c", ch);
	}
	fputs("\"}\n", f);
}

static void print_line(const char *line, void *arg)
{
	struct watch *w = arg;
	char text[1024];

	if (w->c->format == CTL_JSON)
		json_line(w->c->out, line);
	else
		fprintf(w->c->out, "%s\n", ctl_show_text(line, text, sizeof(text)));
}

static int look(struct watch *w, bool first, struct ctl_err *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan *old = w->now;

	if (nd_scan_run(&w->d->source, &w->d->options, &w->now, &err) < 0) {
		w->now = old;
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", err.msg);
	}
	nd_monitor_follow(w->monitor, w->now);
	if (!first)
		nd_scan_diff(old, w->now, print_line, w);
	nd_scan_free(old);
	if (fflush(w->c->out) != 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "writing: %s", dray_errno_text(errno));
	return 0;
}

/* 1: something changed; 0: it is time to end; -1. */
static int wait_change(struct watch *w, struct ctl_err *reterr)
{
	int r;

	do
		r = ctl_interrupt_wait(&w->interrupt, w->c->out, nd_monitor_fd(w->monitor), -1,
				       reterr);
	while (r == CTL_WAKE_READY && !nd_monitor_read(w->monitor));
	return r < 0 ? r : r == CTL_WAKE_READY;
}

static int run(struct watch *w, struct ctl_err *reterr)
{
	int r = look(w, true, reterr);

	if (r == 0 && w->c->format != CTL_JSON) {
		fprintf(w->c->out, "watching by %s\n", nd_monitor_describe(w->monitor));
		fflush(w->c->out);
	}
	while (r == 0 && (r = wait_change(w, reterr)) > 0)
		r = look(w, false, reterr);
	return r;
}

int ctl_detect_watch(struct ctl *c, const struct ctl_detect *d)
{
	dray_auto(nd_monitor_free) struct nd_monitor *monitor = NULL;
	struct watch w = { .c = c, .d = d };
	struct ctl_err err = CTL_ERR_NULL;
	struct dray_err e = DRAY_ERR_NULL;
	int r;

	if (nd_monitor_new(&monitor, &e) < 0) {
		ctl_err_set(&err, CTL_EXIT_FAILED, "%s", e.msg);
		return ctl_fail(c, &err);
	}
	w.monitor = monitor;
	if (ctl_interrupt_begin(&w.interrupt, &err) < 0)
		return ctl_fail(c, &err);
	r = run(&w, &err);
	ctl_interrupt_end(&w.interrupt);
	nd_scan_free(w.now);
	return r < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
