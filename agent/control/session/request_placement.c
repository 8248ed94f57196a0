/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about hints, the preferred segment and the launcher's environment; session.h describes their meaning. */
#include <errno.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

/* Text of these requests, terminated. */
#define TEXT_BYTES 257

static int check_segment(struct dray_str segment, struct dray_err *reterr)
{
	if (segment.n < TEXT_BYTES)
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INTERNAL,
			    "the segment has %u bytes, the limit is %d", segment.n, TEXT_BYTES - 1);
}

int request_hint_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	union dmsg_body reply = { .hint_get_reply = { 0 } };
	char scope[TEXT_BYTES];
	int r;

	text_copy(scope, sizeof(scope), rq->m.hint_get.scope);
	r = d->placement->hint_get(d->arg, scope, &reply.hint_get_reply, reterr);
	if (r >= 0)
		r = check_segment(reply.hint_get_reply.segment, reterr);
	if (r >= 0)
		session_send(s, rq->id, DMSG_HINT_GET_REPLY, &reply);
	return r;
}

int request_hint_put(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	const struct dmsg_hint_put *m = &rq->m.hint_put;
	char scope[TEXT_BYTES], segment[TEXT_BYTES];
	int r;

	text_copy(scope, sizeof(scope), m->scope);
	text_copy(segment, sizeof(segment), m->segment);
	r = d->placement->hint_put(d->arg, s->who.uid, scope, segment, m->score, m->ttl_ms, reterr);
	if (r >= 0)
		session_send(s, rq->id, DMSG_HINT_PUT_REPLY, NULL);
	return r;
}

int request_segment_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	union dmsg_body reply = { .segment_get_reply = { 0 } };
	struct dmsg_segment_get_reply *m = &reply.segment_get_reply;
	char scope[TEXT_BYTES];
	int r;

	text_copy(scope, sizeof(scope), rq->m.segment_get.scope);
	r = d->placement->segment_get(d->arg, scope, m, reterr);
	if (r >= 0)
		r = check_segment(m->segment, reterr);
	m->reason = text_fit(m->reason, TEXT_BYTES - 1);
	if (r >= 0)
		session_send(s, rq->id, DMSG_SEGMENT_GET_REPLY, &reply);
	return r;
}

static int check_env(const struct session *s, size_t variables, size_t notes,
		     struct dray_err *reterr)
{
	size_t total = DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_MIN + variables + notes;

	if (variables > PLACEMENT_ENV_MAX || notes > PLACEMENT_ENV_MAX)
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "the reply has %zu bytes of variables and %zu of notes, the "
				    "limit is %d of each; ask for fewer profiles",
				    variables, notes, PLACEMENT_ENV_MAX);
	if (total > s->message_max)
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "the reply has %zu bytes, a message of this socket %u; ask for "
				    "fewer profiles, or raise net.core.wmem_max",
				    total, s->message_max);
	return 0;
}

int request_env_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	char *variables dray_auto_free = NULL;
	char *notes dray_auto_free = NULL;
	size_t n_variables, n_notes;
	char profiles[TEXT_BYTES];
	int r;

	text_copy(profiles, sizeof(profiles), rq->m.env_get.profiles);
	r = d->placement->env_get(d->arg, profiles, &variables, &notes, reterr);
	if (r < 0)
		return r;
	n_variables = variables ? strlen(variables) : 0;
	n_notes = notes ? strlen(notes) : 0;
	r = check_env(s, n_variables, n_notes, reterr);
	if (r < 0)
		return r;
	session_send(
		s, rq->id, DMSG_ENV_GET_REPLY,
		&(union dmsg_body){
			.env_get_reply = {
				.variables = { (const uint8_t *)variables, (uint32_t)n_variables },
				.notes = { (const uint8_t *)notes, (uint32_t)n_notes } } });
	return 0;
}
