/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/inject/pod.h"

#include <ctype.h>
#include <string.h>

#include "lib/cleanup.h"

#define SKIPPED_MAX 240

static yaml_node_t *get(const struct inject_pod *p, yaml_node_t *mapping, const char *key)
{
	return ctl_yaml_get(p->d, mapping, key);
}

static bool scalar_is(const yaml_node_t *node, const char *text)
{
	const char *value = ctl_yaml_scalar(node);

	return value && !strcmp(value, text);
}

#define for_each_item(p, sequence, item) \
	for (size_t i_##item = 0; (item = ctl_yaml_item((p)->d, sequence, i_##item)); i_##item++)

/* The element of a list whose key has this value, or NULL. */
static yaml_node_t *item_with(const struct inject_pod *p, yaml_node_t *list, const char *key,
			      const char *value)
{
	yaml_node_t *item;

	for_each_item(p, list, item)
		if (scalar_is(get(p, item, key), value))
			return item;
	return NULL;
}

bool inject_is_pod(yaml_document_t *d, yaml_node_t *mapping)
{
	yaml_node_t *containers = ctl_yaml_get(d, ctl_yaml_get(d, mapping, "spec"), "containers");

	return ctl_yaml_get(d, ctl_yaml_item(d, containers, 0), "name") != NULL;
}

static yaml_node_t *annotation(const struct inject_pod *p, const char *name)
{
	return get(p, get(p, get(p, p->pod, "metadata"), "annotations"), name);
}

/* --- refusals ----------------------------------------------------------------------------------- */

/* Takes the next name of a list with commas, without blanks around it. False after the last one. */
static bool name_next(const char **list, char *name, size_t room)
{
	const char *at = *list;
	size_t n;

	if (!at)
		return false;
	n = strcspn(at, ",");
	*list = at[n] ? at + n + 1 : NULL;
	while (n && isspace((unsigned char)*at)) {
		at++;
		n--;
	}
	while (n && isspace((unsigned char)at[n - 1]))
		n--;
	snprintf(name, room, "%.*s", (int)n, at);
	return true;
}

static bool is_chosen(const struct inject_pod *p, const char *container)
{
	const char *list = ctl_yaml_scalar(annotation(p, KUBERNETES_CONTAINERS));
	char name[SKIPPED_MAX];

	if (!list)
		return true;
	while (name_next(&list, name, sizeof(name)))
		if (!strcmp(name, container))
			return true;
	return false;
}

static bool chosen_is_missing(const struct inject_pod *p)
{
	const char *list = ctl_yaml_scalar(annotation(p, KUBERNETES_CONTAINERS));
	char name[SKIPPED_MAX];

	while (name_next(&list, name, sizeof(name)))
		if (!item_with(p, get(p, p->spec, "containers"), "name", name))
			return true;
	return false;
}

static bool field_equals(const struct inject_pod *p, const char *path, const char *value)
{
	yaml_node_t *node = p->pod;
	char name[64];

	while (node && *path) {
		size_t n = strcspn(path, ".");

		snprintf(name, sizeof(name), "%.*s", (int)n, path);
		node = get(p, node, name);
		path += n + (path[n] == '.');
	}
	return scalar_is(node, value);
}

static bool mounts(const struct inject_pod *p, const char *path)
{
	yaml_node_t *container;

	for_each_item(p, get(p, p->spec, "containers"), container)
		if (item_with(p, get(p, container, "volumeMounts"), "mountPath", path))
			return true;
	return false;
}

static bool holds(const struct inject_pod *p, const struct kubernetes_refusal *r)
{
	switch (r->kind) {
	case KUBERNETES_REFUSAL_ANNOTATED:
		return annotation(p, r->where);
	case KUBERNETES_REFUSAL_EQUAL:
		return field_equals(p, r->where, r->value);
	case KUBERNETES_REFUSAL_NAME:
		return item_with(p, get(p, p->spec, r->where), "name", r->value);
	case KUBERNETES_REFUSAL_MOUNT:
		return mounts(p, r->where);
	case KUBERNETES_REFUSAL_MISSING:
		return chosen_is_missing(p);
	}
	return false;
}

static const char *reason_of(const struct inject_pod *p)
{
	for (size_t i = 0; i < KUBERNETES_REFUSALS_N; i++)
		if (holds(p, &kubernetes_refusals[i]))
			return kubernetes_refusals[i].reason;
	return NULL;
}

/* --- form --------------------------------------------------------------------------------------- */

/* How often the node is used: more than once if an alias names it. */
static unsigned uses(yaml_document_t *d, const yaml_node_t *node)
{
	int id = (int)(node - d->nodes.start) + 1;
	unsigned n = 0;

	for (yaml_node_t *other = d->nodes.start; other < d->nodes.top; other++) {
		if (other->type == YAML_SEQUENCE_NODE)
			for (yaml_node_item_t *i = other->data.sequence.items.start;
			     i < other->data.sequence.items.top; i++)
				n += *i == id;
		if (other->type == YAML_MAPPING_NODE)
			for (yaml_node_pair_t *i = other->data.mapping.pairs.start;
			     i < other->data.mapping.pairs.top; i++)
				n += i->value == id;
	}
	return n;
}

/* Text can be added to a node of the right type that stands once in the manifest, and whose keys all stand in it. */
static int form_check(const struct inject_pod *p, yaml_node_t *node, yaml_node_type_t type,
		      const char *what)
{
	size_t line = node ? node->start_mark.line + 1 : 0;

	if (!node)
		return 0;
	if (node->type != type && !ctl_yaml_is_null(node))
		return ctl_failed(p->c, "%.200s, line %zu: %s is not a %s; correct the manifest",
				  p->yaml->name, line, what,
				  type == YAML_MAPPING_NODE ? "mapping" : "list");
	if (node->type == type && !ctl_yaml_first_token(p->yaml, node))
		return ctl_failed(p->c, "%.200s, line %zu: %s has no braces; add them",
				  p->yaml->name, line, what);
	if (uses(p->d, node) > 1)
		return ctl_failed(
			p->c,
			"%.200s, line %zu: %s is used by an alias (*) too; write it out there",
			p->yaml->name, line, what);
	if (get(p, node, "<<"))
		return ctl_failed(p->c,
				  "%.200s, line %zu: %s has a merge key (<<); write the keys out",
				  p->yaml->name, line, what);
	return 0;
}

static int forms_check(const struct inject_pod *p)
{
	static const char *const lists[] = { "initContainers", "volumes", "containers" };
	yaml_node_t *metadata = get(p, p->pod, "metadata"), *container;
	int ret = form_check(p, p->pod, YAML_MAPPING_NODE, "the pod");

	ret = ret < 0 ? ret : form_check(p, metadata, YAML_MAPPING_NODE, "metadata");
	ret = ret < 0 ? ret :
			form_check(p, get(p, metadata, "annotations"), YAML_MAPPING_NODE,
				   "annotations");
	ret = ret < 0 ? ret :
			form_check(p, get(p, metadata, "labels"), YAML_MAPPING_NODE, "labels");
	ret = ret < 0 ? ret : form_check(p, p->spec, YAML_MAPPING_NODE, "spec");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lists) && ret >= 0; i++)
		ret = form_check(p, get(p, p->spec, lists[i]), YAML_SEQUENCE_NODE, lists[i]);
	for_each_item(p, get(p, p->spec, "containers"), container) {
		ret = ret < 0 ? ret : form_check(p, container, YAML_MAPPING_NODE, "a container");
		ret = ret < 0 ? ret :
				form_check(p, get(p, container, "env"), YAML_SEQUENCE_NODE, "env");
		ret = ret < 0 ? ret :
				form_check(p, get(p, container, "volumeMounts"), YAML_SEQUENCE_NODE,
					   "volumeMounts");
	}
	return ret;
}

