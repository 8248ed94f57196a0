/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs that post: created when a worker wants to reach a peer, handed to the worker when both ends are ready,
 * destroyed when the worker, the rail, the path or the peer is lost, and created anew.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/ballast.h"
#include "lib/log.h"
#include "lib/random.h"
#include "schema/gen/errors.h"

/* If a queue pair is lost that was up for longer, its path has not failed. */
#define LIVED_NS DRAY_NS_PER_SEC
/* Largest work request in bytes. */
#define MESSAGE_MAX (1u << 20)
#define SOFT_READ_MAX (1u << 18)
/* Least depth of a queue pair; also the least value of rdma.queue_depth. */
#define DEPTH_MIN 16
/* Queue pairs to a peer of one rail, worker and class, with those that are being destroyed: so many times as are configured. */
#define CROWD 2
/* After so many failed attempts of a worker its transfers no longer wait for the queue pairs of the path that are being made. */
#define UNMADE_MAX 3
/* After so many rounds in which a path has moved nothing it is not used for so many of the longest pauses. */
#define FUTILE_MAX 3
#define FUTILE_PAUSES 6

static void path_log(const struct path *path, const char *why)
{
	log_of_peer(path->peer->rails->deps.peers, path->peer->handle, DRAY_LOG_WARNING, AREA,
		    "%s device=%s port=%u peer=%" PRIx64, why, path->rail->device_name,
		    path->rail->port, path->peer->handle);
}

/*
 * Its queue pairs can be connected, and fail when they are used. Nothing but transfers would prove them, so they are tried seldom. Nothing else
 * reaches an engine.
 */
static bool is_futile(const struct path *path)
{
	return path->futile >= FUTILE_MAX && path->slices == atomic_load(&path->counters.slices) &&
	       !path->peer->segment;
}

static void path_failed(struct path *path, const char *what, const char *why)
{
	struct rails *r = path->peer->rails;

	path->fails++;
	path->retry_ns =
		rails_now(r) + (is_futile(path) ?
					backoff_spread(FUTILE_PAUSES * r->cfg->peer.backoff_max) :
					rails_backoff(r, path->fails));
	rails_retry(path->peer, path->retry_ns);
	snprintf(path->failure, sizeof(path->failure), "%s: %s", what, why);
	path_log(path, path->failure);
}

/* No queue pair could be made for the worker. */
static void attempt_failed(struct path *path, unsigned worker, const char *what, const char *why)
{
	path->refused |= (uint8_t)(1u << worker);
	path->unmade[worker]++;
	path_failed(path, what, why);
}

static void qp_failed(struct qp *q, const char *what, const char *why)
{
	attempt_failed(q->path, q->worker, what, why);
	qp_die(q);
}

/* After a job, before a worker knows the queue pair. False: it failed or is doomed, and is destroyed. */
static bool job_ended(struct qp *q, const char *what)
{
	bool ok = !q->doomed && q->error == 0;

	q->device->jobs--;
	q->state = QP_REQUESTED;
	if (q->doomed)
		qp_die(q);
	else if (!ok)
		qp_failed(q, what, dray_errno_text(q->error));
	return ok;
}

static void connect_run(struct dray_job *j)
{
	struct qp *q = qp_of(j);

	q->error = q->doomed ? -ECANCELED : qp_to_rtr(q);
	if (q->error == 0)
		q->error = qp_to_rts(q);
}

static struct rdma_qp *describe(const struct qp *q)
{
	int node = q->peer->rails->deps.worker_nodes[q->worker];
	struct path *path = q->path;
	struct rdma_qp *w = dray_calloc_sure(1, sizeof(*w));

	*w = (struct rdma_qp){
		.id = q->id,
		.qp = q->qp,
		.path = { q->rail->number, path->to.rail },
		.rank = path->rank,
		.far = node >= 0 && q->rail->numa >= 0 && node != q->rail->numa,
		.class = q->class,
		.depth = q->depth,
		.sges = q->sges,
		.inline_bytes = q->inline_bytes,
		.write_max = MESSAGE_MAX,
		.read_max = q->device->soft_roce ? SOFT_READ_MAX : MESSAGE_MAX,
		.soft_roce = q->device->soft_roce,
		.flush_rkey = path->to.flush_rkey,
		.flush_lkey =
			(q->peer->segment ? q->device->engine_flush_mr : q->device->flush_mr)->lkey,
		.flush_remote = path->to.flush_address,
		.flush_local = (uintptr_t)q->device->flush,
		.path_counters = &path->counters,
		.rail_counters = &q->rail->counters,
	};
	return w;
}

