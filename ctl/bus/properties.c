/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/properties.h"

#include <stdlib.h>
#include <string.h>

#include "ctl/bus/rows.h"
#include "lib/array.h"

static int counters_read(struct ctl_properties *p, sd_bus_message *m)
{
	struct ctl_counter c;
	int ret;

	p->has_counters = true;
	ret = sd_bus_message_enter_container(m, 'v', "a{st}");

	if (ret >= 0)
		ret = sd_bus_message_enter_container(m, 'a', "{st}");
	while (ret >= 0 && (ret = sd_bus_message_read(m, "{st}", &c.name, &c.value)) > 0)
		ret = DRAY_APPEND(p->counters, p->n_counters, c);
	if (ret >= 0)
		ret = sd_bus_message_exit_container(m);
	return ret < 0 ? ret : sd_bus_message_exit_container(m);
}

static int property_read(struct ctl_properties *p, sd_bus_message *m, const char *name)
{
	if (!strcmp(name, DRAY_DBUS_PROPERTY_COUNTERS))
		return counters_read(p, m);
	for (unsigned i = 0; i < DRAY_DBUS_PROPERTIES_N; i++) {
		const struct dray_dbus_property *k = &dray_dbus_properties[i];
		struct ctl_value v;
		int ret;

		if (strcmp(name, k->name))
			continue;
		ret = ctl_value_read(m, k->type, &v);
		if (ret < 0)
			return ret;
		if (*k->type == 's')
			memcpy((char *)&p->v + k->offset, &v.s, sizeof(v.s));
		else
			memcpy((char *)&p->v + k->offset, &v.n, sizeof(v.n));
		return 0;
	}
	return sd_bus_message_skip(m, "v");
}

static int all_read(struct ctl_properties *p, sd_bus_message *m)
{
	const char *name;
	int ret = sd_bus_message_enter_container(m, 'a', "{sv}");

	while (ret >= 0 && (ret = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
		ret = sd_bus_message_read(m, "s", &name);
		if (ret >= 0)
			ret = property_read(p, m, name);
		if (ret >= 0)
			ret = sd_bus_message_exit_container(m);
	}
	return ret;
}

/* A call of org.freedesktop.DBus.Properties. name: NULL for all properties. 0 or -1. */
static int ask(struct ctl *c, const char *name, sd_bus_message **ret_reply)
{
	sd_bus_message *m;
	int ret;

	if (ctl_bus_new_call(c, "org.freedesktop.DBus.Properties", name ? "Get" : "GetAll", &m) < 0)
		return -1;
	ret = sd_bus_message_append(m, "s", DRAY_DBUS_INTERFACE);
	if (ret >= 0 && name)
		ret = sd_bus_message_append(m, "s", name);
	if (ret < 0) {
		sd_bus_message_unref(m);
		return ctl_no_memory(c);
	}
	return ctl_bus_send(c, m, ret_reply);
}

int ctl_properties_get(struct ctl *c, struct ctl_properties *p)
{
	const char *none = "";
	int ret;

	*p = CTL_PROPERTIES_NULL;
	for (unsigned i = 0; i < DRAY_DBUS_PROPERTIES_N; i++)
		if (*dray_dbus_properties[i].type == 's')
			memcpy((char *)&p->v + dray_dbus_properties[i].offset, &none, sizeof(none));
	if (ask(c, NULL, &p->reply) < 0)
		return -1;
	ret = all_read(p, p->reply);
	return ret < 0 ? ctl_bus_bad_reply(c, "GetAll", ret) : 0;
}

int ctl_counters_get(struct ctl *c, struct ctl_properties *p)
{
	int ret;

	/* Older agents have sent them already. */
	if (p->has_counters)
		return 0;
	if (ask(c, DRAY_DBUS_PROPERTY_COUNTERS, &p->counters_reply) < 0)
		return -1;
	ret = counters_read(p, p->counters_reply);
	return ret < 0 ? ctl_bus_bad_reply(c, "Get", ret) : 0;
}

void ctl_properties_deinit(struct ctl_properties *p)
{
	sd_bus_message_unref(p->reply);
	sd_bus_message_unref(p->counters_reply);
	free(p->counters);
	*p = CTL_PROPERTIES_NULL;
}

uint64_t ctl_properties_counter(const struct ctl_properties *p, const char *name)
{
	for (size_t i = 0; i < p->n_counters; i++)
		if (!strcmp(p->counters[i].name, name))
			return p->counters[i].value;
	return 0;
}
