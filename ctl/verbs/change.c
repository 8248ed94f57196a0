/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that change something about a running agent, with one call: reload, log-level, close, rails. */
#include "ctl/verbs/change.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "ctl/bus/list.h"
#include "ctl/bus/properties.h"
#include "lib/units.h"

void ctl_result_print(struct ctl *c, const char *key, const char *value)
{
	struct ctl_json j = CTL_JSON(c->out);
	char text[CTL_CELL_BYTES];

	if (c->format == CTL_JSON) {
		ctl_json_object(&j, NULL);
		ctl_json_string(&j, key, value);
		ctl_json_end(&j);
		return;
	}
	fprintf(c->out, "%s\n", ctl_show_text(value, text, sizeof(text)));
}

int ctl_handle_parse(const char *what, const char *text, uint64_t *ret, struct ctl_err *reterr)
{
	char *end;

	*ret = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end)
		return 0;
	return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s %.60s: a number is allowed", what, text);
}

/* One call that answers nothing; what is printed says what is so now. */
static int call(struct ctl *c, const char *key, const char *value, const char *member,
		const char *types, ...)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	sd_bus_message *reply = NULL;
	va_list ap;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	va_start(ap, types);
	if (!ret)
		ret = ctl_bus_askv(&bus, member, &reply, &err, types, ap);
	va_end(ap);
	if (!ret)
		ctl_result_print(c, key, value);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

/* --- configuration -------------------------------------------------------------------------------- */

static int keys_read(sd_bus_message *m, char ***ret, struct ctl_err *reterr)
{
	int r = sd_bus_message_read_strv(m, ret);

	return r < 0 ? ctl_bus_bad_reply(reterr, DRAY_DBUS_METHOD_RELOAD, r) : 0;
}

static void keys_free(char **keys)
{
	for (char **k = keys; k && *k; k++)
		free(*k);
	free(keys);
}

static void reload_print(struct ctl *c, char *const *applied, char *const *restart)
{
	static const char *const names[] = { "applied", "restart" };
	char *const *const lists[] = { applied, restart };
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_JSON)
		ctl_json_object(&j, NULL);
	for (unsigned i = 0; i < 2; i++) {
		if (c->format == CTL_JSON)
			ctl_json_array(&j, names[i]);
		for (char *const *k = lists[i]; k && *k; k++) {
			if (c->format == CTL_JSON)
				ctl_json_string(&j, NULL, *k);
			else if (c->format == CTL_PLAIN)
				fprintf(c->out, "%s\t%s\n", names[i], *k);
			else
				fprintf(c->out, i ? "needs a restart: %s\n" : "applied: %s\n", *k);
		}
		if (c->format == CTL_JSON)
			ctl_json_end(&j);
	}
	if (c->format == CTL_JSON)
		ctl_json_end(&j);
	else if (c->format == CTL_TEXT && !(applied && *applied) && !(restart && *restart))
		fputs("nothing has changed\n", c->out);
}

int ctl_reload(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	char **applied = NULL, **restart = NULL;
	sd_bus_message *reply = NULL;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_bus_ask(&bus, DRAY_DBUS_METHOD_RELOAD, &reply, &err, NULL);
	if (!ret)
		ret = keys_read(reply, &applied, &err);
	if (!ret)
		ret = keys_read(reply, &restart, &err);
	if (!ret)
		reload_print(c, applied, restart);
	keys_free(applied);
	keys_free(restart);
	sd_bus_message_unref(reply);
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

static int level_show(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_properties p;
	int ret;

	ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_properties_get(&p, &bus, &err);
	if (!ret) {
		ctl_result_print(c, "log_level", p.log_level);
		ctl_properties_deinit(&p);
	}
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}

int ctl_log_level(struct ctl *c)
{
	if (!c->n_args)
		return level_show(c);
	return call(c, "log_level", c->args[0], DRAY_DBUS_METHOD_SET_LOG_LEVEL, "s", c->args[0]);
}

/* --- sessions and rails ----------------------------------------------------------------------------- */

int ctl_close(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	uint64_t session;

	if (!c->n_args) {
		ctl_err_set(&err, CTL_EXIT_USAGE,
			    "close needs SESSION; drayctl sessions shows them");
		return ctl_fail(c, &err);
	}
	if (ctl_handle_parse("SESSION", c->args[0], &session, &err) < 0)
		return ctl_fail(c, &err);
	return call(c, "closed", c->args[0], DRAY_DBUS_METHOD_CLOSE_SESSION, "ts", session,
		    c->n_args > 1 ? c->args[1] : "");
}

static int rail_switch(struct ctl *c, enum ctl_option_id id)
{
	const char *given = c->values[id], *slash = strrchr(given, '/');
	struct ctl_err err = CTL_ERR_NULL;
	char device[64];
	int64_t port = 1;
	bool on = id == CTL_OPTION_ENABLE;

	if (slash && (dray_int_parse(slash + 1, 0, &port) < 0 || port < 1 || port > 255)) {
		ctl_err_set(&err, CTL_EXIT_USAGE, "%s %.60s: DEVICE or DEVICE/PORT is allowed",
			    ctl_options[id].name, given);
		return ctl_fail(c, &err);
	}
	snprintf(device, sizeof(device), "%.*s", (int)(slash ? slash - given : (long)strlen(given)),
		 given);
	return call(c, on ? "enabled" : "disabled", given,
		    on ? DRAY_DBUS_METHOD_ENABLE_RAIL : DRAY_DBUS_METHOD_DISABLE_RAIL, "su", device,
		    (uint32_t)port);
}

int ctl_rails(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;

	if (c->values[CTL_OPTION_ENABLE] && c->values[CTL_OPTION_DISABLE]) {
		ctl_err_set(&err, CTL_EXIT_USAGE, "--enable and --disable exclude each other");
		return ctl_fail(c, &err);
	}
	if (c->values[CTL_OPTION_ENABLE])
		return rail_switch(c, CTL_OPTION_ENABLE);
	if (c->values[CTL_OPTION_DISABLE])
		return rail_switch(c, CTL_OPTION_DISABLE);
	return ctl_list_run(c, &ctl_list_rails);
}
