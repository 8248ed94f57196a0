/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails, registrations and queue pairs on simulated verbs, with workers and peers that only record
 * messages. Jobs run in real threads; the test runs the loop until a condition holds. For one
 * source file of a program.
 */
#pragma once

#include "agent/control/rails/rails.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/control/rails/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

#define GIB (1ull << 30)
#define REGION(n) (1ull << 32 | (n))
#define PEER (1ull << 32 | 77)
#define OTHER (1ull << 32 | 78) /* a second one, which is only served */
#define TOLD_MAX 1024

struct lab {
	sd_event *event;
	struct dray_config cfg;
	struct worker_pool pool;
	struct rails *rails;
	struct nd_scan *scan;
	uint64_t routes_hash;    /* of the next scan */
	_Atomic int match_error; /* of the next matches */

	/* messages to workers and peers */
	struct transport_message told[TOLD_MAX];
	unsigned n_told;
	uint64_t unreachable[2];       /* of the last PATHS */
	struct rail_keys *keys;        /* of the region published last; one reference */
	struct rail_keys *held;        /* a reference, as of a work request in flight */
	struct rail_keys *staging;     /* from the last message; one reference */
	struct rail_keys *engine_keys; /* the same */
	unsigned published, ports, n_ports, keys_sent, quiet, told_quiet;
	dray_handle store_keys_gone; /* the segment whose keys peers must not use any more */
	dray_handle exposed;         /* grant whose keys a peer has */
	dray_handle ended;           /* grant that guests do not reach any more */
	struct {
		dray_handle region;
		uint64_t offset, length;
		bool gpu;
	} granted; /* matches any grant */
	struct pmsg_qp_connect asked[16];
	peer_reply_fn asked_fn[16];
	void *asked_arg[16];
	unsigned n_asked;
	unsigned rekeys;
	peer_reply_fn rekey_fn;
	void *rekey_arg;
	peer_reply_fn close_fn;
	void *close_arg, *close_args[16];
	unsigned closes, replies, refusals, close_replies;
	unsigned limited;               /* log lines about PEER, with those that its limit drops */
	unsigned others, before_others; /* replies to OTHER, and to PEER before the first of them */
	struct pmsg_window window;      /* from the last message, without its rails */
	unsigned windows, window_rails;
	peer_reply_fn stage_fn;
	void *stage_arg;
	int stage_error;
	uint64_t staged; /* request id of the last reply */
	uint32_t stage_code;
	struct rdma_share share; /* from the last message; owns its keys */
	/* memory that was requested and released */
	gpu_host_fn pinned_fn;
	void *pinned_arg;
	uint64_t pinned_bytes;
	unsigned pins, unpins;
	unsigned done;
	unsigned answers; /* calls of region_registered() */
	bool usable;
	char why[400];
};

/* Behaviour of the verbs; the test writes it between jobs. */
static struct {
	_Atomic unsigned reg_ok; /* registrations before reg_error counts */
	_Atomic int open_error, reg_error, dereg_error, create_error, modify_error;
	_Atomic int max_cqe; /* 0: no limit */
	_Atomic unsigned least_depth,
		tried;      /* of queue pairs: the least one; attempts to create one */
	_Atomic bool hangs; /* queue pairs are not created yet */
	_Atomic int contexts, mrs, qps, cqs, pds, channels, closed_in_use, asked_too_much;
	_Atomic unsigned registered, next_key;
	struct ibv_mr *stuck[8]; /* whose deregistration failed; they end with their context */
	_Atomic unsigned n_stuck;
	struct ibv_qp *stuck_qps[8]; /* likewise, that were not destroyed */
	_Atomic unsigned n_stuck_qps;
	_Atomic unsigned n_to_stick; /* so many of the next ones are not destroyed */
	_Atomic uint64_t largest;
	_Atomic int last_fd;
	_Atomic uint64_t last_offset;
	_Atomic unsigned last_access;
} dev;

