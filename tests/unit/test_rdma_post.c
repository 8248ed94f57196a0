/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport rdma over devices that are functions here: libibverbs' fast calls go through a context's table,
 * which this test fills. What is posted is checked against the keys and carried out when the test says so.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/transport/rdma.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define BYTES (8u << 20)
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
	struct ibv_qp qp; /* first */
	struct posted *q;
	unsigned head, tail;
	unsigned lists; /* doorbells */
	int fail;       /* the next post fails with this */
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
	struct dray_list adopted;
	struct channel spare;
	bool spare_open;
};

static struct lab *lab;

static void *rdma(void)
{
	return lab->rig.core.transport_state[0];
}

static void message(enum rdma_message type, uint64_t id, void *arg)
{
	transport_rdma.message(&lab->rig.core, rdma(),
			       &(struct transport_message){ .transport = DMSG_TRANSPORT_RDMA,
							    .type = type,
							    .peer = PEER,
							    .id = id,
							    .arg = arg });
}

/* --- the device --------------------------------------------------------------------------------- */

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

/* The device does up to n of what was posted. */
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

/* The first that is left fails, the others are flushed. */
static void break_down(struct fake_qp *f, enum ibv_wc_status status)
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

static void run_all(void)
{
	for (bool some = true; some;) {
		some = false;
		turn();
		for (unsigned i = 0; i < lab->n_qps; i++)
			some |= run(&lab->qps[i], UINT32_MAX) > 0;
	}
	turn();
}

/* --- the lab ------------------------------------------------------------------------------------- */

/* A second transport, which takes over what the first gives up. */
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

static const struct transport_ops spare = { .name = "spare",
					    .id = DMSG_TRANSPORT_TCP,
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

/* Two memory regions for each rail, so that pieces end in the middle. */
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

static int setup(void **state)
{
	struct core *c;

	lab = calloc(1, sizeof(*lab));
	assert_non_null(lab);
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
	rig_region_init(&lab->rig, &lab->local, REGION, SESSION, BYTES, 4);
	lab->there = calloc(1, BYTES);
	for (unsigned i = 0; i < BYTES; i++) {
		*rig_at(&lab->local, i) = (uint8_t)(i * 7 + i / 4096);
		lab->there[i] = (uint8_t)(i * 5 + i / 4096);
	}
	lab->remote.o =
		(struct object_view){ OBJECT_REMOTE, REMOTE, 77, SESSION, BYTES, DMSG_ACCESS_ALL };
	lab->remote.peer = PEER;
	lab->remote.grant = GRANT;
	assert_int_equal(object_publish(c, &lab->remote.o), 0);
	lab->link.peer = PEER;
	assert_int_equal(transport_rdma.peer_up(c, rdma(), &lab->link), 0);
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
static struct fake_qp *simple(uint32_t depth)
{
	set_keys(1, 1);
	set_paths(1);
	return add_qp(0, DMSG_CLASS_BULK, depth, 0);
}

static uint64_t submit(enum dmsg_direction way, const uint64_t (*ops)[3], uint32_t n, bool notify)
{
	static uint64_t id;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer_request r = { .request_id = ++id,
				  .direction = (uint8_t)way,
				  .local = REGION,
				  .remote = REMOTE,
				  .flags = notify ? DMSG_TRANSFER_FLAG_NOTIFY : 0,
				  .notify = (const uint8_t *)"" };

	assert_int_equal(rig_submit(&lab->rig, &lab->s, &r, ops, n, &err), 0);
	return id;
}

/* Operations of 100 bytes, apart from each other on both sides; the caller's to free. */
static uint64_t (*scattered(unsigned n))[3]
{
	uint64_t(*ops)[3] = calloc(n, sizeof(*ops));

	for (unsigned i = 0; i < n; i++)
		memcpy(ops[i], (const uint64_t[3]){ i * 300, i * 500, 100 }, sizeof(ops[i]));
	return ops;
}

static uint64_t write_all(uint64_t bytes)
{
	return submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, bytes } }, 1, false);
}

