/* SPDX-License-Identifier: Apache-2.0 */
/* Hints, the preferred segment, the launcher's environment: all of it is the agent's. */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

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

static int env_answered(struct dray *d, struct request *r, const struct dmsg_env_get_reply *m)
{
	struct answer *a;

	if (!is_lines(m->variables) || !is_lines(m->notes))
		return dc_session_defect(d, "the agent's answer to ENV_GET is not lines of text");
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

int dc_placement_answered(struct dray *d, struct request *r, const union dmsg_body *m)
{
	if (r->type == DMSG_HINT_GET)
		return hint_answered(r, &m->hint_get_reply);
	if (r->type == DMSG_SEGMENT_GET)
		return segment_answered(r, &m->segment_get_reply);
	return env_answered(d, r, &m->env_get_reply);
}

/* Checks a text argument, which may be NULL. 0, or a negated code. */
static int take_text(struct dray *d, const char *what, const char *text, struct dray_str *ret)
{
	size_t n = text ? strlen(text) : 0;

	if (dc_enter(d))
		return -DRAY_E_OUT_OF_ORDER;
	if (n > TEXT_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%s has %zu bytes, the limit is %d", what, n,
			       TEXT_MAX);
	*ret = (struct dray_str){ text, (uint32_t)n };
	return 0;
}

/* Sends a request with the fields of m, and waits for its end. */
static int run(struct dray *d, uint16_t type, const union dmsg_body *m)
{
	struct request *r = dc_request_start(d, type, NULL);
	uint64_t id;
	int n, error;

	if (!r)
		return -d->error.code;
	n = dmsg_body_encode(type, d->out, DMSG_MESSAGE_MAX, r->id, m);
	if (n < 0)
		return dc_request_refuse(d, r, DRAY_E_INVALID,
					 "the text is not UTF-8 without control characters");
	error = dc_request_go_with(d, r, d->out, (size_t)n, &id);
	return dc_request_wait(d, error, &id, 0, NULL);
}

int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret)
{
	union dmsg_body m;
	int error = take_text(d, "the scope", scope, &m.hint_get.scope);

	if (!error)
		error = run(d, DMSG_HINT_GET, &m);
	if (!error)
		*ret = ((const struct answer *)d->answer)->hint;
	return error;
}

int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
		  uint64_t ttl_ms)
{
	union dmsg_body m = { .hint_put = { .score = score, .ttl_ms = ttl_ms } };
	int error = take_text(d, "the scope", scope, &m.hint_put.scope);

	if (!error)
		error = take_text(d, "the segment", segment, &m.hint_put.segment);
	if (error)
		return error;
	/* an empty segment would forget the hint; it is more likely an unset variable */
	if (segment && !*segment)
		return dc_fail(d, DRAY_E_INVALID,
			       "the segment is empty; pass NULL to forget the hint of the scope");
	return run(d, DMSG_HINT_PUT, &m);
}

int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret)
{
	union dmsg_body m;
	int error = take_text(d, "the scope", scope, &m.segment_get.scope);

	if (!error)
		error = run(d, DMSG_SEGMENT_GET, &m);
	if (!error)
		*ret = ((const struct answer *)d->answer)->segment;
	return error;
}

int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret)
{
	union dmsg_body m;
	int error = take_text(d, "the list of profiles", profiles, &m.env_get.profiles);

	if (!error)
		error = run(d, DMSG_ENV_GET, &m);
	if (!error)
		*ret = ((const struct answer *)d->answer)->env;
	return error;
}
