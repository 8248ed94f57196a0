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

static int health_look(struct ctl_bus *b, enum goal goal, bool *ret_reached, char *why, size_t n,
		       struct ctl_err *reterr)
{
	struct ctl_health h = CTL_HEALTH_NULL;
	sd_bus_message *reply = NULL;
	int ret = ctl_health_ask(b, &h, &reply, reterr);

	*ret_reached = !ret && (goal == LIVE ? h.alive : h.ready);
	if (!ret && !*ret_reached && goal == LIVE)
		snprintf(why, n, "the agent is not alive: %s", h.reason);
	else if (!ret && !*ret_reached)
		not_ready(&h, why, n);
	ctl_rows_deinit(&h.conditions);
	sd_bus_message_unref(reply);
	return ret;
}

static int state_look(struct ctl_bus *b, bool *ret_reached, char *why, size_t n,
		      struct ctl_err *reterr)
{
	struct ctl_properties p;

	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	*ret_reached = !strcmp(p.state, goals[DRAINED]);
	snprintf(why, n, "the agent is %s", p.state);
	ctl_properties_deinit(&p);
	return 0;
}

/* An agent that cannot be asked is nothing to fail for, only not there yet; one that refuses us is. */
static int look(struct ctl *c, enum goal goal, bool *ret_reached, char *why, size_t n,
		struct ctl_err *reterr)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	int ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);

	*ret_reached = false;
	if (!ret && goal == GONE)
		snprintf(why, n, "the agent is still there");
	else if (!ret && goal == DRAINED)
		ret = state_look(&bus, ret_reached, why, n, &err);
	else if (!ret)
		ret = health_look(&bus, goal, ret_reached, why, n, &err);
	ctl_bus_close(&bus);
	if (!ret)
		return 0;
	if (err.exit != CTL_EXIT_UNREACHABLE)
		return ctl_err_set(reterr, err.exit, "%s", err.msg);
	*ret_reached = goal == GONE;
	snprintf(why, n, "%s", err.msg);
	return 0;
}

static int run(struct ctl *c, struct ctl_interrupt *in, enum goal goal, int64_t limit_ns,
	       struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + limit_ns;
	char why[sizeof(reterr->msg)] = "";
	bool reached;

	for (;;) {
		int64_t left;
		int ret = look(c, goal, &reached, why, sizeof(why), reterr);

		if (ret < 0 || reached)
			return ret;
		left = ends - dray_now().ns;
		if (limit_ns && left <= 0)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "%s", why);
		ret = ctl_interrupt_wait(in, c->out, -1,
					 limit_ns ? dray_min(left, (int64_t)LOOK_NS) : LOOK_NS,
					 reterr);
		if (ret < 0)
			return ret;
		if (ret == CTL_WAKE_END)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "interrupted: %s", why);
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
