/* SPDX-License-Identifier: Apache-2.0 */
/* The object /dev/dray/Agent and its properties. */
#include <unistd.h>

#include "agent/control/bus/internal.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/status/gather.h"
#include "agent/placement/segment/segments.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/dbus.h"
#define DRAY_DBUS_VTABLE
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/metrics.h"

/* Defines the getter of a property; its body has the agent in a. */
#define PROPERTY(name)                                                                   \
	static int get_##name(struct agent *a, sd_bus_message *reply);                   \
	int dbus_get_##name(sd_bus *bus, const char *path, const char *interface,        \
			    const char *property, sd_bus_message *reply, void *userdata, \
			    sd_bus_error *reterr)                                        \
	{                                                                                \
		return get_##name(((struct bus_conn *)userdata)->server->agent, reply);  \
	}                                                                                \
	static int get_##name(struct agent *a, sd_bus_message *reply)
/* The same for a single value of a D-Bus type. */
#define PROPERTY_VALUE(name, type, value)                         \
	PROPERTY(name)                                            \
	{                                                         \
		return sd_bus_message_append(reply, type, value); \
	}                                                         \
	struct dray_swallow_semicolon

PROPERTY_VALUE(state, "s", agent_state_name(a->state));
PROPERTY_VALUE(version, "s", DRAY_VERSION);
PROPERTY_VALUE(incarnation, "t", a->identity.incarnation);
PROPERTY_VALUE(segment, "s", peers_segment(a->peers));
PROPERTY_VALUE(pid, "u", (uint32_t)getpid());
PROPERTY_VALUE(workers, "u", (uint32_t)a->pool.n);
PROPERTY_VALUE(poll_time_ns, "t", (uint64_t)agent_poll_time(a, NULL, 0));
PROPERTY_VALUE(uptime_ns, "t", (uint64_t)(dray_now().ns - a->started_ns));
PROPERTY_VALUE(log_level, "s",
	       dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL].choices[dray_log_get_level()]);
PROPERTY_VALUE(transfers_left, "t", agent_drain_progress(a).transfers);
PROPERTY_VALUE(bytes_left, "t", agent_drain_progress(a).bytes);
PROPERTY_VALUE(grants_left, "t", agent_drain_progress(a).grants);
PROPERTY_VALUE(deadline_ns, "t", (uint64_t)agent_drain_progress(a).left_ns);

PROPERTY(agent_id)
{
	char id[IDENTITY_TEXT_BYTES];

	return sd_bus_message_append(reply, "s", identity_show(a->identity.agent_id, id));
}

PROPERTY(keys)
{
	char text[PEERS_KEYS_BYTES];

	return sd_bus_message_append(reply, "s", peers_keys(a->peers, text));
}

PROPERTY(preferred_segment)
{
	struct preferred p;

	segments_preferred(a->segments, "", NULL, &p);
	return sd_bus_message_append(reply, "s", p.name);
}

PROPERTY(poll_reason)
{
	char why[DRAY_CPUS_WHY_BYTES];

	agent_poll_time(a, why, sizeof(why));
	return sd_bus_message_append(reply, "s", why);
}

PROPERTY(mooncake_segment)
{
	return sd_bus_message_append(reply, "s", mooncake_server_segment(a->mooncake));
}

PROPERTY(gpu_plugin)
{
	char text[BUS_TEXT_BYTES];

	return sd_bus_message_append(reply, "s", bus_text(gpus_plugin(a->gpus), text));
}

PROPERTY(counters)
{
	uint64_t values[DRAY_METRIC_N];
	int ret = sd_bus_message_open_container(reply, 'a', "{st}");

	agent_metrics(a, values);
	for (int i = 0; i < DRAY_METRIC_N && ret >= 0; i++)
		ret = sd_bus_message_append(reply, "{st}", dray_metrics[i].name, values[i]);
	return ret < 0 ? ret : sd_bus_message_close_container(reply);
}

int bus_object_add(struct bus_conn *c)
{
	return sd_bus_add_object_vtable(c->bus, NULL, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
					dbus_vtable, c);
}
