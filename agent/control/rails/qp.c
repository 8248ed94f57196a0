/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Begin and end of queue pairs, their verbs (IBTA 10.3.1, ibv_modify_qp(3)), and queue pairs that serve peers. connect.c
 * has the queue pairs that post.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

#define HOP_LIMIT 64
/* No request consumes a receive, so "receiver not ready" does not occur. */
#define RNR_TIMER 12
#define RNR_RETRY 7
/* The timeout is 4.096 us * 2^n (IBTA 11.2.4.2). */
#define TIMEOUT_UNIT_NS 4096
#define TIMEOUT_MAX 31

/* Most queue pairs that serve one peer: enough for eight workers, eight rails, and the highest rdma.queue_pairs. */
#define SERVING_MAX 1024

/* Limit of the field in struct ibv_qp_attr. */
#define READS_MAX 255

static int modify(const struct qp *q, struct ibv_qp_attr *a, int mask)
{
	return q->rail->rails->verbs->modify_qp(q->qp, a, IBV_QP_STATE | mask);
}

int qp_create(struct qp *q, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t inline_bytes)
{
	const struct verbs *v = q->rail->rails->verbs;
	const struct ibv_device_attr *limits = &q->device->attr;
	struct ibv_qp_init_attr a = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = dray_min(q->depth, (uint32_t)limits->max_qp_wr),
			 .max_recv_wr = 1,
			 .max_send_sge = dray_min((uint32_t)limits->max_sge, RDMA_SGES),
			 .max_recv_sge = 1,
			 .max_inline_data = inline_bytes },
		.qp_type = IBV_QPT_RC,
	};
	int r = v->create_qp(pd, &a, &q->qp);

	/* a device states its limit of inline data only by refusing more */
	if ((r == -EINVAL || r == -ENOMEM) && inline_bytes) {
		a.cap.max_inline_data = 0;
		r = v->create_qp(pd, &a, &q->qp);
	}
	q->sges = a.cap.max_send_sge;
	q->inline_bytes = dray_min(a.cap.max_inline_data, inline_bytes);
	return r;
}

int qp_to_init(struct qp *q, unsigned access)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = q->pkey_index,
		.port_num = q->port,
		.qp_access_flags = access,
	};

	return modify(q, &a, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static enum ibv_mtu mtu_of(uint32_t bytes)
{
	enum ibv_mtu m = IBV_MTU_256;

	while (m < IBV_MTU_4096 && 256u << (m - IBV_MTU_256 + 1) <= bytes)
		m++;
	return m;
}

int qp_to_rtr(struct qp *q)
{
	const struct dray_config *cfg = q->rail->rails->cfg;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_of(q->remote.mtu),
		.dest_qp_num = q->remote.qpn,
		.rq_psn = q->remote.psn & QP_PSN_MASK,
		.max_dest_rd_atomic = (uint8_t)q->remote.reads,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = { .is_global = 1,
			     .dlid = (uint16_t)q->remote.lid,
			     .sl = (uint8_t)cfg->rdma.sl,
			     .port_num = q->port,
			     .grh = { .sgid_index = q->gid_index,
				      .hop_limit = HOP_LIMIT,
				      .traffic_class = (uint8_t)cfg->rdma.traffic_class } },
	};

	memcpy(&a.ah_attr.grh.dgid, q->remote.gid, sizeof(q->remote.gid));
	return modify(q, &a,
		      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int qp_to_rts(struct qp *q)
{
	const struct dray_config *cfg = q->rail->rails->cfg;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = q->psn & QP_PSN_MASK,
		.max_rd_atomic = (uint8_t)q->reads,
		.retry_cnt = q->retries,
		.rnr_retry = RNR_RETRY,
	};

	while (a.timeout < TIMEOUT_MAX && (int64_t)TIMEOUT_UNIT_NS << a.timeout < cfg->rdma.timeout)
		a.timeout++;
	return modify(q, &a,
		      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT |
			      IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
}

static void qp_free(struct qp *q)
{
	struct rail_peer *peer = q->peer;
	bool posts = q->path;

	if (q->was_up)
		rails_tell(peer->rails, q->worker, RDMA_QP_DEAD, peer->handle, q->id, NULL);
	if (posts)
		dray_handles_del(&peer->rails->qps, q->id);
	dray_list_del(&q->link);
	free(q);
	if (peer->down)
		rail_peer_check(peer);
	else if (posts)
		connect_peer(peer);
}

void qp_check(struct qp *q)
{
	if (q->local_dead && q->remote_dead && !q->asked)
		qp_free(q);
}

static void destroy_run(struct dray_job *j)
{
	struct qp *q = qp_of(j);

	q->error = q->qp ? q->peer->rails->verbs->destroy_qp(q->qp) : 0;
	q->qp = NULL;
}

static void serve_ended(struct qp *q)
{
	struct rail_peer *peer = q->peer;

	if (q->close_request && !peer->down)
		peers_send(peer->rails->deps.peers, peer->handle, PMSG_QP_CLOSE_REPLY,
			   q->close_request, NULL);
	q->rail->serving--;
	peer->rails->n_serving--;
}

/* The device accesses no memory for it any more. */
static void ended(struct qp *q)
{
	if (q->path)
		q->rail->cq_used[q->worker] -= q->depth;
	else
		serve_ended(q);
	q->device = NULL;
	q->local_dead = true;
	if (q->was_up && !q->remote_dead)
		rails_tell(q->peer->rails, q->worker, RDMA_QP_QUIET, q->peer->handle, q->id, NULL);
	qp_check(q);
}

static void destroy_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct device *d = q->device;

	if (q->error < 0) {
		/* the device may still access memory for it, which therefore stays lent */
		dray_list_add(&d->stuck, &q->stuck);
		log_error(AREA,
			  "a queue pair cannot be destroyed, closing the device, which ends all "
			  "queue pairs: %s device=%s",
			  dray_errno_text(q->error), d->name);
		device_lost(d, "a queue pair could not be destroyed");
	} else {
		ended(q);
	}
	d->jobs--;
	d->qps--;
	device_check(d);
}

void qps_device_closed(struct device *d)
{
	struct qp *q;

	while ((q = dray_list_pop(&d->stuck, struct qp, stuck)))
		ended(q);
}

static void handle_closed(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct qp *q = arg;

	/* an error means that the peer is lost, so its end is gone, too */
	q->remote_dead = true;
	qp_check(q);
}

void qp_die(struct qp *q)
{
	struct rail_peer *peer = q->peer;
	struct rails *r = peer->rails;

	if (q->state == QP_DYING)
		return;
	if (q->state == QP_CREATING || q->state == QP_CONNECTING) {
		q->doomed = true;
		return;
	}
	/* an engine is not told: it makes another end when it is asked for the same slot again */
	q->remote_dead = !q->requested || peer->down ||
			 peers_request(r->deps.peers, peer->handle, PMSG_QP_CLOSE,
				       &(union pmsg_body){ .qp_close = { q->id } }, handle_closed,
				       q) < 0;
	q->state = QP_DYING;
	device_job(q->device, r->slow, &q->job, destroy_run, destroy_done);
}

/*
 * The connector has one job of each peer at a time. The kernel waits up to a second for the hardware address of the other end, which the
 * peer names, and others do not wait for all queue pairs of one peer.
 */
static void next_turn(struct rail_peer *peer);

static void turn_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);

	next_turn(q->peer);
	q->done(j);
}

