/* SPDX-License-Identifier: Apache-2.0 */
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

/*
 * Only changed values are replaced, because modules and threads may hold pointers to the others. An unchanged value can
 * have a new origin. The new values were checked together, and config_stay_check() checks store.put_at with the store.peers that
 * stays. Other checks compare only keys that need a restart, and whether peer.key_file is set, apart from that of store.put_at with
 * store.lend and store.replicas: where those stay, a new store.put_at has no effect.
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
		r = config_stay_check(&fresh, c, reterr);
	if (r >= 0)
		r = prepare(arg, &fresh.v, reterr);
	if (r >= 0)
		take_over(c, &fresh, keep, differ);
	*ret_errors = fresh.errors;
	fresh.errors = DRAY_STRV_NULL;
	config_deinit(&fresh);
	return r;
}
