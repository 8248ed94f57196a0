/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails, registrations and queue pairs on verbs that are functions here, with workers and peers that only
 * keep what they are told. Jobs run in their real threads; the loop is turned until what is awaited is there.
 */
#include "agent/rdma/rails.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/rdma/internal.h"
#include "lib/log.h"
#include "tests/unit/cm.h"

#define GIB (1ull << 30)
#define REGION(n) (1ull << 32 | (n))
#define PEER (1ull << 32 | 77)
#define TOLD_MAX 256

struct lab {
	sd_event *event;
	struct dray_config cfg;
	struct worker_pool pool;
	struct rails *rails;
	struct nd_scan *scan;

	/* what workers and peers were told */
	struct transport_message told[TOLD_MAX];
	unsigned n_told;
	struct rail_keys *keys;    /* of the region that was published last; one reference */
	struct rail_keys *held;    /* as a work request in flight would */
	struct rail_keys *staging; /* as told last; its reference */
	unsigned published, ports, n_ports, keys_sent, quiet;
	struct pmsg_qp_connect asked[16];
	peer_qp_fn asked_fn[16];
	void *asked_arg[16];
	unsigned n_asked;
	peer_qp_fn close_fn;
	void *close_arg;
	unsigned closes, replies, refusals, close_replies;
	unsigned done;
	unsigned answers; /* to who waits for a DMA-BUF's registration */
	bool usable;
	char why[400];
};

/* What the verbs do; written by the test between jobs. */
static struct {
	_Atomic int open_error, reg_error, create_error, modify_error;
	_Atomic int max_cqe; /* 0: plenty */
	_Atomic unsigned least_depth;
	_Atomic int contexts, mrs, qps, cqs, pds, channels, closed_in_use, asked_too_much;
	_Atomic unsigned registered, next_key;
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

static int v_open(const char *device, struct ibv_context **ret)
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

static int v_close(struct ibv_context *c)
{
	/* not an assertion: this is another thread */
	dev.closed_in_use += ((struct context *)c)->objects != 0;
	close(c->async_fd);
	free(c);
	dev.contexts--;
	return 0;
}

static int v_query_device(struct ibv_context *c, struct ibv_device_attr *ret)
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

static int v_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret)
{
	(void)c;
	(void)port;
	(void)ret;
	return 0;
}

/* Each object counts in one place and is a piece of memory of its own. */
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

static int v_alloc_pd(struct ibv_context *c, struct ibv_pd **ret)
{
	MAKE(struct ibv_pd, c, pds)
	return 0;
}

static int v_dealloc_pd(struct ibv_pd *pd)
{
	UNMAKE(pd, pds);
}

static int v_reg_mr(struct ibv_pd *pd, void *p, int fd, uint64_t offset, uint64_t bytes,
		    uint64_t iova, unsigned access, struct ibv_mr **ret)
{
	(void)p;
	(void)iova;
	if (bytes != FLUSH_BYTES) {
		dev.last_access = access;
		dev.last_fd = fd;
		dev.last_offset = offset;
	}
	/* the device's own flush word is always taken */
	if (dev.reg_error && bytes != FLUSH_BYTES)
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

static int v_dereg_mr(struct ibv_mr *mr)
{
	UNMAKE(mr, mrs);
}

static int v_create_channel(struct ibv_context *c, struct ibv_comp_channel **ret)
{
	MAKE(struct ibv_comp_channel, c, channels)
	return 0;
}

static int v_destroy_channel(struct ibv_comp_channel *c)
{
	UNMAKE(c, channels);
}

static int v_create_cq(struct ibv_context *c, int entries, struct ibv_comp_channel *channel,
		       struct ibv_cq **ret)
{
	(void)channel;
	dev.asked_too_much += dev.max_cqe && entries > dev.max_cqe;
	MAKE(struct ibv_cq, c, cqs)
	(*ret)->cqe = entries;
	return 0;
}

static int v_resize_cq(struct ibv_cq *cq, int entries)
{
	if (dev.max_cqe && entries > dev.max_cqe)
		return -EINVAL;
	cq->cqe = entries;
	return 0;
}

static int v_destroy_cq(struct ibv_cq *cq)
{
	UNMAKE(cq, cqs);
}

static int v_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **ret)
{
	if (dev.create_error)
		return dev.create_error;
	if (!dev.least_depth || attr->cap.max_send_wr < dev.least_depth)
		dev.least_depth = attr->cap.max_send_wr;
	dev.asked_too_much += attr->cap.max_send_wr > 1024 || attr->cap.max_send_sge > 8;
	MAKE(struct ibv_qp, pd->context, qps)
	(*ret)->qp_num = 17;
	return 0;
}

