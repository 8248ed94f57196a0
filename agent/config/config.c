/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/config.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/internal.h"
#include "agent/config/segment_rules.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"

const struct dray_config_key *config_key_find(const char *path, const char **ret_nearest)
{
	struct dray_nearest nearest = DRAY_NEAREST(path);
	const char *dot = strrchr(path, '.');
	const char *same_name = NULL;

	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];

		if (!strcmp(path, key->path))
			return key;
		dray_nearest_offer(&nearest, key->path);
		/* the same name in another section */
		if (!same_name && !strcmp(dot ? dot + 1 : path, key->name))
			same_name = key->path;
	}
	if (ret_nearest)
		*ret_nearest = same_name ? same_name : nearest.best;
	return NULL;
}

int config_unknown(struct dray_err *reterr, const char *where, const char *key, const char *nearest)
{
	return config_refuse(reterr, where,
			     nearest ? "unknown key %.60s, did you mean %s?" :
				       "unknown key %.60s; drayd --help lists all keys%s",
			     config_clip(key), nearest ? nearest : "");
}

const char *config_origin(const struct config *c, enum dray_config_key_id key)
{
	return c->origin[key].text ? c->origin[key].text : "default";
}

int config_set(struct config *c, enum dray_config_key_id id, const struct config_raw *raw,
	       enum config_source source, const char *where, const char *origin_text,
	       struct dray_err *reterr)
{
	char *copy = NULL;
	int r;

	if (source != CONFIG_DEFAULT) {
		copy = strdup(origin_text ? origin_text : where);
		if (!copy)
			return config_no_memory(reterr);
	}
	r = config_value_set(&c->v, id, raw, where, reterr);
	if (r < 0) {
		c->refused[id] = r == -EINVAL;
		free(copy);
		return r;
	}
	free(c->origin[id].text);
	c->origin[id] = (struct config_origin){ source, copy };
	return 0;
}

int config_warn(struct config *c, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return dray_strv_add(&c->warnings, text, strlen(text));
}

int config_collect(struct config *c, int r, const struct dray_err *why, struct dray_err *reterr)
{
	if (r == -EINVAL)
		return dray_strv_add(&c->errors, why->msg, strlen(why->msg)) < 0 ?
			       config_no_memory(reterr) :
			       0;
	return r < 0 ? dray_err_set(reterr, r, why->code, "%s", why->msg) : 0;
}

static int defaults_load(struct config *c, struct dray_err *reterr)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		struct config_raw raw = { .text = dray_config_keys[i].def };
		int r;

		r = config_set(c, (enum dray_config_key_id)i, &raw, CONFIG_DEFAULT, "default", NULL,
			       reterr);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The place of a command line setting, for errors. */
static const char *option_where(const struct config_setting *s, char *buf, size_t n)
{
	snprintf(buf, n, "command line %s", s->option);
	return buf;
}

int config_setting_check(const struct config_setting *s, struct dray_err *reterr)
{
	struct dray_config scratch = { .agent.state_dir = NULL };
	struct config_raw raw = { .text = s->value };
	char where[64];
	int r;

	r = config_value_set(&scratch, s->key, &raw, option_where(s, where, sizeof(where)), reterr);
	config_values_free(&scratch);
	return r;
}

static int settings_load(struct config *c, const struct config_args *args, struct dray_err *reterr)
{
	int r = 0;

	for (size_t i = 0; i < args->n_settings && !r; i++) {
		const struct config_setting *s = &args->settings[i];
		struct config_raw raw = { .text = s->value };
		struct dray_err why = DRAY_ERR_NULL;
		char where[64];

		r = config_set(c, s->key, &raw, CONFIG_COMMAND_LINE,
			       option_where(s, where, sizeof(where)), "command line", &why);
		r = config_collect(c, r, &why, reterr);
	}
	return r;
}

/* Variables of other programs: a malformed value is ignored with a warning. */
static int foreign_variables_check(struct config *c, const struct config_args *args)
{
	static const struct {
		const char *name;
		const char *(*check)(const char *value, struct dray_err *reterr);
	} variables[] = {
		{ "MOONCAKE_PREFERRED_SEGMENT", rules_preferred_variable },
		{ "MOONCAKE_MASTER_METRICS_URL", rules_master_variable },
		{ "MOONCAKE_MASTER", rules_master_rpc_variable },
	};
	int r = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(variables) && !r; i++) {
		const char *value = config_variable(args, variables[i].name);
		struct dray_err why = DRAY_ERR_NULL;

		variables[i].check(value, &why);
		if (why.code)
			r = config_warn(c, "environment %s=\"%s\" is ignored: %s",
					variables[i].name, config_clip(value), why.msg);
	}
	return r;
}

static int load(struct config *c, const struct config_args *args, struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	r = defaults_load(c, reterr);
	if (!r)
		r = config_collect(c, config_file_load(c, args->file, &why), &why, reterr);
	if (!r)
		r = config_env_load(c, args, reterr);
	if (!r)
		r = settings_load(c, args, reterr);
	if (!r)
		r = config_cross_check(c, args->check, reterr);
	if (r >= 0 && foreign_variables_check(c, args) < 0)
		r = config_no_memory(reterr);
	return r;
}

int config_load(struct config *c, const struct config_args *args, struct dray_err *reterr)
{
	int r = load(c, args, reterr);

	if (r < 0 || !c->errors.n)
		return r;
	if (c->errors.n == 1)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s", c->errors.v[0]);
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%zu errors, the first: %s",
			    c->errors.n, c->errors.v[0]);
}

void config_deinit(struct config *c)
{
	config_values_free(&c->v);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		free(c->origin[i].text);
	dray_strv_clear(&c->warnings);
	dray_strv_clear(&c->errors);
	free(c->file);
	*c = CONFIG_NULL;
}

static void quoted_show(const char *s, FILE *f)
{
	putc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			putc('\\', f);
		putc(*s, f);
	}
	putc('"', f);
}

static void value_show(const struct config *c, enum dray_config_key_id id, FILE *f)
{
	const struct dray_config_key *key = &dray_config_keys[id];
	const struct dray_strv *list = config_member(&c->v, id);
	dray_auto_free char *text = NULL;

	if (key->type == DRAY_CONFIG_LIST) {
		fputs("[", f);
		for (size_t i = 0; i < list->n; i++) {
			fputs(i ? ", " : " ", f);
			quoted_show(list->v[i], f);
		}
		fputs(list->n ? " ]" : "]", f);
		return;
	}
	text = config_value_text(&c->v, id);
	if (!text)
		return;
	/* octal numbers are quoted, because libconfig reads 0660 without quotes as 660 */
	if (key->type == DRAY_CONFIG_BOOL || (key->type == DRAY_CONFIG_INT && !key->octal))
		fprintf(f, "%s", text);
	else
		quoted_show(text, f);
}

void config_show(const struct config *c, FILE *f)
{
	const char *section = "";

	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];
		const char *origin = config_origin(c, (enum dray_config_key_id)i);

		if (strcmp(section, key->section))
			fprintf(f, "%s%s:\n{\n", i ? "};\n\n" : "", key->section);
		section = key->section;
		fprintf(f, "\t%s = ", key->name);
		value_show(c, (enum dray_config_key_id)i, f);
		fputs("; # ", f);
		for (; *origin; origin++)
			putc((unsigned char)*origin < ' ' ? '?' : *origin, f);
		putc('\n', f);
	}
	fputs("};\n", f);
}
