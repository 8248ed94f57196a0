/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport rdma with the fake GPU and a region of its memory. Included by one source file of a
 * program.
 */
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include "agent/data/transport/gpu/gpu.h"
#include "tests/gpu/fake.h"
#include "tests/unit/rdma_fixture.h"

#define GPU_REGION (1ull << 32 | 8)
#define PIECES 4096u
#define UNIT 65536u
/* half of the buffers; the others are for requests of peers */
#define OWN 8u

static struct {
	struct gpu_plugin *plugin;
	struct gpu_queues queues;
	struct gpu_staging staging;
	struct gpu_import *import;
	struct region_view *view;
	uint8_t *memory; /* the GPU's memory, as the test sees it */
	int fd;
	uint64_t flushes;
	uint8_t path; /* of the last transfer that ended */
} gpu;

static inline void *gpu_state(void)
{
	return lab->rig.core.transport_state[2];
}

static inline void gpu_message(enum gpu_command type, void *arg)
{
	transport_gpu.message(&lab->rig.core, gpu_state(),
			      &(struct transport_message){
				      .transport = DMSG_TRANSPORT_GPU, .type = type, .arg = arg });
}

static inline void on_end(struct rig *r, struct xfer *x)
{
	(void)r;
	gpu.path = x->gpu_path;
}

static inline void *host(uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;
	void *p;

	assert_int_equal(gpu_plugin_ops.host_alloc(gpu.plugin, bytes, &p, &err), 0);
	return p;
}

static inline void device_up(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t bytes;
	uint32_t peers;

	assert_int_equal(gpu_plugin_ops.open(&gpu.plugin, &err), 0);
	assert_int_equal(gpu_plugin_ops.start(gpu.plugin, 0, &bytes, &peers, &err), 0);
	gpu.queues = (struct gpu_queues){ .ops = &gpu_plugin_ops,
					  .plugin = gpu.plugin,
					  .peers = 1,
					  .n_pieces = PIECES,
					  .n_engine_pieces = PIECES };
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++) {
		struct gpu_queue_spec spec = { .latency = k % GPU_LANE_ENGINE == DMSG_CLASS_LATENCY,
					       .share = 100 };

		assert_int_equal(
			gpu_plugin_ops.queue_new(gpu.plugin, &spec, &gpu.queues.queue[k], &err), 0);
		gpu.queues.pieces[k] = host(PIECES * sizeof(struct dray_piece));
	}
	gpu_message(GPU_UP, &gpu.queues);
	gpu.staging = (struct gpu_staging){ host(2 * OWN * UNIT), 2 * OWN * UNIT };
	gpu_message(GPU_STAGING, &gpu.staging);
}

static inline void region_up(void)
{
	struct gpu_import_spec spec = { .kind = GPU_IMPORT_VMM, .bytes = BYTES, .write = true };
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t address, there;

	spec.fd = gpu.fd = memfd_create("fake-gpu-0", MFD_CLOEXEC);
	assert_int_equal(ftruncate(gpu.fd, BYTES), 0);
	assert_int_equal(
		gpu_plugin_ops.import(gpu.plugin, &spec, &gpu.import, &address, &there, &err), 0);
	gpu.memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, gpu.fd, 0);
	gpu.view = calloc(1, sizeof(*gpu.view) + sizeof(struct extent_view));
	gpu.view->o = (struct object_view){ OBJECT_REGION, GPU_REGION, 77,
					    SESSION,       BYTES,      DMSG_ACCESS_ALL };
	gpu.view->memory = REGION_GPU;
	gpu.view->n_extents = 1;
	gpu.view->extents[0] =
		(struct extent_view){ .length = BYTES, .base = (uint8_t *)address, .node = -1 };
	object_publish(&lab->rig.core, &gpu.view->o);
	for (unsigned i = 0; i < BYTES; i++)
		gpu.memory[i] = (uint8_t)(i * 11 + i / 4096);
}