static void assert_same(uint64_t from, uint64_t to, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		if (*rig_at(&lab->local, from + i) != lab->there[to + i])
			fail_msg("byte %llu of %llu differs", (unsigned long long)i,
				 (unsigned long long)bytes);
}

static const struct rig_end *last(void)
{
	assert_true(lab->rig.n_ended > 0);
	return &lab->rig.ended[lab->rig.n_ended - 1];
}

static unsigned told(enum rdma_message type)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lab->rig.n_told; i++)
		n += lab->rig.told[i].type == type;
	return n;
}

static uint64_t counted(enum dray_metric m)
{
	return lab->rig.counters.v[m];
}

/* --- posting --------------------------------------------------------------------------------------- */

static void test_write_and_read(void **state)
{
	static const uint64_t ops[][3] = { { 1, 3, 3000001 },
					   { 3500000, 5000003, 65537 },
					   { 4000000, 6000000, 1 } };

	simple(256);
	submit(DMSG_DIRECTION_WRITE, ops, 3, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_same(ops[i][0], ops[i][1], ops[i][2]);
	memset(lab->there, 0x55, BYTES);
	submit(DMSG_DIRECTION_READ, ops, 3, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_same(ops[i][0], ops[i][1], ops[i][2]);
	assert_int_equal(counted(DRAY_METRIC_RDMA_SENT_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_int_equal(counted(DRAY_METRIC_RDMA_RECEIVED_BYTES_TOTAL), 3000001 + 65537 + 1);
	assert_int_equal(lab->rails[0].counters.slices, lab->path.slices);
}

/* Many small operations: one doorbell for many requests, one completion for each doorbell. */
static void test_lists(void **state)
{
	uint64_t(*ops)[3] = calloc(1024, sizeof(*ops));
	struct fake_qp *f = simple(256);

	for (unsigned i = 0; i < 1024; i++) {
		ops[i][0] = i * 8192;
		ops[i][1] = (1023 - i) * 8192;
		ops[i][2] = 4096;
	}
	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 1024, false);
	run_all();
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 1024; i++)
		assert_same(ops[i][0], ops[i][1], 4096);
	/* two operations cross from one memory region there, or extent here, to the next at most */
	assert_in_range(counted(DRAY_METRIC_RDMA_WORK_REQUESTS_TOTAL), 1024, 1026);
	assert_in_range(f->lists, 16, 17);
	assert_int_equal(counted(DRAY_METRIC_RDMA_COMPLETIONS_TOTAL), f->lists);
	free(ops);
}

struct cost {
	uint64_t posts, requests, completions, polls, arms, inlined;
};

static struct cost cost_now(void)
{
	return (struct cost){ counted(DRAY_METRIC_RDMA_POSTS_TOTAL),
			      counted(DRAY_METRIC_RDMA_WORK_REQUESTS_TOTAL),
			      counted(DRAY_METRIC_RDMA_COMPLETIONS_TOTAL),
			      counted(DRAY_METRIC_RDMA_POLLS_TOTAL),
			      counted(DRAY_METRIC_RDMA_ARMS_TOTAL),
			      counted(DRAY_METRIC_RDMA_INLINED_TOTAL) };
}

/* So many transfers, each of a batch of operations that have no neighbours, to their end. */
static struct cost cost_of(enum dmsg_direction way, unsigned transfers, unsigned batch,
			   uint64_t bytes)
{
	uint64_t(*ops)[3] = calloc(batch, sizeof(*ops));
	/* behind the first memory region there, so that none has to be cut */
	uint64_t first = 3000000 / bytes + 1, slots = BYTES / bytes - first;
	struct cost since = cost_now(), now;

	for (unsigned t = 0; t < transfers; t++) {
		for (unsigned i = 0; i < batch; i++) {
			uint64_t slot = ((uint64_t)t * batch + i) * 2 % (slots | 1);

			ops[i][0] = slot * bytes;
			ops[i][1] = (first + slot % slots) * bytes;
			ops[i][2] = bytes;
		}
		submit(way, (const uint64_t(*)[3])ops, batch, false);
	}
	free(ops);
	run_all();
	now = cost_now();
	return (struct cost){ now.posts - since.posts,
			      now.requests - since.requests,
			      now.completions - since.completions,
			      now.polls - since.polls,
			      now.arms - since.arms,
			      now.inlined - since.inlined };
}

/*
 * A doorbell and a completion for each list of 64 requests, or of 64 KiB where transfers are smaller than a list,
 * whatever the depth of the queue; a queue pair that is full is looked at once for many of them.
 */
static void test_counts(void **state)
{
	static const struct {
		unsigned transfers, batch;
		uint64_t bytes, posts;
	} cases[] = {
		{ 1, 1, 64, 1 },      { 1, 16, 64, 1 },      { 1, 64, 64, 1 },
		{ 1, 256, 64, 4 },    { 1, 1024, 64, 16 },   { 1, 4096, 64, 64 },
		{ 1, 1, 4096, 1 },    { 1, 16, 4096, 1 },    { 1, 64, 4096, 1 },
		{ 1, 256, 4096, 4 },  { 1, 1024, 4096, 16 }, { 1, 4096, 4096, 64 },
		{ 1, 1, 1 << 20, 1 }, { 1, 4, 1 << 20, 4 },  { 64, 1, 64, 1 },
		{ 64, 16, 64, 16 },   { 64, 20, 64, 20 },    { 64, 1, 4096, 4 },
		{ 64, 16, 4096, 64 }, { 64, 64, 64, 64 },    { 8, 1024, 64, 128 },
	};
	static const uint32_t depths[] = { 512, 256, 200 };

	set_keys(1, 1);
	set_paths(1);
	for (unsigned d = 0; d < DRAY_ARRAY_SIZE(depths); d++) {
		add_qp(0, DMSG_CLASS_BULK, depths[d], 64);
		for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++)
			for (unsigned way = DMSG_DIRECTION_WRITE; way <= DMSG_DIRECTION_READ;
			     way++) {
				uint64_t n = cases[i].transfers * cases[i].batch;
				struct cost c = cost_of((enum dmsg_direction)way,
							cases[i].transfers, cases[i].batch,
							cases[i].bytes);

				assert_int_equal(c.requests, n);
				assert_int_equal(c.posts, cases[i].posts);
				assert_int_equal(c.completions, c.posts);
				assert_true(c.polls <= 1 + n / 100);
				assert_int_equal(c.arms, 0);
				assert_int_equal(c.inlined, way == DMSG_DIRECTION_WRITE &&
									    cases[i].bytes <= 64 ?
								    n :
								    0);
			}
		message(RDMA_QP_LOSE, d + 1, NULL);
		message(RDMA_QP_DEAD, d + 1, NULL);
	}
}

/* A queue that is never empty is refilled by whole lists, and looking at completions takes one call. */
static void test_counts_under_way(void **state)
{
	uint64_t(*ops)[3] = scattered(1024);
	struct fake_qp *f = simple(200);
	struct cost c;

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 1024, false);
	turn();
	assert_int_equal(f->lists, 3);
	free(ops);
	for (unsigned i = 0; lab->rig.n_ended == 0; i++) {
		assert_true(i < 1000);
		run(f, 10);
		turn();
	}
	c = cost_now();
	assert_int_equal(c.requests, 1024);
	assert_int_equal(c.posts, 16);
	assert_int_equal(c.completions, 16);
	/* one in each turn in which something was awaited */
	assert_int_equal(c.polls, 103);
}

