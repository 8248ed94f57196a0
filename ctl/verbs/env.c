/* SPDX-License-Identifier: Apache-2.0 */
/* env: the environment of an engine, in forms that a shell or a program reads. */
#include <stdlib.h>

#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/quote.h"

static void lines_print(struct ctl *c, const struct ctl_variables *v)
{
	bool shell = c->numbers[CTL_OPTION_ENV_FORMAT] == CTL_ENV_FORMAT_SHELL;

	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);

		if (r.fate == CTL_FATE_ARGUMENT)
			fprintf(c->err,
				"drayctl: %s of profile %s is an argument; --format args prints it\n",
				r.name, r.profile);
		if (r.fate != CTL_FATE_SET)
			continue;
		fprintf(c->out, "%s%s=", shell ? "export " : "", r.name);
		if (shell)
			dray_quote_shell(c->out, r.value);
		else
			dray_quote_dotenv(c->out, r.value);
		fputc('\n', c->out);
	}
}

static int arguments_print(struct ctl *c, const struct ctl_variables *v)
{
	bool some = false, any = false;

	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);

		any |= ctl_rows_at(&v->rows, i, DRAY_DBUS_VARIABLE_FIELD_ARGUMENT)->n;
		if (r.fate != CTL_FATE_ARGUMENT)
			continue;
		fprintf(c->out, "%s%s=", some ? " " : "", r.name);
		dray_quote_shell(c->out, r.value);
		some = true;
	}
	if (some)
		fputc('\n', c->out);
	if (any)
		return 0;
	return ctl_misuse(c, "these profiles have no arguments; use --profile mooncake-owner");
}

static void json_print(struct ctl *c, const struct ctl_variables *v)
{
	struct ctl_json j = CTL_JSON(c->out);

	ctl_json_object(&j, NULL);
	ctl_json_object(&j, "variables");
	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);

		if (r.fate == CTL_FATE_SET)
			ctl_json_add(&j, J_TEXT(r.name, r.value));
	}
	ctl_json_end(&j);
	ctl_json_array(&j, "arguments");
	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);
		dray_auto_free char *text = NULL;

		if (r.fate == CTL_FATE_ARGUMENT && asprintf(&text, "%s=%s", r.name, r.value) >= 0)
			ctl_json_add(&j, J_TEXT(NULL, text));
	}
	ctl_json_end(&j);
	ctl_json_array(&j, "left_out");
	for (size_t i = 0; i < v->rows.n; i++) {
		struct ctl_variable r = ctl_variable_at(c, v, i);

		if (r.fate == CTL_FATE_LEFT_OUT)
			ctl_json_record(&j, NULL, J_TEXT("profile", r.profile),
					J_TEXT("name", r.name), J_TEXT("reason", r.reason));
	}
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static int print(struct ctl *c, const struct ctl_variables *v)
{
	int64_t format = c->numbers[CTL_OPTION_ENV_FORMAT];

	/* --json and --plain print the records of the interface, as they do for other lists. */
	if (c->format != CTL_TEXT)
		return ctl_list_print(c, &ctl_list_variables, &v->rows);
	if (format == CTL_ENV_FORMAT_JSON) {
		json_print(c, v);
		return 0;
	}
	ctl_variables_note(c, v);
	if (format == CTL_ENV_FORMAT_ARGS)
		return arguments_print(c, v);
	lines_print(c, v);
	return 0;
}

int ctl_env(struct ctl *c)
{
	struct ctl_variables v = CTL_VARIABLES_NULL;
	int ret = ctl_variables_get(c, &v);

	if (!ret)
		ret = print(c, &v);
	ctl_rows_deinit(&v.rows);
	return ret;
}