static int v_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	(void)mask;
	return attr->qp_state == IBV_QPS_RTR ? dev.modify_error : 0;
}

static int v_destroy_qp(struct ibv_qp *qp)
{
	UNMAKE(qp, qps);
}

static const struct verbs verbs = {
	.open = v_open,
	.close = v_close,
	.query_device = v_query_device,
	.query_port = v_query_port,
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

static void keep(const struct transport_message *m)
{
	assert_true(lab->n_told < TOLD_MAX);
	lab->told[lab->n_told++] = *m;
	if (m->type == RDMA_PATHS || m->type == RDMA_QP_UP)
		free(m->arg);
	if (m->type == RDMA_STAGING) {
		rail_keys_unref(lab->staging);
		lab->staging = m->arg;
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
		      void (*fn)(void *arg, dray_handle peer, dray_handle grant, uint64_t offset,
				 uint64_t length),
		      void *arg)
{
	(void)r;
	(void)region;
	fn(arg, PEER, 5, 4096, 8192);
}

void peers_send_ports(struct peers *p, dray_handle peer, const struct dray_vec *ports)
{
	(void)p;
	(void)peer;
	lab->ports++;
	lab->n_ports = ports->n;
}

void peers_send_keys(struct peers *p, dray_handle peer, uint64_t grant,
		     const struct dray_vec *rails)
{
	(void)p;
	(void)peer;
	(void)rails;
	assert_int_equal(grant, 5);
	lab->keys_sent++;
}

int peers_qp_connect(struct peers *p, dray_handle peer, const struct pmsg_qp_connect *m,
		     peer_qp_fn fn, void *arg)
{
	(void)p;
	(void)peer;
	assert_true(lab->n_asked < 16);
	lab->asked[lab->n_asked] = *m;
	lab->asked_fn[lab->n_asked] = fn;
	lab->asked_arg[lab->n_asked++] = arg;
	return 0;
}

int peers_qp_close(struct peers *p, dray_handle peer, uint64_t qp, peer_qp_fn fn, void *arg)
{
	(void)p;
	(void)peer;
	(void)qp;
	lab->close_fn = fn;
	lab->close_arg = arg;
	lab->closes++;
	return 0;
}

void peers_qp_connect_reply(struct peers *p, dray_handle peer, uint64_t request_id,
			    const struct pmsg_qp_connect_reply *m)
{
	(void)p;
	(void)peer;
	(void)request_id;
	assert_int_equal(m->qpn, 17);
	lab->replies++;
}

void peers_qp_connect_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
			     const char *why)
{
	(void)p;
	(void)peer;
	(void)request_id;
	assert_true(code && *why);
	lab->refusals++;
}

void peers_qp_close_reply(struct peers *p, dray_handle peer, uint64_t request_id)
{
	(void)p;
	(void)peer;
	(void)request_id;
	lab->close_replies++;
}

/* Each of ours reaches the one of theirs that has its number. */
int nd_rails_to(const struct nd_source *s, const struct nd_scan *scan,
		const struct nd_remote_port *ports, size_t n_ports, struct nd_rail **ret,
		size_t *ret_n)
{
	size_t n = dray_min(scan->devices.n, n_ports);

	(void)s;
	(void)ports;
	*ret = calloc(n + 1, sizeof(**ret));
	for (size_t i = 0; i < n; i++) {
		(*ret)[i] = (struct nd_rail){
			.device = (uint16_t)i, .remote = (uint16_t)i, .mtu = 4096, .reachable = true
		};
		snprintf((*ret)[i].reason, ND_REASON_MAX, "same subnet");
	}
	*ret_n = n;
	return 0;
}

static void remote_keys(void *arg, dray_handle peer, uint64_t grant, struct rail_keys *keys)
{
	(void)arg;
	(void)peer;
	(void)grant;
	rail_keys_unref(keys);
}

static int worker_node(void *arg, unsigned worker)
{
	(void)arg;
	(void)worker;
	return -1;
}

static void peer_quiet(void *arg, dray_handle peer)
{
	(void)arg;
	assert_int_equal(peer, PEER);
	lab->quiet++;
}

/* --- the lab --------------------------------------------------------------------------------------------- */

/* So many devices of one port each; `active` of them have a link. */
static void see(unsigned devices, unsigned active, uint32_t gid_index)
{
	struct nd_scan *s = calloc(1, sizeof(*s));

	atomic_init(&s->refs, 1);
	s->devices.v = calloc(devices + 1, sizeof(*s->devices.v));
	s->devices.n = devices;
	for (unsigned i = 0; i < devices; i++) {
		struct nd_device *d = &s->devices.v[i];

		snprintf(d->name, sizeof(d->name), "dev%u", i);
		d->index = i;
		d->numa = -1;
		d->n_ports = 1;
		d->ports = calloc(1, sizeof(*d->ports));
		d->ports[0].number = 1;
		d->ports[0].state = i < active ? ND_PORT_ACTIVE : ND_PORT_DOWN;
		d->ports[0].layer = ND_LAYER_ETHERNET;
		d->ports[0].active_mtu = 4096;
		d->ports[0].gids.v = calloc(1, sizeof(struct nd_gid));
		d->ports[0].gids.n = 1;
		d->ports[0].gids.v[0] = (struct nd_gid){ .index = gid_index,
							 .type = ND_GID_ROCE_V2,
							 .gid.s6_addr = { [15] = 1 } };
	}
	rails_follow(lab->rails, s);
	nd_scan_free(s);
}

/* Turns the loop until it holds. */
#define UNTIL(condition)                                \
	do {                                            \
		for (int n_ = 0; !(condition); n_++) {  \
			assert_true(n_ < 2000);         \
			sd_event_run(lab->event, 5000); \
		}                                       \
	} while (0)

static void answered(void *arg, dray_handle region, bool usable, const char *why)
{
	(void)arg;
	(void)region;
	lab->answers++;
	lab->usable = usable;
	snprintf(lab->why, sizeof(lab->why), "%s", why);
}

static int setup(void **state)
{
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
							 .remote_keys = remote_keys,
							 .worker_node = worker_node,
							 .peer_quiet = peer_quiet,
							 .registered = answered },
				   &err),
			 0);
	return 0;
}

