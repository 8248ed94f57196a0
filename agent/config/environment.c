/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variable DRAY_AGENT_STATE_DIR sets the key agent.state_dir, and so on. An unknown DRAY_* variable may belong to
 * another program, so it only causes a warning. Variables of clients cause none. Neither do variables that Kubernetes adds
 * to each container for a Service whose name starts with "dray", such as DRAY_PORT=tcp://10.0.0.1:7411.
 */
#include "agent/config/internal.h"

#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/nearest.h"

/* Variables of libdray, the Python client, drayctl, and test builds. */
static const char *const foreign[] = { "DRAY_SOCKET", "DRAY_SEGMENT",
				       "DRAY_SPIN",   "DRAY_LIBRARY",
				       "DRAY_LOG",    "DRAY_MOONCAKE_SEGMENT",
				       "DRAY_FAULT",  "DRAY_MOONCAKE_ANY_UID" };

/* Variables for a Service NAME: NAME_SERVICE_HOST, NAME_SERVICE_PORT[_WORD], NAME_PORT, and NAME_PORT_7411_TCP[_ADDR]. */
#define INJECTED                               \
	"_(SERVICE_HOST|PORT|SERVICE_PORT_.*|" \
	"PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$"

static const struct dray_config_key *key_of(const char *name, size_t n)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		if (!strncmp(dray_config_keys[i].env, name, n) && !dray_config_keys[i].env[n])
			return &dray_config_keys[i];
	return NULL;
}

static int is_injected(const char *name, bool *ret)
{
	regex_t pattern;

	if (regcomp(&pattern, INJECTED, REG_EXTENDED | REG_NOSUB))
		return -ENOMEM;
	*ret = !regexec(&pattern, name, 0, NULL, 0);
	regfree(&pattern);
	return 0;
}

static int unknown(struct config *c, const char *name, size_t n)
{
	dray_auto_free char *word = strndup(name, n);
	struct dray_nearest nearest;
	bool ignored;

	if (!word || is_injected(word, &ignored) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(foreign); i++)
		ignored |= !strcmp(word, foreign[i]);
	if (ignored)
		return 0;
	nearest = DRAY_NEAREST(word);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		dray_nearest_offer(&nearest, dray_config_keys[i].env);
	return config_warn(c, "environment %s is not a setting, ignoring it%s%s%s",
			   config_clip(word), nearest.best ? "; did you mean " : "",
			   nearest.best ? nearest.best : "", nearest.best ? "?" : "");
}

static int variable_load(struct config *c, const char *var, struct dray_err *reterr)
{
	size_t n = strcspn(var, "=");
	const struct dray_config_key *key;
	struct config_raw raw;
	char where[128];

	if (var[n] != '=')
		return 0;
	key = key_of(var, n);
	if (!key)
		return unknown(c, var, n) < 0 ? config_no_memory(reterr) : 0;
	raw = (struct config_raw){ .text = var + n + 1 };
	snprintf(where, sizeof(where), "environment %s", key->env);
	return config_set(c, (enum dray_config_key_id)(key - dray_config_keys), &raw,
			  CONFIG_ENVIRONMENT, where, NULL, reterr);
}

const char *config_variable(const struct config_args *args, const char *name)
{
	size_t n = strlen(name);

	for (char *const *env = args->env; env && *env; env++)
		if (!strncmp(*env, name, n) && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

/* systemd's StateDirectory= replaces only the default; a value from a file stays. */
static int state_directory_load(struct config *c, const struct config_args *args,
				struct dray_err *reterr)
{
	const char *value = config_variable(args, "STATE_DIRECTORY");
	dray_auto_free char *first = value ? strndup(value, strcspn(value, ":")) : NULL;
	struct config_raw raw = { .text = first };

	if (value && !first)
		return config_no_memory(reterr);
	if (!value || !*first ||
	    c->origin[DRAY_CONFIG_KEY_AGENT_STATE_DIR].source != CONFIG_DEFAULT)
		return 0;
	return config_set(c, DRAY_CONFIG_KEY_AGENT_STATE_DIR, &raw, CONFIG_ENVIRONMENT,
			  "environment STATE_DIRECTORY", NULL, reterr);
}

int config_env_load(struct config *c, const struct config_args *args, struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	int r = config_collect(c, state_directory_load(c, args, &why), &why, reterr);

	for (char *const *env = args->env; !r && env && *env; env++) {
		why = DRAY_ERR_NULL;
		if (!strncmp(*env, "DRAY_", 5))
			r = config_collect(c, variable_load(c, *env, &why), &why, reterr);
	}
	return r;
}
