/* SPDX-License-Identifier: Apache-2.0 */
/* Fences, ours for grants that the peer holds and the peer's for those that we hold. */
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* --- of ours ------------------------------------------------------------------------------------ */

void peers_fence(struct peers *p, dray_handle handle, dray_handle grant, uint32_t code)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_FENCE_BODY_MAX];
	struct peer *peer = table_get(p, handle);
	struct pmsg_fence m = { .grant = grant, .code = code };
	struct late_fence *late;
	struct request *r;

	if (!peer || !peer_fsm_is_up(&peer->fsm)) {
		/* a peer that is gone touches nothing; but the answer must not come inside of this call */
		late = calloc(1, sizeof(*late));
		dray_assert(late);
		late->peer = handle;
		late->grant = grant;
		dray_list_add(&p->late_fences, &late->link);
		peers_wake(p);
		return;
	}
	r = request_new(peer, REQUEST_FENCE, p->cfg->peer.fence_timeout);
	if (!r) {
		/* its loss answers every fence */
		conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory for a fence");
		return;
	}
	r->grant = grant;
	peer_send(peer, buf, pmsg_fence_encode(buf, sizeof(buf), r->id, &m));
}

void fence_acked(struct peer *peer, struct request *r)
{
	uint64_t grant = r->grant;

	free(r);
	grant_fenced(peer->p->deps.regions, peer->handle, grant);
}

void late_fences_run(struct peers *p)
{
	struct late_fence *late;

	while ((late = dray_list_first(&p->late_fences, struct late_fence, link))) {
		dray_handle peer = late->peer, grant = late->grant;

		dray_list_del(&late->link);
		free(late);
		grant_fenced(p->deps.regions, peer, grant);
	}
}

/* --- of the peer's ------------------------------------------------------------------------------ */

static void send_ack(struct peer *peer, uint64_t request_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_FENCE_ACK_BODY_MAX];
	struct pmsg_fence_ack m = {};

	peer_send(peer, buf, pmsg_fence_ack_encode(buf, sizeof(buf), request_id, &m));
}

void fence_handle(struct peer *peer, uint64_t request_id, const struct pmsg_fence *m)
{
	struct peers *p = peer->p;
	struct fence *f;

	/* released, or never taken: a cancelled import's */
	if (!idset_has(&peer->grants, m->grant)) {
		send_ack(peer, request_id);
		return;
	}
	dray_list_for_each(&peer->fences, other, struct fence, link) {
		if (other->grant == m->grant) {
			peer_protocol_error(peer, DRAY_E_PROTOCOL,
					    "a second fence of grant %" PRIx64, m->grant);
			return;
		}
	}
	f = calloc(1, sizeof(*f));
	if (!f) {
		conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory for a fence");
		return;
	}
	f->grant = m->grant;
	f->request_id = request_id;
	dray_list_add(&peer->fences, &f->link);
	p->deps.up->fenced(p->deps.arg, peer->handle, m->grant,
			   m->code && m->code < DRAY_ERROR_N ? m->code : DRAY_E_REVOKED);
}

bool fence_answer(struct peer *peer, uint64_t grant)
{
	dray_list_for_each(&peer->fences, f, struct fence, link) {
		if (f->grant != grant)
			continue;
		send_ack(peer, f->request_id);
		dray_list_del(&f->link);
		free(f);
		return true;
	}
	return false;
}

void fences_clear(struct peer *peer)
{
	dray_list_for_each(&peer->fences, f, struct fence, link)
		free(f);
	dray_list_init(&peer->fences);
}

void peers_fence_ack(struct peers *p, dray_handle handle, uint64_t grant)
{
	struct peer *peer = table_get(p, handle);

	if (peer && fence_answer(peer, grant))
		idset_del(&peer->grants, grant);
}