/* What is contiguous there is gathered from pieces here, as many as the queue pair takes. */
static void test_gather(void **state)
{
	uint64_t ops[6][3];
	struct fake_qp *f = simple(64);

	for (unsigned i = 0; i < 6; i++) {
		ops[i][0] = i * 10000;
		ops[i][1] = i * 1000;
		ops[i][2] = 1000;
	}
	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 6, false);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(f->q[0].wr.num_sge, 4);
	assert_int_equal(f->q[1].wr.num_sge, 2);
	run_all();
	for (unsigned i = 0; i < 6; i++)
		assert_same(ops[i][0], ops[i][1], 1000);
}

static void test_inline(void **state)
{
	struct fake_qp *f;

	set_keys(1, 1);
	set_paths(1);
	f = add_qp(0, DMSG_CLASS_BULK, 64, 64);
	write_all(64);
	write_all(65);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 100, 100, 8 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 3);
	assert_true(f->q[0].wr.send_flags & IBV_SEND_INLINE);
	assert_false(f->q[1].wr.send_flags & IBV_SEND_INLINE);
	assert_false(f->q[2].wr.send_flags & IBV_SEND_INLINE);
	assert_int_equal(f->lists, 1);
	/* what was posted is what counts */
	*rig_at(&lab->local, 0) ^= 0xff;
	run(f, 1);
	assert_int_equal(lab->there[0] ^ 0xff, *rig_at(&lab->local, 0));
	run_all();
	assert_int_equal(lab->rig.n_ended, 3);
}

