/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: tokens of other agents that become grants here.
 *
 * An import belongs to one peer at a time: first to an attempt to reach the token's segment, then to the connection
 * that proves the agent id of the owner. Attempts are identified by agent id and segment together, because the token
 * only claims both: a forged token with a foreign id and a dead segment must not delay imports with the right segment.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"

static const char owner_restarted[] = "the token's owner was restarted; export the region again";

/* Removes it from every list; runs no callback. */
static void import_detach(struct import *i)
{
	dray_list_del(&i->link);
	dray_list_del(&i->unsent);
	dray_list_del(&i->timeout.link);
	if (i->request)
		request_free(i->request);
	dray_handles_del(&i->p->imports, i->id);
}

void import_fail(struct import *i, struct dray_err err)
{
	if (i->former && err.code == DRAY_E_PEER_UNREACHABLE)
		err = dray_err_of(DRAY_E_INCARNATION, "%s", owner_restarted);
	import_detach(i);
	i->fn(i->arg, &err, 0, NULL, NULL);
	free(i);
}

void import_succeed(struct import *i, const struct pmsg_import_reply *reply,
		    const struct peer_lease *lease)
{
	struct peer *peer = i->peer;

	import_detach(i);
	/* a draining owner would have refused, so it has resumed */
	peer_event(peer, PEER_EVENT_RESUMED);
	i->fn(i->arg, &DRAY_ERR_NULL, peer->handle, reply, lease);
	free(i);
}

static void import_granted(struct import *i, const struct pmsg_import_reply *reply)
{
	struct peer *peer = i->peer;
	int r = idset_add(&peer->grants, reply->grant);

	if (r < 0) {
		/* when one of two imports with the same grant ends, the other would lose the grant */
		peer_protocol_error(peer,
				    dray_err_of(r == -EEXIST ? DRAY_E_PROTOCOL : DRAY_E_NO_MEMORY,
						r == -EEXIST ? "grant %" PRIx64 " was given twice" :
							       "no memory for grant %" PRIx64,
						reply->grant));
		return;
	}
	import_succeed(i, reply, NULL);
}

static void import_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
			const union pmsg_body *m)
{
	struct import *i = r->import;
	uint32_t code = (uint32_t)err->code;

	i->request = NULL;
	if (!code)
		import_granted(i, &m->import_reply);
	else if (peer->fsm.state != PEER_STATE_CLOSED) /* imports_end() follows otherwise */
		import_fail(i, dray_err_of((int)code, "%s",
					   *err->msg ? err->msg : dray_error_doc(code)));
}

static const struct request_kind import_kind = {
	.type = PMSG_IMPORT,
	.done = import_done,
};

static void import_send(struct import *i)
{
	union pmsg_body m = { .import = { .token_id = i->token.token_id,
					  .region = i->token.region,
					  .incarnation = i->token.incarnation } };

	if (i->is_lease) {
		acquire_soon(i);
		return;
	}
	memcpy(m.import.capability, i->token.capability, sizeof(m.import.capability));
	i->request = request_send(i->peer, &import_kind, -1,
				  (struct pending_request){ .import = i }, &m);
	if (!i->request) /* import_fail() must not run here, which may be inside peer_import() */
		conn_fail(i->peer->conn,
			  dray_err_of(DRAY_E_NO_MEMORY, "no memory to send an import to the peer"));
}

static void import_move(struct import *i, struct peer *to)
{
	dray_list_del(&i->link);
	dray_list_del(&i->unsent);
	dray_list_del(&i->timeout.link);
	i->asked = false;
	dray_list_add(&to->imports, &i->link);
	i->peer = to;
	peer_add_timeout(to, &i->timeout);
}

void imports_adopt(struct peer *to, struct peer *from)
{
	dray_list_for_each(&from->imports, i, struct import, link)
		if (i->token.incarnation <= to->incarnation)
			import_move(i, to);
}

void imports_run(struct peer *peer)
{
	struct dray_list todo = DRAY_LIST_INIT(todo);
	struct import *i;

	/* a callback may cancel any import, so no pointer to the next one is kept */
	dray_list_splice(&todo, &peer->imports);
	while ((i = dray_list_first(&todo, struct import, link))) {
		dray_list_move(&peer->imports, &i->link);
		if (i->request || i->asked)
			continue;
		if (i->token.incarnation < peer->incarnation)
			import_fail(i, dray_err_of(DRAY_E_INCARNATION, "%s", owner_restarted));
		else
			import_send(i);
	}
}

void imports_ready(struct peer *peer)
{
	/* other attempts to reach the same agent are superseded */
	peers_for_each_of(peer->p, peer->agent_id, x) {
		if (x == peer || !x->fsm.initiator || peer_fsm_is_up(&x->fsm))
			continue;
		imports_adopt(peer, x);
		kept_segments_adopt(peer, x);
		posts_adopt(peer, x);
		/* closes x without a callback that could close another peer */
		if (dray_list_empty(&x->imports))
			peer_event(x, PEER_EVENT_UNNEEDED);
	}
	imports_run(peer);
}

/* An attempt to reach this agent at this segment, or NULL. */
static struct peer *find_attempt(struct peers *p, const uint8_t agent_id[16], const char *segment)
{
	peers_for_each_of(p, agent_id, peer)
		if (peer->fsm.initiator && !peer->any_agent && !peer_fsm_is_up(&peer->fsm) &&
		    !strcmp(peer->segment, segment))
			return peer;
	return NULL;
}

