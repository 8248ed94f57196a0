/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/bus/properties.h"
#include "ctl/verbs/segments.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"

/* Signals tell of changes, but neither that the agent is stopped nor that a probe has confirmed a state. */
#define LOOK_NS (1 * DRAY_NS_PER_SEC)
#define RUNNING "running"
#define READY "ready"

static const char *text_at(const struct ctl_rows *r, size_t row, unsigned field)
{
	const char *s = ctl_rows_at(r, row, field)->s;

	return s ? s : "";
}

static bool matches(const struct ctl_rows *r, size_t row, const struct ctl_segment_goal *goal)
{
	if (!strcmp(goal->segment, CTL_SEGMENT_LOCAL))
		return ctl_rows_at(r, row, DRAY_DBUS_SEGMENT_FIELD_LOCAL)->n;
	if (!strcmp(goal->segment, CTL_SEGMENT_PREFERRED))
		return ctl_rows_at(r, row, DRAY_DBUS_SEGMENT_FIELD_PREFERRED)->n;
	return !strcmp(text_at(r, row, DRAY_DBUS_SEGMENT_FIELD_SEGMENT), goal->segment);
}

static bool is_reached(const struct ctl_rows *r, size_t row, const struct ctl_segment_goal *goal)
{
	/* what was so before the agent's start need not be so now */
	if (!strcmp(goal->state, READY) &&
	    !ctl_rows_at(r, row, DRAY_DBUS_SEGMENT_FIELD_VERIFIED)->n)
		return false;
	return !strcmp(text_at(r, row, DRAY_DBUS_SEGMENT_FIELD_STATE), goal->state);
}

/* What has been ready, or has ceased to be. */
static bool is_settled(const struct ctl_rows *r, size_t row)
{
	const char *state = text_at(r, row, DRAY_DBUS_SEGMENT_FIELD_STATE);

	return !strcmp(state, READY) || !strcmp(state, "lost");
}

/* Which row it is, or the first that could become it: what is still missing is told of that one. */
static void rows_judge(const struct ctl_rows *r, const struct ctl_segment_goal *goal,
		       struct ctl_segment_look *l)
{
	char name[150], reason[170];
	size_t at = r->n;

	for (size_t i = 0; i < r->n && !l->reached; i++) {
		if (!matches(r, i, goal))
			continue;
		l->reached = is_reached(r, i, goal);
		at = l->reached || at == r->n ? i : at;
	}
	if (at == r->n) {
		if (!strcmp(goal->segment, CTL_SEGMENT_PREFERRED))
			snprintf(l->why, sizeof(l->why),
				 "no segment is preferred; drayctl segments --explain says why");
		else if (!strcmp(goal->segment, CTL_SEGMENT_LOCAL))
			snprintf(l->why, sizeof(l->why), "no segment on this node is known");
		else
			snprintf(l->why, sizeof(l->why), "segment %s is not known", goal->segment);
		return;
	}
	ctl_show_text(text_at(r, at, DRAY_DBUS_SEGMENT_FIELD_SEGMENT), name, sizeof(name));
	ctl_show_text(text_at(r, at, DRAY_DBUS_SEGMENT_FIELD_REASON), reason, sizeof(reason));
	snprintf(l->segment, sizeof(l->segment), "%s", name);
	snprintf(l->why, sizeof(l->why), "segment %s is %.20s%s%s%s", name,
		 text_at(r, at, DRAY_DBUS_SEGMENT_FIELD_STATE),
		 ctl_rows_at(r, at, DRAY_DBUS_SEGMENT_FIELD_VERIFIED)->n || !is_settled(r, at) ?
			 "" :
			 " from before the agent's start",
		 *reason ? ": " : "", reason);
}

static int running_look(struct ctl_bus *b, struct ctl_segment_look *l, struct ctl_err *reterr)
{
	struct ctl_properties p;

	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	l->reached = !strcmp(p.state, RUNNING);
	if (!l->reached)
		snprintf(l->why, sizeof(l->why), "the agent is %.40s", p.state);
	ctl_properties_deinit(&p);
	return 0;
}

int ctl_segment_look(struct ctl_bus *b, const struct ctl_segment_goal *goal,
		     struct ctl_segment_look *l, struct ctl_err *reterr)
{
	struct ctl_rows rows = CTL_ROWS_NULL;
	sd_bus_message *reply = NULL;
	int ret = ctl_list_get(b, &ctl_list_segments, 0, &rows, &reply, reterr);

	l->reached = false;
	if (!ret)
		rows_judge(&rows, goal, l);
	ctl_rows_deinit(&rows);
	sd_bus_message_unref(reply);
	return ret || !goal->running || !l->reached ? ret : running_look(b, l, reterr);
}

static int hear_change(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	bool *news = userdata;

	*news = true;
	return 0;
}

/* Handles what comes until the time. 1 if something did, 0: the time is over or a signal came, -1: it is gone. */
static int turn(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in, int64_t time_ns,
		struct ctl_segment_look *l, struct ctl_err *reterr)
{
	int ret = ctl_bus_turn(b, in ? 0 : time_ns);

	if (ret || !in)
		return ret;
	ret = ctl_interrupt_wait(in, c->out, sd_bus_get_fd(b->bus), time_ns, reterr);
	l->interrupted = ret == CTL_WAKE_END;
	return ret < 0 ? ret : 0;
}

/* Until there is news, it is time for another look, or it is over. 0, or -1: it is gone. */
static int news_wait(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in, int64_t ends_ns,
		     const bool *news, struct ctl_segment_look *l, struct ctl_err *reterr)
{
	int64_t look = dray_now().ns + LOOK_NS, left;

	if (ends_ns)
		look = dray_min(look, ends_ns);
	while (!*news && !l->interrupted && (left = look - dray_now().ns) > 0) {
		int ret = turn(c, b, in, left, l, reterr);

		if (ret < 0)
			return ret;
	}
	return 0;
}

int ctl_segment_wait(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in,
		     const struct ctl_segment_goal *goal, int64_t ends_ns,
		     struct ctl_segment_look *l, struct ctl_err *reterr)
{
	static const char *const signals[] = { DRAY_DBUS_SIGNAL_SEGMENT_CHANGED,
					       DRAY_DBUS_SIGNAL_PREFERRED_CHANGED,
					       DRAY_DBUS_SIGNAL_STATE_CHANGED };
	sd_bus_slot *slots[DRAY_ARRAY_SIZE(signals)] = { NULL };
	bool news = false;
	int ret = 0;

	/* before the first look, so that nothing falls between */
	for (size_t i = 0; !ret && i < DRAY_ARRAY_SIZE(signals); i++)
		if (sd_bus_match_signal(b->bus, &slots[i], NULL, DRAY_DBUS_PATH,
					DRAY_DBUS_INTERFACE, signals[i], hear_change, &news) < 0)
			ret = ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory");
	while (!ret) {
		news = false;
		ret = ctl_segment_look(b, goal, l, reterr);
		if (ret || l->reached || l->interrupted || (ends_ns && dray_now().ns >= ends_ns))
			break;
		if (news_wait(c, b, in, ends_ns, &news, l, reterr) < 0) {
			ret = reterr->exit ? -1 : 0;
			snprintf(l->why, sizeof(l->why), "the agent has ended");
			break;
		}
	}
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(signals); i++)
		sd_bus_slot_unref(slots[i]);
	return ret;
}
