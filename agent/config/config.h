/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's configuration: the keys of schema/config.yaml. Later sources override earlier ones: defaults, a libconfig
 * file, DRAY_* environment variables, the command line. A value that is not allowed is an error that names the place, the
 * key and the allowed values; the agent then does not start.
 */
#pragma once

#include <stdbool.h>
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
	const char *option; /* "--set" or the key's own option; static */
	char *value;
};

/* A check of the form of one key's value, which a higher layer may define. 0, or -EINVAL with reterr. */
typedef int (*config_check)(const struct dray_config *cfg, enum dray_config_key_id key,
			    struct dray_err *reterr);

/* The sources of values. They outlive the configuration, because a reload reads them again. */
struct config_args {
	const char *file; /* NULL: CONFIG_FILE_DEFAULT if it exists; "": none */
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
	struct dray_strv warnings;       /* for the log, which is opened later */
	struct dray_strv errors;         /* all, each with its place, as config_load() found them */
	bool refused[DRAY_CONFIG_KEY_N]; /* an error concerns the key; it has its former value */
	char *file;                      /* the file that was read, or NULL */
};

#define CONFIG_NULL ((struct config){ .file = NULL })

/*
 * Fills c, which must be CONFIG_NULL. 0, or -errno with reterr. -EINVAL: c->errors has every error, and reterr the first with
 * their number.
 */
int config_load(struct config *c, const struct config_args *args, struct dray_err *reterr);
void config_deinit(struct config *c);

/* True if one of both has peer.key_file and the other has not. The keys of peers' key files then change only with a restart. */
bool config_key_use_differs(const struct dray_config *a, const struct dray_config *b);

/*
 * Loads the configuration again and applies the keys that may change while the agent runs; their former values are freed.
 * Other keys keep their values. prepare(arg) sees the new configuration first, and may refuse it. On error nothing changes.
 * `applied` has the changed keys, `restart` the keys that differ but need a restart; they are static strings. ret_errors: gets
 * every error, as with config_load(); the caller clears it.
 */
typedef int (*config_prepare_fn)(void *arg, const struct dray_config *fresh,
				 struct dray_err *reterr);
struct config_changes {
	const char *applied[DRAY_CONFIG_KEY_N], *restart[DRAY_CONFIG_KEY_N];
	unsigned n_applied, n_restart;
};
int config_reload(struct config *c, const struct config_args *args, config_prepare_fn prepare,
		  void *arg, struct config_changes *ret, struct dray_strv *ret_errors,
		  struct dray_err *reterr);

/* Every effective value as a libconfig file, with its origin as comment. */
void config_show(const struct config *c, FILE *f);

/* An environment variable of another program, borrowed from args. NULL: unset. */
const char *config_variable(const struct config_args *args, const char *name);

/* Origin of a key's value: "default", "FILE:LINE" and so on. */
const char *config_origin(const struct config *c, enum dray_config_key_id key);

/* The key with that path, or NULL; *ret_nearest is then a key with a similar name, or NULL. */
const struct dray_config_key *config_key_find(const char *path, const char **ret_nearest);

/* Whether this value of the command line is allowed. 0 or -EINVAL. */
int config_setting_check(const struct config_setting *s, struct dray_err *reterr);

/* A value as config_show() writes it, without quotes; the caller frees it. NULL: no memory. */
char *config_value_text(const struct dray_config *v, enum dray_config_key_id key);
