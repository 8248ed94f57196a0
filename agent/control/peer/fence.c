/* SPDX-License-Identifier: Apache-2.0 */
/* Fences: ours for grants that the peer holds, and the peer's for grants that we hold. */
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/peer/internal.h"

static void fenced(struct peers *p, dray_handle peer, dray_handle grant)
{
	if (!p->deps.up->store_fenced(*p->deps.exchange, peer, grant))
		grant_fenced(p->deps.regions, peer, grant);
}

/* If the peer is lost instead, grants_peer_gone() ends its fences. */
static void fence_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		       const union pmsg_body *m)
{
	if (!err->code)
		fenced(peer->p, peer->handle, r->grant);
}

static const struct request_kind fence_kind = {
	.type = PMSG_FENCE,
	.vital = true,
	.unanswered = "the peer did not acknowledge a fence within peer.fence_timeout",
	.done = fence_done,
};

void peers_fence(struct peers *p, dray_handle handle, dray_handle grant, uint32_t code)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		request_send(peer, &fence_kind, p->cfg->peer.fence_timeout,
			     (struct pending_request){ .grant = grant },
			     &(union pmsg_body){ .fence = { grant, code } });
	else if (p->deps.up->quiet(*p->deps.rails, handle))
		/* no connection and no queue pair is left by which it could use the grant */
		fenced(p, handle, grant);
	/* else it ends as those of grants_peer_gone() and up->store_gone() */
}

static struct fence *fence_find(const struct peer *peer, uint64_t grant)
{
	return dray_map_entry(dray_map_find(&peer->fences, &grant, sizeof(grant)), struct fence,
			      by_grant);
}

void fence_handle(struct peer *peer, uint64_t request_id, const struct pmsg_fence *m)
{
	struct peers *p = peer->p;
	bool stored = p->deps.up->store_has(*p->deps.exchange, peer->handle, m->grant);
	struct fence *f;

	/* the grant was released, or belongs to a cancelled import */
	if (!stored && !idset_has(&peer->grants, m->grant)) {
		peer_send(peer, PMSG_FENCE_ACK, request_id, NULL);
		return;
	}
	if (!stored && offer_fenced(peer, m->grant)) {
		peer_send(peer, PMSG_FENCE_ACK, request_id, NULL);
		return;
	}
	if (fence_find(peer, m->grant)) {
		peer_protocol_error(peer,
				    dray_err_of(DRAY_E_PROTOCOL, "a second fence of grant %" PRIx64,
						m->grant));
		return;
	}
	f = calloc(1, sizeof(*f));
	if (!f) {
		conn_fail(peer->conn,
			  dray_err_of(DRAY_E_NO_MEMORY, "no memory for a fence of the peer"));
		return;
	}
	f->grant = m->grant;
	f->request_id = request_id;
	dray_map_add(&peer->fences, &f->by_grant, &f->grant, sizeof(f->grant));
	if (stored) {
		p->deps.up->store_fence(*p->deps.exchange, peer->handle, m->grant);
		return;
	}
	p->deps.up->fenced(*p->deps.sessions, peer->handle, m->grant,
			   (uint32_t)known_code(m->code, DRAY_E_REVOKED));
}

bool fence_answer(struct peer *peer, uint64_t grant)
{
	struct fence *f = fence_find(peer, grant);

	if (!f)
		return false;
	peer_send(peer, PMSG_FENCE_ACK, f->request_id, NULL);
	dray_map_del(&peer->fences, &f->by_grant);
	free(f);
	return true;
}

void fences_clear(struct peer *peer)
{
	dray_map_for_each(&peer->fences, f, struct fence, by_grant)
		free(f);
	dray_map_deinit(&peer->fences);
}

void peers_fence_ack(struct peers *p, dray_handle handle, uint64_t grant)
{
	struct peer *peer = peer_get(p, handle);

	if (peer && fence_answer(peer, grant))
		idset_del(&peer->grants, grant);
}