static void connect_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct path *path = q->path;

	if (!job_ended(q, "a queue pair cannot be connected"))
		return;
	q->state = QP_UP;
	q->was_up = true;
	q->up_ns = rails_now(q->peer->rails);
	path->refused &= (uint8_t) ~(1u << q->worker);
	memset(path->unmade, 0, sizeof(path->unmade));
	q->peer->given_up[q->class] &= (uint8_t) ~(1u << q->worker);
	path->given_up[q->class] &= (uint8_t) ~(1u << q->worker);
	if (path->fails && !is_futile(path))
		log_info(AREA, "the path has recovered device=%s port=%u peer=%" PRIx64,
			 q->rail->device_name, q->rail->port, q->peer->handle);
	rails_tell(q->peer->rails, q->worker, RDMA_QP_UP, q->peer->handle, q->id, describe(q));
}

static void handle_connected(void *arg, uint32_t code, const union pmsg_body *reply)
{
	const struct pmsg_qp_connect_reply *m;
	struct qp *q = arg;

	q->asked = false;
	if (q->state != QP_REQUESTED) {
		qp_check(q);
		return;
	}
	if (code) {
		qp_failed(q, "the peer refuses a queue pair", dray_error_doc(code));
		return;
	}
	m = &reply->qp_connect_reply;
	q->remote = (struct pmsg_qp_connect){ .qpn = m->qpn,
					      .psn = m->psn,
					      .mtu = dray_min(m->mtu, q->path->mtu),
					      .lid = q->path->to.lid,
					      .reads = 1 };
	memcpy(q->remote.gid, q->path->to.gid, sizeof(q->remote.gid));
	q->reads = dray_min(m->reads, q->reads);
	q->state = QP_CONNECTING;
	qp_job(q, connect_run, connect_done);
}

void rails_engine_connected(struct rails *r, uint64_t id, const struct rails_engine_reply *reply)
{
	struct qp *q = dray_handles_get(&r->qps, id);

	if (!q || q->state != QP_REQUESTED)
		return;
	if (reply->refused) {
		qp_failed(q, "Mooncake's engine gives no queue pair", reply->refused);
		return;
	}
	/* both ends begin with packet 0 */
	q->remote = (struct pmsg_qp_connect){
		.qpn = reply->qpn, .mtu = q->path->mtu, .lid = reply->lid, .reads = 1
	};
	memcpy(q->remote.gid, &reply->gid, sizeof(q->remote.gid));
	q->state = QP_CONNECTING;
	qp_job(q, connect_run, connect_done);
}

static void engine_ask(struct qp *q)
{
	struct rails *r = q->peer->rails;

	r->deps.engine_connect(r->deps.arg, &(struct rails_engine_request){
						    .engine = q->peer->handle,
						    .id = q->id,
						    .device = q->rail->device_name,
						    .gid = q->path->gid,
						    .lid = (uint16_t)q->rail->lid,
						    .qpn = q->qp->qp_num,
						    .port = q->path->to.rail,
						    .worker = q->worker,
						    .slot = q->slot,
						    .class = q->class,
					    });
}

static void create_run(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct rails *r = q->peer->rails;
	struct ibv_cq *cq = q->rail->cqs[q->worker].cq;
	uint32_t entries =
		dray_min(q->cq_entries + q->cq_entries / 2, (uint32_t)q->device->attr.max_cqe);

	q->error = q->doomed ? -ECANCELED : 0;
	if (q->error == 0 && (int)q->cq_entries > cq->cqe)
		q->error = r->verbs->resize_cq(cq, (int)entries);
	if (q->error == 0)
		q->error = qp_create(q, q->peer->segment ? q->device->guest_pd : q->device->pd, cq,
				     (uint32_t)r->cfg->rdma.inline_max);
	if (q->error == 0)
		q->error = qp_to_init(q, 0);
}

