/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a connection to one answer of HTTP/1.x. Pure, but for memory. Of the client. */
#ifndef DRAY_AGENT_PLACEMENT_NET_HTTP_ANSWER_H
#define DRAY_AGENT_PLACEMENT_NET_HTTP_ANSWER_H

#include <http_parser.h>
#include <stdbool.h>

#include "lib/err.h"

#define HTTP_HEAD_BYTES_MAX 16384
#define HTTP_CONTENT_TYPE_MAX 127

struct http_answer {
	size_t body_max; /* what is allowed */
	size_t received; /* bytes, of all */
	char type[HTTP_CONTENT_TYPE_MAX + 1];
	char *body; /* NULL while there is none; else a NUL byte follows */
	size_t n;

	http_parser parser;
	size_t head_n; /* bytes of heads, those of 1xx included */
	bool in_head, complete;
	bool type_named, in_value; /* the header field is Content-Type */
	char field[16];
	size_t room;
	struct dray_err err; /* why a callback stopped the parser */
};

void http_answer_init(struct http_answer *a, size_t body_max);
void http_answer_deinit(struct http_answer *a);

/* 1: the answer is whole, what may follow is of no interest. 0: more is needed. -errno with reterr. Not after 1 or error. */
int http_answer_feed(struct http_answer *a, const char *buf, size_t n, struct dray_err *reterr);
/* The connection ended: 1, or -errno with reterr. */
int http_answer_end(struct http_answer *a, struct dray_err *reterr);

#endif
