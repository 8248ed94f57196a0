/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the configuration share. */
#ifndef DRAY_AGENT_CONFIG_INTERNAL_H
#define DRAY_AGENT_CONFIG_INTERNAL_H

#include <stdbool.h>

#include "agent/config/config.h"

/* A value as it was written. */
struct config_raw {
	const char *text; /* NULL where it is a list */
	const struct dray_strv *list;
	bool bare; /* a number that stood without quotes in a file */
};

/*
 * Reads raw into the key's member of v, whose former value is freed. where: the place, for the
 * error. 0, -EINVAL, -ENOMEM.
 */
int config_value_set(struct dray_config *v, enum dray_config_key_id id,
		     const struct config_raw *raw, const char *where, struct dray_err *reterr);
void config_values_free(struct dray_config *v);

/* The same with the origin kept, which is origin_text unless that is NULL, else where. */
int config_set(struct config *c, enum dray_config_key_id id, const struct config_raw *raw,
	       enum config_source source, const char *where, const char *origin_text,
	       struct dray_err *reterr);

int config_warn(struct config *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Checks that look at more than one key, or at the form of one; and `above` unless that is NULL. */
int config_cross_check(struct config *c, config_check above, struct dray_err *reterr);

int config_env_load(struct config *c, char *const *env, struct dray_err *reterr);

/* The text of one file, and of those it includes. name: for messages and relative includes. */
int config_file_text(struct config *c, const char *name, const char *text, size_t n,
		     struct dray_err *reterr);
int config_file_load(struct config *c, const char *file, struct dray_err *reterr);

static inline const void *config_member(const struct dray_config *v, enum dray_config_key_id id)
{
	return (const char *)v + dray_config_keys[id].offset;
}

/* What a key takes, in words, such as `"64KiB" to "16MiB"`. Returns buf. */
const char *config_allowed(const struct dray_config_key *key, char *buf, size_t n);

/* Foreign text for a message: no control characters, cut at its front where it is long. */
#define CONFIG_CLIP_BYTES 104
const char *config_clip(const char *s, char buf[CONFIG_CLIP_BYTES]);

#endif
