/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of the store, which the agent checks: it has the password and the certificates, and its connections. */
#include "ctl/check/check.h"

#include <string.h>

#include "ctl/bus/bus.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"

#define CHECK "store directory"
#define PAUSE_NS (20 * DRAY_NS_PER_MS)

struct answer {
	char state[16], why[200];
	int pending;
};

static int ask(struct ctl *c, bool begin, struct answer *ret)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	const char *state, *why;
	int r;

	if (ctl_bus_call(c, DRAY_DBUS_METHOD_CHECK_STORE_DIRECTORY, &reply, "b", (int)begin) < 0)
		return -1;
	r = sd_bus_message_read(reply, "ssb", &state, &why, &ret->pending);
	if (r <= 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_CHECK_STORE_DIRECTORY, r);
	snprintf(ret->state, sizeof(ret->state), "%s", state);
	snprintf(ret->why, sizeof(ret->why), "%s", why);
	return 0;
}

/* Until the check has ended, or the time of one call is over. */
static int ask_all(struct ctl *c, struct answer *ret)
{
	int64_t ends = dray_now().ns + c->numbers[CTL_OPTION_TIMEOUT];
	int r = ask(c, true, ret);

	while (r == 0 && ret->pending && dray_now().ns < ends) {
		const struct timespec pause = { .tv_nsec = PAUSE_NS };

		nanosleep(&pause, NULL);
		r = ask(c, false, ret);
	}
	return r;
}

static bool not_asked(struct ctl *c, struct nd_findings *f)
{
	const struct ctl_failure failure = c->failure;

	c->failure = CTL_FAILURE_NULL;
	/* without an agent there is nothing to check; an earlier release cannot do it */
	if (failure.absent || !strcmp(failure.name, SD_BUS_ERROR_UNKNOWN_METHOD))
		return true;
	return nd_findings_add(f, ND_INFO, CHECK, "", "", "the agent was not asked: %.200s",
			       failure.msg);
}

bool ctl_check_directory(struct ctl *c, struct nd_findings *f)
{
	struct answer a;

	if (ask_all(c, &a) < 0)
		return not_asked(c, f);
	if (!strcmp(a.state, "none"))
		return true;
	if (a.pending)
		return nd_findings_add(f, ND_WARNING, CHECK, "",
				       "check the server, and the network on the way to it",
				       "%.180s does not answer", *a.why ? a.why : "the server");
	if (!strcmp(a.state, "ok"))
		return nd_findings_add(f, ND_OK, CHECK, "", "", "%s takes commands", a.why);
	return nd_findings_add(
		f, ND_WARNING, CHECK, "",
		"give the server and its user what docs/store.md says; while the directory is down or "
		"refuses entries, all agents of store.peers are asked for objects",
		"%s", a.why);
}