/* A slice with more requests than the queue holds goes out in parts. */
static void test_shallow_queue(void **state)
{
	uint64_t(*ops)[3] = scattered(200);
	struct fake_qp *f = simple(16);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 200, false);
	turn();
	assert_int_equal(f->tail - f->head, 16);
	while (lab->rig.n_ended == 0) {
		assert_true(f->tail - f->head <= 16);
		assert_true(run(f, UINT32_MAX) > 0);
		turn();
	}
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < 200; i++)
		assert_same(ops[i][0], ops[i][1], 100);
	free(ops);
}

/* The notification waits for a read that was queued behind the bytes. */
static void test_flush_before_notification(void **state)
{
	struct fake_qp *f = simple(64);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, true);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(f->q[1].wr.opcode, IBV_WR_RDMA_READ);
	/* of the byte that was written last, wherever that memory is */
	assert_int_equal(f->q[1].wr.wr.rdma.remote_addr, (uintptr_t)lab->there + 99);
	assert_int_equal(f->q[1].wr.wr.rdma.rkey, RKEY(0));
	assert_int_equal(f->q[1].sge[0].length, 1);
	run(f, 1);
	turn();
	assert_int_equal(lab->rig.n_notify, 0);
	run(f, 1);
	turn();
	assert_int_equal(lab->rig.n_notify, 1);
	assert_int_equal(lab->flushes, 1);
	xfer_notified(&lab->rig.core, lab->rig.last_notify, 0);
	assert_int_equal(last()->code, 0);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 100 } }, 1, true);
	run_all();
	assert_int_equal(lab->flushes, 1);
	xfer_notified(&lab->rig.core, lab->rig.last_notify, 0);
}

/* A device that ends a read with success and without its bytes fails the queue pair with that: it is done again. */
static void test_confirmed_reads(void **state)
{
	struct fake_qp *f, *g;

	lab->soft_roce = true;
	f = simple(64);
	g = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	memset(lab->there, 0x55, 4096);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 4096 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 2);
	assert_int_equal(g->tail, 0);
	assert_false(f->q[0].wr.send_flags & IBV_SEND_SIGNALED);
	assert_int_equal(f->q[1].wr.wr.rdma.rkey, FLUSH_KEY);
	/* without its bytes */
	complete(f, &f->q[f->head++], IBV_WC_SUCCESS);
	break_down(f, IBV_WC_WR_FLUSH_ERR);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(g->tail, 2);
	assert_int_equal(last()->code, 0);
	assert_same(0, 0, 4096);
}

/* On Soft-RoCE nothing is posted while reads are in flight, and no read while anything is. */
static void test_reads_alone(void **state)
{
	struct fake_qp *f;

	lab->soft_roce = true;
	f = simple(256);
	write_all(2 << 20);
	turn();
	assert_int_equal(f->tail, 2);
	submit(DMSG_DIRECTION_READ, (const uint64_t[][3]){ { 0, 0, 2 << 20 } }, 1, false);
	turn();
	assert_int_equal(f->tail, 2);
	run(f, 1);
	turn();
	assert_int_equal(f->tail, 2);
	run(f, 1);
	turn();
	/* the first slice and what confirms it */
	assert_int_equal(f->tail, 4);
	write_all(100);
	run(f, 1);
	turn();
	assert_int_equal(f->tail, 4);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(lab->rig.n_ended, 3);
	assert_same(0, 0, 2 << 20);
}

