/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of YAML documents, of which libyaml says where in the text each node is. So a change is an insertion into the text,
 * and everything else keeps its order, form and comments. A JSON file is a YAML document too.
 */
#pragma once

#include <yaml.h>

#include "ctl/ctl.h"

struct ctl_yaml {
	const char *name; /* for messages; borrowed */
	char *text;
	size_t n_bytes;
	yaml_document_t *documents;
	size_t n_documents;
};

#define CTL_YAML_NULL ((struct ctl_yaml){ .name = NULL })

/* Reads a file; "-" is standard input. 0, or -1 with c->failure, which names file and line. The caller frees it in any case. */
int ctl_yaml_read(struct ctl *c, const char *path, struct ctl_yaml *ret);
void ctl_yaml_deinit(struct ctl_yaml *y);
#define ctl_auto_yaml __attribute__((cleanup(ctl_yaml_deinit)))

/* The place of a mark in the text, in bytes. */
size_t ctl_yaml_offset(const struct ctl_yaml *y, const yaml_mark_t *mark);

/* The value of a key, or NULL if there is none, or if the node is not a mapping. */
yaml_node_t *ctl_yaml_get(yaml_document_t *d, yaml_node_t *mapping, const char *key);

/* The i-th element of a sequence, or NULL after the last one, or if the node is not a sequence. */
yaml_node_t *ctl_yaml_item(yaml_document_t *d, yaml_node_t *sequence, size_t i);

/* The text of a scalar, or NULL. */
const char *ctl_yaml_scalar(const yaml_node_t *node);

/* True for a value that YAML reads as null. */
bool ctl_yaml_is_null(const yaml_node_t *node);

bool ctl_yaml_is_flow(const yaml_node_t *node);
