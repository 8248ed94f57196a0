/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the configuration. */
#pragma once

#include "agent/config/config.h"
#include "agent/config/words.h"

/* A value before it is parsed. */
struct config_raw {
	const char *text; /* NULL for a list */
	const struct dray_strv *list;
	bool bare; /* a number without quotes, in a file */
};

/*
 * Parses raw into the key's member of v and frees the former value. where: the place, for the error. 0, or -EINVAL or
 * -ENOMEM with reterr.
 */
int config_value_set(struct dray_config *v, enum dray_config_key_id id,
		     const struct config_raw *raw, const char *where, struct dray_err *reterr);
void config_values_free(struct dray_config *v);

/*
 * Ends the reading of one setting, or one check. r: its result, with its reason. An error of the configuration is kept in
 * c->errors, and the result is 0, so that all are found. Others are returned with reterr.
 */
int config_collect(struct config *c, int r, const struct dray_err *why, struct dray_err *reterr);

/* Also records the origin: origin_text, or where if that is NULL. */
int config_set(struct config *c, enum dray_config_key_id id, const struct config_raw *raw,
	       enum config_source source, const char *where, const char *origin_text,
	       struct dray_err *reterr);

int config_warn(struct config *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A config_check of the values whose form schema/config.yaml does not describe. */
int config_check_forms(const struct dray_config *cfg, enum dray_config_key_id key,
		       struct dray_err *reterr);
/* Checks combinations and forms of keys that are not refused yet, and with `above`, unless it is NULL. Collects errors. */
int config_cross_check(struct config *c, config_check above, struct dray_err *reterr);
/* Checks combinations of keys alone. Collects errors. */
int config_combinations_check(struct config *c, struct dray_err *reterr);

int config_env_load(struct config *c, const struct config_args *args, struct dray_err *reterr);

/* Loads a file and the files it includes. Collects the errors of its settings. NULL: CONFIG_FILE_DEFAULT if it exists; "": none. */
int config_file_load(struct config *c, const char *file, struct dray_err *reterr);

/* -EINVAL with "WHERE: ..." in reterr. */
int config_refuse(struct dray_err *reterr, const char *where, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* "WHERE: unknown key KEY, did you mean NEAREST?", or a hint at --help if nearest is NULL. -EINVAL. */
int config_unknown(struct dray_err *reterr, const char *where, const char *key,
		   const char *nearest);

static inline int config_no_memory(struct dray_err *reterr)
{
	return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
}

static inline const void *config_member(const struct dray_config *v, enum dray_config_key_id id)
{
	return (const char *)v + dray_config_keys[id].offset;
}

/* Copies text into a message: without control characters, and without its start if it is too long. */
#define CONFIG_CLIP_BYTES 104
#define config_clip(s) config_clip_to((s), (char[CONFIG_CLIP_BYTES]){ "" })
const char *config_clip_to(const char *s, char buf[CONFIG_CLIP_BYTES]);