static unsigned told(enum rdma_message type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lab->n_told; i++)
		n += lab->told[i].type == type;
	return n;
}

static const struct transport_message *last(enum rdma_message type)
{
	for (unsigned i = lab->n_told; i-- > 0;)
		if (lab->told[i].type == type)
			return &lab->told[i];
	fail_msg("message %d was not sent", (int)type);
	return NULL;
}

static void say(enum rdma_message type, uint64_t id, uint32_t code)
{
	rails_handle_message(lab->rails, 0,
			     &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							  .type = type,
							  .peer = PEER,
							  .id = id,
							  .code = code });
}

/* Workers let go of the completion queues of rails that are down. */
static void let_go(unsigned *said)
{
	for (; *said < lab->n_told; ++*said)
		if (lab->told[*said].type == RDMA_RAIL_DOWN)
			say(RDMA_RAIL_GONE, lab->told[*said].id, 0);
}

static const char *state_of(unsigned device)
{
	char name[8];
	struct rail_info i = { .state = "none" };

	snprintf(name, sizeof(name), "dev%u", device);
	rails_port_info(lab->rails, name, 1, &i);
	return i.state;
}

#define IS(device, text) (!strcmp(state_of(device), text))

/* Everything goes, and nothing of the devices is left. */
static int teardown(void **state)
{
	unsigned said = lab->n_told;

	(void)state;
	if (lab->rails) {
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
	sd_event_unref(lab->event);
	free(lab);
	return 0;
}

static struct region_view *view_new(dray_handle handle, uint64_t base, uint64_t length,
				    uint16_t access)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(v->extents[0]));

	v->o = (struct object_view){ OBJECT_REGION, handle, 1, 1, length, access };
	v->n_extents = 1;
	v->extents[0] = (struct extent_view){ 0, length, (uint8_t *)(uintptr_t)base, -1 };
	return v;
}

static void removed(void *arg)
{
	(void)arg;
	lab->done++;
}

static void remove_region(struct region_view *v)
{
	unsigned done = lab->done;

	rails_region_remove(lab->rails, v->o.handle, removed, NULL);
	UNTIL(lab->done > done);
	free(v);
}

