/* SPDX-License-Identifier: Apache-2.0 */
/* segments: those that the agent knows, or the candidates for the preferred one. */
#include "ctl/verbs/segments.h"
#include "schema/gen/dbus.h"

const struct ctl_list ctl_list_segments = {
	DRAY_DBUS_METHOD_LIST_SEGMENTS,
	NULL,
	"segments",
	dray_dbus_segment_fields,
	DRAY_DBUS_SEGMENT_FIELD_N,
	.columns = {
		{ "SEGMENT", DRAY_DBUS_SEGMENT_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "STATE", DRAY_DBUS_SEGMENT_FIELD_STATE, CTL_CELL_STATE },
		{ "FOR", DRAY_DBUS_SEGMENT_FIELD_SINCE_NS, CTL_CELL_SPAN },
		{ "PREFERRED", DRAY_DBUS_SEGMENT_FIELD_PREFERRED, CTL_CELL_YES_NO },
		{ "LOCAL", DRAY_DBUS_SEGMENT_FIELD_LOCAL, CTL_CELL_YES_NO },
		{ "VERIFIED", DRAY_DBUS_SEGMENT_FIELD_VERIFIED, CTL_CELL_YES_NO },
		{ "FROM", DRAY_DBUS_SEGMENT_FIELD_SOURCES, CTL_CELL_TEXT },
		{ "PROBE", DRAY_DBUS_SEGMENT_FIELD_PROBE, CTL_CELL_TEXT },
		{ "LATENCY", DRAY_DBUS_SEGMENT_FIELD_LATENCY_NS, CTL_CELL_SPAN },
		{ "USED", DRAY_DBUS_SEGMENT_FIELD_ALLOCATED, CTL_CELL_SIZE },
		{ "OF", DRAY_DBUS_SEGMENT_FIELD_CAPACITY, CTL_CELL_SIZE },
		{ "REASON", DRAY_DBUS_SEGMENT_FIELD_REASON, CTL_CELL_TEXT },
	},
};

const struct ctl_list ctl_list_candidates = {
	DRAY_DBUS_METHOD_LIST_CANDIDATES,
	"s",
	"candidates",
	dray_dbus_candidate_fields,
	DRAY_DBUS_CANDIDATE_FIELD_N,
	.columns = {
		{ "RANK", DRAY_DBUS_CANDIDATE_FIELD_RANK, CTL_CELL_NUMBER },
		{ "SEGMENT", DRAY_DBUS_CANDIDATE_FIELD_SEGMENT, CTL_CELL_TEXT },
		{ "BY", DRAY_DBUS_CANDIDATE_FIELD_PREFERENCE, CTL_CELL_TEXT },
		{ "STATE", DRAY_DBUS_CANDIDATE_FIELD_STATE, CTL_CELL_STATE },
		{ "CHOSEN", DRAY_DBUS_CANDIDATE_FIELD_CHOSEN, CTL_CELL_YES_NO },
		{ "REASON", DRAY_DBUS_CANDIDATE_FIELD_REASON, CTL_CELL_TEXT },
	},
};

static int candidates(struct ctl *c)
{
	const struct ctl_list *l = &ctl_list_candidates;
	const char *scope = c->values[CTL_OPTION_SCOPE];
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_bus_ask(&bus, l->member, &reply, &err, l->takes, scope ? scope : "");
	if (!ret)
		ret = ctl_list_read(l, &rows, reply, &err);
	if (!ret)
		ret = ctl_list_print(c, l, &rows, &err);
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

int ctl_segments(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;

	if (c->values[CTL_OPTION_CANDIDATES])
		return candidates(c);
	if (c->values[CTL_OPTION_SCOPE]) {
		ctl_err_set(&err, CTL_EXIT_USAGE, "--scope goes with --explain");
		return ctl_fail(c, &err);
	}
	return ctl_list_run(c, &ctl_list_segments);
}
