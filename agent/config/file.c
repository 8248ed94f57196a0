/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a libconfig file; every name in it must be a key. */
#include "agent/config/internal.h"

#include <errno.h>
#include <libconfig.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/text.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"
#include "schema/gen/errors.h"

struct walk {
	struct config *c;
	const struct config_text *text;
	struct dray_err *reterr;
};

static bool section_known(const char *name, const char **ret_nearest)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);

	for (int i = 0; i < DRAY_CONFIG_KEY_N; i++) {
		if (!strcmp(dray_config_keys[i].section, name))
			return true;
		dray_nearest_offer(&nearest, dray_config_keys[i].section);
	}
	*ret_nearest = nearest.best;
	return false;
}

/* The text of a scalar; NULL for groups and lists. */
static const char *scalar_text(const config_setting_t *s, bool *ret_bare)
{
	const char *text;

	*ret_bare = false;
	if (config_setting_type(s) == CONFIG_TYPE_BOOL)
		return config_setting_get_bool(s) ? "true" : "false";
	/* text.c has turned numbers into strings */
	if (config_setting_type(s) != CONFIG_TYPE_STRING)
		return NULL;
	text = config_setting_get_string(s);
	if (!text)
		return "";
	*ret_bare = *text == CONFIG_TEXT_BARE;
	return text + *ret_bare;
}

static int element_load(struct walk *w, enum dray_config_key_id id, const config_setting_t *s,
			const char *where, struct dray_strv *list)
{
	bool bare;
	const char *text = scalar_text(s, &bare), *path = dray_config_keys[id].path, *end;
	size_t n;

	if (!text)
		return config_refuse(w->reterr, where,
				     "%s takes strings and numbers, not lists and groups", path);
	n = bare ? *text == '-' || *text == '+' : 0;
	n = bare ? n + strspn(text + n, "0123456789") : strlen(text);
	/* the suffix L marks numbers of 64 bits */
	end = text + n;
	if (*end && strcmp(end, "L") != 0 && strcmp(end, "LL") != 0)
		return config_refuse(w->reterr, where, "%s: \"%.60s\" must be in quotes", path,
				     text);
	return dray_strv_add(list, text, n) < 0 ? config_no_memory(w->reterr) : 0;
}

static int list_load(struct walk *w, enum dray_config_key_id id, const config_setting_t *s,
		     const char *where)
{
	struct dray_strv list = DRAY_STRV_NULL;
	struct config_raw raw = { .list = &list };
	int r = 0;

	for (unsigned i = 0; !r && i < (unsigned)config_setting_length(s); i++)
		r = element_load(w, id, config_setting_get_elem(s, i), where, &list);
	if (!r)
		r = config_set(w->c, id, &raw, CONFIG_FILE, where, NULL, w->reterr);
	dray_strv_clear(&list);
	return r;
}

static int value_load(struct walk *w, enum dray_config_key_id id, const config_setting_t *s,
		      const char *where)
{
	struct config_raw raw = { .text = NULL };
	int r;

	if (config_setting_is_group(s))
		r = config_refuse(w->reterr, where, "%s takes a value, not a group",
				  dray_config_keys[id].path);
	else if (config_setting_is_aggregate(s))
		r = list_load(w, id, s, where);
	else {
		raw.text = scalar_text(s, &raw.bare);
		r = config_set(w->c, id, &raw, CONFIG_FILE, where, NULL, w->reterr);
	}
	w->c->refused[id] = r == -EINVAL;
	return r;
}

static int setting_load(struct walk *w, const char *section, const config_setting_t *s)
{
	dray_auto_free char *where = config_text_where(w->text, config_setting_source_line(s));
	dray_auto_free char *path = NULL;
	const struct dray_config_key *key;
	const char *nearest;

	if (!where || asprintf(&path, "%s.%s", section, config_setting_name(s)) < 0) {
		path = NULL;
		return config_no_memory(w->reterr);
	}
	key = config_key_find(path, &nearest);
	if (!key)
		return config_unknown(w->reterr, where, path, nearest);
	return value_load(w, (enum dray_config_key_id)(key - dray_config_keys), s, where);
}

static int section_load(struct walk *w, const config_setting_t *s)
{
	dray_auto_free char *where = config_text_where(w->text, config_setting_source_line(s));
	const char *name = config_setting_name(s);
	const char *nearest;
	int r = 0;

	if (!where)
		return config_no_memory(w->reterr);
	if (!section_known(name, &nearest)) {
		if (!nearest)
			config_key_find(name, &nearest);
		return config_unknown(w->reterr, where, name, nearest);
	}
	if (!config_setting_is_group(s))
		return config_refuse(w->reterr, where, "%s is a group: %s: { name = value; };",
				     name, name);
	for (unsigned i = 0; !r && i < (unsigned)config_setting_length(s); i++) {
		struct dray_err why = DRAY_ERR_NULL;
		struct walk one = { w->c, w->text, &why };

		r = setting_load(&one, name, config_setting_get_elem(s, i));
		r = config_collect(w->c, r, &why, w->reterr);
	}
	return r;
}

static int text_load(struct config *c, const struct config_text *text, struct dray_err *reterr)
{
	config_setting_t *root;
	config_t parsed;
	int r = 0;

	config_init(&parsed);
	if (config_read_string(&parsed, text->buf) != CONFIG_TRUE) {
		dray_auto_free char *where =
			config_text_where(text, (unsigned)config_error_line(&parsed));
		const char *why = config_error_text(&parsed);
		char excerpt[48];

		config_text_excerpt(text, (unsigned)config_error_line(&parsed), excerpt,
				    sizeof(excerpt));
		r = config_refuse(reterr, where ? where : "?", "%s%s%s", why ? why : "error",
				  *excerpt ? " in: " : "", excerpt);
		config_destroy(&parsed);
		return r;
	}
	root = config_root_setting(&parsed);
	for (unsigned i = 0; !r && i < (unsigned)config_setting_length(root); i++) {
		struct dray_err why = DRAY_ERR_NULL;
		struct walk one = { c, text, &why };

		r = section_load(&one, config_setting_get_elem(root, i));
		r = config_collect(c, r, &why, reterr);
	}
	config_destroy(&parsed);
	return r;
}

int config_file_load(struct config *c, const char *file, struct dray_err *reterr)
{
	const char *name = file ? file : CONFIG_FILE_DEFAULT;
	struct config_text t = CONFIG_TEXT_NULL;
	int r;

	if (!*name)
		return 0;
	r = config_text_read(&t, name, 0, reterr);
	if (r == -ENOENT)
		r = file ? dray_err_set(reterr, r, DRAY_E_INVALID,
					"%s: there is no such file; name another one with --config",
					config_clip(name)) :
			   0;
	else if (!r)
		r = text_load(c, &t, reterr);
	if (!r && t.n) {
		c->file = strdup(name);
		if (!c->file)
			r = config_no_memory(reterr);
	}
	config_text_deinit(&t);
	return r;
}