static void create_done(struct dray_job *j)
{
	struct qp *q = qp_of(j);
	struct path *path = q->path;
	struct pmsg_qp_connect m = {
		.qp = q->id,
		.rail = q->rail->number,
		.to_rail = path->to.rail,
		.psn = q->psn,
		.lid = q->rail->lid,
		.mtu = path->mtu,
		.reads = q->reads,
		.class = (uint8_t)q->class,
	};

	if (!job_ended(q, "a queue pair cannot be created"))
		return;
	if (q->peer->segment) {
		engine_ask(q);
		return;
	}
	m.qpn = q->qp->qp_num;
	memcpy(m.gid, &path->gid, sizeof(m.gid));
	q->requested = peers_request(q->peer->rails->deps.peers, q->peer->handle, PMSG_QP_CONNECT,
				     &(union pmsg_body){ .qp_connect = m }, handle_connected,
				     q) == 0;
	q->asked = q->requested;
	if (!q->requested)
		qp_failed(q, "a queue pair cannot be requested", "the peer is not connected");
}

static bool is_living(const struct qp *q)
{
	return !q->doomed && q->state != QP_LOSING && q->state != QP_DYING;
}

/* An engine tells queue pairs apart by our device and its own one, whatever their ports are. */
static bool share_slots(const struct path *a, const struct path *b)
{
	return a->to.rail == b->to.rail && !strcmp(a->rail->device_name, b->rail->device_name);
}

/* Its engine expects the same slots again after a loss, so that it replaces its ends of queue pairs instead of adding to them. */
static unsigned free_slot(const struct path *path, unsigned worker, enum dmsg_class class)
{
	unsigned slot = 0;
	bool used;

	do {
		used = false;
		dray_list_for_each(&path->peer->qps, q, const struct qp, link)
			used |= is_living(q) && share_slots(q->path, path) && q->worker == worker &&
				q->class == class && q->slot == slot;
		slot += used;
	} while (used);
	return slot;
}

/* What Mooncake's engines need of a queue pair. */
static void suit_engine(struct qp *q)
{
	q->slot = free_slot(q->path, q->worker, q->class);
	q->psn = 0;
	q->reads = dray_min(q->reads, GUEST_READS);
	q->retries = dray_min(q->retries, (uint8_t)GUEST_RETRIES);
}

/* Work requests of the next queue pair, each of which needs a completion, at least when it is flushed. */
static uint32_t depth_of(const struct path *path, unsigned worker)
{
	const struct ibv_device_attr *limits = &path->rail->device->attr;
	uint32_t depth = dray_min((uint32_t)path->peer->rails->cfg->rdma.queue_depth,
				  (uint32_t)limits->max_qp_wr);

	return dray_min(depth, (uint32_t)limits->max_cqe - path->rail->cq_used[worker]);
}

const char *path_reason(const struct path *path, bool up, char buf[REASON_MAX])
{
	if (path->full && path->rail->device) {
		snprintf(buf, REASON_MAX,
			 "a queue pair cannot be created: a worker's completion queue is full "
			 "(max_cqe is %d): lower rdma.queue_depth or rdma.queue_pairs",
			 path->rail->device->attr.max_cqe);
		return buf;
	}
	if ((path->crowded[0] || path->crowded[1]) && !up)
		return "former queue pairs to the peer are still being destroyed: the peer's address "
		       "or keys change too often, or one of both agents hangs in its device";
	return path->fails && (!up || path->refused) ? path->failure : path->reason;
}

/* The worker's completion queue has room for a queue pair. If not, the path is looked at again later; other workers may have room. */
static bool has_room(struct path *path, unsigned worker)
{
	struct rails *r = path->peer->rails;
	uint8_t bit = (uint8_t)(1u << worker);
	char buf[REASON_MAX];

	if (depth_of(path, worker) >= DEPTH_MIN) {
		path->full &= (uint8_t)~bit;
		return true;
	}
	rails_retry(path->peer, rails_now(r) + r->cfg->peer.backoff_max);
	if (path->full & bit)
		return false;
	path->full |= bit;
	path_log(path, path_reason(path, false, buf));
	return false;
}

