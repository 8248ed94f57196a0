/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/args.h"

#include <stdlib.h>
#include <string.h>

#include "agent/config/internal.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"

struct option {
	const char *name;
	const char *value; /* name of its value in the help; NULL: none */
	const char *doc;
};

enum { OPTION_CONFIG, OPTION_SET, OPTION_CHECK_CONFIG, OPTION_HELP, OPTION_VERSION, OPTION_N };

static const struct option options[OPTION_N] = {
	[OPTION_CONFIG] = { "--config", "FILE",
			    "configuration file; " CONFIG_FILE_DEFAULT " if it exists" },
	[OPTION_SET] = { "--set", "KEY=VALUE", "set any key below; lists are separated by commas" },
	[OPTION_CHECK_CONFIG] = { "--check-config", NULL,
				  "print every effective value and its origin, and exit" },
	[OPTION_HELP] = { "--help", NULL, "print this help, and exit" },
	[OPTION_VERSION] = { "--version", NULL, "print the version, and exit" },
};

/* The setting of a list that a repeated option adds to; NULL: none yet. Other options replace the value. */
static struct config_setting *list_find(struct config_args *c, enum dray_config_key_id id)
{
	for (size_t i = 0; i < c->n_settings; i++)
		if (c->settings[i].key == id && dray_config_keys[id].type == DRAY_CONFIG_LIST)
			return &c->settings[i];
	return NULL;
}

static int setting_add(struct args *a, const struct dray_config_key *key, const char *option,
		       const char *value, struct dray_err *reterr)
{
	enum dray_config_key_id id = (enum dray_config_key_id)(key - dray_config_keys);
	struct config_args *c = &a->config;
	struct config_setting *s = list_find(c, id);
	char *joined;

	if (s) {
		if (asprintf(&joined, "%s,%s", s->value, value) < 0)
			return config_no_memory(reterr);
		free(s->value);
		s->value = joined;
	} else {
		s = reallocarray(c->settings, c->n_settings + 1, sizeof(*s));
		if (!s)
			return config_no_memory(reterr);
		c->settings = s;
		s += c->n_settings++;
		*s = (struct config_setting){ id, option, strdup(value) };
	}
	return s->value ? config_setting_check(s, reterr) : config_no_memory(reterr);
}

static int set_add(struct args *a, const char *text, struct dray_err *reterr)
{
	const char *equals = strchr(text, '='), *nearest;
	const struct dray_config_key *key;
	dray_auto_free char *path = NULL;

	if (!equals)
		return config_invalid(reterr,
				      "--set %s: the form is KEY=VALUE, such as agent.workers=4",
				      config_clip(text));
	path = strndup(text, (size_t)(equals - text));
	if (!path)
		return config_no_memory(reterr);
	key = config_key_find(path, &nearest);
	return key ? setting_add(a, key, "--set", equals + 1, reterr) :
		     config_unknown(reterr, "--set", path, nearest);
}

/* Whether arg is the option; *ret_value is then the text after =, or NULL. */
static bool option_is(const char *arg, const char *name, const char **ret_value)
{
	size_t n = strlen(name);

	if (strncmp(arg, name, n) || (arg[n] && arg[n] != '='))
		return false;
	*ret_value = arg[n] ? arg + n + 1 : NULL;
	return true;
}

static int unknown(const char *arg, struct dray_err *reterr)
{
	dray_auto_free char *word = strndup(arg, strcspn(arg, "="));
	struct dray_nearest nearest = DRAY_NEAREST(word);

	if (!word)
		return config_no_memory(reterr);
	for (size_t i = 0; i < OPTION_N; i++)
		dray_nearest_offer(&nearest, options[i].name);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		if (dray_config_keys[i].flag)
			dray_nearest_offer(&nearest, dray_config_keys[i].flag);
	return config_invalid(reterr,
			      nearest.best ? "unknown option %s, did you mean %s?" :
					     "unknown option %s; drayd --help lists all%s",
			      config_clip(word), nearest.best ? nearest.best : "");
}

/* The option's value: after =, or the next argument. */
static int value_take(const char *name, const char **value, int argc, char **argv, int *i,
		      struct dray_err *reterr)
{
	if (*value)
		return 0;
	if (*i + 1 >= argc)
		return config_invalid(reterr, "%s needs a value", name);
	*value = argv[++*i];
	return 0;
}

