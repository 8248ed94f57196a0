/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/properties.h"

#include <stdlib.h>
#include <string.h>

#include "ctl/bus/rows.h"
#include "lib/array.h"

static int counters_read(struct ctl_properties *p, sd_bus_message *m)
{
	struct ctl_counter c;
	int ret = sd_bus_message_enter_container(m, 'v', "a{st}");

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

int ctl_properties_get(struct ctl *c, struct ctl_properties *p)
{
	const char *none = "";
	sd_bus_message *m;
	int ret;

	*p = CTL_PROPERTIES_NULL;
	for (unsigned i = 0; i < DRAY_DBUS_PROPERTIES_N; i++)
		if (*dray_dbus_properties[i].type == 's')
			memcpy((char *)&p->v + dray_dbus_properties[i].offset, &none, sizeof(none));
	if (ctl_bus_new_call(c, "org.freedesktop.DBus.Properties", "GetAll", &m) < 0)
		return -1;
	if (sd_bus_message_append(m, "s", DRAY_DBUS_INTERFACE) < 0) {
		sd_bus_message_unref(m);
		return ctl_no_memory(c);
	}
	if (ctl_bus_send(c, m, &p->reply) < 0)
		return -1;
	ret = all_read(p, p->reply);
	return ret < 0 ? ctl_bus_bad_reply(c, "GetAll", ret) : 0;
}

void ctl_properties_deinit(struct ctl_properties *p)
{
	sd_bus_message_unref(p->reply);
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