/* A slice of many requests goes out a list at a time. */
static void test_scattered_reads_alone(void **state)
{
	enum { N = 3 * RDMA_LIST };
	uint64_t(*ops)[3] = scattered(N);
	struct fake_qp *f;

	lab->soft_roce = true;
	f = simple(1024);
	submit(DMSG_DIRECTION_READ, (const uint64_t(*)[3])ops, N, false);
	turn();
	assert_true(f->tail > 0 && f->tail <= RDMA_LIST);
	while (lab->rig.n_ended == 0) {
		unsigned before = f->tail;

		assert_true(run(f, UINT32_MAX) > 0);
		turn();
		assert_true(f->tail - before <= RDMA_LIST);
	}
	assert_int_equal(last()->code, 0);
	for (unsigned i = 0; i < N; i++)
		assert_same(ops[i][0], ops[i][1], 100);
	free(ops);
}

static void test_spread(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 2);
	set_paths(2);
	a = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(2 << 20);
	turn();
	assert_int_equal(a->tail, 1);
	assert_int_equal(b->tail, 1);
	run_all();
	write_all(BYTES);
	run_all();
	assert_same(0, 0, BYTES);
	assert_int_equal(lab->rails[0].counters.sent + lab->rails[1].counters.sent,
			 BYTES + (2 << 20));
	assert_true(lab->rails[1].counters.sent >= 2 << 20);
}

/* Keys on one rail alone: the other is not used. */
static void test_keys_decide(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 1);
	set_paths(2);
	a = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	write_all(4 << 20);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(a->tail, 0);
	assert_true(b->tail > 0);
}

/* --- sleeping ------------------------------------------------------------------------------------------ */

static void test_arm(void **state)
{
	struct core *c = &lab->rig.core;
	struct fake_qp *f = simple(64);

	/* a queue pair that has just come is looked at first */
	assert_true(transport_rdma.announce(c, rdma()));
	turn();
	assert_false(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rails[0].armed, 0);
	write_all(100);
	turn();
	assert_false(transport_rdma.announce(c, rdma()));
	assert_false(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rails[0].armed, 1);
	run(f, 1);
	/* it came before the event could be asked for: the worker must not sleep */
	assert_true(transport_rdma.announce(c, rdma()));
	assert_int_equal(lab->rig.n_ended, 1);
}

/* --- what breaks ----------------------------------------------------------------------------------------- */

static void test_error_moves_slices(void **state)
{
	struct fake_qp *a, *b;

	set_keys(2, 2);
	set_paths(2);
	a = add_qp(0, DMSG_CLASS_BULK, 256, 0);
	b = add_qp(1, DMSG_CLASS_BULK, 256, 0);
	write_all(BYTES);
	turn();
	run(a, 1);
	break_down(a, IBV_WC_RETRY_EXC_ERR);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, IBV_WC_RETRY_EXC_ERR);
	while (run(b, UINT32_MAX))
		turn();
	/* what was in flight on the lost one may still arrive: the transfer is not over */
	assert_int_equal(lab->rig.n_ended, 0);
	assert_int_equal(counted(DRAY_METRIC_SLICES_RESENT_TOTAL), 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_same(0, 0, BYTES);
	assert_true(counted(DRAY_METRIC_SLICES_RESENT_TOTAL) > 0);
	assert_int_equal(counted(DRAY_METRIC_SLICES_RESENT_TOTAL),
			 counted(DRAY_METRIC_RDMA_FAILOVERS_TOTAL));
	assert_int_equal(lab->path.failovers, counted(DRAY_METRIC_RDMA_FAILOVERS_TOTAL));
	/* late words of the dead one mean nothing */
	lab->rails[0].wc[lab->rails[0].n_wc++] =
		(struct ibv_wc){ .wr_id = 77, .status = IBV_WC_WR_FLUSH_ERR };
	turn();
}

