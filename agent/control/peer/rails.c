/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about rails, queue pairs and windows; agent/control/rails/ interprets them. */
#include <errno.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

static void send_if_up(struct peers *p, dray_handle handle, uint16_t type, uint64_t request_id,
		       const union pmsg_body *m)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		peer_send(peer, type, request_id, m);
}

void peers_send_ports(struct peers *p, dray_handle handle, const struct dray_vec *ports)
{
	send_if_up(p, handle, PMSG_PORTS, 0, &(union pmsg_body){ .ports = { *ports } });
}

void peers_send_keys(struct peers *p, dray_handle handle, uint64_t grant,
		     const struct dray_vec *rails)
{
	if (rails->n && peer_get_up(p, handle))
		grant_expose(p->deps.regions, handle, grant);
	send_if_up(p, handle, PMSG_KEYS, 0, &(union pmsg_body){ .keys = { grant, *rails } });
}

void peers_send_window(struct peers *p, dray_handle handle, const struct pmsg_window *m)
{
	send_if_up(p, handle, PMSG_WINDOW, 0, &(union pmsg_body){ .window = *m });
}

void peers_qp_connect_reply(struct peers *p, dray_handle handle, uint64_t request_id,
			    const struct pmsg_qp_connect_reply *m)
{
	send_if_up(p, handle, PMSG_QP_CONNECT_REPLY, request_id,
		   &(union pmsg_body){ .qp_connect_reply = *m });
}

void peers_qp_close_reply(struct peers *p, dray_handle handle, uint64_t request_id)
{
	send_if_up(p, handle, PMSG_QP_CLOSE_REPLY, request_id, NULL);
}

void peers_stage_reply(struct peers *p, dray_handle handle, uint64_t request_id)
{
	send_if_up(p, handle, PMSG_STAGE_REPLY, request_id, NULL);
}

void peers_refuse(struct peers *p, dray_handle handle, uint64_t request_id, uint32_t code,
		  const char *why)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		peer_send_error(peer, request_id, code, why);
}

static void connect_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
			 const union pmsg_body *m)
{
	const struct pmsg_qp_connect_reply *reply = m ? &m->qp_connect_reply : NULL;
	bool valid = !reply || (reply->qpn <= 0xffffff && reply->mtu >= 256 && reply->mtu <= 4096 &&
				reply->reads && reply->reads <= 255);

	r->qp_fn(r->arg, valid ? (uint32_t)err->code : DRAY_E_PROTOCOL, reply);
}

static void close_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		       const union pmsg_body *m)
{
	r->qp_fn(r->arg, (uint32_t)err->code, NULL);
}

static void stage_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		       const union pmsg_body *m)
{
	r->stage_fn(r->arg, (uint32_t)err->code);
}

/* A queue pair that connects after the timeout is closed by its owner, so the peer need not be lost. */
static const struct request_kind connect_kind = {
	.type = PMSG_QP_CONNECT,
	.reply = PMSG_QP_CONNECT_REPLY,
	.done = connect_done,
};

/* The loss of the peer proves the end of its queue pairs. */
static const struct request_kind close_kind = {
	.type = PMSG_QP_CLOSE,
	.reply = PMSG_QP_CLOSE_REPLY,
	.vital = true,
	.unanswered = "it did not close a queue pair within transfer.slice_timeout",
	.done = close_done,
};

static const struct request_kind stage_kind = {
	.type = PMSG_STAGE,
	.reply = PMSG_STAGE_REPLY,
	.unanswered = "it did not copy between its window and GPU memory within "
		      "transfer.slice_timeout",
	.done = stage_done,
};

static int send_request(struct peers *p, dray_handle handle, const struct request_kind *kind,
			int64_t timeout_ns, const union pmsg_body *m, struct pending_request **ret)
{
	struct peer *peer = peer_get_up(p, handle);

	if (!peer)
		return -ENOTCONN;
	*ret = request_send(peer, kind, timeout_ns, m);
	return *ret ? 0 : -ENOMEM;
}

static int send_qp_request(struct peers *p, dray_handle handle, const struct request_kind *kind,
			   int64_t timeout_ns, const union pmsg_body *m, peer_qp_fn fn, void *arg)
{
	struct pending_request *r;
	int e = send_request(p, handle, kind, timeout_ns, m, &r);

	if (e < 0)
		return e;
	r->qp_fn = fn;
	r->arg = arg;
	return 0;
}

int peers_qp_connect(struct peers *p, dray_handle handle, const struct pmsg_qp_connect *m,
		     peer_qp_fn fn, void *arg)
{
	return send_qp_request(p, handle, &connect_kind, p->cfg->peer.connect_timeout,
			       &(union pmsg_body){ .qp_connect = *m }, fn, arg);
}

int peers_qp_close(struct peers *p, dray_handle handle, uint64_t qp, peer_qp_fn fn, void *arg)
{
	return send_qp_request(p, handle, &close_kind, p->cfg->transfer.slice_timeout,
			       &(union pmsg_body){ .qp_close = { qp } }, fn, arg);
}

int peers_stage(struct peers *p, dray_handle handle, const struct pmsg_stage *m, peer_stage_fn fn,
		void *arg)
{
	struct pending_request *r;
	int e = send_request(p, handle, &stage_kind, p->cfg->transfer.slice_timeout,
			     &(union pmsg_body){ .stage = *m }, &r);

	if (e < 0)
		return e;
	r->stage_fn = fn;
	r->arg = arg;
	return 0;
}
