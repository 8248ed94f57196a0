/* SPDX-License-Identifier: Apache-2.0 */
/* What agents tell each other of rails and queue pairs; what it means is agent/rdma's. */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

static struct peer *peer_up(struct peers *p, dray_handle handle)
{
	struct peer *peer = table_get(p, handle);

	return peer && peer_fsm_is_up(&peer->fsm) ? peer : NULL;
}

void peers_send_ports(struct peers *p, dray_handle handle, const struct dray_vec *ports)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_PORTS_BODY_MAX];
	struct pmsg_ports m = { .ports = *ports };
	struct peer *peer = peer_up(p, handle);

	if (peer)
		peer_send(peer, buf, pmsg_ports_encode(buf, sizeof(buf), 0, &m));
}

void peers_send_keys(struct peers *p, dray_handle handle, uint64_t grant,
		     const struct dray_vec *rails)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_KEYS_BODY_MAX];
	struct pmsg_keys m = { .grant = grant, .rails = *rails };
	struct peer *peer = peer_up(p, handle);

	if (!peer)
		return;
	if (rails->n)
		grant_expose(p->deps.regions, handle, grant);
	peer_send(peer, buf, pmsg_keys_encode(buf, sizeof(buf), 0, &m));
}

void peers_send_window(struct peers *p, dray_handle handle, const struct pmsg_window *m)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_WINDOW_BODY_MAX];
	struct peer *peer = peer_up(p, handle);

	if (peer)
		peer_send(peer, buf, pmsg_window_encode(buf, sizeof(buf), 0, m));
}

/* --- requests of ours --------------------------------------------------------------------------- */

static struct request *request(struct peer *peer, enum request_type type, int64_t timeout_ns,
			       peer_qp_fn fn, void *arg)
{
	struct request *r = request_new(peer, type, timeout_ns);

	if (!r)
		return NULL;
	r->qp_fn = fn;
	r->qp_arg = arg;
	return r;
}

int peers_qp_connect(struct peers *p, dray_handle handle, const struct pmsg_qp_connect *m,
		     peer_qp_fn fn, void *arg)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_QP_CONNECT_BODY_MAX];
	struct peer *peer = peer_up(p, handle);
	struct request *r;

	if (!peer)
		return -ENOTCONN;
	r = request(peer, REQUEST_QP_CONNECT, p->cfg->peer.connect_timeout, fn, arg);
	if (!r)
		return -ENOMEM;
	peer_send(peer, buf, pmsg_qp_connect_encode(buf, sizeof(buf), r->id, m));
	return 0;
}

int peers_qp_close(struct peers *p, dray_handle handle, uint64_t qp, peer_qp_fn fn, void *arg)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_QP_CLOSE_BODY_MAX];
	struct pmsg_qp_close m = { .qp = qp };
	struct peer *peer = peer_up(p, handle);
	struct request *r;

	if (!peer)
		return -ENOTCONN;
	r = request(peer, REQUEST_QP_CLOSE, p->cfg->transfer.slice_timeout, fn, arg);
	if (!r) {
		/* its loss answers for every queue pair */
		conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory for a queue pair's end");
		return -ENOMEM;
	}
	peer_send(peer, buf, pmsg_qp_close_encode(buf, sizeof(buf), r->id, &m));
	return 0;
}

int peers_stage(struct peers *p, dray_handle handle, const struct pmsg_stage *m, peer_stage_fn fn,
		void *arg)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_STAGE_BODY_MAX];
	struct peer *peer = peer_up(p, handle);
	struct request *r;

	if (!peer)
		return -ENOTCONN;
	r = request_new(peer, REQUEST_STAGE, p->cfg->transfer.slice_timeout);
	if (!r)
		return -ENOMEM;
	r->stage_fn = fn;
	r->stage_arg = arg;
	peer_send(peer, buf, pmsg_stage_encode(buf, sizeof(buf), r->id, m));
	return 0;
}

void rails_handle_connect_reply(struct peer *peer, struct request *r,
				const struct pmsg_qp_connect_reply *m)
{
	peer_qp_fn fn = r->qp_fn;
	void *arg = r->qp_arg;
	bool valid = m->qpn <= 0xffffff && m->mtu >= 256 && m->mtu <= 4096 && m->reads &&
		     m->reads <= 255;

	(void)peer;
	free(r);
	fn(arg, valid ? DRAY_OK : DRAY_E_PROTOCOL, m);
}

/* --- answers of ours ----------------------------------------------------------------------------- */

void peers_qp_connect_reply(struct peers *p, dray_handle handle, uint64_t request_id,
			    const struct pmsg_qp_connect_reply *m)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_QP_CONNECT_REPLY_BODY_MAX];
	struct peer *peer = peer_up(p, handle);

	if (peer)
		peer_send(peer, buf, pmsg_qp_connect_reply_encode(buf, sizeof(buf), request_id, m));
}

void peers_refuse(struct peers *p, dray_handle handle, uint64_t request_id, uint32_t code,
		  const char *why)
{
	struct peer *peer = peer_up(p, handle);

	if (!peer)
		return;
	send_error(peer->conn, request_id, code, why);
	peer->fsm.sent_ns = peers_now(p);
}

void peers_stage_reply(struct peers *p, dray_handle handle, uint64_t request_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_STAGE_REPLY_BODY_MAX];
	struct pmsg_stage_reply m = {};
	struct peer *peer = peer_up(p, handle);

	if (peer)
		peer_send(peer, buf, pmsg_stage_reply_encode(buf, sizeof(buf), request_id, &m));
}

void peers_qp_close_reply(struct peers *p, dray_handle handle, uint64_t request_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_QP_CLOSE_REPLY_BODY_MAX];
	struct pmsg_qp_close_reply m = {};
	struct peer *peer = peer_up(p, handle);

	if (peer)
		peer_send(peer, buf, pmsg_qp_close_reply_encode(buf, sizeof(buf), request_id, &m));
}