static void test_post_refused(void **state)
{
	struct fake_qp *a = simple(64), *b;

	a->fail = ENOMEM;
	write_all(100);
	turn();
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_POST);
	b = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
	assert_int_equal(b->tail, 1);
}

static void test_timeout(void **state)
{
	struct core *c = &lab->rig.core;

	simple(64);
	write_all(100);
	turn();
	assert_true(transport_rdma.tick(c, rdma()) <= c->now_ns + c->cfg.slice_timeout_ns);
	c->now_ns += c->cfg.slice_timeout_ns + 1;
	transport_rdma.tick(c, rdma());
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_TIMEOUT);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	run_all();
	assert_int_equal(last()->code, 0);
}

static void stop_all(uint32_t code, bool urgent)
{
	dray_list_for_each(&lab->s.xs.xfers, x, struct xfer, session_link)
		xfer_stop(&lab->rig.core, x, code, NULL, urgent);
}

static void test_cancel(void **state)
{
	struct fake_qp *f = simple(64);

	write_all(BYTES);
	turn();
	stop_all(DRAY_E_CANCELLED, false);
	/* four slices are with the device */
	assert_int_equal(lab->rig.n_ended, 0);
	run_all();
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(f->tail, f->head);
	assert_true(last()->bytes < BYTES);
}

/* In the middle of a slice that goes out in parts. */
static void test_cancel_partial(void **state)
{
	uint64_t(*ops)[3] = scattered(200);
	struct fake_qp *f = simple(16);

	submit(DMSG_DIRECTION_WRITE, (const uint64_t(*)[3])ops, 200, false);
	turn();
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(lab->rig.n_ended, 0);
	run(f, UINT32_MAX);
	turn();
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
	assert_int_equal(f->tail, 16);
	free(ops);
}

static bool gone;

static void keys_gone(void *arg)
{
	(void)arg;
	gone = true;
}

/* The session is dead: its transfers end at once, its keys and the remote when the device is done. */
static void test_urgent(void **state)
{
	struct core *c = &lab->rig.core;
	struct rail_keys *k;
	struct fake_qp *f;

	set_keys(1, 1);
	set_paths(1);
	k = local_keys(1);
	k->gone = keys_gone;
	gone = false;
	object_set_keys(c, OBJECT_REGION, REGION, k);
	f = add_qp(0, DMSG_CLASS_BULK, 64, 0);
	write_all(2 << 20);
	turn();
	stop_all(DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(lab->rig.n_ended, 1);
	assert_int_equal(lab->s.xs.slices[DMSG_CLASS_BULK], 0);
	object_drop(c, OBJECT_REGION, REGION, DRAY_E_SESSION_CLOSED, true);
	object_drop(c, OBJECT_REMOTE, REMOTE, DRAY_E_SESSION_CLOSED, true);
	assert_int_equal(lab->rig.n_dropped, 1);
	assert_int_equal(lab->rig.last_dropped, REGION);
	assert_false(gone);
	run(f, UINT32_MAX);
	turn();
	assert_int_equal(lab->rig.n_dropped, 2);
	assert_int_equal(lab->rig.last_dropped, REMOTE);
	assert_true(gone);
}

static void test_peer_down(void **state)
{
	struct core *c = &lab->rig.core;

	simple(64);
	write_all(BYTES);
	turn();
	stop_all(DRAY_E_PEER_LOST, false);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	assert_int_equal(lab->rig.n_gone, 0);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(lab->rig.n_gone, 1);
	assert_int_equal(last()->code, DRAY_E_PEER_LOST);
	/* of one that is gone nothing is taken */
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_UNUSED);
	transport_rdma.peer_down(c, rdma(), PEER, DRAY_E_PEER_LOST);
	assert_int_equal(lab->rig.n_gone, 2);
}

/* --- before there are paths, and when there are none left --------------------------------------------------- */

static void test_waits_for_paths(void **state)
{
	set_keys(1, 1);
	write_all(100);
	turn();
	assert_int_equal(lab->rig.n_ended, 0);
	assert_int_equal(told(RDMA_WANTED), 0);
	set_paths(1);
	assert_int_equal(told(RDMA_WANTED), 1);
	write_all(100);
	assert_int_equal(told(RDMA_WANTED), 1);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	run_all();
	assert_int_equal(lab->rig.n_ended, 2);
	assert_int_equal(last()->code, 0);
}

