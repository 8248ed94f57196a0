/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of ours that wait for a reply of the peer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/peer/internal.h"

/* No reply and no end of the peer finds it any more. */
static void detach(struct pending_request *r)
{
	dray_list_del(&r->link);
	dray_map_del(&r->peer->requests_by_id, &r->by_id);
}

void request_free(struct pending_request *r)
{
	detach(r);
	free(r);
}

static void finish(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		   const union pmsg_body *m)
{
	detach(r);
	dray_list_del(&r->timeout.link);
	r->kind->done(peer, r, err, m);
	free(r);
}

static void fail(struct peer *peer, struct pending_request *r, uint32_t code)
{
	finish(peer, r, &(struct dray_err){ .code = (int)code }, NULL);
}

static struct pending_request *find_id(struct peer *peer, uint64_t id)
{
	return dray_map_entry(dray_map_find(&peer->requests_by_id, &id, sizeof(id)),
			      struct pending_request, by_id);
}

struct pending_request *request_find(struct peer *peer, const struct request_kind *kind)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		if (r->kind == kind)
			return r;
	return NULL;
}

/* The peer counts as lost. The request ends after the peer is closed, so that its callback sees the loss. */
static void lose_peer(struct peer *peer, struct pending_request *r, struct dray_err why)
{
	detach(r);
	peer_event_why(peer, PEER_EVENT_CLOSE, why);
	fail(peer, r, DRAY_E_PEER_LOST);
}

static void expired(struct peer *peer, struct peer_timeout *t)
{
	struct pending_request *r = dray_container_of(t, struct pending_request, timeout);

	if (r->kind->unanswered)
		lose_peer(peer, r, dray_err_of(DRAY_E_PEER_LOST, "%s", r->kind->unanswered));
	else
		fail(peer, r, DRAY_E_TIMEOUT);
}

struct pending_request *request_send(struct peer *peer, const struct request_kind *kind,
				     int64_t timeout_ns, struct pending_request what,
				     const union pmsg_body *body)
{
	struct pending_request *r = malloc(sizeof(*r));

	if (!r) {
		/* the loss of the peer ends what a vital request would have ended */
		if (kind->vital)
			conn_fail(peer->conn,
				  dray_err_of(DRAY_E_NO_MEMORY, "no memory to send %s to the peer",
					      pmsg_type_name(kind->type)));
		return NULL;
	}
	*r = what;
	r->peer = peer;
	r->id = ++peer->next_request;
	r->kind = kind;
	r->timeout = (struct peer_timeout){ .end_ns = peers_now(peer->p) + timeout_ns,
					    .expired = expired };
	dray_list_add(&peer->requests, &r->link);
	dray_map_add(&peer->requests_by_id, &r->by_id, &r->id, sizeof(r->id));
	dray_list_init(&r->timeout.link);
	if (timeout_ns >= 0)
		peer_add_timeout(peer, &r->timeout);
	peer_use(peer);
	peer_send(peer, kind->type, r->id, body);
	return r;
}

void request_replied(struct peer *peer, uint64_t id, uint16_t type, const union pmsg_body *m)
{
	struct pending_request *r = find_id(peer, id);

	if (type == PMSG_IMPORT_REPLY && !m->import_reply.grant)
		peer_protocol_error(peer, dray_err_of(DRAY_E_PROTOCOL, "a grant without a handle"));
	else if (r && (r->kind->type | TYPE_REPLY) != type)
		peer_protocol_error(peer, dray_err_of(DRAY_E_PROTOCOL,
						      "request %" PRIu64 " is %s, its reply is %s",
						      id, pmsg_type_name(r->kind->type),
						      pmsg_type_name(type)));
	else if (r)
		finish(peer, r, &DRAY_ERR_NULL, m);
	else if (type == PMSG_IMPORT_REPLY && !idset_has(&peer->grants, m->import_reply.grant))
		/* the import was cancelled or timed out */
		peer_send(peer, PMSG_RELEASE, 0,
			  &(union pmsg_body){ .release = { .grant = m->import_reply.grant } });
	else if (type == PMSG_STORE_LOOKUP_REPLY && m->store_lookup_reply.grant)
		/* it came too late */
		peer_send(peer, PMSG_STORE_RELEASE, 0,
			  &(union pmsg_body){
				  .store_release = { .grant = m->store_lookup_reply.grant } });
}

