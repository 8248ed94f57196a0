/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of YAML documents, of which libyaml says where in the text each node is. So a change is an insertion into the text,
 * and everything else keeps its order, form and comments. A JSON file is a YAML document too.
 */
#pragma once

#include <yaml.h>

#include "ctl/ctl.h"

/* In characters of the text. Tokens of libyaml without characters, such as the end of a block, stand before the next one. */
struct ctl_yaml_token {
	uint32_t begin, end, column;
	yaml_token_type_t type;
};

struct ctl_yaml {
	const char *name; /* for messages; borrowed */
	char *text;
	size_t n_bytes;
	yaml_document_t *documents;
	size_t n_documents;
	struct ctl_yaml_token *tokens; /* of all documents */
	size_t n_tokens;
};

#define CTL_YAML_NULL ((struct ctl_yaml){ .name = NULL })

/* Reads a file; "-" is standard input. 0, or -1 with c->failure, which names file and line. The caller frees it in any case. */
int ctl_yaml_read(struct ctl *c, const char *path, struct ctl_yaml *ret);
void ctl_yaml_deinit(struct ctl_yaml *y);
#define ctl_auto_yaml __attribute__((cleanup(ctl_yaml_deinit)))

/* The place of a character in the text, in bytes. */
size_t ctl_yaml_offset(const struct ctl_yaml *y, size_t index);

/* The first token of a list or mapping behind its tag and anchor; NULL for a pair in brackets that has no braces. */
const struct ctl_yaml_token *ctl_yaml_first_token(const struct ctl_yaml *y,
						  const yaml_node_t *node);

/* The last token with characters that begins before a character of the text. */
const struct ctl_yaml_token *ctl_yaml_token_before(const struct ctl_yaml *y, size_t index);

/* The value of a key, or NULL if there is none, or if the node is not a mapping. */
yaml_node_t *ctl_yaml_get(yaml_document_t *d, yaml_node_t *mapping, const char *key);

/* The i-th element of a sequence, or NULL after the last one, or if the node is not a sequence. */
yaml_node_t *ctl_yaml_item(yaml_document_t *d, yaml_node_t *sequence, size_t i);

/* The text of a scalar, or NULL. */
const char *ctl_yaml_scalar(const yaml_node_t *node);

/* True for a value that YAML reads as null. */
bool ctl_yaml_is_null(const yaml_node_t *node);

bool ctl_yaml_is_flow(const yaml_node_t *node);
