/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of dev.dray.Agent1 that change things, for clients that may do so. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

/* Pending calls of CancelTransfer of one connection. */
#define CANCELS_MAX 64

/* Reads the arguments of m if this connection may change things. >= 0, or < 0 with the error set. */
static int read_change(const struct bus_conn *c, sd_bus_message *m, sd_bus_error *reterr,
		       const char *types, ...)
{
	const char *method = sd_bus_message_get_member(m);
	va_list ap;
	int ret;

	if (!c->who.may_change) {
		log_limited(DRAY_LOG_WARNING, "control",
			    "%s refused: the client is not root, the agent's user or in the group "
			    "of control.group uid=%u gid=%u pid=%d",
			    method, c->who.uid, c->who.gid, c->who.pid);
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_ACCESS_DENIED,
					 "%s is for root, the agent's own user and members of "
					 "control.group%s; you are uid %u, gid %u",
					 method,
					 c->server->rules.has_group ? "" : ", which is not set",
					 c->who.uid, c->who.gid);
	}
	va_start(ap, types);
	ret = sd_bus_message_readv(m, types, ap);
	va_end(ap);
	return ret;
}

static int no_session(sd_bus_error *reterr, uint64_t session)
{
	return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_NOT_FOUND,
				 "there is no session %" PRIu64 "; ListSessions has them", session);
}

int dbus_method_drain(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct agent *a = c->server->agent;
	uint32_t timeout_ms;
	int stay, ret;

	ret = read_change(c, m, reterr, "ub", &timeout_ms, &stay);
	if (ret < 0)
		return ret;
	if (a->state == AGENT_RUNNING && !a->stopping)
		log_notice("control", "Drain was called stay=%s uid=%u pid=%d", stay ? "yes" : "no",
			   c->who.uid, c->who.pid);
	ret = agent_drain(a, timeout_ms ? timeout_ms * DRAY_NS_PER_MS : -1, stay);
	if (ret == -EALREADY)
		return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_DRAINING,
					 "the agent is %s already",
					 a->stopping ? "stopping" : agent_state_name(a->state));
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

int dbus_method_resume(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct agent *a = c->server->agent;
	int ret;

	ret = read_change(c, m, reterr, "");
	if (ret < 0)
		return ret;
	if (a->state != AGENT_RUNNING)
		log_notice("control", "Resume was called uid=%u pid=%d", c->who.uid, c->who.pid);
	ret = agent_resume(a);
	if (ret == -ESHUTDOWN)
		return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_STOPPING,
					 "the agent is %s and will exit",
					 a->stopping ? "stopping" : agent_state_name(a->state));
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

int dbus_method_drain_now(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct agent *a = c->server->agent;
	int stay, ret;

	ret = read_change(c, m, reterr, "b", &stay);
	if (ret < 0)
		return ret;
	log_notice("control", "DrainNow was called stay=%s uid=%u pid=%d", stay ? "yes" : "no",
		   c->who.uid, c->who.pid);
	ret = agent_drain_now(a, stay);
	if (ret == -ESHUTDOWN)
		return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_STOPPING,
					"the agent is stopping already");
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

static int keys_append(sd_bus_message *reply, const char *const *keys, unsigned n)
{
	int ret = sd_bus_message_open_container(reply, 'a', "s");

	for (unsigned i = 0; i < n && ret >= 0; i++)
		ret = sd_bus_message_append(reply, "s", keys[i]);
	return ret < 0 ? ret : sd_bus_message_close_container(reply);
}

int dbus_method_reload(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct bus_conn *c = userdata;
	struct config_changes changes;
	int ret;

	ret = read_change(c, m, reterr, "");
	if (ret < 0)
		return ret;
	log_notice("control", "Reload was called uid=%u pid=%d", c->who.uid, c->who.pid);
	if (agent_reload(c->server->agent, &changes, &err) < 0)
		return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_CONFIG, err.msg);
	ret = sd_bus_message_new_method_return(m, &reply);
	if (ret >= 0)
		ret = keys_append(reply, changes.applied, changes.n_applied);
	if (ret >= 0)
		ret = keys_append(reply, changes.restart, changes.n_restart);
	return ret < 0 ? ret : sd_bus_send(c->bus, reply, NULL);
}

