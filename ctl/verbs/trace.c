/* SPDX-License-Identifier: Apache-2.0 */
/* trace: recent transfers in the trace event format of Chrome, which chrome://tracing and Perfetto show. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ctl/verbs/verbs.h"

#define CATEGORY "transfer"
#define NS_PER_US 1000

#define FIELD(name) DRAY_DBUS_ENDED_TRANSFER_FIELD_##name

/* The stages of a transfer, in their order. */
static const struct stage {
	const char *name;
	unsigned field; /* its time */
} stages[] = {
	{ "wait word", FIELD(WAITED_NS) },
	{ "queued", FIELD(QUEUED_NS) },
	{ "moved", FIELD(MOVED_NS) },
	{ "notified", FIELD(NOTIFIED_NS) },
};

static uint64_t number(const struct ctl_rows *r, size_t row, unsigned field)
{
	return ctl_rows_at(r, row, field)->n;
}

/* The members of every event. The format has times in microseconds; events of one id nest. */
static void event_begin(struct ctl_json *j, const struct ctl_rows *r, size_t row, const char *phase,
			const char *name, uint64_t time_ns)
{
	char id[40];

	snprintf(id, sizeof(id), "0x%" PRIx64 "-%zu", number(r, row, FIELD(REQUEST)), row);
	ctl_json_object(j, NULL);
	ctl_json_add(j, J_TEXT("name", name), J_TEXT("cat", CATEGORY), J_TEXT("ph", phase),
		     J_TEXT("id", id), J_UINT("pid", number(r, row, FIELD(SESSION))),
		     J_UINT("tid", number(r, row, FIELD(SESSION))),
		     J_REAL("ts", (double)time_ns / NS_PER_US));
}

static void span(struct ctl_json *j, const struct ctl_rows *r, size_t row, const char *name,
		 uint64_t begin_ns, uint64_t end_ns)
{
	event_begin(j, r, row, "b", name, begin_ns);
	ctl_json_end(j);
	event_begin(j, r, row, "e", name, end_ns);
	ctl_json_end(j);
}

static void transfer_print(struct ctl_json *j, const struct ctl_rows *r, size_t row,
			   uint64_t end_ns)
{
	uint64_t at_ns = end_ns - number(r, row, FIELD(DURATION_NS));
	char name[80];

	snprintf(name, sizeof(name), "%.20s %.20s %.30s", ctl_rows_text(r, row, FIELD(DIRECTION)),
		 ctl_rows_text(r, row, FIELD(TRANSPORT)), ctl_rows_text(r, row, FIELD(STATUS)));
	event_begin(j, r, row, "b", name, at_ns);
	ctl_json_record(j, "args", J_UINT("request", number(r, row, FIELD(REQUEST))),
			J_TEXT("segment", ctl_rows_text(r, row, FIELD(SEGMENT))),
			J_TEXT("label", ctl_rows_text(r, row, FIELD(LABEL))),
			J_TEXT("class", ctl_rows_text(r, row, FIELD(CLASS))),
			J_TEXT("rails", ctl_rows_text(r, row, FIELD(RAILS))),
			J_UINT("operations", number(r, row, FIELD(OPERATIONS))),
			J_UINT("bytes", number(r, row, FIELD(BYTES))),
			J_UINT("bytes_done", number(r, row, FIELD(BYTES_DONE))),
			J_UINT("slices", number(r, row, FIELD(SLICES))),
			J_UINT("resent", number(r, row, FIELD(RESENT))));
	ctl_json_end(j);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(stages); i++) {
		uint64_t took_ns = number(r, row, stages[i].field);

		if (took_ns)
			span(j, r, row, stages[i].name, at_ns, at_ns + took_ns);
		at_ns += took_ns;
	}
	event_begin(j, r, row, "e", name, end_ns);
	ctl_json_end(j);
}

int ctl_trace(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	struct ctl_json j = CTL_JSON(c->out);
	struct timespec now;
	uint64_t now_ns;

	if (ctl_list_get(c, &ctl_list_ended, &rows, NULL) < 0)
		return -1;
	/* Wall-clock time, so that traces of several agents and of engines line up. */
	clock_gettime(CLOCK_REALTIME, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_TEXT("displayTimeUnit", "ns"));
	ctl_json_array(&j, "traceEvents");
	for (size_t i = 0; i < rows.n; i++)
		transfer_print(&j, &rows, i, now_ns - number(&rows, i, FIELD(AGO_NS)));
	ctl_json_end(&j);
	ctl_json_end(&j);
	return CTL_EXIT_OK;
}
