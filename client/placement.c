/* SPDX-License-Identifier: Apache-2.0 */
/* Hints, the preferred segment, the launcher's environment: all of it is the agent's. */
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

/* Bytes of a scope, a segment, or a list of profiles. */
#define TEXT_MAX 256

/* The result of a request. Its strings point into text. */
struct answer {
	union {
		struct dray_hint hint;
		struct dray_segment segment;
		struct dray_env env;
	};
	char text[];
};

/* An answer with copies of two strings: the first at text, the second behind its terminator. */
static struct answer *answer_new(struct request *r, const void *a, size_t a_n, const void *b,
				 size_t b_n)
{
	struct answer *answer = calloc(1, sizeof(*answer) + a_n + b_n + 2);

	r->answer = answer;
	if (answer && a_n)
		memcpy(answer->text, a, a_n);
	if (answer && b_n)
		memcpy(answer->text + a_n + 1, b, b_n);
	return answer;
}

static int hint_answered(struct request *r, const struct dmsg_hint_get_reply *m)
{
	struct answer *a = answer_new(r, m->segment.p, m->segment.n, NULL, 0);

	if (!a)
		return -DRAY_E_NO_MEMORY;
	a->hint = (struct dray_hint){
		.segment = a->text,
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
	struct answer *a = answer_new(r, m->segment.p, m->segment.n, m->reason.p, m->reason.n);

	if (!a)
		return -DRAY_E_NO_MEMORY;
	a->segment = (struct dray_segment){
		.segment = a->text,
		.preference = m->preference,
		.state = m->state,
		.flags = m->flags,
		.capacity = m->capacity,
		.allocated = m->allocated,
		.reason = a->text + m->segment.n + 1,
	};
	return 0;
}

/* Only whole lines, and no 0 that would end the string early. */
static bool is_lines(struct dray_blob b)
{
	return !b.n || (b.p[b.n - 1] == '\n' && !memchr(b.p, 0, b.n));
}

static int env_answered(struct request *r, const struct dmsg_env_get_reply *m,
			struct dray_err *reterr)
{
	struct answer *a;

	if (!is_lines(m->variables) || !is_lines(m->notes))
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the agent's answer to ENV_GET is not lines of text");
	a = answer_new(r, m->variables.p, m->variables.n, m->notes.p, m->notes.n);
	if (!a)
		return -DRAY_E_NO_MEMORY;
	a->env = (struct dray_env){
		.variables = a->text,
		.variables_length = m->variables.n,
		.notes = a->text + m->variables.n + 1,
		.notes_length = m->notes.n,
	};
	return 0;
}

int dc_placement_answered(struct request *r, const union dmsg_body *m, struct dray_err *reterr)
{
	if (r->type == DMSG_HINT_GET)
		return hint_answered(r, &m->hint_get_reply);
	if (r->type == DMSG_SEGMENT_GET)
		return segment_answered(r, &m->segment_get_reply);
	return env_answered(r, &m->env_get_reply, reterr);
}

/* What a request asks for. Strings may be NULL, which is empty. */
struct question {
	uint16_t type;
	const char *scope, *segment, *profiles;
	uint32_t score;
	uint64_t ttl_ms;
};

static int encode(struct dray *d, const struct question *q, uint64_t id)
{
	struct dray_str scope = dc_text(q->scope ? q->scope : "");
	struct dmsg_hint_put put = { .score = q->score,
				     .ttl_ms = q->ttl_ms,
				     .scope = scope,
				     .segment = dc_text(q->segment ? q->segment : "") };

	switch (q->type) {
	case DMSG_HINT_GET:
		return dmsg_hint_get_encode(d->out, DMSG_MESSAGE_MAX, id,
					    &(struct dmsg_hint_get){ scope });
	case DMSG_HINT_PUT:
		return dmsg_hint_put_encode(d->out, DMSG_MESSAGE_MAX, id, &put);
	case DMSG_SEGMENT_GET:
		return dmsg_segment_get_encode(d->out, DMSG_MESSAGE_MAX, id,
					       &(struct dmsg_segment_get){ scope });
	default:
		return dmsg_env_get_encode(
			d->out, DMSG_MESSAGE_MAX, id,
			&(struct dmsg_env_get){ dc_text(q->profiles ? q->profiles : "") });
	}
}

static bool is_short(struct dray *d, const char *what, const char *text)
{
	size_t n = text ? strlen(text) : 0;

	if (n > TEXT_MAX)
		dc_fail(d, DRAY_E_TOO_LARGE, "%s has %zu bytes, the limit is %d", what, n,
			TEXT_MAX);
	return n <= TEXT_MAX;
}

static struct request *start(struct dray *d, const struct question *q)
{
	struct request *r = dc_request_start(d, q->type, NULL);
	int n;

	if (!r)
		return NULL;
	if (!is_short(d, "the scope", q->scope) || !is_short(d, "the segment", q->segment) ||
	    !is_short(d, "the list of profiles", q->profiles)) {
		dc_request_free(d, r);
		return NULL;
	}
	n = encode(d, q, r->id);
	if (n < 0)
		return dc_request_refuse(d, r, DRAY_E_INVALID,
					 "the text is not UTF-8 without control characters");
	r = dc_request_keep(d, r, d->out, (size_t)n);
	return r ? dc_request_go(d, r) : NULL;
}

int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret)
{
	int error = dc_request_wait(
		d, start(d, &(struct question){ .type = DMSG_HINT_GET, .scope = scope }), 0, NULL);

	if (!error)
		*ret = ((const struct answer *)d->answer)->hint;
	return error;
}

int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
		  uint64_t ttl_ms)
{
	const struct question q = { .type = DMSG_HINT_PUT,
				    .scope = scope,
				    .segment = segment,
				    .score = score,
				    .ttl_ms = ttl_ms };
	int error = dc_enter(d);

	if (error)
		return error;
	/*
	 * the wire forgets the hint for an empty segment; here it is more likely an unset variable
	 */
	if (segment && !*segment)
		return dc_fail(d, DRAY_E_INVALID,
			       "the segment is empty; pass NULL to forget the hint of the scope");
	return dc_request_wait(d, start(d, &q), 0, NULL);
}

int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret)
{
	int error = dc_request_wait(
		d, start(d, &(struct question){ .type = DMSG_SEGMENT_GET, .scope = scope }), 0,
		NULL);

	if (!error)
		*ret = ((const struct answer *)d->answer)->segment;
	return error;
}

int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret)
{
	int error = dc_request_wait(
		d, start(d, &(struct question){ .type = DMSG_ENV_GET, .profiles = profiles }), 0,
		NULL);

	if (!error)
		*ret = ((const struct answer *)d->answer)->env;
	return error;
}
