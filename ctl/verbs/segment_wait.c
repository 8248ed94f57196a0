/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* The list is read this often, because no signal says that the agent is stopped or that a probe confirmed a state. */
#define LOOK_NS (1 * DRAY_NS_PER_SEC)
#define READY "ready"

#define FIELD(name) DRAY_DBUS_SEGMENT_FIELD_##name

static bool matches(const struct ctl_rows *r, size_t row, const struct ctl_segment_goal *goal)
{
	if (!strcmp(goal->segment, CTL_SEGMENT_LOCAL))
		return ctl_rows_at(r, row, FIELD(LOCAL))->n;
	if (!strcmp(goal->segment, CTL_SEGMENT_PREFERRED))
		return ctl_rows_at(r, row, FIELD(PREFERRED))->n;
	return !strcmp(ctl_rows_text(r, row, FIELD(SEGMENT)), goal->segment);
}

static bool is_reached(const struct ctl_rows *r, size_t row, const struct ctl_segment_goal *goal)
{
	/* A state from before the agent's start may be out of date. */
	if (!strcmp(goal->state, READY) && !ctl_rows_at(r, row, FIELD(VERIFIED))->n)
		return false;
	return !strcmp(ctl_rows_text(r, row, FIELD(STATE)), goal->state);
}

/* Finds the row that reaches the goal; otherwise, describes the first row that could reach it. */
static void rows_check(const struct ctl_rows *r, const struct ctl_segment_goal *goal,
		       struct ctl_wait_state *w)
{
	char name[150], reason[170];
	const char *state;
	size_t at = r->n;
	bool old;

	for (size_t i = 0; i < r->n && !w->reached; i++) {
		if (!matches(r, i, goal))
			continue;
		w->reached = is_reached(r, i, goal);
		at = w->reached || at == r->n ? i : at;
	}
	if (at == r->n) {
		if (!strcmp(goal->segment, CTL_SEGMENT_PREFERRED))
			snprintf(w->why, sizeof(w->why),
				 "no segment is preferred; drayctl segments --explain says why");
		else if (!strcmp(goal->segment, CTL_SEGMENT_LOCAL))
			snprintf(w->why, sizeof(w->why), "no segment on this node is known");
		else
			snprintf(w->why, sizeof(w->why), "segment %s is not known", goal->segment);
		return;
	}
	state = ctl_rows_text(r, at, FIELD(STATE));
	old = !ctl_rows_at(r, at, FIELD(VERIFIED))->n &&
	      (!strcmp(state, READY) || !strcmp(state, "lost"));
	ctl_show_text(ctl_rows_text(r, at, FIELD(SEGMENT)), name, sizeof(name));
	ctl_show_text(ctl_rows_text(r, at, FIELD(REASON)), reason, sizeof(reason));
	snprintf(w->segment, sizeof(w->segment), "%s", name);
	snprintf(w->why, sizeof(w->why), "segment %s is %.20s%s%s%s", name, state,
		 old ? " from before the agent's start" : "", *reason ? ": " : "", reason);
}

static int look(struct ctl *c, const struct ctl_segment_goal *goal, struct ctl_wait_state *w)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	w->reached = false;
	if (ctl_list_get(c, &ctl_list_segments, &rows, NULL) < 0)
		return -1;
	rows_check(&rows, goal, w);
	if (!goal->running || !w->reached)
		return 0;
	if (ctl_properties_get(c, &p) < 0)
		return -1;
	w->reached = !strcmp(p.v.state, CTL_STATE_RUNNING);
	if (!w->reached)
		snprintf(w->why, sizeof(w->why), "the agent is %.40s", p.v.state);
	return 0;
}

int ctl_segment_wait(struct ctl *c, bool interruptible, const struct ctl_segment_goal *goal,
		     int64_t ends_ns, struct ctl_wait_state *w)
{
	static const char *const signals[] = { DRAY_DBUS_SIGNAL_SEGMENT_CHANGED,
					       DRAY_DBUS_SIGNAL_PREFERRED_CHANGED,
					       DRAY_DBUS_SIGNAL_STATE_CHANGED };
	int ret;

	/* The signals come first, so that no change is missed between the look and the wait. */
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(signals); i++)
		if (ctl_bus_subscribe(c, signals[i]) < 0)
			return -1;
	for (;;) {
		int64_t next_ns = dray_now().ns + LOOK_NS;

		c->news.any = false;
		if (look(c, goal, w) < 0)
			return -1;
		if (w->reached || (ends_ns && dray_now().ns >= ends_ns))
			return 0;
		ret = ctl_bus_wait(c, interruptible,
				   ends_ns ? dray_min(next_ns, ends_ns) : next_ns);
		if (ret < 0)
			return ret;
		if (ret == CTL_WAKE_CLOSED) {
			snprintf(w->why, sizeof(w->why), "the agent has ended");
			return 0;
		}
		w->interrupted = ret == CTL_WAKE_END;
		if (w->interrupted)
			return 0;
	}
}