static bool qp_new(struct path *path, unsigned worker, enum dmsg_class class)
{
	struct rails *r = path->peer->rails;
	struct device *d = path->rail->device;
	uint32_t depth = depth_of(path, worker);
	int reads = dray_min(d->attr.max_qp_init_rd_atom, d->attr.max_qp_rd_atom);
	struct qp *q = calloc(1, sizeof(*q));

	if (!q || dray_handles_add(&r->qps, q, &q->id) < 0) {
		free(q);
		attempt_failed(path, worker, "a queue pair cannot be created", "no memory");
		return false;
	}
	q->peer = path->peer;
	q->path = path;
	q->round = path->round;
	q->worker = worker;
	q->class = class;
	q->depth = depth;
	reads = dray_max(reads, 1);
	q->reads = (uint32_t)dray_min((int)r->cfg->rdma.outstanding_reads, reads);
	q->psn = (uint32_t)dray_random() & QP_PSN_MASK;
	q->retries = (uint8_t)r->cfg->rdma.retry_count;
	if (path->peer->segment)
		suit_engine(q);
	path->rail->cq_used[worker] += depth;
	q->cq_entries = path->rail->cq_used[worker];
	qp_begin(q, path->rail, path->gid_index, &path->peer->qps, create_run, create_done);
	return true;
}

/*
 * No further queue pair, until one is gone. A peer can make queue pairs useless as fast as it can change its address, and those that
 * are being destroyed hold room in the completion queues that all peers share.
 */
static bool is_crowded(struct path *path, unsigned worker, enum dmsg_class class, unsigned want)
{
	uint8_t bit = (uint8_t)(1u << worker);
	char buf[REASON_MAX];
	unsigned n = 0;

	dray_list_for_each(&path->peer->qps, q, const struct qp, link)
		n += q->rail == path->rail && q->worker == worker && q->class == class;
	if (n < CROWD * want) {
		path->crowded[class] &= (uint8_t)~bit;
		return false;
	}
	if (!(path->crowded[class] & bit)) {
		path->crowded[class] |= bit;
		path_log(path, path_reason(path, false, buf));
	}
	return true;
}

/* Queue pairs of the path for this worker and class. only_up: without those that are being made. */
static unsigned count(const struct path *path, unsigned worker, enum dmsg_class class, bool only_up)
{
	unsigned n = 0;

	dray_list_for_each(&path->peer->qps, q, struct qp, link)
		n += q->path == path && q->worker == worker && q->class == class && is_living(q) &&
		     (!only_up || q->state == QP_UP);
	return n;
}

/* Transfers of the worker wait for queue pairs of the path that are being made. */
static bool is_awaited(const struct path *path, unsigned worker)
{
	return path->peer->segment || (path->unmade[worker] < UNMADE_MAX && !is_futile(path));
}

static bool may_connect(const struct path *path, int64_t now)
{
	return path->active && path->rail->state == RAIL_UP && path->rail->cqs_told &&
	       device_is_open(path->rail->device) && path->retry_ns <= now;
}

/* No queue pair of the path exists or is expected: transfers that no other path suits use another transport meanwhile. */
static void path_give_up(struct path *path, unsigned worker, enum dmsg_class class)
{
	uint8_t bit = (uint8_t)(1u << worker);

	if (path->given_up[class] & bit)
		return;
	path->given_up[class] |= bit;
	rails_tell(path->peer->rails, worker, RDMA_PATH_UNREACHABLE, path->peer->handle,
		   rdma_path_id(path->rail->number, class), NULL);
}

