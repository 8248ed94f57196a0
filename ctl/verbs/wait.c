/* SPDX-License-Identifier: Apache-2.0 */
/* wait: returns when the agent or a segment reaches a state, even if the agent has not been started yet. */
#include <string.h>

#include "ctl/verbs/verbs.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* Between two tries to connect, because nothing announces a socket that does not exist yet. */
#define LOOK_NS (100 * DRAY_NS_PER_MS)

static const char *const states[] = { "unknown", "probing", "ready", "lost" };

/* Reports the first condition that is missing. */
static void not_ready(const struct ctl_rows *r, char *buf, size_t n)
{
	snprintf(buf, n, "the agent is not ready");
	for (size_t i = 0; i < r->n; i++) {
		if (ctl_rows_at(r, i, DRAY_DBUS_CONDITION_FIELD_OK)->n ||
		    !ctl_rows_at(r, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED)->n)
			continue;
		snprintf(buf, n, "the agent is not ready: %s: %s",
			 ctl_rows_text(r, i, DRAY_DBUS_CONDITION_FIELD_NAME),
			 ctl_rows_text(r, i, DRAY_DBUS_CONDITION_FIELD_REASON));
		return;
	}
}

static int health_look(struct ctl *c, bool live, struct ctl_wait_state *w)
{
	struct ctl_health h = CTL_HEALTH_NULL;
	int ret = ctl_health_get(c, &h);

	w->reached = !ret && (live ? h.alive : h.ready);
	if (!ret && !w->reached && live)
		snprintf(w->why, sizeof(w->why), "the agent is not alive: %s", h.reason);
	else if (!ret && !w->reached)
		not_ready(&h.conditions, w->why, sizeof(w->why));
	ctl_rows_deinit(&h.conditions);
	return ret;
}

/* Waits for the signal, because an agent that ends is drained only for a moment. */
static int drained_wait(struct ctl *c, int64_t ends_ns, struct ctl_wait_state *w)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
	int ret = CTL_WAKE_READY;

	if (ctl_bus_subscribe(c, DRAY_DBUS_SIGNAL_STATE_CHANGED) < 0 ||
	    ctl_properties_get(c, &p) < 0)
		return -1;
	c->news.drained |= !strcmp(p.v.state, CTL_STATE_DRAINED);
	snprintf(w->why, sizeof(w->why), "the agent is %s", p.v.state);
	while (!c->news.drained && ret == CTL_WAKE_READY) {
		c->news.any = false;
		ret = ctl_bus_wait(c, true, ends_ns);
	}
	w->reached = c->news.drained;
	w->interrupted = ret == CTL_WAKE_END;
	return ret < 0 ? ret : 0;
}

/*
 * One look, which ends at ends_ns (0: no limit). An agent that cannot be reached is not an error, because it may start
 * later; an agent that refuses us is an error.
 */
static int look(struct ctl *c, const struct ctl_segment_goal *segment, int64_t ends_ns,
		struct ctl_wait_state *w)
{
	int64_t goal = c->numbers[CTL_OPTION_FOR];
	/* Even at the end of the time, the agent gets a moment to answer. */
	int64_t left = dray_max(ends_ns - dray_now().ns, (int64_t)LOOK_NS);
	int64_t timeout_ns = c->numbers[CTL_OPTION_TIMEOUT];
	int ret = ctl_bus_open(c, ends_ns ? dray_min(timeout_ns, left) : timeout_ns);

	w->reached = false;
	if (!ret && segment->segment)
		ret = ctl_segment_wait(c, true, segment, ends_ns, w);
	else if (!ret && goal == CTL_FOR_GONE)
		snprintf(w->why, sizeof(w->why), "the agent is still there");
	else if (!ret && goal == CTL_FOR_DRAINED)
		ret = drained_wait(c, ends_ns, w);
	else if (!ret)
		ret = health_look(c, goal == CTL_FOR_LIVE, w);
	ctl_bus_close(c);
	if (!ret)
		return 0;
	if (c->failure.exit != CTL_EXIT_UNREACHABLE)
		return -1;
	/* An agent that does not answer, or has too many clients, is still there. */
	w->reached = goal == CTL_FOR_GONE && c->failure.absent;
	snprintf(w->why, sizeof(w->why), "%s", c->failure.msg);
	c->failure = CTL_FAILURE_NULL;
	return 0;
}

