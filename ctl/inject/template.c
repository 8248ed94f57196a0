/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/inject/template.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/yaml/stream.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"

static const char *value_of(const struct inject_parameters *p, size_t i)
{
	return p->given[i] ? p->given[i] : kubernetes_parameters[i].def;
}

static size_t parameter_find(const char *name, size_t n)
{
	size_t i = 0;

	while (i < KUBERNETES_PARAMETER_N && (strncmp(kubernetes_parameters[i].name, name, n) ||
					      kubernetes_parameters[i].name[n]))
		i++;
	return i;
}

/* --- reading ------------------------------------------------------------------------------------ */

static bool allows(const struct kubernetes_parameter *p, const char *value)
{
	size_t n = strlen(value);

	for (const char *word = p->words; word; word = strchr(word, '|')) {
		word += *word == '|';
		if (!strncmp(word, value, n) && (!word[n] || word[n] == '|'))
			return true;
	}
	return !p->words;
}

static int value_take(struct ctl *c, const struct ctl_yaml *y, const yaml_node_t *node,
		      const struct kubernetes_parameter *p, char **given)
{
	const char *value = ctl_yaml_is_null(node) ? "" : ctl_yaml_scalar(node);

	if (!value)
		return ctl_failed(c, "%.200s: %s is not a text", y->name, p->name);
	if (!*value && !p->optional)
		return ctl_failed(c, "%.200s: %s must not be empty", y->name, p->name);
	if (!allows(p, value))
		return ctl_failed(c, "%.200s: %s %.60s is not allowed; use %s", y->name, p->name,
				  value, p->words);
	*given = strdup(value);
	return *given ? 0 : ctl_no_memory(c);
}

static int parameter_take(struct ctl *c, const struct ctl_yaml *y, const char *name,
			  const yaml_node_t *value, struct inject_parameters *p)
{
	size_t i = parameter_find(name, strlen(name));
	struct dray_nearest nearest = DRAY_NEAREST(name);

	if (i < KUBERNETES_PARAMETER_N)
		return value_take(c, y, value, &kubernetes_parameters[i], &p->given[i]);
	for (i = 0; i < KUBERNETES_PARAMETER_N; i++)
		dray_nearest_offer(&nearest, kubernetes_parameters[i].name);
	return ctl_failed(c, "%.200s: unknown parameter %.60s%s%s%s", y->name, name,
			  nearest.best ? ", did you mean " : "", nearest.best ? nearest.best : "",
			  nearest.best ? "?" : "; docs/reference/kubernetes.md lists them");
}

/* One of two values would have no effect. */
static int refuse_doubles(struct ctl *c, const struct ctl_yaml *y, yaml_document_t *d,
			  const yaml_node_t *mapping)
{
	const yaml_node_pair_t *first = mapping->data.mapping.pairs.start;

	for (const yaml_node_pair_t *p = first; p < mapping->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(d, p->key);
		const char *name = ctl_yaml_scalar(key);

		for (const yaml_node_pair_t *q = first; name && q < p; q++) {
			const char *other = ctl_yaml_scalar(yaml_document_get_node(d, q->key));

			if (other && !strcmp(name, other))
				return ctl_failed(
					c, "%.200s, line %zu: %.60s is there twice; leave one out",
					y->name, key->start_mark.line + 1, name);
		}
	}
	return 0;
}

int inject_parameters_read(struct ctl *c, const char *path, struct inject_parameters *ret)
{
	ctl_auto_yaml struct ctl_yaml y = CTL_YAML_NULL;
	yaml_document_t *d;
	yaml_node_t *root, *data;

	if (ctl_yaml_read(c, path, &y) < 0)
		return -1;
	d = y.documents;
	root = y.n_documents == 1 ? yaml_document_get_root_node(d) : NULL;
	data = root ? ctl_yaml_get(d, root, "data") : NULL;
	data = data ? data : root;
	if (!data || data->type != YAML_MAPPING_NODE)
		return ctl_failed(c, "%.200s is not one ConfigMap, and not a mapping of parameters",
				  y.name);
	if (refuse_doubles(c, &y, d, root) < 0 || refuse_doubles(c, &y, d, data) < 0)
		return -1;
	for (yaml_node_pair_t *p = data->data.mapping.pairs.start; p < data->data.mapping.pairs.top;
	     p++) {
		const char *name = ctl_yaml_scalar(yaml_document_get_node(d, p->key));

		if (parameter_take(c, &y, name ? name : "?", yaml_document_get_node(d, p->value),
				   ret) < 0)
			return -1;
	}
	return 0;
}