static void connect_worker(struct rail_peer *peer, unsigned worker)
{
	const struct dray_config *cfg = peer->rails->cfg;
	unsigned want[] = { [DMSG_CLASS_BULK] = (unsigned)cfg->rdma.queue_pairs,
			    [DMSG_CLASS_LATENCY] = (unsigned)cfg->rdma.latency_queue_pairs };
	int64_t now = rails_now(peer->rails);
	unsigned expected[DRAY_ARRAY_SIZE(want)] = { 0 };

	dray_list_for_each(&peer->paths, path, struct path, link) {
		/* the latency class comes first, because the completion queue may lack room for both */
		for (unsigned class = DRAY_ARRAY_SIZE(want); class -- > 0;) {
			unsigned n = count(path, worker, (enum dmsg_class) class, false);

			while (n < want[class] && may_connect(path, now) &&
			       !is_crowded(path, worker, (enum dmsg_class) class, want[class]) &&
			       has_room(path, worker) &&
			       qp_new(path, worker, (enum dmsg_class) class))
				n++;
			n = count(path, worker, (enum dmsg_class) class, !is_awaited(path, worker));
			/* nothing else reaches an engine: transfers wait for the next attempt, unless the last one has failed */
			n += peer->segment && path->active &&
			     !((path->refused | path->full) >> worker & 1);
			expected[class] += n;
			if (path->active && !n)
				path_give_up(path, worker, (enum dmsg_class) class);
		}
		if (path->active && path->retry_ns > now)
			rails_retry(peer, path->retry_ns);
	}
	for (unsigned class = 0; class < DRAY_ARRAY_SIZE(want); class ++) {
		if (expected[class] || (peer->given_up[class] >> worker & 1))
			continue;
		/* none exists and none is expected: pending transfers use another transport meanwhile */
		peer->given_up[class] |= (uint8_t)(1u << worker);
		rails_tell(peer->rails, worker, RDMA_UNREACHABLE, peer->handle, class, NULL);
	}
}

void connect_peer(struct rail_peer *peer)
{
	if (peer->down)
		return;
	for (unsigned i = 0; i < peer->rails->deps.pool->n; i++)
		if (peer->wanted >> i & 1)
			connect_worker(peer, i);
}

void connect_lose(struct qp *q)
{
	if (q->state < QP_UP)
		qp_die(q);
	if (q->state != QP_UP)
		return;
	q->state = QP_LOSING;
	rails_tell(q->peer->rails, q->worker, RDMA_QP_LOSE, q->peer->handle, q->id, NULL);
}

static const char *loss_text(uint32_t code)
{
	switch (code) {
	case RDMA_LOSS_TIMEOUT:
		return "no completion within transfer.slice_timeout";
	case RDMA_LOSS_POST:
		return "the device refused a work request";
	case RDMA_LOSS_COMMAND:
	case RDMA_LOSS_PEER:
	case RDMA_LOSS_UNUSED:
		return NULL;
	default:
		return ibv_wc_status_str((enum ibv_wc_status)code);
	}
}

/*
 * The queue pair was ready and is lost by a fault. If it was begun before the last such loss that was counted, it is of the same round, and tells nothing
 * new. Returns true if a further round of a futile path has ended.
 */
static bool count_futile(struct qp *q)
{
	struct path *path = q->path;
	uint64_t slices = atomic_load(&path->counters.slices);

	if (slices != path->slices)
		path->futile = 1;
	else if (q->round == path->round)
		path->futile++;
	else
		return false;
	path->slices = slices;
	path->round++;
	if (path->futile == FUTILE_MAX && is_futile(path))
		path_log(path, "queue pairs can be connected and move nothing: transfers use other "
			       "paths or the next transport");
	return is_futile(path);
}

/* Transfers leave a path that has moved nothing. */
static void leave_futile(struct path *path)
{
	dray_list_for_each(&path->peer->qps, q, struct qp, link)
		if (q->path == path)
			connect_lose(q);
}

void connect_handle_lost(struct rails *r, dray_handle id, uint32_t code)
{
	struct qp *q = dray_handles_get(&r->qps, id);
	const char *why = loss_text(code);
	bool leave = false;

	if (!q || q->state == QP_DYING)
		return;
	/* the engine has refused a request, which is no fault of the path */
	if (q->peer->segment && code == IBV_WC_REM_ACCESS_ERR)
		why = NULL;
	/* a futile path keeps its failure until it moves something, also when the last of its queue pairs are given up */
	if (rails_now(r) - q->up_ns > LIVED_NS && !is_futile(q->path))
		q->path->fails = 0;
	if (why) {
		leave = count_futile(q);
		path_failed(q->path, "a queue pair was lost", why);
	}
	q->state = QP_LOSING;
	if (leave)
		leave_futile(q->path);
	qp_die(q);
}
