/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor time of a worker for a transfer of GPU memory: the worker reads and checks the operations, makes a list
 * of pieces and submits it to a queue that completes at once, because there is no device.
 *
 *   gpu_ops [ROUNDS]
 *
 * Prints a line for each shape: name, operations, nanoseconds for each operation (the best round, because other load
 * slows rounds down).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/fault.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/xfer.h"
#include "agent/model/gpu_message.h"
#include "agent/data/transport/gpu/gpu.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "tests/bench/bench.h"
#include "tests/unit/account.h"

#define OPS_MAX 65536u
#define PAGE (16ull << 10)
#define PIECES (128u << 10)
#define GROUP 3
#define SESSION ((dray_handle)1 << 32 | 1)

static struct {
	struct core core;
	struct data_counters counters;
	struct quota group;
	struct session_shared shared;
	struct xfer_session session;
	_Atomic uint64_t done;
	struct gpu_queue queue;
	struct gpu_queues queues;
	uint64_t pieces, bytes;
	unsigned ended;
	uint8_t ops[OPS_MAX * DMSG_OP_SIZE];
} h;

static int submit(struct gpu_queue *q, const struct gpu_copy *c)
{
	(void)q;
	h.pieces += c->n;
	h.bytes += c->bytes;
	atomic_fetch_add_explicit(&h.done, 1, memory_order_release);
	return 0;
}

static const struct gpu_plugin_ops plugin = { .submit = submit };

static void ended(struct core *c, struct xfer *x)
{
	(void)c;
	dray_assert(!x->code);
	h.ended++;
}

static const struct core_upcalls upcalls = { .xfer_ended = ended,
					     .release_buffers = slice_release_buffers };

static void publish(dray_handle handle, uint64_t base, uint32_t n_extents)
{
	struct region_view *v = calloc(1, sizeof(*v) + n_extents * sizeof(v->extents[0]));
	struct remote_view *r = calloc(1, sizeof(*r));
	uint64_t length = 2ull * OPS_MAX * PAGE / n_extents;

	dray_assert(v && r);
	v->o = (struct object_view){ OBJECT_REGION,      handle,         GROUP, SESSION,
				     n_extents * length, DMSG_ACCESS_ALL };
	v->memory = REGION_GPU;
	v->n_extents = n_extents;
	for (uint32_t i = 0; i < n_extents; i++)
		v->extents[i] = (struct extent_view){ .start = i * length,
						      .length = length,
						      .base = (uint8_t *)(base + i * 2 * length),
						      .node = -1 };
	r->o = (struct object_view){ OBJECT_REMOTE, handle,      GROUP,
				     SESSION,       v->o.length, DMSG_ACCESS_ALL };
	r->is_local = true;
	r->region = handle;
	object_publish(&h.core, &v->o);
	object_publish(&h.core, &r->o);
}

static void set_up(void)
{
	struct core *c = &h.core;

	c->cfg = (struct data_config){ .slice_size = 1 << 20,
				       .deadline_ns = 3600 * DRAY_NS_PER_SEC,
				       .slices_per_session = 64 };
	c->up = &upcalls;
	c->counters = &h.counters;
	c->now_ns = dray_now().ns;
	h.group.transfers_max = 1000;
	h.shared = (struct session_shared){ .session = SESSION,
					    .group = GROUP,
					    .own = { .transfers_max = 1000 },
					    .group_quota = &h.group,
					    .account = account_without_limits(),
					    .ops_max = 1u << 20 };
	dray_assert(fault_init() == 0 && loop_init(&c->loop) == 0 && objects_init(c) == 0 &&
		    xfers_init(c, 1000) == 0);
	c->transports[0] = &transport_gpu;
	c->n_transports = 1;
	dray_assert(transport_gpu.init(c, &c->transport_state[0]) == 0);
	dray_assert(xfer_session_init(&h.core, &h.session, SESSION, &h.shared) == 0);
	h.queue.done = &h.done;
	h.queues = (struct gpu_queues){
		.ops = &plugin, .peers = 1, .n_pieces = PIECES, .n_engine_pieces = PIECES
	};
	for (unsigned i = 0; i < GPU_LANE_COPY_N; i++)
		h.queues.queue[i] = &h.queue;
	for (unsigned i = 0; i < GPU_LANE_COPY_N; i++)
		h.queues.pieces[i] = malloc(PIECES * sizeof(struct dray_piece));
	transport_gpu.message(c, c->transport_state[0],
			      &(struct transport_message){ .type = GPU_UP, .arg = &h.queues });
	transport_gpu.message(c, c->transport_state[0],
			      &(struct transport_message){ .type = GPU_LISTS,
							   .arg = malloc(OPS_PINNED_BYTES) });
}

/* Fills in operations on pages: in order on the local side, in random order on the remote side. */
static void fill(uint32_t n, bool random, uint64_t page)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t to = random ? (uint32_t)(((uint64_t)i * 40503 + 7) % OPS_MAX) : i;

		dmsg_op_put(h.ops + (size_t)i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ 2 * i * page, 2 * to * page, page });
	}
}

static void measure(const char *name, dray_handle local, dray_handle remote, uint32_t n, bool arena,
		    unsigned rounds)
{
	struct xfer_request r = { .spec.direction = DMSG_DIRECTION_READ,
				  .spec.local = local,
				  .spec.remote = remote,
				  .ops = h.ops,
				  .n_ops = n,
				  .ops_ours = !arena };
	double best = 1e9, best_start = 1e9;
	struct dray_err err;

	for (unsigned i = 0; i < rounds; i++) {
		int64_t from = dray_now().ns, started;
		unsigned was = h.ended;

		dray_err_init(&err);
		dray_assert(xfer_start(&h.core, &h.session, &r, &err) == 0);
		while (h.session.read)
			xfer_read(&h.core, &h.session);
		started = dray_now().ns;
		while (h.ended == was)
			transport_gpu.progress(&h.core, h.core.transport_state[0]);
		best = dray_min(best, (double)(dray_now().ns - from) / n);
		best_start = dray_min(best_start, (double)(started - from) / n);
	}
	printf("{\"shape\": \"%s\", \"operations\": %u, \"ns\": %.2f, \"checking_ns\": %.2f}\n",
	       name, n, best, best_start);
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 200;
	const dray_handle whole = (dray_handle)1 << 32 | 1, other = (dray_handle)1 << 32 | 2,
			  layers = (dray_handle)1 << 32 | 3;

	dray_assert(rounds > 0);
	set_up();
	publish(whole, 1ull << 40, 1);
	publish(other, 1ull << 42, 1);
	publish(layers, 1ull << 44, 64);
	fill(OPS_MAX, true, PAGE);
	measure("pages", whole, other, OPS_MAX, true, rounds);
	measure("pages", whole, other, 4096, true, rounds * 4);
	measure("pages, inline", whole, other, 4096, false, rounds * 4);
	measure("layers in order to one extent", layers, other, OPS_MAX, true, rounds);
	measure("one extent to layers at random", whole, layers, OPS_MAX, true, rounds);
	measure("single page", whole, other, 1, false, rounds * 100);
	return 0;
}
