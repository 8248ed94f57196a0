/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of ours that wait for an answer of the peer. Answers come mostly in the order of the requests,
 * so that the list is searched from its old end.
 */
#include <errno.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

struct request *request_new(struct peer *peer, enum request_type type, int64_t timeout_ns)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->id = ++peer->next_request;
	r->type = type;
	r->end_ns = timeout_ns < 0 ? INT64_MAX : peers_now(peer->p) + timeout_ns;
	dray_list_add(&peer->requests, &r->link);
	peer_due(peer, r->end_ns);
	peer_use(peer);
	return r;
}

struct request *request_take(struct peer *peer, uint64_t id)
{
	dray_list_for_each(&peer->requests, r, struct request, link) {
		if (r->id == id) {
			dray_list_del(&r->link);
			return r;
		}
	}
	return NULL;
}

int64_t requests_next_end(const struct peer *peer)
{
	int64_t end = INT64_MAX;

	dray_list_for_each(&peer->requests, r, struct request, link)
		end = dray_min(end, r->end_ns);
	return end;
}

/* True when the peer was closed over it. Takes the request. */
static bool expire(struct peer *peer, struct request *r)
{
	struct request taken = *r;

	dray_list_del(&r->link);
	free(r);
	switch (taken.type) {
	case REQUEST_IMPORT: /* has no time-out of its own */
	case REQUEST_PROBE:
		break;
	case REQUEST_NOTIFY:
		taken.notify_fn(taken.notify_arg, DRAY_E_TIMEOUT);
		return false;
	case REQUEST_QP_CONNECT:
		taken.qp_fn(taken.qp_arg, DRAY_E_TIMEOUT, NULL);
		return false;
	case REQUEST_QP_CLOSE:
		/* its end is proved by the loss of the peer, which destroys what is left here */
		peer_close(peer, DRAY_E_PEER_LOST,
			   "it did not answer for a queue pair within transfer.slice_timeout");
		taken.qp_fn(taken.qp_arg, DRAY_E_PEER_LOST, NULL);
		return true;
	case REQUEST_STAGE:
		peer_close(peer, DRAY_E_PEER_LOST,
			   "it did not copy between its window and GPU memory within "
			   "transfer.slice_timeout");
		taken.stage_fn(taken.stage_arg, DRAY_E_PEER_LOST);
		return true;
	case REQUEST_FENCE:
		peer_close(peer, DRAY_E_PEER_LOST,
			   "it did not acknowledge a fence within peer.fence_timeout");
		return true;
	case REQUEST_RESET:
		peer_close(peer, DRAY_E_PEER_LOST,
			   "it did not answer for a broken stream within transfer.slice_timeout");
		return true;
	}
	peer_close(peer, DRAY_E_PEER_LOST, "it left a request without an answer");
	return true;
}

void requests_expire(struct peer *peer, int64_t now)
{
	struct request *due;

	do {
		due = NULL;
		dray_list_for_each(&peer->requests, r, struct request, link) {
			if (r->end_ns <= now) {
				due = r;
				break;
			}
		}
		/* a callback may have changed the list: search again */
	} while (due && !expire(peer, due));
}

void requests_end(struct peer *peer, uint32_t code)
{
	struct request *r;

	while ((r = dray_list_first(&peer->requests, struct request, link))) {
		dray_list_del(&r->link);
		/* fences end with grants_peer_gone(), imports with imports_end(), the rest with the workers */
		if (r->type == REQUEST_NOTIFY)
			r->notify_fn(r->notify_arg, code);
		if (r->type == REQUEST_IMPORT)
			r->import->request = NULL;
		if (r->type == REQUEST_QP_CONNECT || r->type == REQUEST_QP_CLOSE)
			r->qp_fn(r->qp_arg, code ? code : DRAY_E_PEER_LOST, NULL);
		if (r->type == REQUEST_STAGE)
			r->stage_fn(r->stage_arg, code ? code : DRAY_E_PEER_LOST);
		free(r);
	}
}

void requests_free(struct peer *peer)
{
	dray_list_for_each(&peer->requests, r, struct request, link)
		free(r);
	dray_list_init(&peer->requests);
}

int peer_notify(struct peers *p, dray_handle handle, uint64_t grant, uint64_t id, uint64_t tag,
		const uint8_t *payload, uint32_t length, peer_notify_fn fn, void *arg,
		struct dray_err *reterr)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_NOTIFY_BODY_MAX];
	struct peer *peer = table_get(p, handle);
	struct pmsg_notify m = {
		.grant = grant, .id = id, .tag = tag, .payload = { payload, length }
	};
	struct request *r;
	int n;

	if (!peer || !peer_fsm_is_up(&peer->fsm))
		return dray_err_set(reterr, -ENOTCONN, DRAY_E_PEER_LOST,
				    "the peer of this grant is gone");
	if (conn_is_clogged(peer->conn))
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "the peer does not take its notifications fast enough");
	n = pmsg_notify_encode(buf, sizeof(buf), peer->next_request + 1, &m);
	if (n < 0)
		return dray_err_set(reterr, n, DRAY_E_TOO_LARGE,
				    "a notification carries at most 4096 bytes");
	r = request_new(peer, REQUEST_NOTIFY, p->cfg->transfer.slice_timeout);
	if (!r)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for a notification");
	r->notify_fn = fn;
	r->notify_arg = arg;
	peer_send(peer, buf, n);
	return 0;
}