void inject_parameters_deinit(struct inject_parameters *p)
{
	for (size_t i = 0; i < KUBERNETES_PARAMETER_N; i++)
		free(p->given[i]);
}

/* --- templates ---------------------------------------------------------------------------------- */

static bool holds(const struct inject_parameters *p, const char *condition)
{
	for (size_t i = 0; i < KUBERNETES_CONDITIONS_N; i++)
		if (!strcmp(kubernetes_conditions[i].name, condition))
			return *value_of(p, kubernetes_conditions[i].parameter);
	return false;
}

/* The text with its parameters, which the caller frees; NULL: no memory. */
static char *text_expand(const struct inject_parameters *p, const char *text)
{
	char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);

	if (!f)
		return NULL;
	while (*text) {
		size_t plain = strcspn(text, "$"), name;

		fwrite(text, 1, plain, f);
		text += plain;
		if (!*text)
			break;
		name = strcspn(text, "}"); /* ${name} */
		fputs(value_of(p, parameter_find(text + 2, name - 2)), f);
		text += name + 1;
	}
	if (fclose(f)) {
		free(out);
		return NULL;
	}
	return out;
}

/* The elements of a text with commas, without blanks around them. */
static json_t *list_split(const char *text)
{
	json_t *list = json_array();

	for (;;) {
		size_t n = strcspn(text, ","), begin = strspn(text, " \t"), end = n;

		while (end > begin && isspace((unsigned char)text[end - 1]))
			end--;
		json_array_append_new(list, json_stringn(text + begin, end - begin));
		if (!text[n])
			return list;
		text += n + 1;
	}
}

static json_t *expand(const struct inject_parameters *p, json_t *node);

static json_t *list_expand(const struct inject_parameters *p, json_t *node)
{
	const char *first = json_string_value(json_array_get(node, 0));
	json_t *list, *item;
	size_t i;

	if (first && !strcmp(first, "split")) {
		const char *name = json_string_value(json_array_get(node, 1));

		return list_split(value_of(p, parameter_find(name, strlen(name))));
	}
	list = json_array();
	json_array_foreach(node, i, item)
	{
		json_t *made = expand(p, item);

		if (made)
			json_array_append_new(list, made);
	}
	return list;
}

static json_t *object_expand(const struct inject_parameters *p, json_t *node)
{
	const char *when = json_string_value(json_object_get(node, "when")), *key;
	json_t *object, *value;

	if (when)
		return expand(p, json_object_get(node, holds(p, when) ? "then" : "else"));
	object = json_object();
	json_object_foreach(node, key, value)
	{
		dray_auto_free char *name = text_expand(p, key);

		json_object_set_new(object, name ? name : "", expand(p, value));
	}
	return object;
}

/* NULL for a choice that leaves nothing. */
static json_t *expand(const struct inject_parameters *p, json_t *node)
{
	dray_auto_free char *text = NULL;

	if (json_is_object(node))
		return object_expand(p, node);
	if (json_is_array(node))
		return list_expand(p, node);
	if (!json_is_string(node))
		return json_incref(node);
	text = text_expand(p, json_string_value(node));
	return text ? json_string(text) : NULL;
}

json_t *inject_template(const struct inject_parameters *p, const char *text)
{
	json_t *parsed = json_loads(text, 0, NULL), *made = parsed ? expand(p, parsed) : NULL;

	json_decref(parsed);
	return made;
}