struct context {
	struct ibv_context c;
	_Atomic int objects;
};

static struct lab *lab;

/* --- verbs ------------------------------------------------------------------------------------------- */

static inline int v_open(const char *device, struct ibv_context **ret)
{
	struct context *c;

	(void)device;
	if (dev.open_error)
		return dev.open_error;
	c = calloc(1, sizeof(*c));
	c->c.async_fd = eventfd(0, EFD_NONBLOCK);
	dev.contexts++;
	*ret = &c->c;
	return 0;
}

static inline int v_close(struct ibv_context *c)
{
	for (unsigned i = 0; i < dev.n_stuck; i++)
		if (dev.stuck[i] && dev.stuck[i]->context == c) {
			((struct context *)c)->objects--;
			dev.mrs--;
			free(dev.stuck[i]);
			dev.stuck[i] = NULL;
		}
	for (unsigned i = 0; i < dev.n_stuck_qps; i++)
		if (dev.stuck_qps[i] && dev.stuck_qps[i]->context == c) {
			((struct context *)c)->objects--;
			dev.qps--;
			free(dev.stuck_qps[i]);
			dev.stuck_qps[i] = NULL;
		}
	/* no assertion, because this runs in another thread */
	dev.closed_in_use += ((struct context *)c)->objects != 0;
	close(c->async_fd);
	free(c);
	dev.contexts--;
	return 0;
}

static inline int v_query_device(struct ibv_context *c, struct ibv_device_attr *ret)
{
	(void)c;
	*ret = (struct ibv_device_attr){ .max_qp_wr = 1024,
					 .max_sge = 8,
					 .max_cqe = dev.max_cqe ? dev.max_cqe : 1 << 20,
					 .max_mr = 100,
					 .max_mr_size = UINT64_MAX,
					 .max_qp_rd_atom = 8,
					 .max_qp_init_rd_atom = 4 };
	return 0;
}

/* Counts each object by kind and allocates memory for it. */
#define MAKE(type, of, counter)              \
	type *o_ = calloc(1, sizeof(*o_));   \
	if (!o_)                             \
		return -ENOMEM;              \
	o_->context = (of);                  \
	((struct context *)(of))->objects++; \
	dev.counter++;                       \
	*ret = o_;

#define UNMAKE(o, counter)                           \
	((struct context *)(o)->context)->objects--; \
	free(o);                                     \
	dev.counter--;                               \
	return 0

static inline int v_alloc_pd(struct ibv_context *c, struct ibv_pd **ret)
{
	MAKE(struct ibv_pd, c, pds)
	return 0;
}

static inline int v_dealloc_pd(struct ibv_pd *pd)
{
	UNMAKE(pd, pds);
}

static inline int v_reg_mr(struct ibv_pd *pd, void *p, int fd, uint64_t offset, uint64_t bytes,
			   uint64_t iova, unsigned access, struct ibv_mr **ret)
{
	(void)p;
	(void)iova;
	if (bytes != FLUSH_BYTES) {
		dev.last_access = access;
		dev.last_fd = fd;
		dev.last_offset = offset;
	}
	/* registration of the device's own flush word always succeeds */
	if (dev.reg_error && dev.registered >= dev.reg_ok && bytes != FLUSH_BYTES)
		return dev.reg_error;
	MAKE(struct ibv_mr, pd->context, mrs)
	(*ret)->lkey = ++dev.next_key;
	(*ret)->rkey = dev.next_key + 1000;
	if (bytes != FLUSH_BYTES)
		dev.registered++;
	if (bytes > dev.largest)
		dev.largest = bytes;
	return 0;
}

static inline int v_dereg_mr(struct ibv_mr *mr)
{
	if (dev.dereg_error && dev.n_stuck < DRAY_ARRAY_SIZE(dev.stuck)) {
		dev.stuck[dev.n_stuck++] = mr;
		return dev.dereg_error;
	}
	UNMAKE(mr, mrs);
}

