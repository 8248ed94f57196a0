/* SPDX-License-Identifier: Apache-2.0 */
/* Hints, the preferred segment, the launcher's environment: asked of the agent, which remembers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

_Static_assert((int)DRAY_SEGMENT_PROBING == DMSG_SEGMENT_STATE_PROBING &&
		       (int)DRAY_SEGMENT_READY == DMSG_SEGMENT_STATE_READY &&
		       (int)DRAY_SEGMENT_LOST == DMSG_SEGMENT_STATE_LOST &&
		       (int)DRAY_SEGMENT_UNVERIFIED == DMSG_SEGMENT_FLAG_UNVERIFIED &&
		       (int)DRAY_SEGMENT_NODE_LOCAL == DMSG_SEGMENT_FLAG_NODE_LOCAL &&
		       (int)DRAY_SEGMENT_PREFERRED == DMSG_SEGMENT_FLAG_PREFERRED &&
		       (int)DRAY_PREFERENCE_EXPLICIT == DMSG_PREFERENCE_EXPLICIT &&
		       (int)DRAY_PREFERENCE_ENVIRONMENT == DMSG_PREFERENCE_ENVIRONMENT &&
		       (int)DRAY_PREFERENCE_HINT == DMSG_PREFERENCE_HINT &&
		       (int)DRAY_PREFERENCE_DETECTED == DMSG_PREFERENCE_DETECTED &&
		       (int)DRAY_HINT_EXPLICIT == DMSG_HINT_SOURCE_EXPLICIT &&
		       (int)DRAY_HINT_ENVIRONMENT == DMSG_HINT_SOURCE_ENVIRONMENT &&
		       (int)DRAY_HINT_DETECTED == DMSG_HINT_SOURCE_DETECTED &&
		       (int)DRAY_HINT_CLIENT == DMSG_HINT_SOURCE_CLIENT,
	       "the public header repeats the schema");

/* Of a scope, a segment, a list of profiles. */
#define TEXT_MAX 256

/* What a request asks, for when it is sent. */
struct question {
	uint32_t score;
	uint64_t ttl_ms;
	uint32_t text_n, segment_n;
	char bytes[]; /* scope or profiles, then the segment */
};

/* What the agent said; the strings point behind it. */
struct answer {
	union {
		struct dray_hint hint;
		struct dray_segment segment;
		struct dray_env env;
	};
	char text[];
};

int dc_placement_encode(struct dray *d, const struct request *r)
{
	const struct question *q = r->data;
	struct dray_str text = { q->bytes, q->text_n };
	struct dmsg_hint_put put = { .score = q->score,
				     .ttl_ms = q->ttl_ms,
				     .scope = text,
				     .segment = { q->bytes + q->text_n, q->segment_n } };

	switch (r->type) {
	case DMSG_HINT_GET:
		return dmsg_hint_get_encode(d->out, DMSG_MESSAGE_MAX, r->id,
					    &(struct dmsg_hint_get){ text });
	case DMSG_HINT_PUT:
		return dmsg_hint_put_encode(d->out, DMSG_MESSAGE_MAX, r->id, &put);
	case DMSG_SEGMENT_GET:
		return dmsg_segment_get_encode(d->out, DMSG_MESSAGE_MAX, r->id,
					       &(struct dmsg_segment_get){ text });
	default:
		return dmsg_env_get_encode(d->out, DMSG_MESSAGE_MAX, r->id,
					   &(struct dmsg_env_get){ text });
	}
}

/* With room for two strings of these lengths. */
static struct answer *answer_new(struct request *r, size_t a, size_t b)
{
	r->answer = malloc(sizeof(struct answer) + a + b + 2);
	return r->answer;
}

/* The string's place; *at moves behind it. */
static const char *put_text(char **at, const void *p, size_t n)
{
	char *s = *at;

	if (n)
		memcpy(s, p, n);
	s[n] = '\0';
	*at += n + 1;
	return s;
}

static int hint_answered(struct request *r, const struct dmsg_hint_get_reply *m)
{
	struct answer *a = answer_new(r, m->segment.n, 0);
	char *at;

	if (!a)
		return -DRAY_E_NO_MEMORY;
	at = a->text;
	a->hint = (struct dray_hint){
		.segment = put_text(&at, m->segment.p, m->segment.n),
		.source = m->source,
		.state = m->state,
		.flags = m->flags,
		.score = m->score,
		.left_ms = m->left_ms,
	};
	return 0;
}

static int segment_answered(struct request *r, const struct dmsg_segment_get_reply *m)
{
	struct answer *a = answer_new(r, m->segment.n, m->reason.n);
	char *at;

	if (!a)
		return -DRAY_E_NO_MEMORY;
	at = a->text;
	a->segment = (struct dray_segment){
		.preference = m->preference,
		.state = m->state,
		.flags = m->flags,
		.capacity = m->capacity,
		.allocated = m->allocated,
	};
	a->segment.segment = put_text(&at, m->segment.p, m->segment.n);
	a->segment.reason = put_text(&at, m->reason.p, m->reason.n);
	return 0;
}