int dbus_method_set_log_level(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const struct dray_config_key *key = &dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL];
	struct bus_conn *c = userdata;
	const char *level;
	char who[64];
	int ret;

	ret = read_change(c, m, reterr, "s", &level);
	if (ret < 0)
		return ret;
	for (size_t i = 0; i < key->n_choices; i++) {
		if (strcmp(key->choices[i], level))
			continue;
		snprintf(who, sizeof(who), "uid %u", c->who.uid);
		agent_set_log_level(c->server->agent, (enum dray_log_level)i, who);
		return sd_bus_reply_method_return(m, NULL);
	}
	return sd_bus_error_setf(
		reterr, SD_BUS_ERROR_INVALID_ARGS,
		"\"%.40s\" is not a log level (allowed: error, warning, notice, info, debug)",
		level);
}

int dbus_method_close_session(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	const char *reason;
	uint64_t session;
	char why[200];
	int ret;

	ret = read_change(c, m, reterr, "ts", &session, &reason);
	if (ret < 0)
		return ret;
	snprintf(why, sizeof(why), "closed by an operator%s%.160s", *reason ? ": " : "", reason);
	if (sessions_close(c->server->agent->sessions, session, why) < 0)
		return no_session(reterr, session);
	log_notice("control", "session=%" PRIu64 " %s uid=%u pid=%d", session, why, c->who.uid,
		   c->who.pid);
	return sd_bus_reply_method_return(m, NULL);
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

int dbus_method_cancel_transfer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "calls of CancelTransfer",
						.max = CANCELS_MAX,
						.cancel = cancel_forget };
	struct bus_conn *c = userdata;
	uint64_t session, request;
	struct cancel_call *call;
	int ret;

	ret = read_change(c, m, reterr, "tt", &session, &request);
	if (ret < 0)
		return ret;
	call = pending_reply_new(&kind, sizeof(*call), c, m, reterr);
	if (!call)
		return -sd_bus_error_get_errno(reterr);
	call->cancel.fn = cancelled;
	if (agent_cancel(c->server->agent, session, request, &call->cancel) < 0) {
		pending_reply_free(&call->reply);
		return no_session(reterr, session);
	}
	log_notice("control",
		   "CancelTransfer was called session=%" PRIu64 " request=%" PRIu64
		   " uid=%u pid=%d",
		   session, request, c->who.uid, c->who.pid);
	return 1;
}

static int rail_switch(sd_bus_message *m, struct bus_conn *c, bool disable, sd_bus_error *reterr)
{
	const char *device;
	uint32_t port;
	int ret;

	ret = read_change(c, m, reterr, "su", &device, &port);
	if (ret < 0)
		return ret;
	ret = rails_disable(c->server->agent->rails, device, port, disable);
	if (ret == -ENOENT)
		return sd_bus_error_setf(
			reterr, DRAY_DBUS_ERROR_NOT_FOUND,
			"the agent has no rail on port %.60s/%u; ListRails has them", device, port);
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

int dbus_method_disable_rail(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return rail_switch(m, userdata, true, reterr);
}

int dbus_method_enable_rail(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return rail_switch(m, userdata, false, reterr);
}

int dbus_method_set_hint(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct dray_err err = DRAY_ERR_NULL;
	struct hint_put put = { .source = DMSG_HINT_SOURCE_EXPLICIT };
	int ret;

	ret = read_change(c, m, reterr, "ssut", &put.scope, &put.segment, &put.score, &put.ttl_ms);
	if (ret < 0)
		return ret;
	if (hints_put(c->server->agent->hints, &put, &err) < 0)
		return sd_bus_error_set(reterr,
					err.code == DRAY_E_INVALID ? SD_BUS_ERROR_INVALID_ARGS :
								     SD_BUS_ERROR_LIMITS_EXCEEDED,
					err.msg);
	log_notice("control", "hint scope=%s segment=%s uid=%u pid=%d",
		   *put.scope ? put.scope : "\"\"", put.segment, c->who.uid, c->who.pid);
	return sd_bus_reply_method_return(m, NULL);
}

int dbus_method_forget_hints(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	const char *scope, *segment;
	uint32_t count;
	int all, ret;

	ret = read_change(c, m, reterr, "ssb", &scope, &segment, &all);
	if (ret < 0)
		return ret;
	count = hints_forget(c->server->agent->hints, scope, *segment ? segment : NULL, all);
	if (count)
		log_notice("control", "%u hints forgotten uid=%u pid=%d", count, c->who.uid,
			   c->who.pid);
	return sd_bus_reply_method_return(m, "u", count);
}