static const char *text_of(const struct region_view *v)
{
	static char buf[512];

	return rails_region_text(lab->rails, v->o.handle, buf, sizeof(buf));
}

/* Told to its worker alone, for all rails that are up; peers reach none of it, and hear nothing of it. */
static void test_staging(void **state)
{
	unsigned said = 0;

	rails_staging_add(lab->rails, 0, (void *)(64 * GIB), 1 << 20);
	assert_int_equal(told(RDMA_STAGING), 0);
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up") && lab->staging && lab->staging->rails == 3);
	assert_int_equal(dev.last_access, IBV_ACCESS_LOCAL_WRITE);
	assert_non_null(rail_keys_find(lab->staging, 1, 64 * GIB + (1 << 20) - 1));
	assert_null(rail_keys_find(lab->staging, 1, 64 * GIB + (1 << 20)));
	assert_int_equal(lab->published + lab->keys_sent, 0);
	/* a device that has gone waits for whoever has keys of it */
	see(1, 1, 3);
	UNTIL(lab->staging->rails == 1);
	UNTIL((let_go(&said), dev.contexts == 1));
	see(2, 2, 3);
	UNTIL(IS(1, "up") && lab->staging->rails == 3);
}

static void test_staging_fails(void **state)
{
	dev.reg_error = -ENOMEM;
	rails_staging_add(lab->rails, 0, (void *)(64 * GIB), 1 << 20);
	see(1, 1, 3);
	UNTIL(rails_metric(lab->rails, DRAY_METRIC_REGISTRATION_FAILURES_TOTAL) == 1);
	assert_int_equal(told(RDMA_STAGING), 0);
}

/* --- rails ------------------------------------------------------------------------------------------------ */

static void test_up_and_down(void **state)
{
	see(2, 1, 3);
	UNTIL(IS(0, "up"));
	assert_true(IS(1, "absent"));
	assert_int_equal(told(RDMA_RAIL_UP), 1);
	assert_int_equal(rails_metric(lab->rails, DRAY_METRIC_RAILS_UP), 1);
	see(2, 2, 3);
	UNTIL(IS(1, "up"));
	see(2, 1, 3);
	assert_true(IS(1, "down"));
	assert_int_equal(dev.contexts, 2);
	see(2, 2, 3);
	assert_true(IS(1, "up"));
	assert_int_equal(rails_metric(lab->rails, DRAY_METRIC_RAILS_LOST_TOTAL), 1);
}

/* By an operator: like a port that is down, until it is taken back, whatever is found meanwhile. */
static void test_disabled(void **state)
{
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, true), 0);
	assert_true(IS(1, "down"));
	see(2, 2, 3);
	assert_true(IS(1, "down"));
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, true), 0);
	assert_int_equal(rails_disable(lab->rails, "dev1", 2, true), -ENOENT);
	assert_int_equal(rails_disable(lab->rails, "dev7", 1, false), -ENOENT);
	assert_int_equal(rails_disable(lab->rails, "dev1", 1, false), 0);
	assert_true(IS(1, "up"));
	/* one that is not there hears of it when it comes back */
	assert_int_equal(rails_disable(lab->rails, "dev0", 1, true), 0);
	see(0, 0, 0);
	UNTIL(told(RDMA_RAIL_DOWN) == 2);
	say(RDMA_RAIL_GONE, 0, 0);
	say(RDMA_RAIL_GONE, 1, 0);
	UNTIL(IS(0, "absent") && IS(1, "absent"));
	see(2, 2, 3);
	UNTIL(IS(1, "up"));
	assert_true(IS(0, "absent"));
	assert_int_equal(rails_disable(lab->rails, "dev0", 1, false), 0);
	UNTIL(IS(0, "up"));
}

static void test_open_fails_then_not(void **state)
{
	dev.open_error = -EACCES;
	see(1, 1, 3);
	UNTIL(IS(0, "failed"));
	dev.open_error = 0;
	UNTIL(IS(0, "up"));
	assert_int_equal(dev.contexts, 1);
}

