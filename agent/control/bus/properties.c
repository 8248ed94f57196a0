/* SPDX-License-Identifier: Apache-2.0 */
/* The object /dev/dray/Agent and its properties. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/control/bus/internal.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/status/gather.h"
#include "agent/placement/segment/segments.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"
#define DRAY_DBUS_VTABLE
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/metrics.h"

#ifndef DRAY_VERSION
#define DRAY_VERSION "unknown"
#endif

#define PROPERTY(name)                                                                   \
	int dbus_get_##name(sd_bus *bus, const char *path, const char *interface,        \
			    const char *property, sd_bus_message *reply, void *userdata, \
			    sd_bus_error *reterr)

static struct agent *agent_of(void *userdata)
{
	return ((struct bus_conn *)userdata)->server->agent;
}

PROPERTY(state)
{
	return sd_bus_message_append(reply, "s", agent_state_name(agent_of(userdata)->state));
}

PROPERTY(version)
{
	return sd_bus_message_append(reply, "s", DRAY_VERSION);
}

PROPERTY(agent_id)
{
	char id[IDENTITY_TEXT_BYTES];

	return sd_bus_message_append(reply, "s",
				     identity_show(agent_of(userdata)->identity.agent_id, id));
}

PROPERTY(incarnation)
{
	return sd_bus_message_append(reply, "t", agent_of(userdata)->identity.incarnation);
}

PROPERTY(segment)
{
	return sd_bus_message_append(reply, "s", peers_segment(agent_of(userdata)->peers));
}

PROPERTY(preferred_segment)
{
	struct preferred p;

	segments_preferred(agent_of(userdata)->segments, "", &p);
	return sd_bus_message_append(reply, "s", p.name);
}

PROPERTY(pid)
{
	return sd_bus_message_append(reply, "u", (uint32_t)getpid());
}

PROPERTY(workers)
{
	return sd_bus_message_append(reply, "u", (uint32_t)agent_of(userdata)->pool.n);
}

PROPERTY(poll_time_ns)
{
	return sd_bus_message_append(reply, "t",
				     (uint64_t)agent_poll_time(agent_of(userdata), NULL, 0));
}

PROPERTY(poll_reason)
{
	char why[DRAY_CPUS_WHY_BYTES];

	agent_poll_time(agent_of(userdata), why, sizeof(why));
	return sd_bus_message_append(reply, "s", why);
}

PROPERTY(gpu_plugin)
{
	char text[BUS_TEXT_BYTES];

	return sd_bus_message_append(reply, "s",
				     bus_text(gpus_plugin(agent_of(userdata)->gpus), text));
}

PROPERTY(uptime_ns)
{
	return sd_bus_message_append(reply, "t",
				     (uint64_t)(dray_now().ns - agent_of(userdata)->started_ns));
}

PROPERTY(counters)
{
	uint64_t values[DRAY_METRIC_N];
	int ret = sd_bus_message_open_container(reply, 'a', "{st}");

	agent_metrics(agent_of(userdata), values);
	for (int i = 0; i < DRAY_METRIC_N && ret >= 0; i++)
		ret = sd_bus_message_append(reply, "{st}", dray_metrics[i].name, values[i]);
	return ret < 0 ? ret : sd_bus_message_close_container(reply);
}

PROPERTY(log_level)
{
	const char *const *names = dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL].choices;

	return sd_bus_message_append(reply, "s", names[dray_log_get_level()]);
}

PROPERTY(transfers_left)
{
	return sd_bus_message_append(reply, "t",
				     agent_drain_progress(agent_of(userdata)).transfers);
}

PROPERTY(bytes_left)
{
	return sd_bus_message_append(reply, "t", agent_drain_progress(agent_of(userdata)).bytes);
}

PROPERTY(grants_left)
{
	return sd_bus_message_append(reply, "t", agent_drain_progress(agent_of(userdata)).grants);
}

PROPERTY(deadline_ns)
{
	return sd_bus_message_append(reply, "t",
				     (uint64_t)agent_drain_progress(agent_of(userdata)).left_ns);
}

int bus_object_add(struct bus_conn *c)
{
	return sd_bus_add_object_vtable(c->bus, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
					dbus_vtable, c);
}
