/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of ours that wait for a reply of the peer. Replies mostly arrive in the order of the requests, so
 * searches start at the oldest.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

struct pending_request *request_send(struct peer *peer, const struct request_kind *kind,
				     int64_t timeout_ns, const union pmsg_body *body)
{
	struct pending_request *r = calloc(1, sizeof(*r));

	if (!r) {
		/* the loss of the peer ends what a vital request would have ended */
		if (kind->vital)
			conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory to send it %s",
				  pmsg_type_name(kind->type));
		return NULL;
	}
	r->id = ++peer->next_request;
	r->kind = kind;
	r->end_ns = timeout_ns < 0 ? INT64_MAX : peers_now(peer->p) + timeout_ns;
	dray_list_add(&peer->requests, &r->link);
	peer_add_timeout(peer, r->end_ns);
	peer_use(peer);
	peer_send(peer, kind->type, r->id, body);
	return r;
}

static void finish(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		   const union pmsg_body *m)
{
	dray_list_del(&r->link);
	r->kind->done(peer, r, err, m);
	free(r);
}

static void fail(struct peer *peer, struct pending_request *r, uint32_t code)
{
	finish(peer, r, &(struct dray_err){ .code = (int)code }, NULL);
}

static struct pending_request *find_id(struct peer *peer, uint64_t id)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		if (r->id == id)
			return r;
	return NULL;
}

struct pending_request *request_find(struct peer *peer, const struct request_kind *kind)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		if (r->kind == kind)
			return r;
	return NULL;
}

void request_replied(struct peer *peer, uint64_t id, uint16_t type, const union pmsg_body *m)
{
	struct pending_request *r = find_id(peer, id);

	if (r && r->kind->reply != type)
		peer_protocol_error(peer, DRAY_E_PROTOCOL,
				    "request %" PRIu64 " is %s, its reply is %s", id,
				    pmsg_type_name(r->kind->type), pmsg_type_name(type));
	else if (r)
		finish(peer, r, &DRAY_ERR_NULL, m);
	else if (type == PMSG_IMPORT_REPLY && !idset_has(&peer->grants, m->import_reply.grant))
		/* the import was cancelled or timed out */
		peer_send(peer, PMSG_RELEASE, 0,
			  &(union pmsg_body){ .release = { .grant = m->import_reply.grant } });
}

void request_refused(struct peer *peer, uint64_t id, const struct dray_err *err)
{
	struct pending_request *r = find_id(peer, id);

	if (!r)
		return;
	if (!r->kind->vital) {
		finish(peer, r, err, NULL);
		return;
	}
	dray_list_del(&r->link);
	peer_close(peer, DRAY_E_PEER_LOST, "it refused %s, which an agent must carry out: %s: %s",
		   pmsg_type_name(r->kind->type), dray_error_name((uint32_t)err->code), err->msg);
	fail(peer, r, DRAY_E_PEER_LOST);
}

int64_t requests_next_timeout(const struct peer *peer)
{
	int64_t end = INT64_MAX;

	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		end = dray_min(end, r->end_ns);
	return end;
}

/* True if the peer was closed. */
static bool expire(struct peer *peer, struct pending_request *r)
{
	if (!r->kind->unanswered) {
		fail(peer, r, DRAY_E_TIMEOUT);
		return false;
	}
	dray_list_del(&r->link);
	peer_close(peer, DRAY_E_PEER_LOST, "%s", r->kind->unanswered);
	fail(peer, r, DRAY_E_PEER_LOST);
	return true;
}

static struct pending_request *find_overdue(struct peer *peer, int64_t now)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		if (r->end_ns <= now)
			return r;
	return NULL;
}

void requests_expire(struct peer *peer, int64_t now)
{
	struct pending_request *r;

	/* a callback may change the list, so each search starts again */
	while ((r = find_overdue(peer, now)))
		if (expire(peer, r))
			return;
}

void requests_end(struct peer *peer, uint32_t code)
{
	struct pending_request *r;

	while ((r = dray_list_first(&peer->requests, struct pending_request, link)))
		fail(peer, r, code);
}

void requests_free(struct peer *peer)
{
	dray_list_for_each(&peer->requests, r, struct pending_request, link)
		free(r);
	dray_list_init(&peer->requests);
}

static void notify_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
			const union pmsg_body *m)
{
	r->notify_fn(r->arg, (uint32_t)err->code);
}

static const struct request_kind notify_kind = {
	.type = PMSG_NOTIFY,
	.reply = PMSG_NOTIFY_REPLY,
	.done = notify_done,
};

int peer_notify(struct peers *p, dray_handle handle, const struct pmsg_notify *m, peer_notify_fn fn,
		void *arg, struct dray_err *reterr)
{
	struct peer *peer = peer_get_up(p, handle);
	struct pending_request *r;

	if (!peer)
		return dray_err_set(
			reterr, -ENOTCONN, DRAY_E_PEER_LOST,
			"the remote's owner is not connected any more; import the token again");
	if (conn_is_clogged(peer->conn))
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "the remote's owner reads too slowly; notify again later");
	if (m->payload.n > DMSG_NOTIFY_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOO_LARGE,
				    "the notification has %u bytes, the limit is %d", m->payload.n,
				    DMSG_NOTIFY_MAX);
	r = request_send(peer, &notify_kind, p->cfg->transfer.slice_timeout,
			 &(union pmsg_body){ .notify = *m });
	if (!r)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for a notification");
	r->notify_fn = fn;
	r->arg = arg;
	return 0;
}
