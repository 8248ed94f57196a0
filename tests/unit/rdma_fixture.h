/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport rdma on simulated devices: libibverbs' fast calls go through the context's table, which
 * this fixture fills. It checks posted requests against the keys, and carries them out when the
 * test calls for it. Included by one source file of a program.
 */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/data/transport/local/local.h"
#include "agent/data/transport/rdma/rdma.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define BYTES (8u << 20)
#define PIECE (BYTES / 4) /* of the region, in memory that is not in order */
#define SESSION (1ull << 32 | 1)
#define REGION (1ull << 32 | 3)
#define REMOTE (1ull << 32 | 5)
#define PEER (1ull << 32 | 6)
#define GRANT 99
#define RAILS 2
#define POSTED_MAX 4096
#define FLUSH_KEY 555
#define LKEY(rail) (100u + (rail))
#define RKEY(rail) (200u + (rail))

struct posted {
	struct ibv_send_wr wr;
	struct ibv_sge sge[RDMA_SGES];
	uint8_t inlined[RDMA_INLINE];
};

struct fake_qp {
	struct ibv_qp qp; /* must be the first member */
	struct posted *q;
	unsigned head, tail;
	unsigned lists; /* doorbells */
	int fail;       /* error of the next post */
	struct fake_rail *rail;
};

struct fake_rail {
	struct ibv_context context;
	struct ibv_cq cq;
	struct ibv_comp_channel channel;
	struct rdma_cq for_worker;
	struct ibv_wc wc[POSTED_MAX];
	unsigned n_wc, armed;
	struct rdma_counters counters;
};

struct lab {
	struct rig rig;
	struct rig_session s;
	struct rig_region local;
	struct remote_view remote;
	struct peer_link link;
	struct fake_rail rails[RAILS];
	struct fake_qp qps[8];
	unsigned n_qps;
	struct rdma_counters path;
	uint8_t *there; /* the peer's memory */
	uint64_t flush;
	unsigned flushes;
	bool soft_roce;
	dray_handle from, to; /* local region and remote of submitted transfers */
	struct dray_list adopted;
	struct channel spare;
	bool spare_open;
	bool own; /* transfers are the agent's own */
};

static struct lab *lab;

static void *rdma(void)
{
	return lab->rig.core.transport_state[0];
}

static void message_code(enum rdma_command type, uint64_t id, uint32_t code, void *arg)
{
	transport_rdma.message(&lab->rig.core, rdma(),
			       &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							    .type = type,
							    .peer = PEER,
							    .id = id,
							    .code = code,
							    .arg = arg });
}

static void message(enum rdma_command type, uint64_t id, void *arg)
{
	message_code(type, id, 0, arg);
}

static int fake_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *f = (struct fake_qp *)(void *)qp;

	f->lists++;
	for (; wr; wr = wr->next) {
		struct posted *p = &f->q[f->tail % POSTED_MAX];

		if (f->fail) {
			*bad = wr;
			return f->fail;
		}
		assert_true(wr->num_sge >= 1 && wr->num_sge <= (int)RDMA_SGES);
		p->wr = *wr;
		memcpy(p->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(p->sge[0]));
		if (wr->send_flags & IBV_SEND_INLINE)
			memcpy(p->inlined, (void *)(uintptr_t)wr->sg_list[0].addr,
			       wr->sg_list[0].length);
		f->tail++;
	}
	return 0;
}

static int fake_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct fake_rail *rail = dray_container_of(cq, struct fake_rail, cq);
	unsigned k = dray_min((unsigned)n, rail->n_wc);

	memcpy(wc, rail->wc, k * sizeof(*wc));
	memmove(rail->wc, rail->wc + k, (rail->n_wc - k) * sizeof(*wc));
	rail->n_wc -= k;
	return (int)k;
}

static int fake_notify(struct ibv_cq *cq, int solicited)
{
	assert_int_equal(solicited, 0);
	dray_container_of(cq, struct fake_rail, cq)->armed++;
	return 0;
}

