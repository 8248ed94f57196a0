/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/verbs/verbs.h"

#include <errno.h>
#include <string.h>

#include "ctl/render/human.h"
#include "lib/quote.h"

#define PREFERRED "MOONCAKE_PREFERRED_SEGMENT"
#define PROFILES_MAX 32
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

static bool flag_at(const struct ctl_variables *v, size_t i, unsigned field)
{
	return ctl_rows_at(&v->rows, i, field)->n;
}

/* Adds the names of --profile to the call; without any, the agent uses its configuration. */
static int profiles_append(struct ctl *c, sd_bus_message *m)
{
	const char *at = c->values[CTL_OPTION_PROFILE];
	int ret = sd_bus_message_open_container(m, 'a', "s");

	for (unsigned n = 0; ret >= 0 && at && *at; n++) {
		size_t length = strcspn(at, ",");
		char name[64];

		if (!length || length >= sizeof(name) || n == PROFILES_MAX ||
		    (at[length] == ',' && !at[length + 1]))
			return ctl_misuse(c, "--profile %.60s is not allowed; use NAME[,NAME]...",
					  c->values[CTL_OPTION_PROFILE]);
		memcpy(name, at, length);
		name[length] = '\0';
		ret = sd_bus_message_append(m, "s", name);
		at += length + (at[length] == ',');
	}
	if (ret >= 0)
		ret = sd_bus_message_close_container(m);
	return ret < 0 ? ctl_no_memory(c) : 0;
}

/* The names go to eval and to execve, so drayctl checks them too. */
static int names_check(struct ctl *c, const struct ctl_variables *v)
{
	for (size_t i = 0; i < v->rows.n; i++) {
		const char *name = ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_NAME);
		bool argument = flag_at(v, i, DRAY_DBUS_VARIABLE_FIELD_ARGUMENT);

		if (argument ? strncmp(name, "--", 2) || name[strspn(name, LETTERS)] :
			       !dray_env_name_valid(name))
			return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_LIST_ENVIRONMENT, EBADMSG);
	}
	return 0;
}

int ctl_variables_get(struct ctl *c, struct ctl_variables *v)
{
	const struct ctl_list *l = &ctl_list_variables;
	const char *given = c->values[CTL_OPTION_PROFILE];
	sd_bus_message *m;

	if (given && !*given)
		return ctl_misuse(c, "--profile needs a name");
	if (ctl_bus_new_call(c, DRAY_DBUS_INTERFACE, l->member, &m) < 0)
		return -1;
	if (profiles_append(c, m) < 0) {
		sd_bus_message_unref(m);
		return -1;
	}
	if (ctl_bus_send(c, m, &v->rows.reply) < 0 || ctl_list_read(c, l, &v->rows) < 0)
		return -1;
	return names_check(c, v);
}

const char *ctl_variable_given(const struct ctl *c, const char *name)
{
	size_t n = strlen(name);

	for (char *const *e = c->env->variables; e && *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=')
			return *e + n + 1;
	return NULL;
}

static bool is_repeated(const struct ctl_variables *v, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (!flag_at(v, k, DRAY_DBUS_VARIABLE_FIELD_LEFT_OUT) &&
		    !strcmp(ctl_rows_text(&v->rows, k, DRAY_DBUS_VARIABLE_FIELD_NAME),
			    ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_NAME)))
			return true;
	return false;
}

struct ctl_variable ctl_variable_at(struct ctl *c, const struct ctl_variables *v, size_t i)
{
	struct ctl_variable r = {
		.profile = ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_PROFILE),
		.name = ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_NAME),
		.value = ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_VALUE),
		.reason = ctl_rows_text(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_REASON)
	};
	const char *given = ctl_variable_given(c, r.name);

	r.fate = CTL_FATE_LEFT_OUT;
	if (flag_at(v, i, DRAY_DBUS_VARIABLE_FIELD_LEFT_OUT))
		return r;
	if (strpbrk(r.value, "\r\n")) {
		r.reason = "its value contains a newline";
	} else if (flag_at(v, i, DRAY_DBUS_VARIABLE_FIELD_ARGUMENT)) {
		r.fate = is_repeated(v, i) ? CTL_FATE_SAME : CTL_FATE_ARGUMENT;
	} else if (is_repeated(v, i) || (given && !strcmp(given, r.value))) {
		r.fate = CTL_FATE_SAME;
	} else if (given && !c->values[CTL_OPTION_OVERRIDE]) {
		r.reason = "it is set already, and --override was not given";
	} else if (v->without_preference && !strcmp(r.name, PREFERRED)) {
		r.reason = "the segment is not ready";
	} else {
		r.fate = CTL_FATE_SET;
	}
	return r;
}

void ctl_variables_note(struct ctl *c, const struct ctl_variables *v)
{
	char reason[600];

	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);

		if (r.fate == CTL_FATE_LEFT_OUT)
			fprintf(c->err, "drayctl: %s is omitted: %s\n", r.name,
				ctl_show_text(r.reason, reason, sizeof(reason)));
	}
}
