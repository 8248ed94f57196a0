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

static struct serving *serve_of(struct dray_job *j)
{
	return dray_container_of(j, struct serving, job);
}

static void refuse(struct rails *r, dray_handle peer, uint64_t request_id, uint32_t code,
		   const char *why)
{
	log_limited(DRAY_LOG_WARNING, AREA,
		    "a peer's request for a queue pair is refused: %s peer=%" PRIx64, why, peer);
	peers_refuse(r->deps.peers, peer, request_id, code, why);
}

static void destroy_run(struct dray_job *j)
{
	struct serving *s = serve_of(j);

	s->error = s->qp ? s->peer->rails->verbs->destroy_qp(s->qp) : 0;
	s->qp = NULL;
}

static void destroy_done(struct dray_job *j)
{
	struct serving *s = serve_of(j);
	struct rail_peer *peer = s->peer;
	struct device *d = s->device;
	int error = s->error;

	if (s->close_request && !peer->down)
		peers_qp_close_reply(peer->rails->deps.peers, peer->handle, s->close_request);
	s->rail->serving--;
	peer->rails->n_serving--;
	dray_list_del(&s->link);
	free(s);
	device_qp_gone(d, error);
	if (peer->down)
		rail_peer_check(peer);
}

static void serve_die(struct serving *s)
{
	if (s->dying)
		return;
	s->dying = true;
	if (!s->making)
		device_job(s->device, s->peer->rails->slow, &s->job, destroy_run, destroy_done);
}

static void make_run(struct dray_job *j)
{
	struct serving *s = serve_of(j);
	const struct rails *r = s->peer->rails;
	struct qp_end end = {
		.qpn = s->m.qpn, .psn = s->m.psn, .mtu = s->mtu, .lid = s->m.lid, .reads = s->reads
	};
	struct ibv_qp_cap cap;

	memcpy(end.gid, s->m.gid, sizeof(end.gid));
	s->error = qp_create(r->verbs, s->device, s->device->serve_cq, 1, 0, &cap, &s->qp);
	if (s->error == 0)
		s->error = qp_to_init(r->verbs, &s->address, s->qp, true);
	if (s->error == 0)
		s->error = qp_to_rtr(r->verbs, &s->address, s->qp, &end, r->cfg);
}

static void make_done(struct dray_job *j)
{
	struct serving *s = serve_of(j);
	struct rail_peer *peer = s->peer;
	struct pmsg_qp_connect_reply m = { .psn = s->m.psn, .mtu = s->mtu, .reads = s->reads };

	s->device->jobs--;
	s->making = false;
	if (s->error == 0 && !s->dying) {
		m.qpn = s->qp->qp_num;
		peers_qp_connect_reply(peer->rails->deps.peers, peer->handle, s->connect_request,
				       &m);
		s->connect_request = 0;
		return;
	}
	if (!peer->down)
		refuse(peer->rails, peer->handle, s->connect_request, DRAY_E_IO,
		       s->error < 0 ? dray_errno_text(s->error) : "the request was withdrawn");
	s->dying = true;
	device_job(s->device, peer->rails->slow, &s->job, destroy_run, destroy_done);
}

static struct serving *find(struct rail_peer *peer, uint64_t id)
{
	dray_list_for_each(&peer->serving, s, struct serving, link)
		if (s->id == id)
			return s;
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
	dray_list_for_each(&peer->serving, s, struct serving, link)
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
	struct serving *s = code ? NULL : calloc(1, sizeof(*s));
	int most;

	if (!s) {
		refuse(r, handle, request_id, code ? code : DRAY_E_NO_MEMORY,
		       code ? why : "no memory");
		return;
	}
	s->peer = peer;
	s->rail = rail;
	s->device = rail->device;
	s->address = qp_address(rail, (uint8_t)rail->gid.index);
	s->id = m->qp;
	s->m = *m;
	s->connect_request = request_id;
	s->mtu = dray_min(m->mtu, rail->mtu);
	most = dray_max(rail->device->attr.max_qp_rd_atom, 1);
	most = dray_min(most, READS_MAX);
	s->reads = dray_min(m->reads, (uint32_t)most);
	s->making = true;
	rail->serving++;
	r->n_serving++;
	rail->device->qps++;
	dray_list_add(&peer->serving, &s->link);
	device_job(s->device, r->connector, &s->job, make_run, make_done);
}

void rails_peer_close(struct rails *r, dray_handle handle, uint64_t request_id, uint64_t id)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct serving *s = peer ? find(peer, id) : NULL;

	if (!s) {
		peers_qp_close_reply(r->deps.peers, handle, request_id);
		return;
	}
	s->close_request = request_id;
	serve_die(s);
}

void serve_lose_rail(struct rail *rail)
{
	dray_list_for_each(&rail->rails->peers, peer, struct rail_peer, link)
		dray_list_for_each(&peer->serving, s, struct serving, link)
			if (s->rail == rail)
				serve_die(s);
}

void serve_peer_down(struct rail_peer *peer)
{
	dray_list_for_each(&peer->serving, s, struct serving, link)
		serve_die(s);
}
