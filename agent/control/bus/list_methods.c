/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of dev.dray.Agent1 that read: records out. */

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"

/* m: the call, whose arguments it reads. */
typedef int (*records_fn)(struct agent *a, sd_bus_message *m, sd_bus_message *reply,
			  size_t *ret_bytes);

static int list(sd_bus_message *m, struct control_conn *c, records_fn fn, sd_bus_error *reterr)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	size_t bytes = 0;
	int ret;

	ret = control_conn_check_list(c, m, reterr);
	if (ret)
		return ret;
	ret = sd_bus_message_new_method_return(m, &reply);
	if (ret >= 0)
		ret = fn(c->control->agent, m, reply, &bytes);
	return ret < 0 ? ret : control_conn_send(c, reply, bytes);
}

int dbus_method_list_sessions(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_sessions, reterr);
}

int dbus_method_list_regions(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_regions, reterr);
}

int dbus_method_list_peers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_peers, reterr);
}

int dbus_method_list_rails(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_rails, reterr);
}

int dbus_method_list_paths(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_paths, reterr);
}

int dbus_method_list_gpus(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_gpus, reterr);
}

static int list_transfers(sd_bus_message *m, struct control_conn *c, bool ended,
			  sd_bus_error *reterr)
{
	int ret = control_conn_check_list(c, m, reterr);

	return ret ? ret : control_listing_ask(c, ended, m, reterr);
}

int dbus_method_list_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list_transfers(m, userdata, false, reterr);
}

int dbus_method_list_ended_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list_transfers(m, userdata, true, reterr);
}

int dbus_method_list_events(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_events, reterr);
}

int dbus_method_list_segments(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_segments, reterr);
}

int dbus_method_list_candidates(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_candidates, reterr);
}

int dbus_method_list_hints(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_hints, reterr);
}

int dbus_method_list_environment(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct control_conn *c = userdata;
	int ret = control_environment_check(c->control->agent, m, reterr);

	return ret < 0 ? ret : list(m, c, control_records_environment, reterr);
}

int dbus_method_dump_config(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return list(m, userdata, control_records_settings, reterr);
}

int dbus_method_health(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	int ret = control_conn_check_list(userdata, m, reterr);

	return ret ? ret : control_health_ask(userdata, m, reterr);
}
