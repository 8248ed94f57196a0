/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of dev.dray.Agent1 that change things, for clients that may do so. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/model/handle.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

/* Pending calls of CancelTransfer of one connection. */
#define CANCELS_MAX 64

int bus_check_change(const struct bus_conn *c, const char *method, sd_bus_error *reterr)
{
	if (c->who.may_change)
		return 0;
	bus_warning(c->server, c->who.uid,
		    "%s refused: the client is not root, the agent's user or in the group of "
		    "control.group uid=%u gid=%u pid=%d",
		    method, c->who.uid, c->who.gid, c->who.pid);
	return sd_bus_error_setf(
		reterr, SD_BUS_ERROR_ACCESS_DENIED,
		"%s is for root, the agent's own user and members of control.group%s; you are uid "
		"%u, gid %u",
		method, c->server->rules.has_group ? "" : ", which is not set", c->who.uid,
		c->who.gid);
}

typedef int change_fn(struct bus_conn *c, struct agent *a, sd_bus_message *m, sd_bus_error *reterr);

static int change(sd_bus_message *m, struct bus_conn *c, change_fn *fn, sd_bus_error *reterr)
{
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = fn(c, c->server->agent, m, reterr);
	return ret ? ret : sd_bus_reply_method_return(m, NULL);
}

/* Defines a method. The body that follows returns 0 for an empty reply, 1 if it replies itself, or < 0. */
#define CHANGE(name)                                                                    \
	static change_fn name;                                                          \
	int dbus_method_##name(sd_bus_message *m, void *userdata, sd_bus_error *reterr) \
	{                                                                               \
		return change(m, userdata, name, reterr);                               \
	}                                                                               \
	static int name(struct bus_conn *c, struct agent *a, sd_bus_message *m,         \
			sd_bus_error *reterr)

static int no_session(sd_bus_error *reterr, uint64_t session)
{
	char differs[80];

	if (handle_kind_differs(session, DMSG_HANDLE_KIND_SESSION, differs, sizeof(differs)))
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_INVALID_ARGS,
					 "%s; drayctl sessions lists the sessions", differs);
	return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_NOT_FOUND,
				 "there is no session %" PRIu64
				 "; drayctl sessions lists the others",
				 session);
}

CHANGE(drain)
{
	uint32_t timeout_ms;
	int stay, ret;

	ret = sd_bus_message_read(m, "ub", &timeout_ms, &stay);
	if (ret < 0)
		return ret;
	if (a->state == AGENT_RUNNING && !a->stopping)
		LOG_CHANGE(c, "Drain was called stay=%s", stay ? "yes" : "no");
	ret = agent_drain(a, timeout_ms ? timeout_ms * DRAY_NS_PER_MS : -1, stay);
	if (ret == -EALREADY)
		return sd_bus_error_setf(
			reterr, DRAY_DBUS_ERROR_DRAINING, "the agent is %s already%s",
			a->stopping ? "stopping" : agent_state_name(a->state),
			!a->stopping && a->stay ?
				", and stays when drained; DrainNow or SIGTERM ends it" :
				"");
	return ret;
}

CHANGE(resume)
{
	int ret;

	if (a->state != AGENT_RUNNING)
		LOG_CHANGE(c, "Resume was called");
	ret = agent_resume(a);
	if (ret == -ESHUTDOWN)
		return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_STOPPING,
					 "the agent is %s and will exit",
					 a->stopping ? "stopping" : agent_state_name(a->state));
	return ret;
}

CHANGE(drain_now)
{
	int stay, ret;

	ret = sd_bus_message_read(m, "b", &stay);
	if (ret < 0)
		return ret;
	LOG_CHANGE(c, "DrainNow was called stay=%s", stay ? "yes" : "no");
	ret = agent_drain_now(a, stay);
	if (ret == -ESHUTDOWN)
		return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_STOPPING,
					"the agent is stopping already");
	return ret;
}

static int keys_append(sd_bus_message *reply, const char *const *keys, unsigned n)
{
	int ret = sd_bus_message_open_container(reply, 'a', "s");

	for (unsigned i = 0; i < n && ret >= 0; i++)
		ret = sd_bus_message_append(reply, "s", keys[i]);
	return ret < 0 ? ret : sd_bus_message_close_container(reply);
}

CHANGE(reload)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct config_changes changes;
	int ret;

	LOG_CHANGE(c, "Reload was called");
	if (agent_reload(a, &changes, &err) < 0)
		return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_CONFIG, err.msg);
	ret = sd_bus_message_new_method_return(m, &reply);
	if (ret >= 0)
		ret = keys_append(reply, changes.applied, changes.n_applied);
	if (ret >= 0)
		ret = keys_append(reply, changes.restart, changes.n_restart);
	return ret < 0 ? ret : bus_conn_send(c, reply, 0);
}

CHANGE(set_log_level)
{
	const struct dray_config_key *key = &dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL];
	const char *level;
	char who[64];
	int ret;

	ret = sd_bus_message_read(m, "s", &level);
	if (ret < 0)
		return ret;
	for (size_t i = 0; i < key->n_choices; i++) {
		if (strcmp(key->choices[i], level))
			continue;
		snprintf(who, sizeof(who), "uid %u", c->who.uid);
		agent_set_log_level(a, (enum dray_log_level)i, who);
		return 0;
	}
	return sd_bus_error_setf(
		reterr, SD_BUS_ERROR_INVALID_ARGS,
		"\"%.40s\" is not a log level (allowed: error, warning, notice, info, debug)",
		level);
}