static inline int v_create_channel(struct ibv_context *c, struct ibv_comp_channel **ret)
{
	MAKE(struct ibv_comp_channel, c, channels)
	return 0;
}

static inline int v_destroy_channel(struct ibv_comp_channel *c)
{
	UNMAKE(c, channels);
}

static inline int v_create_cq(struct ibv_context *c, int entries, struct ibv_comp_channel *channel,
			      struct ibv_cq **ret)
{
	(void)channel;
	dev.asked_too_much += dev.max_cqe && entries > dev.max_cqe;
	MAKE(struct ibv_cq, c, cqs)
	(*ret)->cqe = entries;
	return 0;
}

static inline int v_resize_cq(struct ibv_cq *cq, int entries)
{
	if (dev.max_cqe && entries > dev.max_cqe)
		return -EINVAL;
	cq->cqe = entries;
	return 0;
}

static inline int v_destroy_cq(struct ibv_cq *cq)
{
	UNMAKE(cq, cqs);
}

static inline int v_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **ret)
{
	dev.tried++;
	while (dev.hangs)
		usleep(1000);
	if (dev.create_error)
		return dev.create_error;
	if (!dev.least_depth || attr->cap.max_send_wr < dev.least_depth)
		dev.least_depth = attr->cap.max_send_wr;
	dev.asked_too_much += attr->cap.max_send_wr > 1024 || attr->cap.max_send_sge > 8;
	MAKE(struct ibv_qp, pd->context, qps)
	(*ret)->qp_num = 17;
	return 0;
}

static inline int v_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	(void)mask;
	return attr->qp_state == IBV_QPS_RTR ? dev.modify_error : 0;
}

static inline int v_destroy_qp(struct ibv_qp *qp)
{
	if (dev.n_to_stick) {
		dev.n_to_stick--;
		dev.stuck_qps[dev.n_stuck_qps++] = qp;
		return -EIO;
	}
	UNMAKE(qp, qps);
}

static const struct verbs verbs = {
	.open = v_open,
	.close = v_close,
	.query_device = v_query_device,
	.alloc_pd = v_alloc_pd,
	.dealloc_pd = v_dealloc_pd,
	.reg_mr = v_reg_mr,
	.dereg_mr = v_dereg_mr,
	.create_channel = v_create_channel,
	.destroy_channel = v_destroy_channel,
	.create_cq = v_create_cq,
	.resize_cq = v_resize_cq,
	.destroy_cq = v_destroy_cq,
	.create_qp = v_create_qp,
	.modify_qp = v_modify_qp,
	.destroy_qp = v_destroy_qp,
};

/* --- workers and peers --------------------------------------------------------------------------------- */

static inline void keep(const struct transport_message *m)
{
	assert_true(lab->n_told < TOLD_MAX);
	lab->told[lab->n_told++] = *m;
	if (m->type == RDMA_PATHS)
		memcpy(lab->unreachable, ((const struct rdma_paths *)m->arg)->unreachable,
		       sizeof(lab->unreachable));
	if (m->type == RDMA_PATHS || m->type == RDMA_QP_UP)
		free(m->arg);
	if (m->type == RDMA_WINDOW) {
		rail_keys_unref(lab->share.keys);
		lab->share = *(struct rdma_share *)m->arg;
		free(m->arg);
	}
	if (m->type == RDMA_STAGING) {
		rail_keys_unref(lab->staging);
		lab->staging = m->arg;
	}
	if (m->type == RDMA_ENGINE_KEYS) {
		rail_keys_unref(lab->engine_keys);
		lab->engine_keys = m->arg;
	}
}

void worker_post(struct worker *w, const struct command *cmd)
{
	(void)w;
	assert_int_equal(cmd->type, COMMAND_TRANSPORT);
	keep(&cmd->message);
}

