/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/http_answer.h"

#include <errno.h>
#include <http_parser.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* initial size of a body */
#define BODY_BYTES_MIN 4096

struct reader {
	struct http_answer answer;
	http_parser parser;
	size_t body_max; /* what is allowed */
	size_t head_n;   /* bytes of heads, those of 1xx included */
	bool in_head, complete;
	size_t room;         /* bytes of the buffer for the body */
	struct dray_err err; /* why a callback stopped the parser */
};

static struct reader *reader_of(struct http_answer *a)
{
	return dray_container_of(a, struct reader, answer);
}

static int stop(struct reader *r, int code, const char *why)
{
	dray_err_set(&r->err, 0, code, "%s", why);
	/* http_parser gives 1 and 2 another meaning */
	return -1;
}

static int on_begin(http_parser *p)
{
	struct reader *r = p->data;

	r->in_head = true;
	return 0;
}

static int body_reserve(struct reader *r, size_t n)
{
	size_t max = dray_max(r->room, (size_t)BODY_BYTES_MIN);
	char *body;

	while (max < n + 1)
		max *= 2;
	if (max <= r->room)
		return 0;
	/* n is at most body_max */
	if (max - 1 > r->body_max)
		max = r->body_max + 1;
	body = realloc(r->answer.body, max);
	if (!body)
		return stop(r, DRAY_E_NO_MEMORY, "out of memory");
	r->answer.body = body;
	r->room = max;
	return 0;
}

static int too_large(struct reader *r)
{
	char text[32], why[96];

	snprintf(why, sizeof(why), "the page has more than %s",
		 dray_size_show((int64_t)r->body_max, text, sizeof(text)));
	return stop(r, DRAY_E_TOO_LARGE, why);
}

static int on_head(http_parser *p)
{
	struct reader *r = p->data;

	r->in_head = false;
	r->answer.status = p->status_code;
	if (p->status_code == 101)
		return stop(r, DRAY_E_PROTOCOL, "it switches to another protocol (101)");
	/* UINT64_MAX: there is no Content-Length */
	if (p->content_length != UINT64_MAX && p->content_length > r->body_max)
		return too_large(r);
	return 0;
}

static int on_body(http_parser *p, const char *at, size_t n)
{
	struct reader *r = p->data;

	if (n > r->body_max - r->answer.n)
		return too_large(r);
	if (body_reserve(r, r->answer.n + n))
		return -1;
	memcpy(r->answer.body + r->answer.n, at, n);
	r->answer.n += n;
	r->answer.body[r->answer.n] = '\0';
	return 0;
}

static int on_complete(http_parser *p)
{
	struct reader *r = p->data;

	/* a 1xx response: another head follows */
	if (p->status_code < 200) {
		r->in_head = true;
		return 0;
	}
	r->complete = true;
	http_parser_pause(p, 1);
	return 0;
}

static const http_parser_settings callbacks = {
	.on_message_begin = on_begin,
	.on_headers_complete = on_head,
	.on_body = on_body,
	.on_message_complete = on_complete,
};

/* 1, 0, or -errno with reterr, as http_answer_feed(). */
static int result_of(const struct reader *r, struct dray_err *reterr)
{
	enum http_errno e = HTTP_PARSER_ERRNO(&r->parser);

	if (r->complete)
		return 1;
	if (r->err.code)
		return dray_err_set(reterr, -EPROTO, r->err.code, "%s", r->err.msg);
	if (e == HPE_INVALID_EOF_STATE)
		return dray_err_set(reterr, -ECONNRESET, DRAY_E_PEER_LOST,
				    "the response was cut off after %zu bytes", r->answer.received);
	if (e == HPE_HEADER_OVERFLOW || (r->in_head && r->head_n >= HTTP_HEAD_BYTES_MAX))
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "the head of the response has more than %d bytes",
				    HTTP_HEAD_BYTES_MAX);
	if (e != HPE_OK)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the response is not HTTP: %s", http_errno_description(e));
	return 0;
}

int http_answer_feed(struct http_answer *a, const char *buf, size_t n, struct dray_err *reterr)
{
	struct reader *r = reader_of(a);

	a->received += n;
	while (n) {
		/* never more of a head than its limit allows */
		size_t piece = r->in_head ? dray_min(n, HTTP_HEAD_BYTES_MAX - r->head_n) : n;
		size_t used = http_parser_execute(&r->parser, &callbacks, buf, piece);
		int e;

		/* a server may send many 1xx heads, which count together */
		if (r->in_head)
			r->head_n += used;
		e = result_of(r, reterr);
		if (e)
			return e;
		buf += used;
		n -= used;
	}
	return 0;
}

int http_answer_end(struct http_answer *a, struct dray_err *reterr)
{
	struct reader *r = reader_of(a);
	int e = 0;

	/* the end of the connection ends a response without a length */
	if (a->received) {
		http_parser_execute(&r->parser, &callbacks, NULL, 0);
		e = result_of(r, reterr);
	}
	return e ? e :
		   dray_err_set(reterr, -ECONNRESET, DRAY_E_PEER_LOST,
				"it closed the connection without a response");
}

struct http_answer *http_answer_new(size_t body_max)
{
	struct reader *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->body_max = body_max;
	r->in_head = true;
	http_parser_init(&r->parser, HTTP_RESPONSE);
	r->parser.data = r;
	if (body_reserve(r, 0)) {
		free(r);
		return NULL;
	}
	*r->answer.body = '\0';
	return &r->answer;
}

void http_answer_free(struct http_answer *a)
{
	if (!a)
		return;
	free(a->body);
	free(reader_of(a));
}