static void complete(struct fake_qp *f, const struct posted *p, enum ibv_wc_status status)
{
	struct fake_rail *rail = f->rail;

	if (status == IBV_WC_SUCCESS && !(p->wr.send_flags & IBV_SEND_SIGNALED))
		return;
	rail->wc[rail->n_wc++] = (struct ibv_wc){ .wr_id = p->wr.wr_id, .status = status };
}

static void carry_out(struct fake_qp *f, const struct posted *p)
{
	unsigned rail = (unsigned)(f->rail - lab->rails);
	uint8_t *at = (uint8_t *)(uintptr_t)p->wr.wr.rdma.remote_addr;
	bool write = p->wr.opcode == IBV_WR_RDMA_WRITE;

	if (p->wr.wr.rdma.rkey == FLUSH_KEY || p->sge[0].addr == (uintptr_t)&lab->flush) {
		assert_false(write);
		lab->flushes++;
		return;
	}
	assert_int_equal(p->wr.wr.rdma.rkey, RKEY(rail));
	for (int i = 0; i < p->wr.num_sge; i++) {
		uint8_t *here = (uint8_t *)(uintptr_t)p->sge[i].addr;

		assert_true(at >= lab->there && at + p->sge[i].length <= lab->there + BYTES);
		if (p->wr.send_flags & IBV_SEND_INLINE) {
			memcpy(at, p->inlined, p->sge[i].length);
		} else {
			assert_int_equal(p->sge[i].lkey, LKEY(rail));
			memcpy(write ? at : here, write ? here : at, p->sge[i].length);
		}
		at += p->sge[i].length;
	}
}

/* The device carries out up to n posted requests. */
static unsigned run(struct fake_qp *f, unsigned n)
{
	unsigned done = 0;

	for (; f->head != f->tail && done < n; done++) {
		const struct posted *p = &f->q[f->head++ % POSTED_MAX];

		carry_out(f, p);
		complete(f, p, IBV_WC_SUCCESS);
	}
	return done;
}

/* Fails the first pending request and flushes the others. */
static inline void break_down(struct fake_qp *f, enum ibv_wc_status status)
{
	while (f->head != f->tail) {
		complete(f, &f->q[f->head++ % POSTED_MAX], status);
		status = IBV_WC_WR_FLUSH_ERR;
	}
}

static void turn(void)
{
	transport_rdma.progress(&lab->rig.core, rdma());
}

static inline void run_all(void)
{
	for (bool some = true; some;) {
		some = false;
		turn();
		for (unsigned i = 0; i < lab->n_qps; i++)
			some |= run(&lab->qps[i], UINT32_MAX) > 0;
	}
	turn();
}

/* A second transport, which takes over transfers from the first. */
static struct channel *spare_channel(struct core *c, void *state, const struct xfer *x)
{
	(void)c;
	(void)state;
	(void)x;
	return lab->spare_open ? &lab->spare : NULL;
}

static void spare_adopt(struct core *c, void *state, struct channel *ch, struct slice *s)
{
	(void)c;
	(void)state;
	(void)ch;
	dray_list_add(&lab->adopted, &s->link);
}

static void spare_kick(struct core *c, void *state, struct channel *ch)
{
	(void)c;
	(void)state;
	(void)ch;
}

static void spare_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	(void)state;
	(void)x;
	(void)urgent;
	xfer_slices_end(c, &lab->adopted, 0);
}

static const struct transport_ops spare = { .id = DMSG_TRANSPORT_TCP,
					    .channel = spare_channel,
					    .adopt = spare_adopt,
					    .kick = spare_kick,
					    .stop = spare_stop };

static struct rail_keys *local_keys(unsigned rails)
{
	const struct region_view *v = lab->local.view;
	struct rail_keys *k = rail_keys_new(rails * v->n_extents);

	for (unsigned r = 0, at = 0; r < rails; r++)
		for (uint32_t i = 0; i < v->n_extents; i++)
			k->v[at++] = (struct rail_key){ .rail = r,
							.key = LKEY(r),
							.base = (uintptr_t)v->extents[i].base,
							.offset = v->extents[i].start,
							.length = v->extents[i].length };
	rail_keys_seal(k, v->o.length, true);
	return k;
}