/* --- changes ------------------------------------------------------------------------------------ */

static json_t *template(const struct inject_pod *p, const char *text)
{
	json_t *made = inject_template(p->parameters, text);

	p->edits->no_memory |= !made;
	return made;
}

/* Sets a key of a mapping that may be missing in `owner`. */
static void text_set(struct inject_pod *p, yaml_node_t *owner, const char *name, const char *key,
		     const char *text)
{
	yaml_node_t *mapping = get(p, owner, name), *old = get(p, mapping, key);
	json_t *value = json_string(text);

	if (old && old->type == YAML_SCALAR_NODE)
		inject_replace(p->edits, old, value);
	else if (mapping && mapping->type == YAML_MAPPING_NODE)
		inject_add_key(p->edits, mapping, key, value);
	else if (mapping)
		inject_replace(p->edits, mapping, json_pack("{so}", key, value));
	else
		inject_add_key(p->edits, owner, name, json_pack("{so}", key, value));
}

/* Annotations and, for a pod that gets a sidecar, the label. */
static void metadata_change(struct inject_pod *p, const char *result, const char *label)
{
	yaml_node_t *metadata = get(p, p->pod, "metadata");

	if (metadata && metadata->type == YAML_MAPPING_NODE) {
		text_set(p, metadata, "annotations", KUBERNETES_RESULT, result);
		if (label)
			text_set(p, metadata, "labels", KUBERNETES_AGENT, label);
		return;
	}
	inject_add_key(p->edits, p->pod, "metadata",
		       label ? json_pack("{s{ss}s{ss}}", "annotations", KUBERNETES_RESULT, result,
					 "labels", KUBERNETES_AGENT, label) :
			       json_pack("{s{ss}}", "annotations", KUBERNETES_RESULT, result));
}

