/* SPDX-License-Identifier: Apache-2.0 */
/* wait: returns when the agent is what one waits for, started or not yet. */
#include <string.h>

#include "ctl/args.h"
#include "ctl/change.h"
#include "ctl/health.h"
#include "ctl/interrupt.h"
#include "ctl/properties.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* Between two looks: nothing tells of a socket that is not there yet. */
#define LOOK_NS (100 * DRAY_NS_PER_MS)
#define LIMIT_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)

enum goal { READY, LIVE, DRAINED, GONE };

static const char *const goals[] = { "ready", "live", "drained", "gone", NULL };

struct look {
	bool reached, interrupted;
	char why[400]; /* not yet */
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

/*
 * One look, of at most that long; 0: as long as it takes. An agent that cannot be asked is nothing to fail for,
 * only not there yet; one that refuses us is.
 */
static int look(struct ctl *c, struct ctl_interrupt *in, enum goal goal, int64_t time_ns,
		struct look *l, struct ctl_err *reterr)
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

static int run(struct ctl *c, struct ctl_interrupt *in, enum goal goal, int64_t limit_ns,
	       struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + limit_ns, left = limit_ns;
	struct look l = { .why = "" };

	for (;;) {
		int ret = look(c, in, goal, left, &l, reterr);

		if (ret < 0 || l.reached)
			return ret;
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

int ctl_wait(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_interrupt in;
	int64_t limit_ns = 0;
	int goal, ret;

	ret = ctl_option_word(c, CTL_OPTION_FOR, goals, &goal, &err);
	if (!ret)
		ret = ctl_option_span(c, CTL_OPTION_WAIT_LIMIT, DRAY_NS_PER_MS, LIMIT_MAX_NS, 0,
				      &limit_ns, &err);
	if (!ret)
		ret = ctl_interrupt_begin(&in, &err);
	if (!ret) {
		ret = run(c, &in, (enum goal)goal, limit_ns, &err);
		ctl_interrupt_end(&in);
	}
	if (ret < 0)
		return ctl_fail(c, &err);
	ctl_result_print(c, "reached", goals[goal]);
	return CTL_EXIT_OK;
}