static void test_device_gone_and_back(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	uint32_t key;

	rails_region_add(lab->rails, v, NULL);
	see(1, 1, 3);
	UNTIL(lab->keys);
	key = lab->keys->v[0].key;
	see(0, 0, 0);
	assert_true(IS(0, "closing"));
	assert_null(lab->keys);
	UNTIL(told(RDMA_RAIL_DOWN) == 1);
	say(RDMA_RAIL_GONE, 0, 0);
	UNTIL(IS(0, "absent"));
	assert_int_equal(dev.contexts, 0);
	see(1, 1, 3);
	UNTIL(lab->keys);
	assert_int_not_equal(lab->keys->v[0].key, key);
	remove_region(v);
}

/* --- registration -------------------------------------------------------------------------------------------- */

static void test_slices(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, 10 * GIB + 5, DMSG_ACCESS_ALL);
	uint8_t buf[8 * PMSG_RAIL_SIZE];
	struct pmsg_rail w;

	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	rails_region_add(lab->rails, v, NULL);
	assert_true(strstr(text_of(v), "pending") != NULL);
	UNTIL(lab->keys && lab->keys->rails == 3);
	assert_int_equal(lab->keys->n, 6);
	assert_true(dev.largest <= 3584ull << 20);
	assert_string_equal(text_of(v), "dev0: registered; dev1: registered");
	assert_int_equal(rails_metric(lab->rails, DRAY_METRIC_MEMORY_REGIONS), 6);
	assert_int_equal(rails_metric(lab->rails, DRAY_METRIC_MEMORY_REGION_BYTES),
			 2 * (10 * GIB + 5));
	/* a range that crosses from one to the next */
	assert_int_equal(rails_grant_keys(lab->rails, REGION(1), 3 * GIB, GIB, buf, 8), 4);
	pmsg_rail_get(buf, &w);
	assert_int_equal(w.base, 4 * GIB);
	assert_int_equal(w.offset, 0);
	assert_int_equal(w.length, GIB / 2);
	pmsg_rail_get(buf + PMSG_RAIL_SIZE, &w);
	assert_int_equal(w.offset, GIB / 2);
	assert_true(w.rkey > 1000);
	/* rails are told whole or not at all */
	assert_int_equal(rails_grant_keys(lab->rails, REGION(1), 3 * GIB, GIB, buf, 3), 2);
	assert_int_equal(rails_grant_keys(lab->rails, REGION(2), 0, 1, buf, 8), 0);
	remove_region(v);
	assert_int_equal(dev.mrs, 2);
}

static void test_shared(void **state)
{
	struct region_view *a = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct region_view *b = view_new(REGION(2), GIB, GIB, DMSG_ACCESS_ALL);
	struct region_view *c = view_new(REGION(3), GIB + 4096, 8192, DMSG_ACCESS_ALL);
	struct region_view *d = view_new(REGION(4), GIB, GIB, DMSG_ACCESS_READ);

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_region_add(lab->rails, a, NULL);
	rails_region_add(lab->rails, b, NULL);
	rails_region_add(lab->rails, c, NULL);
	UNTIL(strstr(text_of(c), "registered"));
	assert_int_equal(dev.registered, 1);
	rails_region_add(lab->rails, d, NULL);
	UNTIL(strstr(text_of(d), "registered"));
	assert_int_equal(dev.registered, 2);
	remove_region(a);
	remove_region(b);
	assert_int_equal(dev.mrs, 3);
	assert_string_equal(text_of(c), "dev0: registered");
	remove_region(c);
	remove_region(d);
	assert_int_equal(dev.mrs, 1);
}

/* Nothing is deregistered as long as somebody may post with it. */
static void test_keys_in_use(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	struct rail_keys *held;

	see(1, 1, 3);
	rails_region_add(lab->rails, v, NULL);
	UNTIL(lab->keys);
	held = rail_keys_ref(lab->keys);
	rails_region_remove(lab->rails, REGION(1), removed, NULL);
	assert_null(lab->keys);
	for (int i = 0; i < 20; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->done, 0);
	assert_int_equal(dev.mrs, 2);
	rail_keys_unref(held);
	UNTIL(lab->done == 1);
	assert_int_equal(dev.mrs, 1);
	free(v);
}

static void test_revoked(void **state)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, DMSG_ACCESS_ALL);
	uint32_t key;

	see(1, 1, 3);
	rails_region_add(lab->rails, v, NULL);
	UNTIL(lab->keys);
	key = lab->keys->v[0].key;
	rails_region_revoked(lab->rails, REGION(1));
	assert_null(lab->keys);
	UNTIL(lab->keys);
	assert_int_not_equal(lab->keys->v[0].key, key);
	assert_int_equal(dev.mrs, 2);
	remove_region(v);
}