static void test_no_path(void **state)
{
	lab->spare_open = true;
	set_keys(1, 1);
	write_all(100);
	assert_true(dray_list_empty(&lab->spare.flows));
	set_paths(0);
	assert_false(dray_list_empty(&lab->spare.flows));
	/* and the next ones go there at once, with the reason said once */
	write_all(100);
	write_all(100);
	assert_int_equal(told(RDMA_FALLBACK), 1);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_PATHS);
	stop_all(DRAY_E_CANCELLED, false);
}

static void test_reasons(void **state)
{
	lab->spare_open = true;
	set_paths(2);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_LOCAL);
	set_keys(1, 0);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_REMOTE);
	set_keys(1, 1);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 2].code, RDMA_FALLBACK_NONE);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].type, RDMA_WANTED);
	message(RDMA_UNREACHABLE, 0, NULL);
	write_all(100);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_FALLBACK_UNREACHABLE);
	stop_all(DRAY_E_CANCELLED, false);
}

/* A transfer of which some is done and some was in flight is taken over whole. */
static void test_moves_on(void **state)
{
	struct fake_qp *f = simple(64);

	lab->spare_open = true;
	write_all(BYTES);
	turn();
	run(f, 1);
	turn();
	break_down(f, IBV_WC_RETRY_EXC_ERR);
	turn();
	message(RDMA_UNREACHABLE, 0, NULL);
	assert_true(dray_list_empty(&lab->adopted));
	message(RDMA_QP_DEAD, 1, NULL);
	assert_false(dray_list_empty(&lab->adopted));
	assert_false(dray_list_empty(&lab->spare.flows));
	assert_int_equal(lab->rig.n_ended, 0);
	stop_all(DRAY_E_CANCELLED, false);
	assert_int_equal(last()->code, DRAY_E_CANCELLED);
}

static void test_nowhere_to_go(void **state)
{
	simple(64);
	write_all(BYTES);
	turn();
	message(RDMA_QP_LOSE, 1, NULL);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].code, RDMA_LOSS_TOLD);
	message(RDMA_QP_LOSE, 1, NULL);
	assert_int_equal(told(RDMA_QP_LOST), 1);
	message(RDMA_UNREACHABLE, 0, NULL);
	assert_int_equal(lab->rig.n_ended, 0);
	message(RDMA_QP_DEAD, 1, NULL);
	assert_int_equal(last()->code, DRAY_E_PEER_UNREACHABLE);
}

static void test_rail_down(void **state)
{
	simple(64);
	write_all(100);
	run_all();
	message(RDMA_QP_LOSE, 1, NULL);
	message(RDMA_QP_DEAD, 1, NULL);
	message(RDMA_RAIL_DOWN, 0, NULL);
	assert_int_equal(lab->rig.told[lab->rig.n_told - 1].type, RDMA_RAIL_GONE);
	message(RDMA_RAIL_UP, 0, &lab->rails[0].for_worker);
	add_qp(0, DMSG_CLASS_BULK, 64, 0);
	write_all(100);
	run_all();
	assert_int_equal(last()->code, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(write_and_read),
		TEST(lists),
		TEST(counts),
		TEST(counts_under_way),
		TEST(gather),
		TEST(inline),
		TEST(shallow_queue),
		TEST(flush_before_notification),
		TEST(confirmed_reads),
		TEST(reads_alone),
		TEST(scattered_reads_alone),
		TEST(spread),
		TEST(keys_decide),
		TEST(arm),
		TEST(error_moves_slices),
		TEST(post_refused),
		TEST(timeout),
		TEST(cancel),
		TEST(cancel_partial),
		TEST(urgent),
		TEST(peer_down),
		TEST(waits_for_paths),
		TEST(no_path),
		TEST(reasons),
		TEST(moves_on),
		TEST(nowhere_to_go),
		TEST(rail_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
