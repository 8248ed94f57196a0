/* SPDX-License-Identifier: Apache-2.0 */
/* config: the settings of the agent, what a key means, and whether a configuration is valid. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/render/human.h"
#include "ctl/verbs/verbs.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/nearest.h"
#include "schema/gen/config.h"

#define ORIGIN_DEFAULT "default"

/* --- show --------------------------------------------------------------------------------------- */

/* Removes the rows of keys that have their default. */
static void changed_keep(struct ctl_rows *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->n; i++) {
		if (!strcmp(ctl_rows_text(r, i, DRAY_DBUS_SETTING_FIELD_ORIGIN), ORIGIN_DEFAULT))
			continue;
		memmove(&r->values[kept++ * r->n_fields], &r->values[i * r->n_fields],
			r->n_fields * sizeof(*r->values));
	}
	r->n = kept;
}

static int settings_show(struct ctl *c)
{
	const struct ctl_list *list = c->values[CTL_OPTION_ORIGIN] ? &ctl_list_origins :
								     &ctl_list_settings;
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	if (ctl_list_get(c, list, &rows, NULL) < 0)
		return -1;
	if (c->values[CTL_OPTION_CHANGED])
		changed_keep(&rows);
	if (rows.n || c->format != CTL_TEXT)
		return ctl_list_print(c, list, &rows);
	fputs("every key has its default; drayctl config explain KEY says how to set one\n",
	      c->out);
	return CTL_EXIT_OK;
}

/* --- explain ------------------------------------------------------------------------------------ */

static const struct dray_config_key *key_find(struct ctl *c, const char *name)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);

	for (unsigned i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		if (!strcmp(dray_config_keys[i].path, name))
			return &dray_config_keys[i];
		dray_nearest_offer(&nearest, dray_config_keys[i].path);
	}
	if (nearest.best)
		ctl_misuse(c, "unknown key %.60s, did you mean %s?", name, nearest.best);
	else
		ctl_misuse(c, "unknown key %.60s; drayd --help lists all", name);
	return NULL;
}

ssize_t ctl_setting_find(struct ctl *c, struct ctl_rows *r, const char *key)
{
	if (ctl_list_get(c, &ctl_list_settings, r, NULL) < 0)
		return -1;
	for (size_t i = 0; i < r->n; i++)
		if (!strcmp(ctl_rows_text(r, i, DRAY_DBUS_SETTING_FIELD_KEY), key))
			return (ssize_t)i;
	return -1;
}

/* The value in the form of the configuration file. */
static void file_form_print(FILE *f, const struct dray_config_key *key, const char *value)
{
	bool bare = key->type == DRAY_CONFIG_BOOL || key->type == DRAY_CONFIG_INT;

	if (key->type == DRAY_CONFIG_LIST)
		fprintf(f, "%s: { %s = [...]; };", key->section, key->name);
	else
		fprintf(f, bare ? "%s: { %s = %s; };" : "%s: { %s = \"%s\"; };", key->section,
			key->name, value);
}

static void explain_text(struct ctl *c, const struct dray_config_key *key, const char *value,
			 const char *origin)
{
	const char *none = key->type == DRAY_CONFIG_LIST ? "[]" : "\"\"";
	char text[CTL_CELL_BYTES];

	fprintf(c->out, "%s: %s\n\n", key->path, key->doc);
	if (value)
		fprintf(c->out, "  now       %s, from: %s\n",
			*value ? ctl_show_text(value, text, sizeof(text)) : none, origin);
	else
		fprintf(c->out, "  now       unknown: no agent answers on %s\n", c->control);
	fprintf(c->out, "  default   %s\n", *key->def ? key->def : none);
	fprintf(c->out, "  allowed   %s\n", key->allowed);
	fprintf(c->out, "  change    %s\n",
		key->reload ? "takes effect by drayctl reload" : "needs a restart of the agent");
	fputs("  set it    in the file: ", c->out);
	file_form_print(c->out, key, value ? value : key->def);
	fprintf(c->out, "\n            in the environment: %s\n", key->env);
	fprintf(c->out, "            on the command line: drayd %s%s%s\n",
		key->flag ? key->flag : "--set ", key->flag ? "" : key->path,
		key->flag ? " ..." : "=...");
}

