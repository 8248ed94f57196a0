/* SPDX-License-Identifier: Apache-2.0 */
/* drain: starts a drain, and may wait for its end. resume: ends a drain. */
#include <inttypes.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* The state is read this often, because no signal reports that the agent is stopped. */
#define LOOK_NS (1 * DRAY_NS_PER_SEC)

static int ended(struct ctl *c)
{
	return ctl_failed(c, "the agent ended before it reported that it was drained; see its log");
}

/*
 * Waits until the last session has ended, or until the agent does not run any more. The session still counts while the
 * signal of its end is sent.
 */
static int unused_wait(struct ctl *c)
{
	for (;;) {
		ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
		uint64_t sessions;

		c->news.any = false;
		if (ctl_properties_get(c, &p) < 0 || ctl_counters_get(c, &p) < 0)
			return -1;
		sessions = ctl_properties_counter(&p, "dray_sessions");
		if (!sessions || strcmp(p.v.state, CTL_STATE_RUNNING) != 0)
			return 0;
		if (c->format == CTL_TEXT) {
			fprintf(c->err, "waiting: %" PRIu64 " session%s left\n", sessions,
				sessions == 1 ? "" : "s");
			fflush(c->err);
		}
		if (ctl_bus_wait(c, false, dray_now().ns + LOOK_NS) == CTL_WAKE_CLOSED)
			return ended(c);
	}
}

/* Sets *ret_already if the agent is draining or drained. */
static int state_before(struct ctl *c, bool *ret_already)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;

	if (ctl_properties_get(c, &p) < 0)
		return -1;
	*ret_already = strcmp(p.v.state, CTL_STATE_RUNNING) != 0;
	c->news.drained |= !strcmp(p.v.state, CTL_STATE_DRAINED);
	return 0;
}

/* 0 also if the agent is draining already, because the request is fulfilled. */
static int drain_start(struct ctl *c, bool *already)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	int64_t ms = (c->numbers[CTL_OPTION_LIMIT] + DRAY_NS_PER_MS - 1) / DRAY_NS_PER_MS;
	bool stay = c->values[CTL_OPTION_STAY];
	int ret;

	if (c->values[CTL_OPTION_FORCE])
		ret = ctl_bus_call(c, DRAY_DBUS_METHOD_DRAIN_NOW, &reply, "b", stay);
	else
		ret = ctl_bus_call(c, DRAY_DBUS_METHOD_DRAIN, &reply, "ub", (uint32_t)ms, stay);
	if (!ret)
		return 0;
	if (!strcmp(c->failure.name, DRAY_DBUS_ERROR_DRAINING) ||
	    !strcmp(c->failure.name, DRAY_DBUS_ERROR_STOPPING)) {
		*already = true;
		c->failure = CTL_FAILURE_NULL;
		return 0;
	}
	/* The earlier drain may have ended, and the agent with it. */
	if (!*already || c->failure.exit != CTL_EXIT_UNREACHABLE)
		return -1;
	c->failure = CTL_FAILURE_NULL;
	return c->news.drained ? 0 : ended(c);
}

const char *ctl_drain_text(const struct ctl_properties *p, char *buf, size_t n)
{
	int at = snprintf(buf, n,
			  "%" PRIu64 " transfer%s with %s left, %" PRIu64 " grant%s of peers, ",
			  p->v.transfers_left, p->v.transfers_left == 1 ? "" : "s",
			  ctl_size(p->v.bytes_left), p->v.grants_left,
			  p->v.grants_left == 1 ? "" : "s");

	if (p->v.deadline_ns)
		snprintf(buf + at, n - (size_t)at, "will be stopped in %s at the latest",
			 ctl_span(p->v.deadline_ns));
	else
		snprintf(buf + at, n - (size_t)at, "being stopped");
	return buf;
}

/* Reads the state, and prints progress on the error stream, since scripts read only the end. */
static int state_look(struct ctl *c)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;
	char text[CTL_DRAIN_BYTES];

	if (ctl_properties_get(c, &p) < 0)
		return -1;
	c->news.drained |= !strcmp(p.v.state, CTL_STATE_DRAINED);
	c->news.running |= !strcmp(p.v.state, CTL_STATE_RUNNING);
	if (!c->news.drained && !c->news.running && c->format == CTL_TEXT) {
		fprintf(c->err, "draining: %s\n", ctl_drain_text(&p, text, sizeof(text)));
		fflush(c->err);
	}
	return 0;
}

/* Waits until the drain ends. The agent enforces the limit; here, only its silence ends the wait. */
static int drain_wait(struct ctl *c)
{
	int64_t look_ns = dray_now().ns + LOOK_NS;

	while (!c->news.drained && !c->news.running) {
		int ret = ctl_bus_wait(c, false, look_ns);

		c->news.any = false;
		if (ret == CTL_WAKE_CLOSED)
			return ended(c);
		if (ret != CTL_WAKE_TIME)
			continue;
		if (state_look(c) < 0 && !c->news.drained) {
			if (sd_bus_is_open(c->bus) > 0)
				return -1;
			/* The agent ended between the call and its answer. */
			c->failure = CTL_FAILURE_NULL;
			return ended(c);
		}
		look_ns = dray_now().ns + LOOK_NS;
	}
	return 0;
}

/* note: follows the state in the text for people. */
static void state_print(struct ctl *c, const char *state, bool already, const char *note)
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_TEXT("state", state), J_BOOL("already", already));
	else
		fprintf(c->out, "%s%s\n", state, c->format == CTL_TEXT ? note : "");
}

int ctl_drain(struct ctl *c)
{
	bool force = c->values[CTL_OPTION_FORCE], already, drained;
	const char *note = "";

	if (c->values[CTL_OPTION_WHEN_UNUSED] &&
	    (ctl_bus_subscribe(c, DRAY_DBUS_SIGNAL_SESSION_CLOSED) < 0 || unused_wait(c) < 0))
		return -1;
	/* The signal is needed before the call, since the agent may be drained before the answer arrives. */
	if (ctl_bus_subscribe(c, DRAY_DBUS_SIGNAL_STATE_CHANGED) < 0 ||
	    state_before(c, &already) < 0 || drain_start(c, &already) < 0 ||
	    (c->values[CTL_OPTION_WAIT] && drain_wait(c) < 0))
		return -1;
	if (c->news.running)
		return ctl_failed(c, "a resume ended the drain");
	drained = c->news.drained;
	if (already && !force)
		note = " already; a drain that has begun keeps its limit and its --stay";
	else if (already && !drained)
		note = " already; its limit is now";
	state_print(c, drained ? CTL_STATE_DRAINED : "draining", already, note);
	return CTL_EXIT_OK;
}

int ctl_resume(struct ctl *c)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	bool draining;

	/* A running agent gets the call too, because a drain may have begun since. */
	if (state_before(c, &draining) < 0 ||
	    ctl_bus_call(c, DRAY_DBUS_METHOD_RESUME, &reply, NULL) < 0)
		return -1;
	state_print(c, CTL_STATE_RUNNING, !draining, draining ? "" : " already");
	return CTL_EXIT_OK;
}
