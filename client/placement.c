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

/* Only whole lines, and no 0 that would end the string early. */
static bool is_lines(struct dray_blob b)
{
	return !b.n || (b.p[b.n - 1] == '\n' && !memchr(b.p, 0, b.n));
}

int dc_placement_answered(struct dray *d, struct request *r, const union dmsg_body *m)
{
	const struct dmsg_hint_get_reply *hint = &m->hint_get_reply;
	const struct dmsg_segment_get_reply *segment = &m->segment_get_reply;
	const struct dmsg_env_get_reply *env = &m->env_get_reply;
	struct answer *a;

	if (r->type == DMSG_HINT_GET) {
		a = answer_new(r, hint->segment.p, hint->segment.n, NULL, 0);
		if (a)
			a->hint = (struct dray_hint){ .segment = a->text,
						      .source = hint->source,
						      .state = hint->state,
						      .flags = hint->flags,
						      .score = hint->score,
						      .left_ms = hint->left_ms };
	} else if (r->type == DMSG_SEGMENT_GET) {
		a = answer_new(r, segment->segment.p, segment->segment.n, segment->reason.p,
			       segment->reason.n);
		if (a)
			a->segment = (struct dray_segment){
				.segment = a->text,
				.preference = segment->preference,
				.state = segment->state,
				.flags = segment->flags,
				.capacity = segment->capacity,
				.allocated = segment->allocated,
				.reason = a->text + segment->segment.n + 1,
			};
	} else {
		if (!is_lines(env->variables) || !is_lines(env->notes))
			return dc_session_defect(
				d, "the agent's answer to ENV_GET is not lines of text");
		a = answer_new(r, env->variables.p, env->variables.n, env->notes.p, env->notes.n);
		if (a)
			a->env = (struct dray_env){
				.variables = a->text,
				.variables_length = env->variables.n,
				.notes = a->text + env->variables.n + 1,
				.notes_length = env->notes.n,
			};
	}
	return a ? 0 : -DRAY_E_NO_MEMORY;
}

/* Checks a text argument, which may be NULL. 0, or a negated code. */
static int take_text(struct dray *d, const char *what, const char *text, struct dray_str *ret)
{
	size_t n = text ? strlen(text) : 0;

	if (n > TEXT_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%s has %zu bytes, the limit is %d", what, n,
			       TEXT_MAX);
	*ret = (struct dray_str){ text, (uint32_t)n };
	return 0;
}

/* Starts a request with the fields of m. */
static int start(struct dray *d, uint16_t type, const union dmsg_body *m, void *arg,
		 uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct request *r;
	int n;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_request_start(d, type, arg);
	if (!r)
		return dc_failed();
	n = dmsg_body_encode(type, d->out, DMSG_MESSAGE_MAX, r->id, m);
	if (n < 0)
		return dc_request_refuse(d, r, DRAY_E_INVALID,
					 "the text is not UTF-8 without control characters");
	return dc_request_go_with(d, r, d->out, (size_t)n, ret_id);
}

/* Waits for the answer, whose n bytes *ret gets. `error` as for dc_request_wait(). */
static int finish(struct dray *d, int error, const uint64_t *id, void *ret, size_t n)
{
	error = dc_request_wait(d, error, id, 0, NULL);
	if (!error && n)
		memcpy(ret, dc_results()->answer, n);
	return error;
}

int dray_hint_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id)
{
	union dmsg_body m;
	int error = take_text(d, "the scope", scope, &m.hint_get.scope);

	return error ? error : start(d, DMSG_HINT_GET, &m, arg, ret_id);
}

int dray_hint_get(struct dray *d, const char *scope, struct dray_hint *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return finish(d, dray_hint_get_start(d, scope, NULL, &id), &id, ret, sizeof(*ret));
}

int dray_hint_put_start(struct dray *d, const char *scope, const char *segment, uint32_t score,
			uint64_t ttl_ms, void *arg, uint64_t *ret_id)
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
	return start(d, DMSG_HINT_PUT, &m, arg, ret_id);
}

int dray_hint_put(struct dray *d, const char *scope, const char *segment, uint32_t score,
		  uint64_t ttl_ms)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dray_hint_put_start(d, scope, segment, score, ttl_ms, NULL, &id);
	return finish(d, error, &id, NULL, 0);
}

int dray_segment_get_start(struct dray *d, const char *scope, void *arg, uint64_t *ret_id)
{
	union dmsg_body m;
	int error = take_text(d, "the scope", scope, &m.segment_get.scope);

	return error ? error : start(d, DMSG_SEGMENT_GET, &m, arg, ret_id);
}

int dray_segment_get(struct dray *d, const char *scope, struct dray_segment *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return finish(d, dray_segment_get_start(d, scope, NULL, &id), &id, ret, sizeof(*ret));
}

int dray_env_get_start(struct dray *d, const char *profiles, void *arg, uint64_t *ret_id)
{
	union dmsg_body m;
	int error = take_text(d, "the list of profiles", profiles, &m.env_get.profiles);

	return error ? error : start(d, DMSG_ENV_GET, &m, arg, ret_id);
}

int dray_env_get(struct dray *d, const char *profiles, struct dray_env *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return finish(d, dray_env_get_start(d, profiles, NULL, &id), &id, ret, sizeof(*ret));
}