static int explain(struct ctl *c)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;
	struct ctl_json j = CTL_JSON(c->out);
	const char *value = NULL, *origin = NULL;
	const struct dray_config_key *key;
	ssize_t row;

	if (c->n_args < 2)
		return ctl_misuse(c, "config explain needs a KEY; drayctl config lists keys");
	key = key_find(c, c->args[1]);
	if (!key)
		return -1;
	row = ctl_setting_find(c, &rows, key->path);
	c->failure = CTL_FAILURE_NULL; /* What a key means is known without an agent. */
	if (row >= 0) {
		value = ctl_rows_text(&rows, (size_t)row, DRAY_DBUS_SETTING_FIELD_VALUE);
		origin = ctl_rows_text(&rows, (size_t)row, DRAY_DBUS_SETTING_FIELD_ORIGIN);
	}
	if (c->format == CTL_JSON)
		ctl_json_record(&j, NULL, J_TEXT("key", key->path),
				value ? J_TEXT("value", value) : J_NULL("value"),
				value ? J_TEXT("origin", origin) : J_NULL("origin"),
				J_TEXT("default", key->def), J_TEXT("allowed", key->allowed),
				J_BOOL("reload", key->reload), J_TEXT("environment", key->env),
				key->flag ? J_TEXT("option", key->flag) : J_NULL("option"),
				J_TEXT("doc", key->doc));
	else if (c->format == CTL_PLAIN)
		fprintf(c->out, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", key->path,
			value ? value : "", value ? origin : "", key->def, key->allowed,
			key->reload, key->env, key->flag ? key->flag : "", key->doc);
	else
		explain_text(c, key, value, origin);
	return CTL_EXIT_OK;
}

/* --- check -------------------------------------------------------------------------------------- */

/* drayd: beside this program, in the sbin beside its bin, or in the path. */
static const char *agent_program(char *buf, size_t n)
{
	static const char *const places[] = { "/drayd", "/../sbin/drayd" };
	ssize_t length = readlink("/proc/self/exe", buf, n);

	while (length > 0 && (size_t)length < n && buf[length - 1] != '/')
		length--;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(places) && length > 0; i++) {
		snprintf(buf + length - 1, n - (size_t)(length - 1), "%s", places[i]);
		if (!access(buf, X_OK))
			return buf;
	}
	return "drayd";
}

/* Runs the agent's own check, whose errors go to our error stream. Fills its wait status; 0 or an error number. */
static int check_run(struct ctl *c, const char *program, const char *file, int *ret_status)
{
	char *const argv[] = { (char[]){ "drayd" }, (char[]){ "--check-config" },
			       file ? (char[]){ "--config" } : NULL, (char *)(uintptr_t)file,
			       NULL };
	posix_spawn_file_actions_t actions;
	pid_t child = 0;
	int r = posix_spawn_file_actions_init(&actions);

	if (r)
		return r;
	r = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (!r)
		r = posix_spawnp(&child, program, &actions, NULL, argv, c->env->variables);
	posix_spawn_file_actions_destroy(&actions);
	while (!r && waitpid(child, ret_status, 0) < 0)
		r = errno == EINTR ? 0 : errno;
	return r;
}

static int check(struct ctl *c)
{
	const char *file = c->n_args > 1 ? c->args[1] : NULL;
	char path[4096];
	const char *program = agent_program(path, sizeof(path));
	int status = 0, r = check_run(c, program, file, &status);

	if (r)
		return ctl_failed(c, "cannot run %.200s, which checks the configuration: %s",
				  program, dray_errno_text(r));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return ctl_failed(c, "the configuration is not valid; mend what drayd names above");
	fprintf(c->out, "%s is valid\n", file ? file : "the configuration");
	return CTL_EXIT_OK;
}

int ctl_config(struct ctl *c)
{
	static const struct {
		const char *name;
		unsigned max_args;
		int (*run)(struct ctl *c);
	} actions[] = { { "show", 1, settings_show },
			{ "explain", 2, explain },
			{ "check", 2, check } };

	if (!c->n_args)
		return settings_show(c);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(actions); i++) {
		if (strcmp(c->args[0], actions[i].name))
			continue;
		if (c->n_args > actions[i].max_args)
			return ctl_misuse(c, "config %s takes no argument; remove \"%.60s\"",
					  actions[i].name, c->args[1]);
		if (actions[i].run != settings_show &&
		    (c->values[CTL_OPTION_ORIGIN] || c->values[CTL_OPTION_CHANGED]))
			return ctl_misuse(c, "--origin and --changed are options of config show");
		return actions[i].run(c);
	}
	return ctl_misuse(c, "config %.60s is not known; use show, explain or check", c->args[0]);
}
