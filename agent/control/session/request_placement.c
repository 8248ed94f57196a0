/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints, the preferred segment and the launcher's environment: the messages here, their meaning in
 * placement.h. All of it goes on while the agent drains.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* Text of these requests, terminated. */
#define TEXT_BYTES 257

static void terminate(char to[TEXT_BYTES], struct dray_str from)
{
	memcpy(to, from.p, from.n);
	to[from.n] = 0;
}

/* What a reply cannot hold is the fault of this side. */
static int check_segment(struct dray_str segment, struct dray_err *reterr)
{
	if (segment.n < TEXT_BYTES)
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INTERNAL,
			    "the segment has %u bytes, the limit is %d", segment.n, TEXT_BYTES - 1);
}

int request_hint_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_HINT_GET_REPLY_BODY_MAX];
	struct dmsg_hint_get_reply reply = { 0 };
	struct dmsg_hint_get m;
	char scope[TEXT_BYTES];
	int r;

	r = dmsg_hint_get_decode(rq->body, rq->length, &m, reterr);
	if (r < 0)
		return r;
	terminate(scope, m.scope);
	r = s->owner->placement->hint_get(s->owner->arg, scope, &reply, reterr);
	if (r >= 0)
		r = check_segment(reply.segment, reterr);
	if (r < 0)
		return r;
	session_send(s, rq->id, buf, dmsg_hint_get_reply_encode(buf, sizeof(buf), rq->id, &reply),
		     NULL, 0);
	return 0;
}

int request_hint_put(struct session *s, struct request *rq, struct dray_err *reterr)
{
	uint8_t buf[DMSG_HEADER_SIZE + 1];
	struct dmsg_hint_put_reply reply;
	struct dmsg_hint_put m;
	char scope[TEXT_BYTES], segment[TEXT_BYTES];
	int r;

	r = dmsg_hint_put_decode(rq->body, rq->length, &m, reterr);
	if (r < 0)
		return r;
	terminate(scope, m.scope);
	terminate(segment, m.segment);
	r = s->owner->placement->hint_put(s->owner->arg, s->who.uid, scope, segment, m.score,
					  m.ttl_ms, reterr);
	if (r < 0)
		return r;
	session_send(s, rq->id, buf, dmsg_hint_put_reply_encode(buf, sizeof(buf), rq->id, &reply),
		     NULL, 0);
	return 0;
}

int request_segment_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_SEGMENT_GET_REPLY_BODY_MAX];
	struct dmsg_segment_get_reply reply = { 0 };
	struct dmsg_segment_get m;
	char scope[TEXT_BYTES];
	int r;

	r = dmsg_segment_get_decode(rq->body, rq->length, &m, reterr);
	if (r < 0)
		return r;
	terminate(scope, m.scope);
	r = s->owner->placement->segment_get(s->owner->arg, scope, &reply, reterr);
	if (r >= 0)
		r = check_segment(reply.segment, reterr);
	if (r < 0)
		return r;
	reply.reason = text_fit(reply.reason, TEXT_BYTES - 1);
	session_send(s, rq->id, buf,
		     dmsg_segment_get_reply_encode(buf, sizeof(buf), rq->id, &reply), NULL, 0);
	return 0;
}

static int check_env(const struct session *s, size_t variables, size_t notes,
		     struct dray_err *reterr)
{
	size_t total = DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_MIN + variables + notes;

	if (variables > PLACEMENT_ENV_MAX || notes > PLACEMENT_ENV_MAX)
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "%zu bytes of variables and %zu of notes, the limit is %d of "
				    "each; ask for fewer profiles",
				    variables, notes, PLACEMENT_ENV_MAX);
	if (total > s->message_max)
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "the answer has %zu bytes, a message here %u; ask for fewer "
				    "profiles, or raise net.core.wmem_max",
				    total, s->message_max);
	return 0;
}

static int reply_env(struct session *s, uint64_t request_id, const char *variables,
		     const char *notes, struct dray_err *reterr)
{
	size_t n_variables = variables ? strlen(variables) : 0, n_notes = notes ? strlen(notes) : 0;
	uint8_t *buf dray_auto_free = NULL;
	struct dmsg_env_get_reply m;
	size_t cap;
	int r;

	r = check_env(s, n_variables, n_notes, reterr);
	if (r < 0)
		return r;
	cap = DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_MIN + n_variables + n_notes;
	buf = malloc(cap);
	if (!buf)
		return -ENOMEM;
	m = (struct dmsg_env_get_reply){
		.variables = { (const uint8_t *)variables, (uint32_t)n_variables },
		.notes = { (const uint8_t *)notes, (uint32_t)n_notes },
	};
	session_send(s, request_id, buf, dmsg_env_get_reply_encode(buf, cap, request_id, &m), NULL,
		     0);
	return 0;
}

int request_env_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	char *variables dray_auto_free = NULL;
	char *notes dray_auto_free = NULL;
	char profiles[TEXT_BYTES];
	struct dmsg_env_get m;
	int r;

	r = dmsg_env_get_decode(rq->body, rq->length, &m, reterr);
	if (r < 0)
		return r;
	terminate(profiles, m.profiles);
	r = s->owner->placement->env_get(s->owner->arg, profiles, &variables, &notes, reterr);
	return r < 0 ? r : reply_env(s, rq->id, variables, notes, reterr);
}
