/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/yaml/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/err.h"

/* Far above any manifest. */
#define BYTES_MAX (16 << 20)

static int text_read(struct ctl *c, struct ctl_yaml *y, int fd)
{
	size_t room = 0;

	for (;;) {
		ssize_t n;

		if (y->n_bytes + 1 >= room) {
			char *more;

			room = room ? 2 * room : 4096;
			more = room <= BYTES_MAX ? realloc(y->text, room) : NULL;
			if (!more)
				return room > BYTES_MAX ?
					       ctl_failed(c, "%.200s is larger than 16 MiB",
							  y->name) :
					       ctl_no_memory(c);
			y->text = more;
		}
		n = read(fd, y->text + y->n_bytes, room - y->n_bytes - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ctl_failed(c, "reading %.200s: %s", y->name, dray_errno_text(errno));
		y->n_bytes += (size_t)n;
		y->text[y->n_bytes] = '\0';
		if (!n)
			return 0;
	}
}

static int syntax_error(struct ctl *c, const struct ctl_yaml *y, const yaml_parser_t *p)
{
	if (p->error == YAML_MEMORY_ERROR)
		return ctl_no_memory(c);
	return ctl_failed(c, "%.200s, line %zu: %.150s; correct the file", y->name,
			  p->problem_mark.line + 1, p->problem ? p->problem : "not YAML");
}

static int documents_load(struct ctl *c, struct ctl_yaml *y, yaml_parser_t *p)
{
	for (;;) {
		yaml_document_t document, *more;

		if (!yaml_parser_load(p, &document))
			return syntax_error(c, y, p);
		if (!yaml_document_get_root_node(&document)) {
			yaml_document_delete(&document);
			return 0;
		}
		more = reallocarray(y->documents, y->n_documents + 1, sizeof(*more));
		if (!more) {
			yaml_document_delete(&document);
			return ctl_no_memory(c);
		}
		y->documents = more;
		y->documents[y->n_documents++] = document;
	}
}

static int token_add(struct ctl_yaml *y, const yaml_token_t *t, size_t *room)
{
	struct ctl_yaml_token *more = y->tokens;

	if (y->n_tokens == *room) {
		*room = *room ? 2 * *room : 1024;
		more = reallocarray(y->tokens, *room, sizeof(*more));
		if (!more)
			return -ENOMEM;
		y->tokens = more;
	}
	y->tokens[y->n_tokens++] = (struct ctl_yaml_token){
		.begin = (uint32_t)t->start_mark.index,
		.end = (uint32_t)t->end_mark.index,
		.column = (uint32_t)t->start_mark.column,
		.type = t->type,
	};
	return 0;
}

static int tokens_scan(struct ctl *c, struct ctl_yaml *y, yaml_parser_t *p)
{
	bool ended = false;
	size_t room = 0;

	while (!ended) {
		yaml_token_t token;
		int r;

		if (!yaml_parser_scan(p, &token))
			return syntax_error(c, y, p);
		r = token_add(y, &token, &room);
		ended = token.type == YAML_STREAM_END_TOKEN;
		yaml_token_delete(&token);
		if (r < 0)
			return ctl_no_memory(c);
	}
	return 0;
}

/* Reads the text once: its documents, or its tokens. */
static int parse(struct ctl *c, struct ctl_yaml *y,
		 int (*read)(struct ctl *c, struct ctl_yaml *y, yaml_parser_t *p))
{
	yaml_parser_t parser;
	int r;

	if (!yaml_parser_initialize(&parser))
		return ctl_no_memory(c);
	yaml_parser_set_input_string(&parser, (unsigned char *)y->text, y->n_bytes);
	r = read(c, y, &parser);
	yaml_parser_delete(&parser);
	return r;
}

int ctl_yaml_read(struct ctl *c, const char *path, struct ctl_yaml *ret)
{
	bool input = !strcmp(path, "-");
	dray_auto_close int fd = input ? -1 : open(path, O_RDONLY | O_CLOEXEC);

	*ret = (struct ctl_yaml){ .name = input ? "standard input" : path };
	if (fd < 0 && !input)
		return ctl_failed(c, "cannot open %.200s: %s", path, dray_errno_text(errno));
	if (text_read(c, ret, input ? c->env->in : fd) < 0)
		return -1;
	if (strlen(ret->text) != ret->n_bytes)
		return ctl_failed(c, "%.200s contains a NUL byte; it has to be text in UTF-8",
				  ret->name);
	return parse(c, ret, documents_load) < 0 ? -1 : parse(c, ret, tokens_scan);
}

void ctl_yaml_deinit(struct ctl_yaml *y)
{
	for (size_t i = 0; i < y->n_documents; i++)
		yaml_document_delete(&y->documents[i]);
	free(y->documents);
	free(y->tokens);
	free(y->text);
	*y = CTL_YAML_NULL;
}

/* libyaml counts characters without a byte order mark. All bytes of a character but the first one are 10xxxxxx. */
size_t ctl_yaml_offset(const struct ctl_yaml *y, size_t index)
{
	size_t left = index, i = strncmp(y->text, "\xef\xbb\xbf", 3) ? 0 : 3;

	while (i < y->n_bytes && left) {
		i++;
		while (i < y->n_bytes && ((unsigned char)y->text[i] & 0xc0) == 0x80)
			i++;
		left--;
	}
	return i;
}

/* The number of tokens that begin before a character. */
static size_t tokens_before(const struct ctl_yaml *y, size_t index)
{
	size_t low = 0, high = y->n_tokens;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (y->tokens[middle].begin < index)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct ctl_yaml_token *ctl_yaml_first_token(const struct ctl_yaml *y, const yaml_node_t *node)
{
	/* The stream ends with a token of another type. */
	for (const struct ctl_yaml_token *t = &y->tokens[tokens_before(y, node->start_mark.index)];;
	     t++) {
		switch ((int)t->type) {
		case YAML_STREAM_START_TOKEN:
		case YAML_TAG_TOKEN:
		case YAML_ANCHOR_TOKEN:
			continue;
		case YAML_BLOCK_SEQUENCE_START_TOKEN:
		case YAML_BLOCK_MAPPING_START_TOKEN:
		case YAML_FLOW_SEQUENCE_START_TOKEN:
		case YAML_FLOW_MAPPING_START_TOKEN:
		case YAML_BLOCK_ENTRY_TOKEN: /* of a list that is indented as its key */
			return t;
		default:
			return NULL;
		}
	}
}

const struct ctl_yaml_token *ctl_yaml_token_before(const struct ctl_yaml *y, size_t index)
{
	const struct ctl_yaml_token *t = &y->tokens[tokens_before(y, index) - 1];

	while (t > y->tokens && t->begin == t->end)
		t--;
	return t;
}

const char *ctl_yaml_scalar(const yaml_node_t *node)
{
	return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value :
							NULL;
}

bool ctl_yaml_is_null(const yaml_node_t *node)
{
	const char *text = ctl_yaml_scalar(node);

	return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
	       (!*text || !strcmp(text, "~") || !strcasecmp(text, "null"));
}

bool ctl_yaml_is_flow(const yaml_node_t *node)
{
	return node->type == YAML_MAPPING_NODE ?
		       node->data.mapping.style == YAML_FLOW_MAPPING_STYLE :
		       node->type == YAML_SEQUENCE_NODE &&
			       node->data.sequence.style == YAML_FLOW_SEQUENCE_STYLE;
}

yaml_node_t *ctl_yaml_get(yaml_document_t *d, yaml_node_t *mapping, const char *key)
{
	if (!mapping || mapping->type != YAML_MAPPING_NODE)
		return NULL;
	for (yaml_node_pair_t *p = mapping->data.mapping.pairs.start;
	     p < mapping->data.mapping.pairs.top; p++) {
		const char *name = ctl_yaml_scalar(yaml_document_get_node(d, p->key));

		if (name && !strcmp(name, key))
			return yaml_document_get_node(d, p->value);
	}
	return NULL;
}

yaml_node_t *ctl_yaml_item(yaml_document_t *d, yaml_node_t *sequence, size_t i)
{
	if (!sequence || sequence->type != YAML_SEQUENCE_NODE ||
	    i >= (size_t)(sequence->data.sequence.items.top - sequence->data.sequence.items.start))
		return NULL;
	return yaml_document_get_node(d, sequence->data.sequence.items.start[i]);
}