void request_refused(struct peer *peer, uint64_t id, const struct dray_err *err)
{
	struct pending_request *r = find_id(peer, id);

	if (r && r->kind->vital)
		lose_peer(
			peer, r,
			dray_err_of(DRAY_E_PEER_LOST,
				    "the peer refused %s, which every agent must carry out: %s: %s",
				    pmsg_type_name(r->kind->type),
				    dray_error_name((uint32_t)err->code), err->msg));
	else if (r)
		finish(peer, r, err, NULL);
}

void requests_end(struct peer *peer, uint32_t code)
{
	struct pending_request *r;

	while ((r = dray_list_first(&peer->requests, struct pending_request, link)))
		fail(peer, r, code);
}

void requests_free(struct peer *peer)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link) {
		if (r->kind->type == PMSG_ACQUIRE)
			free(r->acquisition);
		request_free(r);
	}
}

/* Requests whose result goes to a callback of another module. */

static void call_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		      const union pmsg_body *m)
{
	bool connect = m && r->kind->type == PMSG_QP_CONNECT;
	const struct pmsg_qp_connect_reply *reply = connect ? &m->qp_connect_reply : NULL;
	bool valid = !reply || (reply->qpn <= 0xffffff && reply->mtu >= 256 && reply->mtu <= 4096 &&
				reply->reads && reply->reads <= 255);

	r->fn(r->arg, valid ? (uint32_t)err->code : DRAY_E_PROTOCOL, m);
}

static const struct request_kind call_kinds[] = {
	{ .type = PMSG_NOTIFY, .done = call_done },
	{ .type = PMSG_LEASE_RENEW, .done = call_done },
	{ .type = PMSG_STORE_LOOKUP, .done = call_done },
	{ .type = PMSG_STORE_KEEP, .done = call_done },
	{ .type = PMSG_STORE_WATCH, .done = call_done },
	{ .type = PMSG_STORE_SUMMARY, .done = call_done },
	/* a queue pair that connects after the timeout is closed by its owner, so the peer need not be lost */
	{ .type = PMSG_QP_CONNECT, .done = call_done },
	/* the loss of the peer ends its queue pairs, and with them the use of the keys */
	{ .type = PMSG_REKEY,
	  .vital = true,
	  .unanswered = "the peer did not give up keys that end within peer.fence_timeout",
	  .done = call_done },
	/* the loss of the peer proves the end of its queue pairs */
	{ .type = PMSG_QP_CLOSE,
	  .vital = true,
	  .unanswered = "the peer did not close a queue pair within transfer.slice_timeout",
	  .done = call_done },
	{ .type = PMSG_STAGE,
	  .unanswered = "the peer did not copy between its window and GPU memory within "
			"transfer.slice_timeout",
	  .done = call_done },
};

int peers_request(struct peers *p, dray_handle handle, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	int64_t timeout_ns =
		type == PMSG_QP_CONNECT   ? p->cfg->peer.connect_timeout :
		type == PMSG_REKEY        ? p->cfg->peer.fence_timeout :
		type == PMSG_STORE_LOOKUP ? p->cfg->store.peer_timeout :
		type == PMSG_STORE_KEEP   ? body->store_keep.deadline_ms * DRAY_NS_PER_MS :
					    p->cfg->transfer.slice_timeout;
	struct peer *peer = peer_get_up(p, handle);
	const struct request_kind *kind = call_kinds;

	if (!peer)
		return -ENOTCONN;
	/* they are some of many, and their time passes while they are queued */
	if ((type == PMSG_STORE_LOOKUP || type == PMSG_STORE_KEEP) && conn_is_clogged(peer->conn))
		return -EBUSY;
	while (kind->type != type)
		kind++;
	return request_send(peer, kind, timeout_ns,
			    (struct pending_request){ .fn = fn, .arg = arg }, body) ?
		       0 :
		       -ENOMEM;
}

int peer_notify(struct peers *p, dray_handle handle, const struct pmsg_notify *m, peer_reply_fn fn,
		void *arg, struct dray_err *reterr)
{
	struct peer *peer = peer_get_up(p, handle);
	int r;

	if (!peer)
		return dray_err_set(
			reterr, -ENOTCONN, DRAY_E_PEER_LOST,
			"the remote's owner is not connected any more; import the token again");
	if (conn_is_clogged(peer->conn))
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"the remote's owner does not read its messages fast enough; notify again later");
	if (m->payload.n > DMSG_NOTIFY_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOO_LARGE,
				    "the notification has %u bytes, the limit is %d", m->payload.n,
				    DMSG_NOTIFY_MAX);
	r = peers_request(p, handle, PMSG_NOTIFY, &(union pmsg_body){ .notify = *m }, fn, arg);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for a notification") :
		       0;
}