/* Moves the import to an attempt to reach its segment, a new attempt if there is none. */
static int import_dial(struct import *i, struct dray_err *reterr)
{
	struct peers *p = i->p;
	struct peer *peer = find_attempt(p, i->token.agent_id, i->segment);
	int r = peers_may_reach(p, &i->client, i->segment, reterr);

	if (r < 0)
		return r;
	if (peer) {
		import_move(i, peer);
		/* the import must learn whether the address still refuses */
		if (i->no_wait)
			peer_event(peer, PEER_EVENT_DIAL);
		return 0;
	}
	r = peer_new_to(&peer, p, i->token.agent_id, i->segment, reterr);
	if (r < 0)
		return r;
	import_move(i, peer);
	peer_event(peer, PEER_EVENT_DIAL);
	return 0;
}

static int import_start(struct import *i, struct dray_err *reterr)
{
	struct peer *up = peer_find_up(i->p, i->token.agent_id, NULL);

	/* a token of a later incarnation shows that the owner was restarted: connect to the new incarnation */
	if (!up || i->token.incarnation > up->incarnation)
		return import_dial(i, reterr);
	/*
	 * An agent that still answers at the token's segment was not restarted: two agents share the id, perhaps after a copy of
	 * the state directory. The rival check finds that out.
	 */
	if (i->token.incarnation < up->incarnation && strcmp(i->segment, up->segment) != 0) {
		i->former = true;
		return import_dial(i, reterr);
	}
	if (i->token.incarnation < up->incarnation)
		return dray_err_set(reterr, -ESTALE, DRAY_E_INCARNATION, "%s", owner_restarted);
	if (conn_is_clogged(up->conn))
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"the token's owner does not read its messages fast enough; import again later");
	import_move(i, up);
	import_send(i);
	return 0;
}

static void import_expired(struct peer *peer, struct peer_timeout *t)
{
	struct import *i = dray_container_of(t, struct import, timeout);

	import_fail(i, peer_fsm_is_up(&peer->fsm) ?
			       dray_err_of(DRAY_E_TIMEOUT, "the owner at %s did not answer in time",
					   peer->segment) :
			       peer_unreached(peer, "owner", &i->client, DRAY_E_PEER_UNREACHABLE));
	if (dray_list_empty(&peer->imports))
		peer_event(peer, PEER_EVENT_UNNEEDED);
}

int peer_import(struct peers *p, const struct pmsg_token *token, bool is_lease, const char *segment,
		const struct peer_client *client, int64_t timeout_ns, peer_import_fn fn, void *arg,
		uint64_t *ret_id, struct dray_err *reterr)
{
	dray_auto_free struct import *i = NULL;
	int r;

	if (p->stopping)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent stops; connect to its successor");
	if (!memcmp(token->agent_id, p->deps.agent_id, sizeof(token->agent_id)))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "this agent made the token: no peer owns it");
	if (strlen(segment) > PMSG_TOKEN_SEGMENT_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "the token's segment has more than %d bytes",
				    PMSG_TOKEN_SEGMENT_MAX);
	i = calloc(1, sizeof(*i));
	if (!i || dray_handles_add(&p->imports, i, &i->id) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
	i->p = p;
	i->token = *token;
	snprintf(i->segment, sizeof(i->segment), "%s", segment);
	i->is_lease = is_lease;
	i->no_wait = !timeout_ns;
	i->client = *client;
	i->timeout = (struct peer_timeout){
		.end_ns = peers_now(p) + (timeout_ns ? timeout_ns : PEER_IMPORT_TIMEOUT_NS),
		.expired = import_expired,
	};
	i->fn = fn;
	i->arg = arg;
	dray_list_init(&i->link);
	dray_list_init(&i->unsent);
	dray_list_init(&i->timeout.link);
	r = import_start(i, reterr);
	if (r < 0) {
		dray_handles_del(&p->imports, i->id);
		return r;
	}
	*ret_id = i->id;
	dray_take(i);
	return 0;
}

void peer_import_cancel(struct peers *p, uint64_t id)
{
	struct import *i = dray_handles_get(&p->imports, id);
	struct peer *peer;

	if (!i)
		return;
	peer = i->peer;
	import_detach(i);
	free(i);
	if (dray_list_empty(&peer->imports))
		peer_event(peer, PEER_EVENT_UNNEEDED);
}

void peer_release(struct peers *p, dray_handle handle, uint64_t grant, enum pmsg_release_how how)
{
	struct peer *peer = peer_get(p, handle);

	/* a fenced grant has already ended */
	if (!peer || !idset_del(&peer->grants, grant))
		return;
	fence_answer(peer, grant);
	peer_send(peer, PMSG_RELEASE, 0, &(union pmsg_body){ .release = { grant, how } });
}

void imports_refused(struct peer *peer)
{
	/* overdue at once; the callback must not run here, which may be inside peer_import() */
	dray_list_for_each(&peer->imports, i, struct import, link)
		if (i->no_wait) {
			dray_list_del(&i->timeout.link);
			i->timeout.end_ns = 0;
			peer_add_timeout(peer, &i->timeout);
		}
}

void imports_end(struct peer *peer, uint32_t code)
{
	struct import *i;

	while ((i = dray_list_first(&peer->imports, struct import, link))) {
		struct dray_err err = DRAY_ERR_NULL;

		/* a peer that left in good order had not answered: connect again */
		if (!peer->left || peer->p->stopping)
			import_fail(i, peer_unreached(peer, "owner", &i->client, code));
		else if (import_dial(i, &err) < 0)
			import_fail(i, err);
	}
}

void imports_free(struct peer *peer)
{
	dray_list_for_each(&peer->imports, i, struct import, link)
		free(i);
	dray_list_init(&peer->imports);
}
