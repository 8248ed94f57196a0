/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about hints, the preferred segment and the launcher's environment. They are carried out while the agent
 * drains, too: a client then needs them to find another segment.
 */
#include <errno.h>
#include <string.h>

#include "agent/config/store_space.h"
#include "agent/control/session/internal.h"
#include "agent/placement/hint/hints.h"
#include "agent/placement/segment/segments.h"
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

uint32_t segment_flags(const struct dray_dbus_segment *s)
{
	return (s->verified ? 0 : DMSG_SEGMENT_FLAG_UNVERIFIED) |
	       (s->local ? DMSG_SEGMENT_FLAG_NODE_LOCAL : 0) |
	       (s->preferred ? DMSG_SEGMENT_FLAG_PREFERRED : 0);
}

static const char *show_scope(const char *scope)
{
	return *scope ? scope : "the whole node";
}

static struct hint_owner owner_of(const struct session *s)
{
	return (struct hint_owner){ s->uid_owner->tenant, s->who.uid };
}

int request_hint_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	union dmsg_body reply = { .hint_get_reply = { .flags = DMSG_SEGMENT_FLAG_UNVERIFIED } };
	struct dmsg_hint_get_reply *m = &reply.hint_get_reply;
	const struct hint_owner viewer = owner_of(s);
	struct segment_info segment;
	char scope[TEXT_BYTES];
	struct hint h;
	int r;

	text_copy(scope, sizeof(scope), rq->m.hint_get.scope);
	if (!hints_best(d->hints, scope, &viewer, &h))
		return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND, "no hint is known for %s",
				    show_scope(scope));
	m->source = (uint16_t)h.source;
	m->score = h.score;
	m->left_ms = dray_span(h.left_ms);
	m->segment = (struct dray_str){ h.segment, (uint32_t)strlen(h.segment) };
	if (segments_find(d->segments, h.segment, &segment)) {
		m->state = (uint16_t)segment.state;
		m->flags = segment_flags(&segment.record);
	}
	r = check_segment(m->segment, reterr);
	if (r >= 0)
		session_send(s, rq->id, DMSG_HINT_GET_REPLY, &reply);
	return r;
}

static struct dray_str text_str(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

/* PUTs of others ask for such hints: only owners of the name space may give them. 0 or -EACCES with reterr. */
static int check_store_scope(const struct dray_config *cfg, const struct hint_owner *owner,
			     const char *scope, struct dray_err *reterr)
{
	const struct dray_strv *spaces = &cfg->store.spaces;
	const char *name = scope + strlen(STORE_SCOPE);

	if (strncmp(scope, STORE_SCOPE, strlen(STORE_SCOPE)) != 0 ||
	    store_space_allows((const char *const *)spaces->v, spaces->n, text_str(name),
			       text_str(owner->tenant), owner->uid))
		return 0;
	return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
			    "uid %u of tenant %s may not use name space \"%.100s\"; add it to "
			    "store.spaces",
			    owner->uid, owner->tenant, name);
}

int request_hint_put(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	const struct dmsg_hint_put *m = &rq->m.hint_put;
	const struct hint_owner owner = owner_of(s);
	char scope[TEXT_BYTES], segment[TEXT_BYTES];
	const struct hint_put put = { .scope = scope,
				      .segment = segment,
				      .source = DMSG_HINT_SOURCE_CLIENT,
				      .uid = owner.uid,
				      .tenant = owner.tenant,
				      .account = &s->uid_owner->account.budget,
				      .score = m->score,
				      .ttl_ms = m->ttl_ms };
	int r = 0;

	text_copy(scope, sizeof(scope), m->scope);
	text_copy(segment, sizeof(segment), m->segment);
	if (*segment) {
		r = check_store_scope(d->cfg, &owner, scope, reterr);
		if (r >= 0)
			r = hints_put(d->hints, &put, reterr);
	} else if (!hints_forget_client(d->hints, scope, &owner)) {
		r = dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND,
				 "clients of uid %u have set no hint for %s", s->who.uid,
				 show_scope(scope));
	}
	if (r >= 0)
		session_send(s, rq->id, DMSG_HINT_PUT_REPLY, NULL);
	return r;
}

int request_segment_get(struct session *s, struct request *rq, struct dray_err *reterr)
{
	union dmsg_body reply;
	struct dmsg_segment_get_reply *m = &reply.segment_get_reply;
	char scope[TEXT_BYTES];
	const struct hint_owner viewer = owner_of(s);
	struct preferred p;
	int r;

	text_copy(scope, sizeof(scope), rq->m.segment_get.scope);
	segments_preferred(s->owner->deps.segments, scope, &viewer, &p);
	*m = (struct dmsg_segment_get_reply){ .preference = (uint16_t)p.preference,
					      .state = (uint16_t)p.state,
					      .flags = p.flags,
					      .capacity = p.capacity,
					      .allocated = p.allocated,
					      .segment = { p.name, (uint32_t)strlen(p.name) },
					      .reason = { p.reason, (uint32_t)strlen(p.reason) } };
	r = check_segment(m->segment, reterr);
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
	r = d->env_get(d->arg, profiles, &variables, &notes, reterr);
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