void pool_message(struct worker_pool *p, const struct transport_message *m)
{
	for (unsigned i = 0; i < p->n; i++)
		keep(m);
}

void pool_keys(struct worker_pool *p, enum object_kind kind, dray_handle handle,
	       struct rail_keys *keys)
{
	(void)p;
	(void)kind;
	(void)handle;
	rail_keys_unref(lab->keys);
	lab->keys = keys ? rail_keys_ref(keys) : NULL;
	lab->published++;
}

void grants_of_region(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg)
{
	(void)r;
	fn(arg, &(struct grant_view){ .o = { .handle = 5, .length = 8192 },
				      .peer = PEER,
				      .region = region,
				      .offset = 4096 });
}

const char *peers_segment_of(struct peers *p, dray_handle peer)
{
	return "10.0.0.1:7411";
}

void grant_expose(struct regions *r, dray_handle peer, dray_handle grant)
{
	assert_int_equal(peer, PEER);
	lab->exposed = grant;
}

void grant_fenced(struct regions *r, dray_handle peer, dray_handle grant)
{
	assert_int_equal(peer, MOONCAKE_PEER);
	lab->ended = grant;
}

void grants_with_keys(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg)
{
	if (lab->exposed)
		grants_of_region(r, region, fn, arg);
}

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *m)
{
	if (peer == OTHER) {
		if (type != PMSG_PORTS && !lab->others++)
			lab->before_others = lab->replies;
		return;
	}
	assert_int_equal(peer, PEER);
	switch (type) {
	case PMSG_PORTS:
		lab->ports++;
		lab->n_ports = m->ports.ports.n;
		break;
	case PMSG_KEYS:
		assert_int_equal(m->keys.grant, 5);
		assert_true(!m->keys.rails.n || lab->exposed == 5);
		lab->keys_sent++;
		break;
	case PMSG_QP_CONNECT_REPLY:
		assert_int_equal(m->qp_connect_reply.qpn, 17);
		lab->replies++;
		break;
	case PMSG_QP_CLOSE_REPLY:
		lab->close_replies++;
		break;
	case PMSG_WINDOW:
		lab->window = m->window;
		lab->window_rails = m->window.rails.n;
		lab->windows++;
		break;
	case PMSG_STAGE_REPLY:
		lab->staged = request_id;
		break;
	default:
		fail_msg("unexpected message: %s", pmsg_type_name(type));
	}
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *m,
		  peer_reply_fn fn, void *arg)
{
	switch (type) {
	case PMSG_QP_CONNECT:
		assert_true(lab->n_asked < 16);
		lab->asked[lab->n_asked] = m->qp_connect;
		lab->asked_fn[lab->n_asked] = fn;
		lab->asked_arg[lab->n_asked++] = arg;
		return 0;
	case PMSG_REKEY:
		assert_int_equal(m->rekey.grant, 5);
		lab->rekeys++;
		lab->rekey_fn = fn;
		lab->rekey_arg = arg;
		return 0;
	case PMSG_QP_CLOSE:
		lab->close_fn = fn;
		lab->close_arg = arg;
		lab->close_args[lab->closes++ % DRAY_ARRAY_SIZE(lab->close_args)] = arg;
		return 0;
	default:
		assert_int_equal(type, PMSG_STAGE);
		lab->stage_fn = fn;
		lab->stage_arg = arg;
		return lab->stage_error;
	}
}

const uint8_t *peers_agent_id(struct peers *p, dray_handle peer)
{
	static const uint8_t id[16];

	return id;
}

struct peers_log peers_log_of_agent(struct peers *p, const uint8_t agent_id[16])
{
	static struct dray_log_limit limit;

	lab->limited++;
	return (struct peers_log){ &limit, UINT32_MAX, "about an agent" };
}

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	(void)p;
	(void)peer;
	assert_true(code && *why);
	lab->refusals++;
	lab->staged = request_id;
	lab->stage_code = code;
}