static int option_apply(struct args *a, int option, const char *value, struct dray_err *reterr)
{
	if (value && !options[option].value)
		return config_invalid(reterr, "%s takes no value", options[option].name);
	switch (option) {
	case OPTION_CONFIG:
		if (!*value)
			return config_invalid(reterr, "--config needs the name of a file");
		a->config.file = value;
		return 0;
	case OPTION_SET:
		return set_add(a, value, reterr);
	case OPTION_CHECK_CONFIG:
		a->action = ARGS_CHECK_CONFIG;
		return 0;
	case OPTION_HELP:
		a->action = ARGS_HELP;
		return 0;
	default:
		a->action = ARGS_VERSION;
		return 0;
	}
}

/* *ret_ends: the arguments after this one are ignored. */
static int arg_parse(struct args *a, int argc, char **argv, int *i, bool *ret_ends,
		     struct dray_err *reterr)
{
	const char *arg = argv[*i], *value = NULL;
	int r;

	if (!strcmp(arg, "-h"))
		arg = options[OPTION_HELP].name;
	for (int o = 0; o < OPTION_N; o++) {
		if (!option_is(arg, options[o].name, &value))
			continue;
		*ret_ends = o == OPTION_HELP || o == OPTION_VERSION;
		r = options[o].value ? value_take(options[o].name, &value, argc, argv, i, reterr) :
				       0;
		return r ? r : option_apply(a, o, value, reterr);
	}
	for (int k = 0; k < DRAY_CONFIG_KEY_N; k++) {
		const struct dray_config_key *key = &dray_config_keys[k];

		if (!key->flag || !option_is(arg, key->flag, &value))
			continue;
		if (key->type == DRAY_CONFIG_BOOL && !value)
			value = "true";
		r = value_take(key->flag, &value, argc, argv, i, reterr);
		return r ? r : setting_add(a, key, key->flag, value, reterr);
	}
	if (*arg == '-')
		return unknown(arg, reterr);
	return config_invalid(reterr, "\"%.60s\" is not an option; drayd --help lists all", arg);
}

int args_parse(struct args *a, int argc, char **argv, struct dray_err *reterr)
{
	bool ends = false;
	int r = 0;

	for (int i = 1; !r && !ends && i < argc; i++)
		r = arg_parse(a, argc, argv, &i, &ends, reterr);
	return r;
}

void args_deinit(struct args *a)
{
	for (size_t i = 0; i < a->config.n_settings; i++)
		free(a->config.settings[i].value);
	free(a->config.settings);
	*a = ARGS_NULL;
}

static const char *const flag_values[] = {
	[DRAY_CONFIG_STRING] = " TEXT", [DRAY_CONFIG_PATH] = " PATH",
	[DRAY_CONFIG_BOOL] = "",        [DRAY_CONFIG_INT] = " NUMBER",
	[DRAY_CONFIG_SIZE] = " SIZE",   [DRAY_CONFIG_DURATION] = " DURATION",
	[DRAY_CONFIG_ENUM] = " WORD",   [DRAY_CONFIG_LIST] = " LIST",
};

static void key_help(const struct dray_config_key *key, FILE *f)
{
	bool quoted = key->type != DRAY_CONFIG_BOOL && key->type != DRAY_CONFIG_INT;

	if (key->type == DRAY_CONFIG_LIST)
		fprintf(f, "  %s = [%s]", key->path, key->def);
	else
		fprintf(f, quoted ? "  %s = \"%s\"" : "  %s = %s", key->path, key->def);
	fprintf(f, "  (%s%s", key->allowed, key->reload ? "; may change on reload" : "");
	if (key->flag)
		fprintf(f, "; %s%s", key->flag, flag_values[key->type]);
	fprintf(f, ")\n      %s\n", key->doc);
}

void args_help(FILE *f)
{
	fputs("Usage: drayd [OPTION]...\n"
	      "Moves KV-cache and encoder-cache bytes for the inference engine beside it.\n\n"
	      "Options:\n",
	      f);
	for (size_t i = 0; i < OPTION_N; i++) {
		char left[40];

		snprintf(left, sizeof(left), "%s%s%s", options[i].name, options[i].value ? " " : "",
			 options[i].value ? options[i].value : "");
		fprintf(f, "  %-18s %s\n", left, options[i].doc);
	}
	fputs("\nKeys with their defaults. Set them in the file (agent: { workers = 4; };), in the\n"
	      "environment (DRAY_AGENT_WORKERS=4) and on the command line (--set agent.workers=4, or\n"
	      "the option named here); later ones override earlier ones.\n\n",
	      f);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		key_help(&dray_config_keys[i], f);
}

void args_version(FILE *f)
{
	fputs("drayd " DRAY_VERSION "\n", f);
}