static void refused(int error, uint16_t access, int dmabuf, const char *text)
{
	struct region_view *v = view_new(REGION(1), GIB, GIB, access);
	const struct region_dmabuf at = { dmabuf, 8192 };

	dev.reg_error = error;
	rails_region_add(lab->rails, v, dmabuf < 0 ? NULL : &at);
	UNTIL(!strstr(text_of(v), "pending"));
	if (!strstr(text_of(v), text))
		fail_msg("\"%s\" instead of \"%s\"", text_of(v), text);
	assert_null(lab->keys);
	remove_region(v);
	dev.reg_error = 0;
}

static void test_causes(void **state)
{
	struct rlimit former, small = { 1 << 20, 1 << 20 };

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &former), 0);
	small.rlim_max = former.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
	refused(-ENOMEM, DMSG_ACCESS_ALL, -1, "1048576 KiB asked for");
	refused(-ENOMEM, DMSG_ACCESS_ALL, -1, "a limit of 1024 KiB");
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &former), 0);
	refused(-EFAULT, DMSG_ACCESS_READ, -1, "mapped for reading only");
	refused(-EFAULT, DMSG_ACCESS_ALL, -1, "Bad address");
	refused(-EOPNOTSUPP, DMSG_ACCESS_ALL, 0, "lack DMA-BUF");
	refused(-EPERM, DMSG_ACCESS_ALL, -1, "permission is denied");
	refused(-ENOSPC, DMSG_ACCESS_ALL, -1, "100 memory regions");
	assert_int_equal(rails_metric(lab->rails, DRAY_METRIC_REGISTRATION_FAILURES_TOTAL), 7);
}

static struct region_view *dmabuf_view(dray_handle handle)
{
	struct region_view *v = view_new(handle, GIB, 5 * GIB, DMSG_ACCESS_ALL);

	v->memory = REGION_RDMA;
	return v;
}

/* Whoever added it hears once what became of it, whenever devices come. */
static void test_dmabuf(void **state)
{
	const struct region_dmabuf at = { 7, 12288 }, none = { -1, 0 };
	struct region_view *v = dmabuf_view(REGION(1));

	rails_region_add(lab->rails, v, &at);
	for (int i = 0; i < 10; i++)
		sd_event_run(lab->event, 1000);
	assert_int_equal(lab->answers, 0);
	see(1, 1, 3);
	UNTIL(lab->answers == 1);
	assert_true(lab->usable);
	assert_non_null(lab->keys);
	assert_int_equal(dev.last_fd, 7);
	assert_int_equal(dev.last_offset, 12288 + (3584ull << 20));
	remove_region(v);
	/* those of the same memory have nothing in common, and one that fails is told of */
	dev.reg_error = -EOPNOTSUPP;
	v = dmabuf_view(REGION(2));
	rails_region_add(lab->rails, v, &at);
	UNTIL(lab->answers == 2);
	assert_false(lab->usable);
	assert_non_null(strstr(lab->why, "dev0: kernel or device lack DMA-BUF"));
	assert_null(lab->keys);
	remove_region(v);
	dev.reg_error = 0;
	/* who is gone before that hears nothing */
	v = dmabuf_view(REGION(3));
	rails_region_add(lab->rails, v, &at);
	remove_region(v);
	assert_int_equal(lab->answers, 2);
	/* GPU memory that the driver gives no DMA-BUF for has no keys */
	v = dmabuf_view(REGION(4));
	v->memory = REGION_GPU;
	rails_region_add(lab->rails, v, &none);
	assert_string_equal(text_of(v), "");
	assert_null(lab->keys);
	remove_region(v);
	assert_int_equal(dev.mrs, 1);
}

static void test_dmabuf_without_devices(void **state)
{
	const struct region_dmabuf at = { 7, 0 };
	struct region_view *v = dmabuf_view(REGION(1));

	see(0, 0, 0);
	rails_region_add(lab->rails, v, &at);
	assert_int_equal(lab->answers, 0);
	UNTIL(lab->answers == 1);
	assert_false(lab->usable);
	assert_string_equal(lab->why, "this agent has none");
	remove_region(v);
}

/* --- queue pairs ------------------------------------------------------------------------------------------------ */