/* For rails_each_path(): the reason of the last path, 256 bytes. */
static inline void note_reason(void *arg, const struct dray_dbus_path *info)
{
	snprintf(arg, 256, "%s", info->reason);
}

/* Each local device reaches the peer's rail of the same number, by all its ports. */
int nd_rails_to(const struct nd_source *s, const struct nd_links *links,
		const struct nd_devices *devices, const struct nd_remote_port *ports,
		size_t n_ports, struct nd_rail **ret, size_t *ret_n)
{
	size_t n = dray_min(devices->n, n_ports), k = 0;

	(void)s;
	(void)links;
	(void)ports;
	if (lab->match_error)
		return lab->match_error;
	*ret = calloc(RAILS_MAX, sizeof(**ret));
	for (size_t i = 0; i < n; i++)
		for (uint16_t port = 0; port < devices->v[i].n_ports; port++) {
			(*ret)[k] = (struct nd_rail){ .device = (uint16_t)i,
						      .port = port,
						      .remote = (uint16_t)i,
						      .mtu = 4096,
						      .reachable = true };
			snprintf((*ret)[k++].reason, ND_REASON_MAX, "same subnet");
		}
	*ret_n = k;
	return 0;
}

void grants_peer_gone(struct regions *r, dray_handle peer)
{
	assert_int_equal(peer, PEER);
	assert_true(rails_peer_is_quiet(lab->rails, peer));
	lab->quiet++;
}

const struct grant_view *grant_find(struct regions *r, dray_handle peer, dray_handle grant)
{
	static struct grant_view view;

	assert_int_equal(peer, PEER);
	view = (struct grant_view){ .o = { .length = lab->granted.length },
				    .region = lab->granted.region,
				    .offset = lab->granted.offset };
	return &view;
}

bool region_is_gpu(struct regions *r, dray_handle region)
{
	return lab->granted.gpu;
}

/* --- the fixture ----------------------------------------------------------------------------------------- */

/* Reports a scan with this number of devices of so many ports; `active` of the devices have a link. */
static inline void see_ports(unsigned devices, unsigned active, uint32_t gid_index, uint16_t ports)
{
	struct nd_scan *s = calloc(1, sizeof(*s));

	atomic_init(&s->refs, 1);
	s->devices.v = calloc(devices + 1, sizeof(*s->devices.v));
	s->devices.n = devices;
	s->links.routes_hash = lab->routes_hash;
	for (unsigned i = 0; i < devices; i++) {
		struct nd_device *d = &s->devices.v[i];

		snprintf(d->name, sizeof(d->name), "dev%u", i);
		d->index = i;
		d->numa = -1;
		d->n_ports = ports;
		d->ports = calloc(ports, sizeof(*d->ports));
		for (uint16_t k = 0; k < ports; k++) {
			struct nd_port *p = &d->ports[k];

			p->number = k + 1u;
			p->state = i < active ? ND_PORT_ACTIVE : ND_PORT_DOWN;
			p->layer = ND_LAYER_ETHERNET;
			p->active_mtu = 4096;
			p->gids.v = calloc(1, sizeof(struct nd_gid));
			p->gids.n = 1;
			p->gids.v[0] = (struct nd_gid){ .index = gid_index,
							.type = ND_GID_ROCE_V2,
							.gid.s6_addr = { [15] = 1 } };
		}
	}
	rails_follow(lab->rails, s);
	nd_scan_free(s);
}

/* The same with one port each. */
static inline void see(unsigned devices, unsigned active, uint32_t gid_index)
{
	see_ports(devices, active, gid_index, 1);
}

/* Runs the loop until the condition holds. */
#define UNTIL(condition)                                \
	do {                                            \
		for (int n_ = 0; !(condition); n_++) {  \
			assert_true(n_ < 2000);         \
			sd_event_run(lab->event, 5000); \
		}                                       \
	} while (0)

