/* SPDX-License-Identifier: Apache-2.0 */
/* events: the past changes, and with --watch the later ones. */
#include "ctl/verbs/verbs.h"

/* A line for each event, because the widths of later events are unknown. */
static void lines_print(struct ctl *c, const struct ctl_rows *rows)
{
	const struct ctl_list *l = &ctl_list_events;
	char cell[CTL_CELL_BYTES];

	for (size_t row = 0; row < rows->n; row++)
		for (unsigned i = 0; i < l->n_columns; i++) {
			unsigned field = l->columns[i].field;

			fprintf(c->out, "%s%s",
				ctl_cell_text(&l->fields[field], ctl_rows_at(rows, row, field),
					      cell),
				i + 1 < l->n_columns ? "  " : "\n");
		}
}

/* Prints the events after number *last. */
static int new_print(struct ctl *c, uint64_t *last)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	c->news.any = false;
	if (ctl_list_get(c, &ctl_list_events, &rows, "t", *last) < 0)
		return -1;
	if (rows.n) {
		*last = ctl_rows_at(&rows, rows.n - 1, DRAY_DBUS_EVENT_FIELD_NUMBER)->n;
		if (c->format == CTL_TEXT)
			lines_print(c, &rows);
		else if (ctl_list_print(c, &ctl_list_events, &rows) < 0)
			return -1;
	}
	return ctl_flush(c);
}

int ctl_events(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	uint64_t last = 0;
	int ret;

	if (!c->values[CTL_OPTION_WATCH]) {
		if (ctl_list_get(c, &ctl_list_events, &rows, "t", last) < 0)
			return -1;
		return ctl_list_print(c, &ctl_list_events, &rows);
	}
	ret = ctl_bus_subscribe(c, DRAY_DBUS_SIGNAL_EVENT_ADDED);
	if (!ret)
		ret = new_print(c, &last);
	while (!ret && (ret = ctl_bus_wait(c, true, 0)) == CTL_WAKE_READY)
		ret = new_print(c, &last);
	if (ret == CTL_WAKE_CLOSED)
		return ctl_fail(c, CTL_EXIT_UNREACHABLE, "the agent on %s has ended", c->control);
	return ret;
}
