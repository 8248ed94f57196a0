/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variable DRAY_AGENT_STATE_DIR sets the key agent.state_dir, and so on. An unknown DRAY_* variable may belong to
 * another program, so it only causes a warning. Variables of clients cause none. Neither do variables that Kubernetes adds
 * to each container for a Service whose name starts with "dray", such as DRAY_PORT=tcp://10.0.0.1:7411.
 */
#include "agent/config/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/nearest.h"
#include "schema/gen/errors.h"

/* Variables of libdray, the Python client, drayctl, and test builds. */
static const char *const foreign[] = { "DRAY_SOCKET", "DRAY_LOG", "DRAY_FAULT" };

static bool ends_with(const char *s, size_t n, const char *end)
{
	size_t n_end = strlen(end);

	return n >= n_end && !memcmp(s + n - n_end, end, n_end);
}

/* The length of s without that end; n if s has another end. */
static size_t without(const char *s, size_t n, const char *end)
{
	return ends_with(s, n, end) ? n - strlen(end) : n;
}

/*
 * NAME_SERVICE_HOST, NAME_SERVICE_PORT, NAME_SERVICE_PORT_WORD, NAME_PORT, NAME_PORT_7411_TCP and
 * the same with _PROTO, _PORT or _ADDR.
 */
static bool is_injected(const char *name, size_t n)
{
	size_t base = n, digits;

	if (ends_with(name, n, "_SERVICE_HOST") || ends_with(name, n, "_PORT"))
		return true;
	if (memmem(name, n, "_SERVICE_PORT_", strlen("_SERVICE_PORT_")))
		return true;
	base = without(name, base, "_PROTO");
	base = base == n ? without(name, base, "_ADDR") : base;
	for (int i = 0; i < 3; i++) {
		static const char *const protocols[] = { "_TCP", "_UDP", "_SCTP" };

		if (!ends_with(name, base, protocols[i]))
			continue;
		base -= strlen(protocols[i]);
		for (digits = base; digits && name[digits - 1] >= '0' && name[digits - 1] <= '9';)
			digits--;
		return digits < base && ends_with(name, digits, "_PORT_");
	}
	return false;
}

static const struct dray_config_key *key_of(const char *name, size_t n)
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		if (!strncmp(dray_config_keys[i].env, name, n) && !dray_config_keys[i].env[n])
			return &dray_config_keys[i];
	return NULL;
}

static int unknown(struct config *c, const char *name, size_t n)
{
	dray_auto_free char *word = strndup(name, n);
	char shown[CONFIG_CLIP_BYTES];
	struct dray_nearest nearest;

	if (!word)
		return -ENOMEM;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(foreign); i++)
		if (!strcmp(word, foreign[i]))
			return 0;
	nearest = DRAY_NEAREST(word);
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++)
		dray_nearest_offer(&nearest, dray_config_keys[i].env);
	return config_warn(c, "environment %s is not a setting, ignoring it%s%s%s",
			   config_clip(word, shown), nearest.best ? "; did you mean " : "",
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
	if (!key) {
		if (is_injected(var, n) || !unknown(c, var, n))
			return 0;
		return config_no_memory(reterr);
	}
	raw = (struct config_raw){ .text = var + n + 1 };
	snprintf(where, sizeof(where), "environment %s", key->env);
	return config_set(c, (enum dray_config_key_id)(key - dray_config_keys), &raw,
			  CONFIG_ENVIRONMENT, where, NULL, reterr);
}

/* systemd's StateDirectory= replaces only the default; a value from a file stays. */
static int state_directory_load(struct config *c, char *const *env, struct dray_err *reterr)
{
	static const char prefix[] = "STATE_DIRECTORY=";

	for (; *env; env++) {
		dray_auto_free char *first = NULL;
		const char *value;
		struct config_raw raw;

		if (strncmp(*env, prefix, sizeof(prefix) - 1))
			continue;
		value = *env + sizeof(prefix) - 1;
		first = strndup(value, strcspn(value, ":"));
		if (!first)
			return config_no_memory(reterr);
		raw = (struct config_raw){ .text = first };
		if (!*first || c->origin[DRAY_CONFIG_KEY_AGENT_STATE_DIR].source != CONFIG_DEFAULT)
			return 0;
		return config_set(c, DRAY_CONFIG_KEY_AGENT_STATE_DIR, &raw, CONFIG_ENVIRONMENT,
				  "environment STATE_DIRECTORY", NULL, reterr);
	}
	return 0;
}

const char *config_variable(const struct config_args *args, const char *name)
{
	size_t n = strlen(name);

	for (char *const *env = args->env; env && *env; env++)
		if (!strncmp(*env, name, n) && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

int config_env_load(struct config *c, char *const *env, struct dray_err *reterr)
{
	int r;

	if (!env)
		return 0;
	r = state_directory_load(c, env, reterr);
	for (; !r && *env; env++)
		if (!strncmp(*env, "DRAY_", 5))
			r = variable_load(c, *env, reterr);
	return r;
}