static void meet(unsigned ports)
{
	uint8_t buf[4 * PMSG_PORT_SIZE];

	for (unsigned i = 0; i < ports; i++)
		pmsg_port_put(
			buf + (size_t)i * PMSG_PORT_SIZE,
			&(struct pmsg_port){ .rail = i, .mtu = 4096, .gid_type = 2, .layer = 2 });
	rails_peer_up(lab->rails, PEER, true);
	rails_peer_ports(lab->rails, PEER, &(struct dray_vec){ buf, ports });
	UNTIL(told(RDMA_PATHS) > 0);
}

static void answer_all(uint32_t code)
{
	for (unsigned i = 0; i < lab->n_asked; i++) {
		struct pmsg_qp_connect_reply m = { .qpn = 9, .mtu = 4096, .reads = 16 };

		lab->asked_fn[i](lab->asked_arg[i], code, &m);
	}
	lab->n_asked = 0;
}

static void part(void)
{
	rails_peer_down(lab->rails, PEER);
	for (unsigned i = 0, n = lab->n_told; i < n; i++)
		if (lab->told[i].type == RDMA_QP_UP)
			say(RDMA_QP_LOST, lab->told[i].id, RDMA_LOSS_PEER);
	UNTIL(dev.qps == 0);
}

static void test_connect(void **state)
{
	uint64_t id;

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	assert_true(lab->n_ports == 1);
	assert_int_equal(dev.qps, 0);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	assert_int_equal(lab->asked[0].qpn, 17);
	assert_int_equal(lab->asked[0].reads, 4);
	answer_all(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	/* one is lost: dead when both ends are, and then made anew */
	id = last(RDMA_QP_UP)->id;
	say(RDMA_QP_LOST, id, IBV_WC_RETRY_EXC_ERR);
	UNTIL(dev.qps == 2 && lab->closes == 1);
	assert_int_equal(told(RDMA_QP_DEAD), 0);
	lab->close_fn(lab->close_arg, 0, NULL);
	UNTIL(told(RDMA_QP_DEAD) == 1);
	assert_int_equal(last(RDMA_QP_DEAD)->id, id);
	UNTIL(lab->n_asked == 1);
	answer_all(0);
	UNTIL(told(RDMA_QP_UP) == 4);
	assert_int_equal(told(RDMA_UNREACHABLE), 0);
	part();
}

static void test_connect_fails(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	dev.create_error = -ENOMEM;
	say(RDMA_WANTED, 0, 0);
	UNTIL(told(RDMA_UNREACHABLE) == 2);
	/* it goes on trying, and says so once */
	dev.create_error = 0;
	UNTIL(lab->n_asked == 3);
	answer_all(DRAY_E_QUOTA);
	UNTIL(lab->closes == 3);
	part();
}

static void note_reason(void *arg, const struct path_info *info)
{
	snprintf(arg, 256, "%s", info->reason);
}

/* A completion queue ends at max_cqe: the last queue pair has less depth. */
static void test_completion_queue_short(void **state)
{
	dev.max_cqe = 1024 + 1024 + 100;
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	assert_int_equal(dev.least_depth, 100);
	answer_all(0);
	UNTIL(told(RDMA_QP_UP) == 3);
	part();
}

/* One that would have next to none is not made, and the path says why. */
static void test_completion_queue_full(void **state)
{
	char why[256] = "";

	dev.max_cqe = 1024 + 10;
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 1);
	rails_each_path(lab->rails, note_reason, why);
	assert_non_null(strstr(why, "max_cqe is 1034"));
	assert_non_null(strstr(why, "rdma.queue_depth"));
	/* bulk goes elsewhere, and nobody else does */
	UNTIL(told(RDMA_UNREACHABLE) == 1);
	assert_int_equal(last(RDMA_UNREACHABLE)->id, DMSG_CLASS_BULK);
	answer_all(0);
	UNTIL(told(RDMA_QP_UP) == 1);
	part();
}

static void test_modify_fails(void **state)
{
	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	meet(1);
	dev.modify_error = -ETIMEDOUT;
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 3);
	answer_all(0);
	UNTIL(lab->closes == 3);
	assert_int_equal(told(RDMA_QP_UP), 0);
	dev.modify_error = 0;
	part();
}

