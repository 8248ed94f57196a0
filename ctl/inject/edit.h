/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of the text of a manifest. Each adds to a node in the form that the node has: lines with its indentation, or, in braces
 * and brackets, JSON. Marks of libyaml stay valid, because the text is written only after all changes are known.
 */
#pragma once

#include <jansson.h>

#include "ctl/yaml/stream.h"

struct inject_edit {
	size_t at, n_removed; /* bytes of the text */
	unsigned depth;       /* at one place the deeper text comes first */
	char *text;
};

struct inject_edits {
	const struct ctl_yaml *yaml;
	struct inject_edit *items;
	size_t n;
	bool no_memory;
};

void inject_edits_deinit(struct inject_edits *e);

/* Each takes over the reference to the value. */
void inject_add_key(struct inject_edits *e, yaml_node_t *mapping, const char *key, json_t *value);
void inject_add_first(struct inject_edits *e, yaml_node_t *sequence, json_t *value);
void inject_add_last(struct inject_edits *e, yaml_node_t *sequence, json_t *value);
/* In place of a scalar. */
void inject_replace(struct inject_edits *e, const yaml_node_t *scalar, json_t *value);

/* Writes the text with all changes. */
void inject_write(struct inject_edits *e, FILE *f);
