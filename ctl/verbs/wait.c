/* SPDX-License-Identifier: Apache-2.0 */
/* wait: returns when the agent, or a segment of its, is what one waits for; started or not yet. */
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/verbs/health.h"
#include "ctl/interrupt.h"
#include "ctl/render/json.h"
#include "ctl/bus/properties.h"
#include "ctl/verbs/segments.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* Between two looks: nothing tells of a socket that is not there yet. */
#define LOOK_NS (100 * DRAY_NS_PER_MS)
#define LIMIT_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)

enum goal { READY, LIVE, DRAINED, GONE, SEGMENT };

static const char *const goals[] = { "ready", "live", "drained", "gone", NULL };
static const char *const states[] = { "unknown", "probing", "ready", "lost" };

struct look {
	bool reached, interrupted;
	char why[400];     /* not yet */
	char segment[300]; /* which one it is */
};

/* Why not yet, in words. */
static void not_ready(const struct ctl_health *h, char *buf, size_t n)
{
	snprintf(buf, n, "the agent is not ready");
	for (size_t i = 0; i < h->conditions.n; i++) {
		const struct ctl_value *v = ctl_rows_at(&h->conditions, i, 0);

		if (ctl_rows_at(&h->conditions, i, DRAY_DBUS_CONDITION_FIELD_OK)->n ||
		    !ctl_rows_at(&h->conditions, i, DRAY_DBUS_CONDITION_FIELD_REQUIRED)->n)
			continue;
		snprintf(buf, n, "the agent is not ready: %s: %s",
			 v[DRAY_DBUS_CONDITION_FIELD_NAME].s,
			 v[DRAY_DBUS_CONDITION_FIELD_REASON].s);
		return;
	}
}

static int health_look(struct ctl_bus *b, enum goal goal, struct look *l, struct ctl_err *reterr)
{
	struct ctl_health h = CTL_HEALTH_NULL;
	sd_bus_message *reply = NULL;
	int ret = ctl_health_ask(b, &h, &reply, reterr);

	l->reached = !ret && (goal == LIVE ? h.alive : h.ready);
	if (!ret && !l->reached && goal == LIVE)
		snprintf(l->why, sizeof(l->why), "the agent is not alive: %s", h.reason);
	else if (!ret && !l->reached)
		not_ready(&h, l->why, sizeof(l->why));
	ctl_rows_deinit(&h.conditions);
	sd_bus_message_unref(reply);
	return ret;
}

static int hear_state(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *old, *new;
	bool *drained = userdata;

	if (sd_bus_message_read(m, "ss", &old, &new) > 0 && !strcmp(new, goals[DRAINED]))
		*drained = true;
	return 0;
}

/* Is it drained, or is so within the time? An agent that ends is that only for a moment: a signal tells. */
static int drained_look(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in, int64_t time_ns,
			struct look *l, struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + time_ns;
	struct ctl_properties p;

	if (sd_bus_match_signal(b->bus, NULL, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
				DRAY_DBUS_SIGNAL_STATE_CHANGED, hear_state, &l->reached) < 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory");
	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	l->reached |= !strcmp(p.state, goals[DRAINED]);
	snprintf(l->why, sizeof(l->why), "the agent is %s", p.state);
	ctl_properties_deinit(&p);
	while (!l->reached) {
		int ret = ctl_bus_turn(b, 0);
		int64_t left = ends - dray_now().ns;

		if (ret > 0)
			continue;
		/* gone: the next look says how */
		if (ret < 0 || (time_ns && left <= 0))
			return 0;
		ret = ctl_interrupt_wait(in, c->out, sd_bus_get_fd(b->bus), time_ns ? left : -1,
					 reterr);
		if (ret < 0)
			return ret;
		l->interrupted = ret == CTL_WAKE_END;
		if (l->interrupted)
			return 0;
	}
	return 0;
}

static int segment_look(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in, int64_t time_ns,
			const struct ctl_segment_goal *goal, struct look *l, struct ctl_err *reterr)
{
	struct ctl_segment_look s = { .why = "" };
	int ret =
		ctl_segment_wait(c, b, in, goal, time_ns ? dray_now().ns + time_ns : 0, &s, reterr);

	l->reached = s.reached;
	l->interrupted = s.interrupted;
	memcpy(l->why, s.why, sizeof(l->why));
	memcpy(l->segment, s.segment, sizeof(l->segment));
	return ret;
}

/*
 * One look, of at most that long; 0: as long as it takes. An agent that cannot be asked is nothing to fail for,
 * only not there yet; one that refuses us is.
 */
static int look(struct ctl *c, struct ctl_interrupt *in, enum goal goal,
		const struct ctl_segment_goal *segment, int64_t time_ns, struct look *l,
		struct ctl_err *reterr)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	int64_t timeout_ns = time_ns ? dray_min(c->timeout_ns, time_ns) : c->timeout_ns;
	int ret = ctl_bus_open(&bus, c->control, timeout_ns, &err);

	l->reached = false;
	if (!ret && goal == GONE)
		snprintf(l->why, sizeof(l->why), "the agent is still there");
	else if (!ret && goal == DRAINED)
		ret = drained_look(c, &bus, in, time_ns, l, &err);
	else if (!ret && goal == SEGMENT)
		ret = segment_look(c, &bus, in, time_ns, segment, l, &err);
	else if (!ret)
		ret = health_look(&bus, goal, l, &err);
	ctl_bus_close(&bus);
	if (!ret)
		return 0;
	if (err.exit != CTL_EXIT_UNREACHABLE)
		return ctl_err_set(reterr, err.exit, "%s", err.msg);
	/* one that gives no answer, or has too many clients, is there all the same */
	l->reached |= goal == GONE && err.absent;
	snprintf(l->why, sizeof(l->why), "%s", err.msg);
	return 0;
}