void region_registered(struct regions *r, dray_handle region, bool usable, const char *why)
{
	(void)region;
	lab->answers++;
	lab->usable = usable;
	snprintf(lab->why, sizeof(lab->why), "%s", why);
}

int gpus_host_new(struct gpus *g, uint64_t bytes, gpu_host_fn done, void *arg)
{
	lab->pinned_bytes = bytes;
	lab->pinned_fn = done;
	lab->pinned_arg = arg;
	lab->pins++;
	return 0;
}

void gpus_host_free(struct gpu_host *h)
{
	assert_non_null(h);
	lab->unpins++;
}

static inline void store_keys_gone(void *arg, dray_handle segment)
{
	(void)arg;
	lab->store_keys_gone = segment;
}

static inline void peer_quiet(void *arg, dray_handle peer)
{
	(void)arg;
	assert_int_equal(peer, PEER);
	lab->told_quiet++;
}

static inline int setup(void **state)
{
	static const int worker_nodes[] = { -1, -1 };
	struct dray_err err = DRAY_ERR_NULL;

	(void)state;
	dray_log_set_level(DRAY_LOG_ERROR);

	memset(&dev, 0, sizeof(dev));
	lab = calloc(1, sizeof(*lab));
	lab->pool.n = 1;
	lab->cfg.rdma.enable = true;
	lab->cfg.rdma.queue_pairs = 2;
	lab->cfg.rdma.latency_queue_pairs = 1;
	lab->cfg.rdma.queue_depth = 2048;
	lab->cfg.rdma.outstanding_reads = 16;
	lab->cfg.peer.backoff_min = 1000000;
	lab->cfg.peer.backoff_max = 2000000;
	assert_true(sd_event_new(&lab->event) >= 0);
	assert_int_equal(rails_new(&lab->rails,
				   &(struct rails_deps){ .event = lab->event,
							 .cfg = &lab->cfg,
							 .pool = &lab->pool,
							 .verbs = &verbs,
							 .worker_nodes = worker_nodes,
							 .store_keys_gone = store_keys_gone,
							 .peer_quiet = peer_quiet },
				   &err),
			 0);
	return 0;
}

/* Writes the keys that a grant gives the peer; returns their number. */
static inline unsigned grant_keys(dray_handle region, uint64_t offset, uint64_t length,
				  uint8_t *buf, unsigned max)
{
	lab->granted.region = region;
	lab->granted.offset = offset;
	lab->granted.length = length;
	return rails_grant_keys(lab->rails, PEER, 1, buf, max);
}

/* Grants the peer GPU memory that has no keys yet. */
static inline void grant_staged(dray_handle region)
{
	lab->granted.gpu = true;
	assert_int_equal(grant_keys(region, 0, 1, NULL, 0), 0);
}

static inline unsigned told(enum rdma_command type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lab->n_told; i++)
		n += lab->told[i].type == type;
	return n;
}

static inline const struct transport_message *last(enum rdma_command type)
{
	for (unsigned i = lab->n_told; i-- > 0;)
		if (lab->told[i].type == type)
			return &lab->told[i];
	fail_msg("message %d was not sent", (int)type);
	return NULL;
}

static inline void say(enum rdma_event type, uint64_t id, uint32_t code)
{
	rails_handle_message(lab->rails, 0,
			     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							  .type = type,
							  .peer = PEER,
							  .id = id,
							  .code = code });
}

/* Workers release the completion queues of rails that are down. */
static inline void let_go(unsigned *said)
{
	for (; *said < lab->n_told; ++*said)
		if (lab->told[*said].type == RDMA_RAIL_DOWN)
			say(RDMA_RAIL_GONE, lab->told[*said].id, 0);
}

static inline const char *state_of(unsigned device)
{
	char name[8];
	struct dray_dbus_rail i = { .device = name, .port = 1, .rail_state = "none" };

	snprintf(name, sizeof(name), "dev%u", device);
	rails_describe(lab->rails, &i);
	return i.rail_state;
}

