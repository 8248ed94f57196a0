/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/http_answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* a body grows from there */
#define BODY_BYTES_MIN 4096

static int stop(struct http_answer *a, int code, const char *why)
{
	dray_err_set(&a->err, 0, code, "%s", why);
	/* 1 and 2 would say that there is no body */
	return -1;
}

static int on_begin(http_parser *p)
{
	struct http_answer *a = p->data;

	a->in_head = true;
	a->type_named = a->in_value = false;
	a->field[0] = a->type[0] = '\0';
	return 0;
}

/* At most what fits: the tail of a longer one is of no use. */
static void append(char *to, size_t max, const char *from, size_t n)
{
	size_t used = strlen(to);

	n = dray_min(n, max - 1 - used);
	memcpy(to + used, from, n);
	to[used + n] = '\0';
}

static int on_field(http_parser *p, const char *at, size_t n)
{
	struct http_answer *a = p->data;

	if (a->in_value)
		a->field[0] = '\0';
	a->in_value = false;
	append(a->field, sizeof(a->field), at, n);
	return 0;
}

static int on_value(http_parser *p, const char *at, size_t n)
{
	struct http_answer *a = p->data;

	if (!a->in_value)
		a->type_named = !strcasecmp(a->field, "content-type") && !*a->type;
	a->in_value = true;
	if (a->type_named)
		append(a->type, sizeof(a->type), at, n);
	return 0;
}

static int body_reserve(struct http_answer *a, size_t n)
{
	size_t max = dray_max(a->room, (size_t)BODY_BYTES_MIN);
	char *body;

	while (max < n + 1)
		max *= 2;
	if (max <= a->room)
		return 0;
	/* n is no more than that */
	if (max - 1 > a->body_max)
		max = a->body_max + 1;
	body = realloc(a->body, max);
	if (!body)
		return stop(a, DRAY_E_NO_MEMORY, "out of memory");
	a->body = body;
	a->room = max;
	return 0;
}

static int too_large(struct http_answer *a)
{
	char text[32], why[96];

	snprintf(why, sizeof(why), "the page has more than %s",
		 dray_size_show((int64_t)a->body_max, text, sizeof(text)));
	return stop(a, DRAY_E_TOO_LARGE, why);
}

static int on_head(http_parser *p)
{
	struct http_answer *a = p->data;

	a->in_head = false;
	if (p->status_code == 101)
		return stop(a, DRAY_E_PROTOCOL, "it wants to speak another protocol (101)");
	/* UINT64_MAX: it did not say */
	if (p->content_length != UINT64_MAX && p->content_length > a->body_max)
		return too_large(a);
	return 0;
}

static int on_body(http_parser *p, const char *at, size_t n)
{
	struct http_answer *a = p->data;

	if (n > a->body_max - a->n)
		return too_large(a);
	if (body_reserve(a, a->n + n))
		return -1;
	memcpy(a->body + a->n, at, n);
	a->n += n;
	a->body[a->n] = '\0';
	return 0;
}

static int on_complete(http_parser *p)
{
	struct http_answer *a = p->data;

	/* what comes before the answer: another head follows */
	if (p->status_code < 200) {
		a->in_head = true;
		return 0;
	}
	a->complete = true;
	http_parser_pause(p, 1);
	return 0;
}

static const http_parser_settings callbacks = {
	.on_message_begin = on_begin,
	.on_header_field = on_field,
	.on_header_value = on_value,
	.on_headers_complete = on_head,
	.on_body = on_body,
	.on_message_complete = on_complete,
};

/* 1, 0, or what is wrong. */
static int judge(const struct http_answer *a, struct dray_err *reterr)
{
	enum http_errno e = HTTP_PARSER_ERRNO(&a->parser);

	if (a->complete)
		return 1;
	if (a->err.code)
		return dray_err_set(reterr, -EPROTO, a->err.code, "%s", a->err.msg);
	if (e == HPE_INVALID_EOF_STATE)
		return dray_err_set(reterr, -ECONNRESET, DRAY_E_PEER_LOST,
				    "the answer was cut off after %zu bytes", a->received);
	if (e == HPE_HEADER_OVERFLOW || (a->in_head && a->head_n >= HTTP_HEAD_BYTES_MAX))
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "the head of the answer has more than %d bytes",
				    HTTP_HEAD_BYTES_MAX);
	if (e != HPE_OK)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "the answer is not HTTP: %s",
				    http_errno_description(e));
	return 0;
}

int http_answer_feed(struct http_answer *a, const char *buf, size_t n, struct dray_err *reterr)
{
	a->received += n;
	while (n) {
		/* of a head no more than it may have, so that it is not exceeded unseen */
		size_t piece = a->in_head ? dray_min(n, HTTP_HEAD_BYTES_MAX - a->head_n) : n;
		size_t used = http_parser_execute(&a->parser, &callbacks, buf, piece);
		int r;

		/* one head after the other counts as one: 1xx may be many */
		if (a->in_head)
			a->head_n += used;
		r = judge(a, reterr);
		if (r)
			return r;
		buf += used;
		n -= used;
	}
	return 0;
}

int http_answer_end(struct http_answer *a, struct dray_err *reterr)
{
	int r = 0;

	/* an answer without length ends here */
	if (a->received) {
		http_parser_execute(&a->parser, &callbacks, NULL, 0);
		r = judge(a, reterr);
	}
	return r ? r :
		   dray_err_set(reterr, -ECONNRESET, DRAY_E_PEER_LOST,
				"it closed the connection without an answer");
}

void http_answer_init(struct http_answer *a, size_t body_max)
{
	*a = (struct http_answer){ .body_max = body_max, .in_head = true };
	http_parser_init(&a->parser, HTTP_RESPONSE);
	a->parser.data = a;
}

void http_answer_deinit(struct http_answer *a)
{
	free(a->body);
	a->body = NULL;
}
