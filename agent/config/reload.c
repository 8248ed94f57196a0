/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/internal.h"
#include "lib/cleanup.h"

static void bytes_swap(void *a, void *b, size_t n)
{
	unsigned char *x = a, *y = b;

	for (size_t i = 0; i < n; i++) {
		unsigned char t = x[i];

		x[i] = y[i];
		y[i] = t;
	}
}

static void value_swap(struct config *a, struct config *b, enum dray_config_key_id id)
{
	const struct dray_config_key *key = &dray_config_keys[id];

	bytes_swap((char *)&a->v + key->offset, (char *)&b->v + key->offset, key->size);
}

static int differs(const struct config *a, const struct config *b, enum dray_config_key_id id,
		   bool *ret, struct dray_err *reterr)
{
	dray_auto_free char *x = config_value_text(&a->v, id);
	dray_auto_free char *y = config_value_text(&b->v, id);

	if (!x || !y)
		return config_no_memory(reterr);
	*ret = strcmp(x, y) != 0;
	return 0;
}

bool config_key_use_differs(const struct dray_config *a, const struct dray_config *b)
{
	return !*a->peer.key_file != !*b->peer.key_file;
}

/* An agent without a key has other listeners and connections than one with a key. */
static bool reloads(const struct config *c, const struct config *fresh, enum dray_config_key_id id)
{
	if (id == DRAY_CONFIG_KEY_PEER_KEY_FILE || id == DRAY_CONFIG_KEY_PEER_ACCEPT_KEY_FILE)
		return !config_key_use_differs(&c->v, &fresh->v);
	return dray_config_keys[id].reload;
}

/* Adds to the warnings what is not among them yet. */
static int warn_until_restart(struct config *c, const struct dray_strv *texts)
{
	for (size_t i = 0; i < texts->n; i++)
		if (!dray_strv_has(&c->warnings, texts->v[i]) &&
		    config_warn(c, "until the agent restarts: %s", texts->v[i]) < 0)
			return -ENOMEM;
	return 0;
}

/*
 * Warns of values that a reload takes and that do not fit those which stay. That is no error, because they fit after a restart:
 * all values of `fresh` were checked together.
 */
static int mixture_check(const struct config *c, struct config *fresh,
			 const bool keep[DRAY_CONFIG_KEY_N], struct dray_err *reterr)
{
	struct config mixed = *fresh; /* owns only its texts */
	int r;

	mixed.warnings = mixed.errors = DRAY_STRV_NULL;
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		const struct dray_config_key *key = &dray_config_keys[i];

		if (!keep[i])
			continue;
		memcpy((char *)&mixed.v + key->offset, (const char *)&c->v + key->offset,
		       key->size);
		mixed.origin[i] = c->origin[i];
	}
	r = config_combinations_check(&mixed, reterr);
	if (r >= 0 && (warn_until_restart(fresh, &mixed.errors) < 0 ||
		       warn_until_restart(fresh, &mixed.warnings) < 0))
		r = config_no_memory(reterr);
	dray_strv_clear(&mixed.warnings);
	dray_strv_clear(&mixed.errors);
	return r;
}

/*
 * Only changed values are replaced, because modules and threads may hold pointers to the others. An unchanged value can
 * have a new origin.
 */
static void take_over(struct config *c, struct config *fresh, const bool keep[DRAY_CONFIG_KEY_N],
		      const bool differ[DRAY_CONFIG_KEY_N])
{
	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		if (keep[i])
			continue;
		if (differ[i])
			value_swap(c, fresh, (enum dray_config_key_id)i);
		bytes_swap(&c->origin[i], &fresh->origin[i], sizeof(c->origin[i]));
	}
	bytes_swap(&c->warnings, &fresh->warnings, sizeof(c->warnings));
	bytes_swap(&c->file, &fresh->file, sizeof(c->file));
}

int config_reload(struct config *c, const struct config_args *args, config_prepare_fn prepare,
		  void *arg, struct config_changes *ret, struct dray_strv *ret_errors,
		  struct dray_err *reterr)
{
	bool differ[DRAY_CONFIG_KEY_N] = { false }, keep[DRAY_CONFIG_KEY_N] = { false };
	struct config fresh = CONFIG_NULL;
	int r = config_load(&fresh, args, reterr);

	*ret = (struct config_changes){ .n_applied = 0 };
	for (int i = 0; r >= 0 && i < DRAY_CONFIG_KEY_N; i++) {
		enum dray_config_key_id id = (enum dray_config_key_id)i;

		r = differs(c, &fresh, id, &differ[i], reterr);
		keep[i] = differ[i] && !reloads(c, &fresh, id);
		if (keep[i])
			ret->restart[ret->n_restart++] = dray_config_keys[i].path;
		else if (differ[i])
			ret->applied[ret->n_applied++] = dray_config_keys[i].path;
	}
	if (r >= 0)
		r = mixture_check(c, &fresh, keep, reterr);
	if (r >= 0)
		r = prepare(arg, &fresh.v, reterr);
	if (r >= 0)
		take_over(c, &fresh, keep, differ);
	*ret_errors = fresh.errors;
	fresh.errors = DRAY_STRV_NULL;
	config_deinit(&fresh);
	return r;
}
