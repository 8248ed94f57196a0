/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that change a running agent by one call: reload, log-level, close, cancel, rails. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/units.h"

/* Prints the result of a change: {"key": "value"} in JSON, else the value alone. */
static void result_print(struct ctl *c, const char *key, const char *value)
{
	struct ctl_json j = CTL_JSON(c->out);
	char text[CTL_CELL_BYTES];

	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_TEXT(key, value));
	else
		fprintf(c->out, "%s\n", ctl_show_text(value, text, sizeof(text)));
}

/* Reads a handle or a request id, also in the hexadecimal form of error messages; what: its name in the help. */
static int handle_parse(struct ctl *c, const char *what, const char *text, uint64_t *ret)
{
	char *end;

	*ret = strtoull(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
	if (*text >= '0' && *text <= '9' && !*end)
		return 0;
	return ctl_misuse(c, "%s %.60s is not a number", what, text);
}

int ctl_change(struct ctl *c, const char *key, const char *value, const char *member,
	       const char *types, ...)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	va_list ap;
	int ret;

	va_start(ap, types);
	ret = ctl_bus_callv(c, member, &reply, types, ap);
	va_end(ap);
	if (!ret)
		result_print(c, key, value);
	return ret;
}

static void keys_free(char **keys)
{
	for (char **k = keys; *k; k++)
		free(*k);
	free(keys);
}
DRAY_DEFINE_CLEANUP(char **, keys_free);

static void keys_print(struct ctl *c, struct ctl_json *j, const char *key, const char *text,
		       char *const *keys)
{
	if (c->format == CTL_JSON)
		ctl_json_array(j, key);
	for (; keys && *keys; keys++) {
		if (c->format == CTL_JSON)
			ctl_json_add(j, J_TEXT(NULL, *keys));
		else if (c->format == CTL_PLAIN)
			fprintf(c->out, "%s\t%s\n", key, *keys);
		else
			fprintf(c->out, "%s: %s\n", text, *keys);
	}
	if (c->format == CTL_JSON)
		ctl_json_end(j);
}

int ctl_reload(struct ctl *c)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	dray_auto(keys_free) char **applied = NULL;
	dray_auto(keys_free) char **restart = NULL;
	struct ctl_json j = CTL_JSON(c->out);
	int ret;

	if (ctl_bus_call(c, DRAY_DBUS_METHOD_RELOAD, &reply, NULL) < 0)
		return -1;
	ret = sd_bus_message_read_strv(reply, &applied);
	if (ret >= 0)
		ret = sd_bus_message_read_strv(reply, &restart);
	if (ret < 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_RELOAD, ret);
	if (c->format == CTL_JSON)
		ctl_json_object(&j, NULL);
	keys_print(c, &j, "applied", "applied", applied);
	keys_print(c, &j, "restart", "needs a restart", restart);
	if (c->format == CTL_JSON)
		ctl_json_end(&j);
	else if (c->format == CTL_TEXT && !(applied && *applied) && !(restart && *restart))
		fputs("no key has changed\n", c->out);
	return CTL_EXIT_OK;
}

int ctl_log_level(struct ctl *c)
{
	ctl_auto_properties struct ctl_properties p = CTL_PROPERTIES_NULL;

	if (c->n_args)
		return ctl_change(c, "log_level", c->args[0], DRAY_DBUS_METHOD_SET_LOG_LEVEL, "s",
				  c->args[0]);
	if (ctl_properties_get(c, &p) < 0)
		return -1;
	result_print(c, "log_level", p.v.log_level);
	return CTL_EXIT_OK;
}

int ctl_close(struct ctl *c)
{
	uint64_t session;

	if (!c->n_args)
		return ctl_misuse(c, "close needs SESSION; drayctl sessions lists sessions");
	if (handle_parse(c, "SESSION", c->args[0], &session) < 0)
		return -1;
	return ctl_change(c, "closed", c->args[0], DRAY_DBUS_METHOD_CLOSE_SESSION, "ts", session,
			  c->n_args > 1 ? c->args[1] : "");
}

int ctl_cancel(struct ctl *c)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	uint64_t session, request;
	const char *result;
	int ret;

	if (c->n_args < 2)
		return ctl_misuse(c,
				  "cancel needs SESSION and REQUEST; drayctl transfers lists both");
	if (handle_parse(c, "SESSION", c->args[0], &session) < 0 ||
	    handle_parse(c, "REQUEST", c->args[1], &request) < 0 ||
	    ctl_bus_call(c, DRAY_DBUS_METHOD_CANCEL_TRANSFER, &reply, "tt", session, request) < 0)
		return -1;
	ret = sd_bus_message_read(reply, "s", &result);
	if (ret < 0)
		return ctl_bus_bad_reply(c, DRAY_DBUS_METHOD_CANCEL_TRANSFER, ret);
	result_print(c, "result", result);
	return CTL_EXIT_OK;
}

static int rail_switch(struct ctl *c, enum ctl_option_id id, const char *key, const char *member)
{
	const char *given = c->values[id];
	const char *slash = strrchr(given, '/');
	size_t length = slash ? (size_t)(slash - given) : strlen(given);
	char device[64];
	int64_t port = 1;

	if (slash && (dray_int_parse(slash + 1, 0, &port) < 0 || port < 1 || port > 255))
		return ctl_misuse(c, "%s %.60s is not allowed; use DEVICE or DEVICE/PORT",
				  ctl_options[id].name, given);
	snprintf(device, sizeof(device), "%.*s", (int)length, given);
	return ctl_change(c, key, given, member, "su", device, (uint32_t)port);
}

int ctl_rails(struct ctl *c)
{
	if (c->values[CTL_OPTION_ENABLE])
		return rail_switch(c, CTL_OPTION_ENABLE, "enabled", DRAY_DBUS_METHOD_ENABLE_RAIL);
	if (c->values[CTL_OPTION_DISABLE])
		return rail_switch(c, CTL_OPTION_DISABLE, "disabled",
				   DRAY_DBUS_METHOD_DISABLE_RAIL);
	return ctl_list_run(c, &ctl_list_rails);
}