CHANGE(close_session)
{
	const char *reason;
	uint64_t session;
	char why[200];
	int ret;

	ret = sd_bus_message_read(m, "ts", &session, &reason);
	if (ret < 0)
		return ret;
	snprintf(why, sizeof(why), "closed by an operator%s%.160s", *reason ? ": " : "", reason);
	if (sessions_close(a->sessions, session, why) < 0)
		return no_session(reterr, session);
	LOG_CHANGE(c, "session=%" PRIu64 " %s", session, why);
	return 0;
}

struct cancel_call {
	struct pending_reply reply;
	struct transfer_cancel cancel;
};

static void cancelled(struct transfer_cancel *c, bool ended, uint32_t code)
{
	struct pending_reply *call = &dray_container_of(c, struct cancel_call, cancel)->reply;

	if (ended)
		sd_bus_reply_method_return(call->m, "s", dray_error_name(code));
	else if (code == DRAY_E_BUSY)
		sd_bus_reply_method_errorf(call->m, DRAY_DBUS_ERROR_BUSY,
					   "another call is already cancelling the transfer");
	else
		sd_bus_reply_method_errorf(call->m, DRAY_DBUS_ERROR_NOT_FOUND,
					   "the session has no such transfer in flight");
	pending_reply_free(call);
}

static void cancel_forget(struct pending_reply *call)
{
	dray_list_del(&dray_container_of(call, struct cancel_call, reply)->cancel.link);
}

CHANGE(cancel_transfer)
{
	static const struct reply_kind kind = { .what = "calls of CancelTransfer",
						.max = CANCELS_MAX,
						.cancel = cancel_forget };
	uint64_t session, request;
	struct cancel_call *call;
	int ret;

	ret = sd_bus_message_read(m, "tt", &session, &request);
	if (ret < 0)
		return ret;
	call = pending_reply_new(&kind, sizeof(*call), c, m, reterr);
	if (!call)
		return -sd_bus_error_get_errno(reterr);
	call->cancel.fn = cancelled;
	if (agent_cancel(a, session, request, &call->cancel) < 0) {
		pending_reply_free(&call->reply);
		return no_session(reterr, session);
	}
	LOG_CHANGE(c, "CancelTransfer was called session=%" PRIu64 " request=%" PRIu64, session,
		   request);
	return 1;
}

static int rail_switch(struct agent *a, sd_bus_message *m, bool disable, sd_bus_error *reterr)
{
	const char *device;
	uint32_t port;
	int ret;

	ret = sd_bus_message_read(m, "su", &device, &port);
	if (ret < 0)
		return ret;
	ret = rails_disable(a->rails, device, port, disable);
	if (ret == -ENOENT)
		return sd_bus_error_setf(
			reterr, DRAY_DBUS_ERROR_NOT_FOUND,
			"the agent has no rail on port %.60s/%u; drayctl rails lists the others",
			device, port);
	return ret;
}

CHANGE(disable_rail)
{
	return rail_switch(a, m, true, reterr);
}

CHANGE(enable_rail)
{
	return rail_switch(a, m, false, reterr);
}

CHANGE(set_hint)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct hint_put put = { .source = DMSG_HINT_SOURCE_EXPLICIT };
	int ret;

	ret = sd_bus_message_read(m, "ssut", &put.scope, &put.segment, &put.score, &put.ttl_ms);
	if (ret < 0)
		return ret;
	if (hints_put(a->hints, &put, &err) < 0)
		return sd_bus_error_set(reterr,
					err.code == DRAY_E_INVALID ? SD_BUS_ERROR_INVALID_ARGS :
								     SD_BUS_ERROR_LIMITS_EXCEEDED,
					err.msg);
	LOG_CHANGE(c, "hint scope=%s segment=%s", *put.scope ? put.scope : "\"\"", put.segment);
	return 0;
}

int bus_no_space(const struct store *s, const char *space, const char *tenant, uint32_t uid,
		 sd_bus_error *reterr)
{
	char text[BUS_TEXT_BYTES], why[BUS_TEXT_BYTES];

	if (!s)
		return sd_bus_error_set(reterr, SD_BUS_ERROR_NOT_SUPPORTED, STORE_ABSENT);
	if (*space)
		snprintf(why, sizeof(why),
			 "the store has no name space \"%.60s\"; drayctl store lists the others",
			 space);
	else
		snprintf(
			why, sizeof(why),
			"the store has no name space of owner %.60s:%u; drayctl store lists the others",
			tenant, uid);
	return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_NOT_FOUND, bus_text(why, text));
}

CHANGE(evict_store)
{
	const char *space, *tenant;
	struct store_evicted e;
	uint64_t bytes;
	uint32_t uid;
	int ret;

	ret = sd_bus_message_read(m, "ssut", &space, &tenant, &uid, &bytes);
	if (ret < 0)
		return ret;
	e = store_evict(a->store, space, tenant, uid, bytes);
	if (!e.found)
		return bus_no_space(a->store, space, tenant, uid, reterr);
	if (e.objects)
		LOG_CHANGE(c, "EvictStore: %u objects with %" PRIu64 " bytes space=%.60s",
			   e.objects, e.bytes, *space ? space : tenant);
	return sd_bus_reply_method_return(m, "utb", e.objects, e.bytes, (int)e.more);
}

CHANGE(forget_hints)
{
	const char *scope, *segment;
	int all, unread, ret;
	uint32_t count;

	ret = sd_bus_message_read(m, "ssb", &scope, &segment, &all);
	if (ret < 0)
		return ret;
	unread = hints_are_unread(a->hints);
	count = hints_forget(a->hints, scope, *segment ? segment : NULL, all);
	if (count || unread)
		LOG_CHANGE(c, "%u hints forgotten%s", count, unread ? ", and unread ones" : "");
	return sd_bus_reply_method_return(m, "ub", count, unread);
}
