/* SPDX-License-Identifier: Apache-2.0 */
/* drain: asks for it, and may wait for the end. resume: takes it back. */
#include "ctl/verbs/drain.h"

#include <inttypes.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/bus/bus.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/bus/properties.h"
#include "ctl/bus/rows.h"
#include "lib/err.h"
#include "lib/time.h"

/* A silent agent is asked for its state this often: signals alone do not tell that it is stopped. */
#define LOOK_NS (1 * DRAY_NS_PER_SEC)
#define DRAIN_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)
#define DRAINED "drained"
#define RUNNING "running"

struct drain {
	bool drained;
	bool already; /* it was under way, or done */
	bool resumed; /* somebody took it back */
	bool gone;    /* the agent has ended */
};

/* A drain that was taken back is over, as one that is done is. */
static void state_take(struct drain *d, const char *state)
{
	d->drained |= !strcmp(state, DRAINED);
	d->resumed |= !strcmp(state, RUNNING);
}

static int hear_state(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct drain *d = userdata;
	const char *old, *new;

	if (sd_bus_message_read(m, "ss", &old, &new) > 0)
		state_take(d, new);
	return 0;
}

/* 0, also where it is draining already: what was asked for happens. */
static int drain_ask(struct ctl *c, struct ctl_bus *b, struct drain *d, int64_t limit_ns,
		     struct ctl_err *reterr)
{
	int64_t ms = (limit_ns + DRAY_NS_PER_MS - 1) / DRAY_NS_PER_MS;
	bool stay = c->values[CTL_OPTION_STAY];
	sd_bus_message *reply = NULL;
	int ret;

	if (c->values[CTL_OPTION_FORCE])
		ret = ctl_bus_ask(b, DRAY_DBUS_METHOD_DRAIN_NOW, &reply, reterr, "b", stay);
	else
		ret = ctl_bus_ask(b, DRAY_DBUS_METHOD_DRAIN, &reply, reterr, "ub", (uint32_t)ms,
				  stay);
	sd_bus_message_unref(reply);
	if (ret < 0 && (!strcmp(reterr->name, DRAY_DBUS_ERROR_DRAINING) ||
			!strcmp(reterr->name, DRAY_DBUS_ERROR_STOPPING))) {
		d->already = true;
	} else if (ret < 0 && d->already && reterr->exit == CTL_EXIT_UNREACHABLE) {
		/* the drain that was under way has ended, and the agent with it */
		d->gone = !d->drained;
	} else {
		return ret;
	}
	*reterr = CTL_ERR_NULL;
	return 0;
}

/* Was it draining, or drained, before anybody asked? */
static int state_before(struct ctl_bus *b, struct drain *d, struct ctl_err *reterr)
{
	struct ctl_properties p;

	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	d->already = strcmp(p.state, RUNNING) != 0;
	d->drained |= !strcmp(p.state, DRAINED);
	ctl_properties_deinit(&p);
	return 0;
}

const char *ctl_drain_text(const struct ctl_properties *p, char *buf, size_t n)
{
	char bytes[CTL_HUMAN_BYTES], left[CTL_HUMAN_BYTES];
	int at = snprintf(buf, n,
			  "%" PRIu64 " transfer%s with %s to go, %" PRIu64 " grant%s of peers, ",
			  p->transfers_left, p->transfers_left == 1 ? "" : "s",
			  ctl_show_size(p->bytes_left, bytes), p->grants_left,
			  p->grants_left == 1 ? "" : "s");

	if (p->deadline_ns)
		snprintf(buf + at, n - (size_t)at, "stopped in %s at the latest",
			 ctl_show_span(p->deadline_ns, left));
	else
		snprintf(buf + at, n - (size_t)at, "being stopped");
	return buf;
}

/* On the error stream: what scripts read is the end. */
static void progress_print(struct ctl *c, const struct ctl_properties *p)
{
	char text[CTL_DRAIN_BYTES];

	if (c->format != CTL_TEXT)
		return;
	fprintf(c->err, "draining: %s\n", ctl_drain_text(p, text, sizeof(text)));
	fflush(c->err);
}