static inline uint64_t metric(enum dray_metric m)
{
	uint64_t v[DRAY_METRIC_N] = { 0 };

	rails_metrics(lab->rails, v);
	return v[m];
}

#define IS(device, text) (!strcmp(state_of(device), text))

/* The answers to all QP_CONNECT that have none. */
static inline void answer_connects(uint32_t code)
{
	for (unsigned i = 0; i < lab->n_asked; i++) {
		union pmsg_body m = { .qp_connect_reply = { .qpn = 9, .mtu = 4096, .reads = 16 } };

		lab->asked_fn[i](lab->asked_arg[i], code, &m);
	}
	lab->n_asked = 0;
}

/* Ends everything and checks that nothing of the devices is left. */
static inline int teardown(void **state)
{
	unsigned said = lab->n_told;

	(void)state;
	if (lab->rails) {
		answer_connects(DRAY_E_PEER_LOST);
		see(0, 0, 0);
		for (int n = 0; dev.contexts && n < 2000; n++) {
			let_go(&said);
			sd_event_run(lab->event, 5000);
		}
		assert_int_equal(
			dev.contexts + dev.mrs + dev.qps + dev.cqs + dev.pds + dev.channels, 0);
		rails_free(lab->rails);
	}
	assert_int_equal(dev.closed_in_use + dev.asked_too_much, 0);
	rail_keys_unref(lab->keys);
	rail_keys_unref(lab->staging);
	rail_keys_unref(lab->engine_keys);
	rail_keys_unref(lab->share.keys);
	sd_event_unref(lab->event);
	free(lab);
	return 0;
}

static inline struct region_view *view_new(dray_handle handle, uint64_t base, uint64_t length,
					   uint16_t access)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(v->extents[0]));

	v->o = (struct object_view){ OBJECT_REGION, handle, 1, 1, length, access };
	v->n_extents = 1;
	v->extents[0] = (struct extent_view){ .length = length,
					      .base = (uint8_t *)(uintptr_t)base,
					      .node = -1 };
	return v;
}

static inline void removed(void *arg)
{
	(void)arg;
	lab->done++;
}

static inline void remove_region(struct region_view *v)
{
	unsigned done = lab->done;

	rails_region_remove(lab->rails, v->o.handle, removed, NULL);
	UNTIL(lab->done > done);
	free(v);
}

static inline const char *text_of(const struct region_view *v)
{
	static char buf[512];

	return rails_region_text(lab->rails, v->o.handle, buf, sizeof(buf));
}

/* The peer announces its rails, and paths to them are found. */
static inline void announce(unsigned ports, uint32_t flush_rkey)
{
	unsigned n = told(RDMA_PATHS);
	uint8_t buf[4 * PMSG_PORT_SIZE];

	for (unsigned i = 0; i < ports; i++)
		pmsg_port_put(buf + (size_t)i * PMSG_PORT_SIZE,
			      &(struct pmsg_port){ .rail = i,
						   .mtu = 4096,
						   .gid_type = 2,
						   .layer = 2,
						   .flush_rkey = flush_rkey });
	rails_peer_ports(lab->rails, PEER, &(struct dray_vec){ buf, ports });
	UNTIL(told(RDMA_PATHS) > n);
}

static inline void meet(unsigned ports)
{
	rails_peer_up(lab->rails, PEER, PMSG_FEATURE_RDMA | PMSG_FEATURE_WINDOW);
	announce(ports, 0);
}

static inline void part(void)
{
	rails_peer_down(lab->rails, PEER);
	answer_connects(DRAY_E_PEER_LOST);
	for (unsigned i = 0, n = lab->n_told; i < n; i++)
		if (lab->told[i].type == RDMA_QP_UP)
			say(RDMA_QP_LOST, lab->told[i].id, RDMA_LOSS_PEER);
	UNTIL(dev.qps == 0);
}
