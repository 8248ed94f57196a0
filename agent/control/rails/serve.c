/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs that serve peers: created at a peer's request, destroyed at its request or when the peer or the rail is lost. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* For one peer: enough for eight workers, eight rails, and the most queue pairs that can be configured. */
#define SERVING_MAX 1024

/* Limit of the field in struct ibv_qp_attr. */
#define READS_MAX 255

void serve_ended(struct qp *q)
{
	struct rail_peer *peer = q->peer;

	if (q->close_request && !peer->down)
		peers_qp_close_reply(peer->rails->deps.peers, peer->handle, q->close_request);
	q->rail->serving--;
	peer->rails->n_serving--;
}

static void make_run(struct dray_job *j)
{
	struct qp *q = qp_of(j);

	q->error = qp_create(q, q->device->serve_cq, 0);
	if (q->error == 0)
		q->error = qp_to_init(q, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (q->error == 0)
		q->error = qp_to_rtr(q);
}

static void make_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct rail_peer *peer = q->peer;
	struct pmsg_qp_connect_reply m = { .psn = q->remote.psn,
					   .mtu = q->remote.mtu,
					   .reads = q->remote.reads };

	q->device->jobs--;
	q->state = QP_UP;
	if (q->error == 0 && !q->doomed) {
		m.qpn = q->qp->qp_num;
		peers_qp_connect_reply(peer->rails->deps.peers, peer->handle, q->connect_request,
				       &m);
		return;
	}
	if (!peer->down)
		rails_refuse(
			peer->rails, peer->handle, q->connect_request, DRAY_E_IO, "a queue pair",
			q->error < 0 ? dray_errno_text(q->error) : "the request was withdrawn");
	qp_die(q);
}

static struct qp *find(struct rail_peer *peer, uint64_t id)
{
	dray_list_for_each(&peer->serving, q, struct qp, link)
		if (q->id == id)
			return q;
	return NULL;
}

static uint32_t check(struct rail_peer *peer, const struct pmsg_qp_connect *m, const char **ret_why)
{
	struct rails *r = peer->rails;
	unsigned n = 0;

	*ret_why = "a field of the message has an invalid value";
	if (!m->qp || m->qpn > 0xffffff || m->mtu < 256 || m->mtu > 4096 || !m->reads ||
	    !dmsg_class_valid(m->class))
		return DRAY_E_INVALID;
	*ret_why = "the id of the queue pair is in use";
	if (find(peer, m->qp))
		return DRAY_E_EXISTS;
	*ret_why = "the requested rail is not up";
	if (m->to_rail >= r->n || r->v[m->to_rail]->state != RAIL_UP ||
	    !device_is_open(r->v[m->to_rail]->device))
		return DRAY_E_NOT_FOUND;
	dray_list_for_each(&peer->serving, q, struct qp, link)
		n++;
	*ret_why = "the peer has too many queue pairs here";
	return n < SERVING_MAX ? DRAY_OK : DRAY_E_QUOTA;
}

void rails_peer_connect(struct rails *r, dray_handle handle, uint64_t request_id,
			const struct pmsg_qp_connect *m)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	const char *why = "the agents have not agreed on the feature rdma";
	uint32_t code = peer ? check(peer, m, &why) : DRAY_E_UNSUPPORTED;
	struct rail *rail = code ? NULL : r->v[m->to_rail];
	struct qp *q = code ? NULL : calloc(1, sizeof(*q));
	int most;

	if (!q) {
		rails_refuse(r, handle, request_id, code ? code : DRAY_E_NO_MEMORY, "a queue pair",
			     code ? why : "no memory");
		return;
	}
	most = dray_max(rail->device->attr.max_qp_rd_atom, 1);
	most = dray_min(most, READS_MAX);
	q->peer = peer;
	q->id = m->qp;
	q->depth = 1;
	q->connect_request = request_id;
	q->remote.qpn = m->qpn;
	q->remote.psn = m->psn;
	q->remote.lid = m->lid;
	q->remote.mtu = dray_min(m->mtu, rail->mtu);
	q->remote.reads = dray_min(m->reads, (uint32_t)most);
	memcpy(q->remote.gid, m->gid, sizeof(q->remote.gid));
	rail->serving++;
	r->n_serving++;
	qp_begin(q, rail, rail->gid.index, &peer->serving, make_run, make_done);
}

void rails_peer_close(struct rails *r, dray_handle handle, uint64_t request_id, uint64_t id)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct qp *q = peer ? find(peer, id) : NULL;

	if (!q) {
		peers_qp_close_reply(r->deps.peers, handle, request_id);
		return;
	}
	q->close_request = request_id;
	qp_die(q);
}
