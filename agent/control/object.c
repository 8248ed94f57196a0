/* SPDX-License-Identifier: Apache-2.0 */
/* The object /dev/dray/Agent: properties and methods of dev.dray.Agent1. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/control/internal.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/metrics.h"

#ifndef DRAY_VERSION
#define DRAY_VERSION "unknown"
#endif

static struct agent *agent_of(void *userdata)
{
	return ((struct control_conn *)userdata)->control->agent;
}

/* --- properties --------------------------------------------------------------------------------- */

static int dbus_get_state(sd_bus *bus, const char *path, const char *interface,
			  const char *property, sd_bus_message *reply, void *userdata,
			  sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "s", agent_state_name(agent_of(userdata)->state));
}

static int dbus_get_version(sd_bus *bus, const char *path, const char *interface,
			    const char *property, sd_bus_message *reply, void *userdata,
			    sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "s", DRAY_VERSION);
}

static int dbus_get_agent_id(sd_bus *bus, const char *path, const char *interface,
			     const char *property, sd_bus_message *reply, void *userdata,
			     sd_bus_error *reterr)
{
	char id[IDENTITY_TEXT_BYTES];

	return sd_bus_message_append(reply, "s",
				     identity_show(agent_of(userdata)->identity.agent_id, id));
}

static int dbus_get_incarnation(sd_bus *bus, const char *path, const char *interface,
				const char *property, sd_bus_message *reply, void *userdata,
				sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "t", agent_of(userdata)->identity.incarnation);
}

static int dbus_get_segment(sd_bus *bus, const char *path, const char *interface,
			    const char *property, sd_bus_message *reply, void *userdata,
			    sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "s", peers_segment(agent_of(userdata)->peers));
}

static int dbus_get_pid(sd_bus *bus, const char *path, const char *interface, const char *property,
			sd_bus_message *reply, void *userdata, sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "u", (uint32_t)getpid());
}

static int dbus_get_workers(sd_bus *bus, const char *path, const char *interface,
			    const char *property, sd_bus_message *reply, void *userdata,
			    sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "u", (uint32_t)agent_of(userdata)->pool.n);
}

static int dbus_get_uptime_ns(sd_bus *bus, const char *path, const char *interface,
			      const char *property, sd_bus_message *reply, void *userdata,
			      sd_bus_error *reterr)
{
	return sd_bus_message_append(reply, "t",
				     (uint64_t)(dray_now().ns - agent_of(userdata)->started_ns));
}

static int dbus_get_counters(sd_bus *bus, const char *path, const char *interface,
			     const char *property, sd_bus_message *reply, void *userdata,
			     sd_bus_error *reterr)
{
	struct agent *a = agent_of(userdata);
	int ret = sd_bus_message_open_container(reply, 'a', "{st}");

	for (int i = 0; i < DRAY_METRIC_N && ret >= 0; i++)
		ret = sd_bus_message_append(reply, "{st}", dray_metrics[i].name,
					    agent_metric(a, (enum dray_metric)i));
	return ret < 0 ? ret : sd_bus_message_close_container(reply);
}

/* --- methods ------------------------------------------------------------------------------------ */

typedef int (*records_fn)(struct agent *a, sd_bus_message *reply, size_t *ret_bytes);

static int list(sd_bus_message *m, struct control_conn *c, records_fn fn, sd_bus_error *reterr)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	size_t bytes = 0;
	int ret;

	if (!sd_bus_message_get_expect_reply(m))
		return 1;
	ret = control_conn_has_room(c, reterr);
	if (ret >= 0)
		ret = sd_bus_message_new_method_return(m, &reply);
	if (ret >= 0)
		ret = fn(c->control->agent, reply, &bytes);
	return ret < 0 ? ret : control_conn_send(c, reply, bytes);
}

static int dbus_method_list_sessions(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_sessions, reterr);
}

static int dbus_method_list_regions(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_regions, reterr);
}

static int dbus_method_list_peers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_peers, reterr);
}

static int dbus_method_list_rails(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_rails, reterr);
}

static int dbus_method_list_paths(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_paths, reterr);
}

static int dbus_method_list_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	int ret;

	if (!sd_bus_message_get_expect_reply(m))
		return 1;
	ret = control_conn_has_room(userdata, reterr);
	return ret < 0 ? ret : control_listing_ask(userdata, m, reterr);
}

static int may_change(const struct control_conn *c, const char *what, sd_bus_error *reterr)
{
	if (c->who.may_change)
		return 0;
	log_limited(DRAY_LOG_WARNING, "control",
		    "%s refused: not root, the agent's user or of "
		    "control.group uid=%u gid=%u pid=%d",
		    what, c->who.uid, c->who.gid, c->who.pid);
	return sd_bus_error_setf(reterr, SD_BUS_ERROR_ACCESS_DENIED,
				 "%s is for root, the agent's own user and members of "
				 "control.group%s; you are uid %u, gid %u",
				 what, c->control->rules.has_group ? "" : ", which is not set",
				 c->who.uid, c->who.gid);
}

static int dbus_method_drain(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct control_conn *c = userdata;
	struct agent *a = c->control->agent;
	uint32_t timeout_ms;
	int stay, ret;

	ret = may_change(c, "Drain", reterr);
	if (ret < 0)
		return ret;
	ret = sd_bus_message_read(m, "ub", &timeout_ms, &stay);
	if (ret < 0)
		return ret;
	if (a->state == AGENT_RUNNING && !a->stopping)
		log_notice("control", "drain asked for stay=%s uid=%u pid=%d", stay ? "yes" : "no",
			   c->who.uid, c->who.pid);
	ret = agent_drain(a, timeout_ms ? timeout_ms * DRAY_NS_PER_MS : -1, stay);
	if (ret == -EALREADY)
		return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_DRAINING,
					 "the agent is %s already",
					 a->stopping ? "stopping" : agent_state_name(a->state));
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

static int dbus_method_resume(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct control_conn *c = userdata;
	struct agent *a = c->control->agent;
	int ret;

	ret = may_change(c, "Resume", reterr);
	if (ret < 0)
		return ret;
	if (a->state != AGENT_RUNNING)
		log_notice("control", "resume asked for uid=%u pid=%d", c->who.uid, c->who.pid);
	ret = agent_resume(a);
	if (ret == -ESHUTDOWN)
		return sd_bus_error_setf(reterr, DRAY_DBUS_ERROR_STOPPING,
					 "the agent is %s, and will end",
					 a->stopping ? "stopping" : agent_state_name(a->state));
	return ret < 0 ? ret : sd_bus_reply_method_return(m, NULL);
}

int control_object_add(struct control_conn *c)
{
	return sd_bus_add_object_vtable(c->bus, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
					dbus_vtable, c);
}
