/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's configuration: the keys of schema/config.yaml, filled in rising order from defaults,
 * a libconfig file, DRAY_* environment variables and the command line. A value that is not allowed
 * is an error that names its place, its key and what is allowed; the agent does not start on it.
 */
#ifndef DRAY_AGENT_CONFIG_CONFIG_H
#define DRAY_AGENT_CONFIG_CONFIG_H

#include <stddef.h>
#include <stdio.h>

#include "lib/err.h"
#include "lib/strv.h"
#include "schema/gen/config.h"

#define CONFIG_FILE_DEFAULT "/etc/dray/drayd.conf"

enum config_source { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_COMMAND_LINE };

/* One key=value of the command line. */
struct config_setting {
	enum dray_config_key_id key;
	char *option; /* as it was given: "--set" or the key's own flag */
	char *value;
};

/*
 * A check of a part above this one, which knows the form of some keys. 0, or -EINVAL with *ret_key, the key that is
 * wrong, and reterr.
 */
typedef int (*config_check)(const struct dray_config *cfg, enum dray_config_key_id *ret_key,
			    struct dray_err *reterr);

/* Where values come from. It outlives the configuration, so that a reload finds them again. */
struct config_args {
	const char *file; /* NULL: CONFIG_FILE_DEFAULT where there is one; "": none */
	char *const *env; /* NULL: none */
	struct config_setting *settings;
	size_t n_settings;
	config_check check; /* run after all other checks; NULL: none */
};

struct config_origin {
	enum config_source source;
	char *text; /* "FILE:LINE", "environment DRAY_X", "command line"; NULL: default */
};

struct config {
	struct dray_config v;
	struct config_origin origin[DRAY_CONFIG_KEY_N];
	struct dray_strv warnings; /* sentences for the log, once there is one */
	char *file;                /* that was read, or NULL */
};

#define CONFIG_NULL ((struct config){ .file = NULL })

/*
 * Fills c, which is CONFIG_NULL. 0, or -EINVAL, -ENOMEM or another -errno with reterr set; c is
 * then CONFIG_NULL again. A reload is a load into a second struct config with the same args.
 */
int config_load(struct config *c, const struct config_args *args, struct dray_err *reterr);
void config_deinit(struct config *c);

/*
 * Loads anew and takes over the keys that may change while the agent runs; the memory of their former values
 * goes. All others stay what they were. On error nothing has changed. The lists have the keys, which are
 * static strings: those that have changed, and those that differ but need a restart.
 */
struct config_changes {
	const char *applied[DRAY_CONFIG_KEY_N], *restart[DRAY_CONFIG_KEY_N];
	unsigned n_applied, n_restart;
};
int config_reload(struct config *c, const struct config_args *args, struct config_changes *ret,
		  struct dray_err *reterr);

/* Every effective value as a libconfig file, with its origin as comment. */
void config_show(const struct config *c, FILE *f);

/* A variable of the environment that is no setting of ours, such as another program's. NULL: unset. The args'. */
const char *config_variable(const struct config_args *args, const char *name);

/* "default", "FILE:LINE", ... of a key. */
const char *config_origin(const struct config *c, enum dray_config_key_id key);

/* The key of that path. NULL if there is none; *ret_nearest is then one spelt alike, or NULL. */
const struct dray_config_key *config_key_find(const char *path, const char **ret_nearest);

/* Would this value of the command line be taken? 0 or -EINVAL. */
int config_setting_check(const struct config_setting *s, struct dray_err *reterr);

/* A value as config_show writes it, without quotes; the caller's to free. NULL: no memory. */
char *config_value_text(const struct dray_config *v, enum dray_config_key_id key);

#endif