static int state_look(struct ctl *c, struct ctl_bus *b, struct drain *d, struct ctl_err *reterr)
{
	struct ctl_properties p;

	if (ctl_properties_get(&p, b, reterr) < 0)
		return -1;
	state_take(d, p.state);
	if (!d->drained && !d->resumed && c->values[CTL_OPTION_WAIT])
		progress_print(c, &p);
	ctl_properties_deinit(&p);
	return 0;
}

/*
 * Until it is drained or gone. How long that takes is the agent's to say, by its limit; here only its silence
 * ends the wait.
 */
static int drain_wait(struct ctl *c, struct ctl_bus *b, struct drain *d, struct ctl_err *reterr)
{
	while (!d->drained && !d->resumed) {
		int64_t look = dray_now().ns + LOOK_NS, left;

		while (!d->drained && !d->resumed && (left = look - dray_now().ns) > 0) {
			if (ctl_bus_turn(b, left) >= 0)
				continue;
			d->gone = true;
			return 0;
		}
		if (d->drained || d->resumed || state_look(c, b, d, reterr) == 0)
			continue;
		/* it may end between the question and the answer */
		if (sd_bus_is_open(b->bus) > 0 || d->drained)
			return d->drained ? 0 : -1;
		*reterr = CTL_ERR_NULL;
		d->gone = true;
		return 0;
	}
	return 0;
}

/* note: what the text says beside the state, or NULL. */
static void state_print(struct ctl *c, const char *state, bool already, const char *note)
{
	struct ctl_json j = CTL_JSON(c->out);

	switch (c->format) {
	case CTL_JSON:
		ctl_json_object(&j, NULL);
		ctl_json_string(&j, "state", state);
		ctl_json_bool(&j, "already", already);
		ctl_json_end(&j);
		break;
	case CTL_PLAIN:
		fprintf(c->out, "%s\n", state);
		break;
	case CTL_TEXT:
		fprintf(c->out, "%s%s\n", state, note ? note : "");
		break;
	}
}

static void drain_print(struct ctl *c, const struct drain *d)
{
	const char *note = c->values[CTL_OPTION_FORCE] ? " already; its limit is now" :
							 " already; its limit stays what it was";

	state_print(c, d->drained ? DRAINED : "draining", d->already,
		    d->already && !d->drained ? note : NULL);
}

int ctl_drain(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct drain d = { false };
	int64_t limit_ns;
	int ret;

	if (c->values[CTL_OPTION_FORCE] && c->values[CTL_OPTION_LIMIT]) {
		ctl_err_set(&err, CTL_EXIT_USAGE, "--force and --timeout exclude each other");
		return ctl_fail(c, &err);
	}
	ret = ctl_option_span(c, CTL_OPTION_LIMIT, DRAY_NS_PER_MS, DRAIN_MAX_NS, 0, &limit_ns,
			      &err);
	if (!ret)
		ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	/* before the call: it may be drained before the answer is here */
	if (!ret && sd_bus_match_signal(bus.bus, NULL, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
					DRAY_DBUS_SIGNAL_STATE_CHANGED, hear_state, &d) < 0)
		ret = ctl_err_set(&err, CTL_EXIT_FAILED, "out of memory");
	if (!ret)
		ret = state_before(&bus, &d, &err);
	if (!ret)
		ret = drain_ask(c, &bus, &d, limit_ns, &err);
	if (!ret && c->values[CTL_OPTION_WAIT] && !d.gone)
		ret = drain_wait(c, &bus, &d, &err);
	if (!ret && d.resumed)
		ret = ctl_err_set(&err, CTL_EXIT_FAILED, "the drain was taken back by a resume");
	if (!ret && d.gone)
		ret = ctl_err_set(&err, CTL_EXIT_FAILED,
				  "the agent ended without saying that it was drained");
	if (!ret)
		drain_print(c, &d);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

int ctl_resume(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct drain before = { false };
	sd_bus_message *reply = NULL;
	bool running;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = state_before(&bus, &before, &err);
	/* asked for all the same: a drain may have begun since */
	if (!ret)
		ret = ctl_bus_ask(&bus, DRAY_DBUS_METHOD_RESUME, &reply, &err, NULL);
	sd_bus_message_unref(reply);
	running = !before.already;
	if (!ret)
		state_print(c, RUNNING, running, running ? " already" : NULL);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
