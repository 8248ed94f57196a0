/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/properties.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/bus/rows.h"
#include "lib/cleanup.h"

static int counters_read(struct ctl_properties *p, sd_bus_message *m)
{
	size_t cap = 0;
	int ret;

	ret = sd_bus_message_enter_container(m, 'v', "a{st}");
	if (ret >= 0)
		ret = sd_bus_message_enter_container(m, 'a', "{st}");
	while (ret >= 0) {
		struct ctl_counter c;

		ret = sd_bus_message_read(m, "{st}", &c.name, &c.value);
		if (ret <= 0)
			break;
		if (p->n_counters == cap) {
			struct ctl_counter *more;

			cap = cap ? cap * 2 : 64;
			more = reallocarray(p->counters, cap, sizeof(*more));
			if (!more)
				return -ENOMEM;
			p->counters = more;
		}
		p->counters[p->n_counters++] = c;
	}
	if (ret >= 0)
		ret = sd_bus_message_exit_container(m);
	return ret < 0 ? ret : sd_bus_message_exit_container(m);
}

static int property_read(struct ctl_properties *p, sd_bus_message *m, const char *name)
{
	uint64_t pid = 0, workers = 0;
	const struct {
		const char *name, *type;
		const char **s;
		uint64_t *n;
	} known[] = {
		{ DRAY_DBUS_PROPERTY_STATE, "s", &p->state, NULL },
		{ DRAY_DBUS_PROPERTY_VERSION, "s", &p->version, NULL },
		{ DRAY_DBUS_PROPERTY_AGENT_ID, "s", &p->agent_id, NULL },
		{ DRAY_DBUS_PROPERTY_SEGMENT, "s", &p->segment, NULL },
		{ DRAY_DBUS_PROPERTY_PREFERRED_SEGMENT, "s", &p->preferred_segment, NULL },
		{ DRAY_DBUS_PROPERTY_INCARNATION, "t", NULL, &p->incarnation },
		{ DRAY_DBUS_PROPERTY_LOG_LEVEL, "s", &p->log_level, NULL },
		{ DRAY_DBUS_PROPERTY_TRANSFERS_LEFT, "t", NULL, &p->transfers_left },
		{ DRAY_DBUS_PROPERTY_BYTES_LEFT, "t", NULL, &p->bytes_left },
		{ DRAY_DBUS_PROPERTY_GRANTS_LEFT, "t", NULL, &p->grants_left },
		{ DRAY_DBUS_PROPERTY_DEADLINE_NS, "t", NULL, &p->deadline_ns },
		{ DRAY_DBUS_PROPERTY_POLL_TIME_NS, "t", NULL, &p->poll_time_ns },
		{ DRAY_DBUS_PROPERTY_POLL_REASON, "s", &p->poll_reason, NULL },
		{ DRAY_DBUS_PROPERTY_GPU_PLUGIN, "s", &p->gpu_plugin, NULL },
		{ DRAY_DBUS_PROPERTY_UPTIME_NS, "t", NULL, &p->uptime_ns },
		{ DRAY_DBUS_PROPERTY_PID, "u", NULL, &pid },
		{ DRAY_DBUS_PROPERTY_WORKERS, "u", NULL, &workers },
	};

	if (!strcmp(name, DRAY_DBUS_PROPERTY_COUNTERS))
		return counters_read(p, m);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(known); i++) {
		struct ctl_value v;
		int ret;

		if (strcmp(name, known[i].name))
			continue;
		ret = ctl_value_read(m, known[i].type, &v);
		if (ret < 0)
			return ret;
		if (known[i].s)
			*known[i].s = v.s;
		else
			*known[i].n = v.n;
		p->pid = pid ? (uint32_t)pid : p->pid;
		p->workers = workers ? (uint32_t)workers : p->workers;
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

int ctl_properties_get(struct ctl_properties *p, struct ctl_bus *b, struct ctl_err *reterr)
{
	sd_bus_message *m;
	int ret;

	*p = (struct ctl_properties){ .state = "",
				      .version = "",
				      .agent_id = "",
				      .segment = "",
				      .preferred_segment = "",
				      .log_level = "",
				      .poll_reason = "",
				      .gpu_plugin = "" };
	if (ctl_bus_new_call(b, "org.freedesktop.DBus.Properties", "GetAll", &m, reterr) < 0)
		return -1;
	ret = sd_bus_message_append(m, "s", DRAY_DBUS_INTERFACE);
	if (ret < 0) {
		sd_bus_message_unref(m);
		return ctl_bus_bad_reply(reterr, "GetAll", ret);
	}
	if (ctl_bus_call(b, m, &p->reply, reterr) < 0)
		return -1;
	ret = all_read(p, p->reply);
	if (ret >= 0)
		return 0;
	ctl_properties_deinit(p);
	return ctl_bus_bad_reply(reterr, "GetAll", ret);
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
