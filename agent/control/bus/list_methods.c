/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of dev.dray.Agent1 that return lists. */

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"

static int list(sd_bus_message *m, struct bus_conn *c, dictionaries_fn *fill, sd_bus_error *reterr)
{
	struct dictionaries d = { .agent = c->server->agent, .call = m, .reterr = reterr };
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	int ret;

	ret = bus_conn_check_list(c, m, reterr);
	if (ret)
		return ret;
	ret = sd_bus_message_new_method_return(m, &reply);
	d.reply = reply;
	if (ret >= 0)
		ret = dictionaries_append(&d, fill);
	return ret < 0 ? ret : bus_conn_send(c, reply, d.bytes);
}

#define LIST_METHOD(name, fill)                                                         \
	int dbus_method_##name(sd_bus_message *m, void *userdata, sd_bus_error *reterr) \
	{                                                                               \
		return list(m, userdata, fill, reterr);                                 \
	}

LIST_METHOD(list_sessions, fill_sessions)
LIST_METHOD(list_regions, fill_regions)
LIST_METHOD(list_peers, fill_peers)
LIST_METHOD(list_rails, fill_rails)
LIST_METHOD(list_paths, fill_paths)
LIST_METHOD(list_gpus, fill_gpus)
LIST_METHOD(list_events, fill_events)
LIST_METHOD(list_segments, fill_segments)
LIST_METHOD(list_candidates, fill_candidates)
LIST_METHOD(list_hints, fill_hints)
LIST_METHOD(list_environment, fill_environment)
LIST_METHOD(dump_config, fill_settings)
