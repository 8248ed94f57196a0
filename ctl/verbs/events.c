/* SPDX-License-Identifier: Apache-2.0 */
/* events: what has changed, and with --watch what changes from now on. */
#include <errno.h>

#include "ctl/interrupt.h"
#include "ctl/bus/list.h"
#include "lib/err.h"

struct watch {
	struct ctl *c;
	struct ctl_bus bus;
	struct ctl_interrupt interrupt;
	uint64_t last; /* number of the last event that was printed */
	bool news;     /* there is one after it */
};

static int hear_event(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct watch *w = userdata;

	w->news = true;
	return 0;
}

/* A line for each: the widths of what comes later are not known. */
static void lines_print(struct ctl *c, const struct ctl_rows *rows)
{
	char cell[CTL_CELL_BYTES];

	for (size_t row = 0; row < rows->n; row++)
		for (const struct ctl_column *col = ctl_list_events.columns; col->title; col++)
			fprintf(c->out, "%s%s",
				ctl_cell_text(col->kind, ctl_rows_at(rows, row, col->field), cell),
				col[1].title ? "  " : "\n");
}

/* Prints those that are new. */
static int look(struct watch *w, struct ctl_err *reterr)
{
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret;

	w->news = false;
	ret = ctl_list_get(&w->bus, &ctl_list_events, w->last, &rows, &reply, reterr);
	if (!ret && rows.n) {
		w->last = ctl_rows_at(&rows, rows.n - 1, DRAY_DBUS_EVENT_FIELD_NUMBER)->n;
		if (w->c->format == CTL_TEXT)
			lines_print(w->c, &rows);
		else
			ret = ctl_list_print(w->c, &ctl_list_events, &rows, reterr);
	}
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	if (!ret && fflush(w->c->out) != 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "writing: %s", dray_errno_text(errno));
	return ret;
}

static int gone(struct watch *w, struct ctl_err *reterr)
{
	return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE, "the agent on %s has ended", w->bus.path);
}

/* Until there is news. 1, 0: it is time to end, -1. */
static int wait_news(struct watch *w, struct ctl_err *reterr)
{
	while (!w->news) {
		int ret = ctl_bus_turn(&w->bus, 0);

		if (ret < 0)
			return gone(w, reterr);
		if (ret)
			continue;
		ret = ctl_interrupt_wait(&w->interrupt, w->c->out, sd_bus_get_fd(w->bus.bus), -1,
					 reterr);
		if (ret <= CTL_WAKE_END)
			return ret;
	}
	return 1;
}

static int watch_run(struct watch *w, struct ctl_err *reterr)
{
	int ret;

	if (sd_bus_match_signal(w->bus.bus, NULL, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
				DRAY_DBUS_SIGNAL_EVENT_ADDED, hear_event, w) < 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory");
	ret = look(w, reterr);
	while (!ret && (ret = wait_news(w, reterr)) > 0)
		ret = look(w, reterr);
	return ret;
}

int ctl_events(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct watch w = { .c = c };
	int ret;

	if (!c->values[CTL_OPTION_WATCH])
		return ctl_list_run(c, &ctl_list_events);
	ret = ctl_bus_open(&w.bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_interrupt_begin(&w.interrupt, &err);
	if (!ret) {
		ret = watch_run(&w, &err);
		ctl_interrupt_end(&w.interrupt);
	}
	ctl_bus_close(&w.bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