static int goal_wait(struct ctl *c, const struct ctl_segment_goal *segment,
		     struct ctl_wait_state *w)
{
	int64_t limit_ns = c->numbers[CTL_OPTION_WAIT_LIMIT];
	int64_t ends_ns = limit_ns ? dray_now().ns + limit_ns : 0;

	for (;;) {
		int64_t pause_ns = LOOK_NS;
		int ret = look(c, segment, ends_ns, w);

		if (ret < 0 || w->reached)
			return ret;
		if (ends_ns)
			pause_ns = dray_min(pause_ns, ends_ns - dray_now().ns);
		if (!w->interrupted && pause_ns > 0) {
			ret = ctl_interrupt_wait(c, -1, pause_ns);
			if (ret < 0)
				return ret;
			w->interrupted = ret == CTL_WAKE_END;
		}
		if (w->interrupted)
			return ctl_failed(c, "interrupted: %s", w->why);
		if (ends_ns && dray_now().ns >= ends_ns)
			return ctl_failed(c, "%s", w->why);
	}
}

static int state_find(struct ctl *c, const char *name, const char **ret)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(states); i++)
		if (!strcmp(states[i], name)) {
			*ret = states[i];
			return 0;
		}
	return ctl_misuse(c, "state=%.40s is not allowed; use unknown, probing, ready or lost",
			  name);
}

static int segment_find(struct ctl *c, const char *name, const char **ret)
{
	*ret = name;
	if (!strcmp(name, "self") || !strcmp(name, "own"))
		*ret = CTL_SEGMENT_LOCAL;
	else if (strcmp(name, CTL_SEGMENT_LOCAL) && strcmp(name, CTL_SEGMENT_PREFERRED) &&
		 !dray_endpoint_valid(name))
		return ctl_misuse(
			c, "segment=%.100s is not allowed; use HOST:PORT, local or preferred",
			name);
	return 0;
}

/* Reads segment=... and state=..., in any order. */
static int segment_goal(struct ctl *c, struct ctl_segment_goal *ret)
{
	*ret = (struct ctl_segment_goal){ .state = NULL };
	for (unsigned i = 0; i < c->n_args; i++) {
		const char *arg = c->args[i];
		bool segment = !strncmp(arg, "segment=", 8), state = !strncmp(arg, "state=", 6);
		int r;

		if ((segment && ret->segment) || (state && ret->state))
			return ctl_misuse(c, "%s is given twice; give it once",
					  segment ? "segment=" : "state=");
		if (segment)
			r = segment_find(c, arg + 8, &ret->segment);
		else if (state)
			r = state_find(c, arg + 6, &ret->state);
		else
			r = ctl_misuse(
				c,
				"unknown argument \"%.60s\"; use segment=SEGMENT and state=STATE",
				arg);
		if (r < 0)
			return r;
	}
	if (!ret->segment)
		return ctl_misuse(c, "state= has no effect without segment=; give both");
	if (c->values[CTL_OPTION_FOR])
		return ctl_misuse(c, "--for and segment= exclude each other; give one of them");
	if (!ret->state)
		ret->state = "ready";
	return 0;
}

int ctl_wait(struct ctl *c)
{
	struct ctl_segment_goal segment = { .segment = NULL };
	struct ctl_wait_state w = { .why = "" };
	struct ctl_json j = CTL_JSON(c->out);
	const char *reached;

	if ((c->n_args && segment_goal(c, &segment) < 0) || goal_wait(c, &segment, &w) < 0)
		return -1;
	reached = segment.segment ? segment.state :
				    ctl_options[CTL_OPTION_FOR].words[c->numbers[CTL_OPTION_FOR]];
	if (c->format != CTL_JSON)
		fprintf(c->out, "%s%s%s\n", w.segment, *w.segment ? "\t" : "", reached);
	else if (*w.segment)
		ctl_json_record(&j, NULL, J_TEXT("reached", reached), J_TEXT("segment", w.segment));
	else
		ctl_json_record(&j, NULL, J_TEXT("reached", reached));
	return CTL_EXIT_OK;
}