/* Two memory regions for each rail, so that pieces end at their boundary. */
static struct rail_keys *remote_keys(unsigned rails)
{
	struct rail_keys *k = rail_keys_new(2 * rails);

	for (unsigned r = 0; r < rails; r++)
		for (unsigned i = 0; i < 2; i++)
			k->v[2 * r + i] =
				(struct rail_key){ .rail = r,
						   .key = RKEY(r),
						   .base = (uintptr_t)lab->there + i * 3000000ull,
						   .offset = i * 3000000ull,
						   .length = i ? BYTES - 3000000 : 3000000 };
	rail_keys_seal(k, BYTES, false);
	return k;
}

/* The bytes of both sides before a test. */
static uint8_t patterns[2][BYTES];

static void patterns_make(void)
{
	if (!patterns[0][1])
		for (unsigned i = 0; i < BYTES; i++) {
			patterns[0][i] = (uint8_t)(i * 7 + i / 4096);
			patterns[1][i] = (uint8_t)(i * 5 + i / 4096);
		}
}

static int setup(void **state)
{
	struct core *c;

	lab = calloc(1, sizeof(*lab));
	assert_non_null(lab);
	lab->from = REGION;
	lab->to = REMOTE;
	c = &lab->rig.core;
	rig_init(&lab->rig);
	transport_local.deinit(c, c->transport_state[0]);
	c->transports[0] = &transport_rdma;
	c->transports[1] = &spare;
	c->n_transports = 2;
	channel_init(&lab->spare, &spare, DMSG_CLASS_BULK, NULL);
	dray_list_init(&lab->adopted);
	assert_int_equal(transport_rdma.init(c, &c->transport_state[0]), 0);
	rig_session_init(&lab->rig, &lab->s, SESSION);
	rig_region_init(&lab->rig, &lab->local, REGION, SESSION, BYTES, BYTES / PIECE);
	lab->there = calloc(1, BYTES);
	patterns_make();
	for (uint64_t at = 0; at < BYTES; at += PIECE)
		memcpy(rig_at(&lab->local, at), patterns[0] + at, PIECE);
	memcpy(lab->there, patterns[1], BYTES);
	lab->remote.o =
		(struct object_view){ OBJECT_REMOTE, REMOTE, 77, SESSION, BYTES, DMSG_ACCESS_ALL };
	lab->remote.peer = PEER;
	lab->remote.grant = GRANT;
	object_publish(c, &lab->remote.o);
	lab->link.peer = PEER;
	transport_rdma.peer_up(c, rdma(), &lab->link);
	for (unsigned i = 0; i < RAILS; i++) {
		struct fake_rail *r = &lab->rails[i];

		r->context.ops.post_send = fake_post;
		r->context.ops.poll_cq = fake_poll;
		r->context.ops.req_notify_cq = fake_notify;
		r->cq.context = &r->context;
		r->channel.fd = eventfd(0, EFD_NONBLOCK);
		r->for_worker = (struct rdma_cq){ &r->cq, &r->channel };
		message(RDMA_RAIL_UP, i, &r->for_worker);
	}
	return 0;
}

static int teardown(void **state)
{
	struct core *c = &lab->rig.core;

	(void)state;
	assert_int_equal(lab->rig.counters.v[DRAY_METRIC_TRANSFERS_IN_FLIGHT], 0);
	assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 0);
	xfer_session_deinit(&lab->s.xs);
	channel_deinit(&lab->spare);
	transport_rdma.deinit(c, rdma());
	stage_deinit(c);
	xfers_deinit(c);
	objects_deinit(c);
	loop_deinit(&c->loop);
	rig_region_deinit(&lab->local);
	for (unsigned i = 0; i < RAILS; i++)
		close(lab->rails[i].channel.fd);
	for (unsigned i = 0; i < lab->n_qps; i++)
		free(lab->qps[i].q);
	free(lab->there);
	free(lab);
	return 0;
}

static void set_keys(unsigned local, unsigned remote)
{
	object_set_keys(&lab->rig.core, OBJECT_REGION, REGION, local ? local_keys(local) : NULL);
	object_set_keys(&lab->rig.core, OBJECT_REMOTE, REMOTE, remote ? remote_keys(remote) : NULL);
}

