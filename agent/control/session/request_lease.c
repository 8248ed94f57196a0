/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of this session's group, and the renewal of leases that it holds. remote.c acquires and releases them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

void sessions_lease_ended(struct sessions *ss, dray_handle session,
			  const struct dmsg_lease_ended *m)
{
	struct session *s = session_get(ss, session);

	if (s)
		session_send(s, 0, DMSG_LEASE_ENDED, &(union dmsg_body){ .lease_ended = *m });
}

/* Grants the lease to the agent that its token names. Returns the number of holders that have it now. */
static uint32_t grant(struct session *s, const struct dmsg_lease_reply *m, uint32_t holders)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_token token;
	char segment[256];

	token_parse(m->token.p, m->token.n, &token, segment, &err);
	return peers_lease_grant(s->owner->deps.peers, &token, holders);
}

int request_lease(struct session *s, struct request *rq, struct dray_err *reterr)
{
	static const uint8_t anybody[16];
	struct region_owner owner = session_owner(s);
	const struct dmsg_lease *m = &rq->m.lease;
	uint8_t token[DMSG_TOKEN_MAX];
	union dmsg_body reply = { .lease_reply = { .token = { .p = token } } };
	struct dmsg_lease_reply *answer = &reply.lease_reply;
	int e;

	if (m->flags & DMSG_LEASE_FLAG_GRANT && !memcmp(m->audience, anybody, sizeof(anybody)))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"a lease that is granted at once needs the agent id of its audience");
	e = lease_new(s->owner->deps.regions, &owner, m, peers_segment(s->owner->deps.peers),
		      &answer->lease, token, &answer->token.n, reterr);
	if (e < 0)
		return e;
	if (m->flags & DMSG_LEASE_FLAG_GRANT)
		answer->granted = grant(s, answer, m->holders);
	session_send(s, rq->id, DMSG_LEASE_REPLY, &reply);
	return 0;
}

/* A request that is answered later; its session may end first. */
struct waiting {
	struct sessions *sessions;
	dray_handle session;
	uint64_t request_id;
};

static struct waiting *waiting_new(struct session *s, uint64_t request_id)
{
	struct waiting *w = malloc(sizeof(*w));

	if (w)
		*w = (struct waiting){ s->owner, s->handle, request_id };
	return w;
}

static void handle_ended(void *arg, uint32_t n)
{
	struct waiting *w = arg;
	struct session *s = session_get(w->sessions, w->session);

	if (s)
		session_send(s, w->request_id, DMSG_LEASE_END_REPLY, NULL);
	free(w);
}

int request_lease_end(struct session *s, struct request *rq, struct dray_err *reterr)
{
	struct waiting *w dray_auto_free = waiting_new(s, rq->id);
	struct region_owner owner = session_owner(s);
	int e;

	if (!w)
		return -ENOMEM;
	e = lease_end(s->owner->deps.regions, rq->m.lease_end.lease, &owner, handle_ended, w,
		      reterr);
	if (e < 0)
		return e;
	w = NULL;
	return 0;
}

static void reply_renewed(struct session *s, uint64_t request_id, uint32_t ms)
{
	session_send(s, request_id, DMSG_LEASE_RENEW_REPLY,
		     &(union dmsg_body){ .lease_renew_reply = { ms } });
}

static void handle_renewed(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct waiting *w = arg;
	struct session *s = session_get(w->sessions, w->session);

	if (s && code)
		session_send_error(s, w->request_id, code, dray_error_doc(code));
	else if (s)
		reply_renewed(s, w->request_id, reply->lease_renew_reply.expiry_ms);
	free(w);
}

static int lease_has_ended(struct dray_err *reterr)
{
	return dray_err_set(reterr, -EPIPE, DRAY_E_REVOKED,
			    "the lease has ended; ask its owner for a new one");
}

int request_lease_renew(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_lease_renew *m = &rq->m.lease_renew;
	const struct sessions_deps *d = &s->owner->deps;
	struct remote *r = remote_get(s, m->remote, reterr);
	struct waiting *w;
	uint32_t ms;
	int e;

	if (!r)
		return -ENOENT;
	if (!r->is_lease)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the remote is of an export, which is not renewed");
	if (r->view.is_local) {
		if (lease_renew_local(d->regions, r->token_id, m->expiry_ms, &ms) < 0)
			return lease_has_ended(reterr);
		reply_renewed(s, rq->id, ms);
		return 0;
	}
	w = waiting_new(s, rq->id);
	if (!w)
		return -ENOMEM;
	e = peers_request(d->peers, r->view.peer, PMSG_LEASE_RENEW,
			  &(union pmsg_body){ .lease_renew = { .grant = r->view.grant,
							       .expiry_ms = m->expiry_ms } },
			  handle_renewed, w);
	if (e < 0)
		free(w);
	return e == -ENOTCONN ? dray_err_set(reterr, e, DRAY_E_PEER_LOST,
					     "the lease's owner is not connected any more") :
				e;
}