static void test_rail_lost(void **state)
{
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up"));
	meet(2);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 6);
	answer_all(0);
	UNTIL(told(RDMA_QP_UP) == 6);
	see(2, 1, 3);
	assert_int_equal(told(RDMA_QP_LOSE), 3);
	assert_int_equal(lab->n_ports, 1);
	/* and when its GID has moved */
	see(2, 1, 5);
	assert_int_equal(told(RDMA_QP_LOSE), 6);
	part();
}

static void test_serve(void **state)
{
	struct pmsg_qp_connect m = {
		.qp = 4, .rail = 0, .to_rail = 0, .qpn = 3, .mtu = 1024, .reads = 99, .class = 0
	};

	see(1, 1, 3);
	UNTIL(IS(0, "up"));
	rails_peer_connect(lab->rails, PEER, 1, &m);
	assert_int_equal(lab->refusals, 1); /* nobody has met it */
	meet(1);
	rails_peer_connect(lab->rails, PEER, 1, &m);
	UNTIL(lab->replies == 1);
	rails_peer_connect(lab->rails, PEER, 2, &m);
	assert_int_equal(lab->refusals, 2); /* the id is in use */
	m.qp = 5;
	m.to_rail = 9;
	rails_peer_connect(lab->rails, PEER, 3, &m);
	m.to_rail = 0;
	m.mtu = 1;
	rails_peer_connect(lab->rails, PEER, 4, &m);
	m.mtu = 1024;
	assert_int_equal(lab->refusals, 4);
	dev.create_error = -ENOMEM;
	rails_peer_connect(lab->rails, PEER, 5, &m);
	UNTIL(lab->refusals == 5);
	dev.create_error = 0;
	UNTIL(rails_metric(lab->rails, DRAY_METRIC_RDMA_SERVING_QUEUE_PAIRS) == 1);
	rails_peer_close(lab->rails, PEER, 6, 77);
	assert_int_equal(lab->close_replies, 1);
	rails_peer_close(lab->rails, PEER, 7, 4);
	assert_int_equal(lab->close_replies, 1);
	UNTIL(lab->close_replies == 2);
	assert_int_equal(dev.qps, 0);
	/* the peer is lost with one: it is dead before the peer's grants go */
	rails_peer_connect(lab->rails, PEER, 8, &m);
	UNTIL(lab->replies == 2);
	assert_true(rails_peer_down(lab->rails, PEER));
	assert_int_equal(lab->quiet, 0);
	UNTIL(lab->quiet == 1);
	assert_int_equal(dev.qps, 0);
}

/* At the end of the agent all of it goes at once, whatever is under way. */
static void test_end_with_all_up(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000, 1 << 20, DMSG_ACCESS_ALL);
	struct pmsg_qp_connect m = {
		.qp = 4, .rail = 0, .to_rail = 0, .qpn = 3, .mtu = 1024, .reads = 1, .class = 0
	};

	rails_region_add(lab->rails, v, NULL);
	see(2, 2, 3);
	UNTIL(IS(0, "up") && IS(1, "up") && lab->keys);
	meet(2);
	say(RDMA_WANTED, 0, 0);
	UNTIL(lab->n_asked == 6);
	answer_all(0);
	rails_peer_connect(lab->rails, PEER, 1, &m);
	UNTIL(lab->replies == 1 && told(RDMA_QP_UP));
	/* some of these jobs will have been run, and their results never looked at */
	say(RDMA_QP_LOST, last(RDMA_QP_UP)->id, IBV_WC_RETRY_EXC_ERR);
	rails_region_remove(lab->rails, v->o.handle, removed, NULL);
	lab->rails = rails_free(lab->rails);
	assert_int_equal(dev.contexts + dev.mrs + dev.qps + dev.cqs + dev.pds + dev.channels, 0);
	free(v);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(staging),
		TEST(staging_fails),
		TEST(up_and_down),
		TEST(disabled),
		TEST(open_fails_then_not),
		TEST(device_gone_and_back),
		TEST(slices),
		TEST(shared),
		TEST(keys_in_use),
		TEST(revoked),
		TEST(causes),
		TEST(dmabuf),
		TEST(dmabuf_without_devices),
		TEST(connect),
		TEST(connect_fails),
		TEST(completion_queue_short),
		TEST(completion_queue_full),
		TEST(modify_fails),
		TEST(rail_lost),
		TEST(serve),
		TEST(end_with_all_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
