/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods of org.freedesktop.DBus that clients written for a message bus call first. There is no bus: the agent
 * answers messages to any name, and every client gets every signal.
 */
#include <string.h>

#include "agent/control/bus/internal.h"
#include "schema/gen/dbus.h"

#define DRIVER_NAME "org.freedesktop.DBus"
#define DRIVER_PATH "/org/freedesktop/DBus"
#define MONITORING "org.freedesktop.DBus.Monitoring"

static int method_hello(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;

	if (c->hello)
		return sd_bus_error_set(reterr, SD_BUS_ERROR_FAILED,
					"Hello was called already; call it once");
	c->hello = true;
	return sd_bus_reply_method_return(m, "s", c->name);
}

/* Every client gets every signal; its library drops the ones that do not match. */
static int method_match(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return sd_bus_reply_method_return(m, NULL);
}

/* The unique name of the owner of a name, or NULL. */
static const char *owner_of(const char *name, const struct bus_conn *c)
{
	if (!strcmp(name, DRIVER_NAME))
		return DRIVER_NAME;
	if (!strcmp(name, DRAY_DBUS_INTERFACE) || !strcmp(name, BUS_SENDER))
		return BUS_SENDER;
	return strcmp(name, c->name) ? NULL : c->name;
}

static int method_get_name_owner(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *name, *owner;
	int ret = sd_bus_message_read(m, "s", &name);

	if (ret < 0)
		return ret;
	owner = owner_of(name, userdata);
	if (!owner)
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_NAME_HAS_NO_OWNER,
					 "no connection has the name %.100s; the agent is %s", name,
					 DRAY_DBUS_INTERFACE);
	return sd_bus_reply_method_return(m, "s", owner);
}

static int method_name_has_owner(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *name;
	int ret = sd_bus_message_read(m, "s", &name);

	return ret < 0 ? ret : sd_bus_reply_method_return(m, "b", owner_of(name, userdata) != NULL);
}

static int method_list_names(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const struct bus_conn *c = userdata;

	return sd_bus_reply_method_return(m, "as", 4, DRIVER_NAME, DRAY_DBUS_INTERFACE, BUS_SENDER,
					  c->name);
}

static int method_get_id(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const struct bus_conn *c = userdata;
	char id[IDENTITY_TEXT_BYTES];

	return sd_bus_reply_method_return(m, "s",
					  identity_show(c->server->agent->identity.agent_id, id));
}

/* A client knows that it has become a monitor when it loses its name. */
static int method_become_monitor(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *lost = NULL;
	struct bus_conn *c = userdata;
	int ret;

	ret = sd_bus_reply_method_return(m, NULL);
	if (ret < 0)
		return ret;
	ret = sd_bus_message_new_signal(c->bus, &lost, DRIVER_PATH, DRIVER_NAME, "NameLost");
	if (ret >= 0)
		ret = sd_bus_message_append(lost, "s", c->name);
	if (ret >= 0)
		ret = sd_bus_message_set_sender(lost, DRIVER_NAME);
	if (ret >= 0)
		ret = sd_bus_message_set_destination(lost, c->name);
	if (ret >= 0)
		ret = sd_bus_send(c->bus, lost, NULL);
	return ret < 0 ? ret : 1;
}

#define FREE SD_BUS_VTABLE_UNPRIVILEGED

static const sd_bus_vtable driver_vtable[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_METHOD_WITH_NAMES("Hello", "", , "s", SD_BUS_PARAM(name), method_hello, FREE),
	SD_BUS_METHOD_WITH_NAMES("AddMatch", "s", SD_BUS_PARAM(rule), "", , method_match, FREE),
	SD_BUS_METHOD_WITH_NAMES("RemoveMatch", "s", SD_BUS_PARAM(rule), "", , method_match, FREE),
	SD_BUS_METHOD_WITH_NAMES("GetNameOwner", "s", SD_BUS_PARAM(name), "s", SD_BUS_PARAM(owner),
				 method_get_name_owner, FREE),
	SD_BUS_METHOD_WITH_NAMES("NameHasOwner", "s", SD_BUS_PARAM(name), "b", SD_BUS_PARAM(has),
				 method_name_has_owner, FREE),
	SD_BUS_METHOD_WITH_NAMES("ListNames", "", , "as", SD_BUS_PARAM(names), method_list_names,
				 FREE),
	SD_BUS_METHOD_WITH_NAMES("GetId", "", , "s", SD_BUS_PARAM(id), method_get_id, FREE),
	SD_BUS_SIGNAL_WITH_NAMES("NameLost", "s", SD_BUS_PARAM(name), 0),
	SD_BUS_VTABLE_END,
};

static const sd_bus_vtable monitoring_vtable[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_METHOD_WITH_NAMES("BecomeMonitor", "asu", SD_BUS_PARAM(rules) SD_BUS_PARAM(flags),
				 "", , method_become_monitor, FREE),
	SD_BUS_VTABLE_END,
};

int bus_driver_add(struct bus_conn *c)
{
	int ret;

	ret = sd_bus_add_object_vtable(c->bus, NULL, DRIVER_PATH, DRIVER_NAME, driver_vtable, c);
	if (ret < 0)
		return ret;
	return sd_bus_add_object_vtable(c->bus, NULL, DRIVER_PATH, MONITORING, monitoring_vtable,
					c);
}