static int run(struct ctl *c, struct ctl_interrupt *in, enum goal goal,
	       const struct ctl_segment_goal *segment, int64_t limit_ns, struct look *ret_look,
	       struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + limit_ns, left = limit_ns;
	struct look l = { .why = "" };

	for (;;) {
		int ret = look(c, in, goal, segment, left, &l, reterr);

		if (ret < 0 || l.reached) {
			*ret_look = l;
			return ret;
		}
		left = limit_ns ? ends - dray_now().ns : 0;
		if (limit_ns && left <= 0)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", l.why);
		if (!l.interrupted) {
			ret = ctl_interrupt_wait(
				in, c->out, -1,
				limit_ns ? dray_min(left, (int64_t)LOOK_NS) : LOOK_NS, reterr);
			if (ret < 0)
				return ret;
			l.interrupted = ret == CTL_WAKE_END;
		}
		if (l.interrupted)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "interrupted: %s", l.why);
	}
}

/* --- what to wait for ----------------------------------------------------------------------------- */

static int state_find(const char *name, const char **ret, struct ctl_err *reterr)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(states); i++)
		if (!strcmp(states[i], name)) {
			*ret = states[i];
			return 0;
		}
	return ctl_err_set(reterr, CTL_EXIT_USAGE,
			   "state=%.40s: unknown, probing, ready or lost is allowed", name);
}

static int segment_find(const char *name, const char **ret, struct ctl_err *reterr)
{
	*ret = name;
	if (!strcmp(name, "self") || !strcmp(name, "own"))
		*ret = CTL_SEGMENT_LOCAL;
	else if (strcmp(name, CTL_SEGMENT_LOCAL) && strcmp(name, CTL_SEGMENT_PREFERRED) &&
		 !dray_segment_valid(name))
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "segment=%.100s: HOST:PORT, local or preferred is allowed",
				   name);
	return 0;
}

/* segment=... and state=..., in any order. */
static int segment_goal(struct ctl *c, struct ctl_segment_goal *ret, struct ctl_err *reterr)
{
	*ret = (struct ctl_segment_goal){ .state = "ready" };
	for (unsigned i = 0; i < c->n_args; i++) {
		const char *arg = c->args[i];
		int r;

		if (!strncmp(arg, "segment=", 8))
			r = segment_find(arg + 8, &ret->segment, reterr);
		else if (!strncmp(arg, "state=", 6))
			r = state_find(arg + 6, &ret->state, reterr);
		else
			r = ctl_err_set(reterr, CTL_EXIT_USAGE,
					"\"%.60s\": segment=SEGMENT and state=STATE are allowed",
					arg);
		if (r < 0)
			return r;
	}
	if (!ret->segment)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "state= goes with segment=");
	if (c->values[CTL_OPTION_FOR])
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "--for and segment= exclude each other");
	return 0;
}

static void reached_print(struct ctl *c, const char *what, const char *segment)
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format != CTL_JSON) {
		fprintf(c->out, "%s%s%s\n", segment, *segment ? "\t" : "", what);
		return;
	}
	ctl_json_object(&j, NULL);
	ctl_json_string(&j, "reached", what);
	if (*segment)
		ctl_json_string(&j, "segment", segment);
	ctl_json_end(&j);
}

int ctl_wait(struct ctl *c)
{
	struct ctl_segment_goal segment = { .segment = NULL };
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_interrupt in;
	struct look l = { .why = "" };
	int64_t limit_ns = 0;
	int goal, ret;

	ret = ctl_option_word(c, CTL_OPTION_FOR, goals, &goal, &err);
	if (!ret)
		ret = ctl_option_span(c, CTL_OPTION_WAIT_LIMIT, DRAY_NS_PER_MS, LIMIT_MAX_NS, 0,
				      &limit_ns, &err);
	if (!ret && c->n_args) {
		ret = segment_goal(c, &segment, &err);
		goal = SEGMENT;
	}
	if (!ret)
		ret = ctl_interrupt_begin(&in, &err);
	if (!ret) {
		ret = run(c, &in, (enum goal)goal, &segment, limit_ns, &l, &err);
		ctl_interrupt_end(&in);
	}
	if (ret < 0)
		return ctl_fail(c, &err);
	reached_print(c, goal == SEGMENT ? segment.state : goals[goal], l.segment);
	return CTL_EXIT_OK;
}