/* Whole lines, and nothing that would end the string early. */
static bool is_lines(struct dray_blob b)
{
	return !b.n || (b.p[b.n - 1] == '\n' && !memchr(b.p, 0, b.n));
}

static int env_answered(struct request *r, const struct dmsg_env_get_reply *m,
			struct dray_err *reterr)
{
	struct answer *a;
	char *at;

	if (!is_lines(m->variables) || !is_lines(m->notes))
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the agent answered ENV_GET with what is no lines of text");
	a = answer_new(r, m->variables.n, m->notes.n);
	if (!a)
		return -DRAY_E_NO_MEMORY;
	at = a->text;
	a->env =
		(struct dray_env){ .variables_length = m->variables.n, .notes_length = m->notes.n };
	a->env.variables = put_text(&at, m->variables.p, m->variables.n);
	a->env.notes = put_text(&at, m->notes.p, m->notes.n);
	return 0;
}

int dc_placement_answered(struct request *r, const uint8_t *body, size_t len,
			  struct dray_err *reterr)
{
	union {
		struct dmsg_hint_get_reply hint;
		struct dmsg_segment_get_reply segment;
		struct dmsg_env_get_reply env;
	} m;

	switch (r->type) {
	case DMSG_HINT_GET:
		if (dmsg_hint_get_reply_decode(body, len, &m.hint, reterr) < 0)
			return -EPROTO;
		return hint_answered(r, &m.hint);
	case DMSG_SEGMENT_GET:
		if (dmsg_segment_get_reply_decode(body, len, &m.segment, reterr) < 0)
			return -EPROTO;
		return segment_answered(r, &m.segment);
	default:
		if (dmsg_env_get_reply_decode(body, len, &m.env, reterr) < 0)
			return -EPROTO;
		return env_answered(r, &m.env, reterr);
	}
}

/* text, segment: NULL is empty. */
static struct request *start(struct dray *d, uint16_t type, const char *what, const char *text,
			     const char *segment, uint32_t score, uint64_t ttl_ms)
{
	size_t n = text ? strlen(text) : 0, segment_n = segment ? strlen(segment) : 0;
	struct request *r;
	struct question *q;

	if (!dc_requests_admit(d))
		return NULL;
	if (n > TEXT_MAX || segment_n > TEXT_MAX)
		return dc_request_refuse(d, DRAY_E_TOO_LARGE, "%s has %zu bytes, the limit is %d",
					 n > TEXT_MAX ? what : "the segment",
					 n > TEXT_MAX ? n : segment_n, TEXT_MAX);
	r = dc_request_start(d, type, NULL);
	if (!r)
		return NULL;
	q = malloc(sizeof(*q) + n + segment_n);
	if (!q) {
		dc_request_free(d, r);
		return dc_request_refuse(d, DRAY_E_NO_MEMORY, "no memory for another request");
	}
	*q = (struct question){ score, ttl_ms, (uint32_t)n, (uint32_t)segment_n };
	if (n)
		memcpy(q->bytes, text, n);
	if (segment_n)
		memcpy(q->bytes + n, segment, segment_n);
	r->data = q;
	return dc_request_go(d, r);
}

/* Waits for the answer, which is the handle's then. 0 or negative. */
static int ask(struct dray *d, uint16_t type, const char *what, const char *text,
	       const struct answer **ret)
{
	struct dray_completion c;
	int error = dc_request_wait(d, start(d, type, what, text, NULL, 0, 0), 0, &c);

	*ret = d->answer;
	return error;
}

int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret)
{
	const struct answer *a;
	int error = ask(d, DMSG_HINT_GET, "the scope", scope, &a);

	if (!error)
		*ret = a->hint;
	return error;
}

int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
		  uint64_t ttl_ms)
{
	struct dray_completion c;
	int error = dc_enter(d);

	if (error)
		return error;
	/* on the wire that is forgetting, and here a variable that somebody has not set */
	if (segment && !*segment)
		return dc_fail(d, DRAY_E_INVALID,
			       "the segment is empty; NULL forgets what was said of the scope");
	return dc_request_wait(
		d, start(d, DMSG_HINT_PUT, "the scope", scope, segment, score, ttl_ms), 0, &c);
}

int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret)
{
	const struct answer *a;
	int error = ask(d, DMSG_SEGMENT_GET, "the scope", scope, &a);

	if (!error)
		*ret = a->segment;
	return error;
}

int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret)
{
	const struct answer *a;
	int error = ask(d, DMSG_ENV_GET, "the list of profiles", profiles, &a);

	if (!error)
		*ret = a->env;
	return error;
}