/* Adds the elements to a list that may be missing, empty or null. Takes over `items`. */
static void list_extend(struct inject_pod *p, yaml_node_t *owner, const char *name, json_t *items,
			bool first)
{
	yaml_node_t *list = get(p, owner, name);
	json_t *item;
	size_t i;

	if (!list)
		inject_add_key(p->edits, owner, name, json_incref(items));
	else if (list->type != YAML_SEQUENCE_NODE)
		inject_replace(p->edits, list, json_incref(items));
	else
		json_array_foreach(items, i, item)
		{
			if (first)
				inject_add_first(p->edits, list, json_incref(item));
			else
				inject_add_last(p->edits, list, json_incref(item));
		}
	json_decref(items);
}

static void container_change(struct inject_pod *p, yaml_node_t *container)
{
	json_t *variable = template(p, kubernetes_variable), *mount = template(p, kubernetes_mount);
	const char *name = json_string_value(json_object_get(variable, "name"));

	if (name && !item_with(p, get(p, container, "env"), "name", name))
		list_extend(p, container, "env", json_pack("[O]", variable), false);
	list_extend(p, container, "volumeMounts", json_pack("[O]", mount), false);
	json_decref(variable);
	json_decref(mount);
}

static void pod_change(struct inject_pod *p)
{
	yaml_node_t *container;

	metadata_change(p, KUBERNETES_INJECTED, "sidecar");
	list_extend(p, p->spec, "initContainers", json_pack("[o]", template(p, kubernetes_sidecar)),
		    true);
	list_extend(p, p->spec, "volumes", template(p, kubernetes_volumes), false);
	for_each_item(p, get(p, p->spec, "containers"), container) {
		const char *name = ctl_yaml_scalar(get(p, container, "name"));

		if (name && is_chosen(p, name))
			container_change(p, container);
	}
}

/* A pod that was skipped before, for the same reason, is as it should be. */
static int skip(struct inject_pod *p, const char *reason)
{
	char text[SKIPPED_MAX];

	snprintf(text, sizeof(text), "%s%s", KUBERNETES_SKIPPED, reason);
	if (!scalar_is(annotation(p, KUBERNETES_RESULT), text))
		metadata_change(p, text, NULL);
	return INJECT_SKIPPED;
}

int inject_pod(struct inject_pod *p, bool all, const char **reason)
{
	yaml_node_t *request = annotation(p, KUBERNETES_REQUEST);

	if (request ? !scalar_is(request, "true") : !all)
		return INJECT_NOT_WANTED;
	if (scalar_is(annotation(p, KUBERNETES_RESULT), KUBERNETES_INJECTED))
		return INJECT_BEFORE;
	if (forms_check(p) < 0)
		return -1;
	*reason = reason_of(p);
	if (*reason)
		return skip(p, *reason);
	pod_change(p);
	return INJECT_DONE;
}