static void next_turn(struct rail_peer *peer)
{
	struct qp *q = peer->has_turn = dray_list_pop(&peer->turns, struct qp, turn);

	if (q)
		dray_jobs_add(peer->rails->connector, &q->job, q->run, turn_done);
}

void qp_job(struct qp *q, void (*run)(struct dray_job *j), void (*done)(struct dray_job *j))
{
	q->device->jobs++;
	q->run = run;
	q->done = done;
	dray_list_add(&q->peer->turns, &q->turn);
	if (!q->peer->has_turn)
		next_turn(q->peer);
}

void qp_begin(struct qp *q, struct rail *rail, uint32_t gid_index, struct dray_list *list,
	      void (*run)(struct dray_job *j), void (*done)(struct dray_job *j))
{
	q->rail = rail;
	q->device = rail->device;
	q->port = (uint8_t)rail->port;
	q->gid_index = (uint8_t)gid_index;
	q->pkey_index = rail->pkey_index;
	q->device->qps++;
	dray_list_add(list, &q->link);
	qp_job(q, run, done);
}

/* --- queue pairs that serve: created at a peer's request, destroyed at its request or with the peer or the rail --- */

static void make_run(struct dray_job *j)
{
	struct qp *q = qp_of(j);

	q->error = q->doomed ? -ECANCELED : qp_create(q, q->device->pd, q->device->serve_cq, 0);
	if (q->error == 0)
		q->error = qp_to_init(q, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (q->error == 0)
		q->error = qp_to_rtr(q);
}

static void make_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct rail_peer *peer = q->peer;
	union pmsg_body m = { .qp_connect_reply = { .psn = q->remote.psn,
						    .mtu = q->remote.mtu,
						    .reads = q->remote.reads } };

	q->device->jobs--;
	q->state = QP_UP;
	if (q->error == 0 && !q->doomed) {
		m.qp_connect_reply.qpn = q->qp->qp_num;
		peers_send(peer->rails->deps.peers, peer->handle, PMSG_QP_CONNECT_REPLY,
			   q->connect_request, &m);
		return;
	}
	if (!peer->down)
		rails_refuse(peer->rails, peer->handle, q->connect_request, DRAY_E_IO,
			     "a queue pair",
			     q->doomed ? "the request was withdrawn" : dray_errno_text(q->error));
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
	*ret_why = "the peer has too many queue pairs here";
	return dray_list_length(&peer->serving) < SERVING_MAX ? DRAY_OK : DRAY_E_QUOTA;
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
	q->remote = *m;
	q->remote.mtu = dray_min(m->mtu, rail->mtu);
	q->remote.reads = dray_min(m->reads, (uint32_t)most);
	rail->serving++;
	r->n_serving++;
	qp_begin(q, rail, rail->gid.index, &peer->serving, make_run, make_done);
}

void rails_peer_close(struct rails *r, dray_handle handle, uint64_t request_id, uint64_t id)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct qp *q = peer ? find(peer, id) : NULL;

	if (!q) {
		peers_send(r->deps.peers, handle, PMSG_QP_CLOSE_REPLY, request_id, NULL);
		return;
	}
	q->close_request = request_id;
	qp_die(q);
}