static void set_paths(unsigned n)
{
	struct rdma_paths *p = calloc(1, sizeof(*p) + n * sizeof(p->v[0]));

	for (; p->n < n; p->n++)
		p->v[p->n] = (struct rdma_pair){ p->n, p->n };
	message(RDMA_PATHS, 0, p);
}

static struct fake_qp *add_qp(unsigned rail, enum dmsg_class class, uint32_t depth,
			      uint32_t inlined)
{
	struct fake_qp *f = &lab->qps[lab->n_qps];
	struct rdma_qp *q = calloc(1, sizeof(*q));

	f->q = calloc(POSTED_MAX, sizeof(*f->q));
	f->rail = &lab->rails[rail];
	f->qp.context = &lab->rails[rail].context;
	*q = (struct rdma_qp){ .id = ++lab->n_qps,
			       .qp = &f->qp,
			       .path = { rail, rail },
			       .rank = rail,
			       .class = class,
			       .depth = depth,
			       .sges = 4,
			       .inline_bytes = inlined,
			       .write_max = 1 << 20,
			       .read_max = 1 << 20,
			       .soft_roce = lab->soft_roce,
			       .flush_rkey = FLUSH_KEY,
			       .flush_lkey = 1,
			       .flush_local = (uintptr_t)&lab->flush,
			       .path_counters = &lab->path,
			       .rail_counters = &lab->rails[rail].counters };
	message(RDMA_QP_UP, q->id, q);
	return f;
}

/* One rail, one queue pair. */
static inline struct fake_qp *simple(uint32_t depth)
{
	set_keys(1, 1);
	set_paths(1);
	return add_qp(0, DMSG_CLASS_BULK, depth, 0);
}

static void own_ended(struct core *c, struct xfer *x)
{
}

static uint64_t submit(enum dmsg_direction way, const uint64_t (*ops)[3], uint32_t n, bool notify)
{
	static uint64_t id;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = ++id,
				  .spec.direction = (uint8_t)way,
				  .spec.local = lab->from,
				  .spec.remote = lab->to,
				  .spec.flags = notify ? DMSG_TRANSFER_FLAG_NOTIFY : 0,
				  .notify = (const uint8_t *)"",
				  .ended = lab->own ? own_ended : NULL };

	assert_int_equal(rig_submit(&lab->rig, &lab->s, &r, ops, n, &err), 0);
	return id;
}

/* Operations of 100 bytes, not adjacent on either side; freed by the caller. */
static inline uint64_t (*scattered(unsigned n))[3]
{
	uint64_t(*ops)[3] = calloc(n, sizeof(*ops));

	for (unsigned i = 0; i < n; i++)
		memcpy(ops[i], (const uint64_t[3]){ i * 300, i * 500, 100 }, sizeof(ops[i]));
	return ops;
}

static inline uint64_t write_all(uint64_t bytes)
{
	return submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, bytes } }, 1, false);
}

static inline void assert_same(uint64_t from, uint64_t to, uint64_t bytes)
{
	uint64_t n;

	for (uint64_t i = 0; i < bytes; i += n) {
		n = dray_min(bytes - i, PIECE - (from + i) % PIECE);
		if (memcmp(rig_at(&lab->local, from + i), lab->there + to + i, n))
			fail_msg("a byte from %llu to %llu of %llu differs", (unsigned long long)i,
				 (unsigned long long)(i + n), (unsigned long long)bytes);
	}
}

static inline const struct rig_end *last(void)
{
	assert_true(lab->rig.n_ended > 0);
	return &lab->rig.ended[lab->rig.n_ended - 1];
}

static inline unsigned told(enum rdma_event type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lab->rig.n_told; i++)
		n += lab->rig.told[i].type == type;
	return n;
}

static inline uint64_t counted(enum dray_metric m)
{
	return lab->rig.counters.v[m];
}

static inline void stop_all(uint32_t code, bool urgent)
{
	dray_list_for_each(&lab->s.xs.xfers, x, struct xfer, session_link)
		xfer_stop(&lab->rig.core, x, code, NULL, urgent);
}
