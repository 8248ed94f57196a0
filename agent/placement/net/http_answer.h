/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the bytes of a connection into one answer of HTTP/1.x. */
#pragma once

#include <stddef.h>

#include "lib/err.h"

#define HTTP_HEAD_BYTES_MAX 16384

struct http_answer {
	size_t received; /* bytes of the connection */
	unsigned status; /* 200 to 999 */
	char *body;      /* a NUL byte follows */
	size_t n;        /* bytes of the body */
};

/* NULL without memory. */
struct http_answer *http_answer_new(size_t body_max);
/* NULL is allowed. */
void http_answer_free(struct http_answer *a);

/* 1: the response is complete, and further bytes are ignored. 0: more is needed. -errno with reterr. Not after 1 or an error. */
int http_answer_feed(struct http_answer *a, const char *buf, size_t n, struct dray_err *reterr);
/* The connection ended: 1, or -errno with reterr. */
int http_answer_end(struct http_answer *a, struct dray_err *reterr);