static inline int gpu_setup(void **state)
{
	struct core *c;

	assert_int_equal(setup(state), 0);
	c = &lab->rig.core;
	c->now_ns = dray_now().ns;
	c->cfg.slice_size = UNIT;
	c->transports[2] = &transport_gpu;
	c->n_transports = 3;
	lab->rig.on_end = on_end;
	lab->from = GPU_REGION;
	assert_int_equal(transport_gpu.init(c, &c->transport_state[2]), 0);
	device_up();
	region_up();
	gpu.flushes = fake_gpu_status()->flushes;
	set_keys(0, RAILS);
	return 0;
}

static inline struct rail_keys *keys_of(const void *base, uint64_t bytes, unsigned rails)
{
	struct rail_keys *k = rail_keys_new(rails);

	for (unsigned r = 0; r < rails; r++)
		k->v[r] = (struct rail_key){
			.rail = r, .key = LKEY(r), .base = (uintptr_t)base, .length = bytes
		};
	rail_keys_seal(k, bytes, true);
	return k;
}

/* Registers staging memory with n rails. */
static inline void staged_on(unsigned rails)
{
	message(RDMA_STAGING, 0,
		rails ? keys_of(gpu.staging.base, gpu.staging.bytes, rails) : NULL);
}

static inline void gpu_turn(void)
{
	struct core *c = &lab->rig.core;

	transport_gpu.progress(c, gpu_state());
	turn();
	stage_progress(c);
}

static inline void until_ended(unsigned n)
{
	while (lab->rig.n_ended < n) {
		gpu_turn();
		for (unsigned i = 0; i < lab->n_qps; i++)
			run(&lab->qps[i], UINT32_MAX);
		sched_yield();
	}
}

/* Runs until n requests are posted on the queue pair. */
static inline void until_posted(const struct fake_qp *f, unsigned n)
{
	while (f->tail - f->head < n) {
		gpu_turn();
		sched_yield();
	}
}

static inline unsigned buffers_left(void)
{
	struct dray_list got = DRAY_LIST_INIT(got);
	struct stage_buffer *b;
	unsigned n = 0;

	for (; (b = stage_get(&lab->rig.core, STAGE_OWN, DMSG_CLASS_LATENCY, NULL)); n++)
		dray_list_add(&got, &b->link);
	while ((b = dray_list_first(&got, struct stage_buffer, link)))
		stage_put(&lab->rig.core, b);
	return n;
}

static inline int gpu_teardown(void **state)
{
	struct fake_gpu_status *status = fake_gpu_status();
	struct core *c = &lab->rig.core;

	fake_gpu_hold(false);
	/* only requests of the device hold buffers, and the device has ended with the test */
	assert_int_equal(buffers_left(), OWN);
	gpu_message(GPU_DOWN, NULL);
	while (!lab->rig.n_told || lab->rig.told[lab->rig.n_told - 1].type != GPU_GONE)
		gpu_turn();
	/* the queues are idle, so they need no memory that the fixture frees */
	c->n_transports = 2;
	transport_gpu.deinit(c, gpu_state());
	teardown(state);
	gpu_plugin_ops.host_free(gpu.plugin, gpu.staging.base);
	gpu_plugin_ops.release(gpu.import);
	for (unsigned k = 0; k < GPU_LANE_COPY_N; k++) {
		gpu_plugin_ops.queue_free(gpu.queues.queue[k]);
		gpu_plugin_ops.host_free(gpu.plugin, gpu.queues.pieces[k]);
	}
	fake_gpu_lose(0, false);
	gpu_plugin_ops.stop(gpu.plugin, 0);
	gpu_plugin_ops.close(gpu.plugin);
	munmap(gpu.memory, BYTES);
	close(gpu.fd);
	free(gpu.view);
	assert_int_equal(status->imports + status->queues + status->host_allocs + status->started,
			 0);
	assert_int_equal(status->illegal, 0);
	return 0;
}

static inline struct fake_qp *staged_qp(void)
{
	staged_on(1);
	set_paths(1);
	return add_qp(0, DMSG_CLASS_BULK, 256, 256);
}

static inline void move(enum dmsg_direction way, uint64_t local, uint64_t remote, uint64_t bytes)
{
	const uint64_t op[1][3] = { { local, remote, bytes } };

	submit(way, op, 1, false);
}
