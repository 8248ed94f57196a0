/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu_rig.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transport/stage/stage.h"
#include "agent/data/transport/gpu/gpu.h"
#include "tests/unit/cm.h"

static void message(struct gpu_rig *g, enum gpu_command type, uint64_t id, void *arg)
{
	transport_gpu.message(
		&g->rig.core, g->rig.core.transport_state[1],
		&(struct transport_message){
			.transport = DMSG_TRANSPORT_GPU, .type = type, .id = id, .arg = arg });
}

static void device_up(struct gpu_rig *g, unsigned device, uint32_t pieces, unsigned lanes)
{
	struct gpu_queues *q = &g->queues[device];
	struct gpu_device_info info[GPU_RIG_DEVICES];
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t bytes;
	uint32_t peers;

	gpu_plugin_ops.devices(g->plugin, info, GPU_RIG_DEVICES);
	assert_int_equal(gpu_plugin_ops.start(g->plugin, device, &bytes, &peers, &err), 0);
	*q = (struct gpu_queues){ .ops = &gpu_plugin_ops,
				  .device = device,
				  .peers = info[device].peers | 1u << device,
				  .n_pieces = pieces,
				  .n_engine_pieces = pieces,
				  .load = &g->loads[device] };
	for (unsigned k = 0; k < lanes; k++) {
		struct gpu_queue_spec spec = { .device = device,
					       .latency = k % 2 == DMSG_CLASS_LATENCY,
					       .share = 100 };
		void *p;

		assert_int_equal(gpu_plugin_ops.queue_new(g->plugin, &spec, &q->queue[k], &err), 0);
		if (k == GPU_LANE_PROBE)
			continue;
		assert_int_equal(gpu_plugin_ops.host_alloc(
					 g->plugin, pieces * sizeof(*q->pieces[k]), &p, &err),
				 0);
		q->pieces[k] = p;
	}
	message(g, GPU_UP, device, q);
}

static void rig_make(struct gpu_rig *g, uint32_t pieces, unsigned lanes)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct core *c = &g->rig.core;

	memset(g, 0, sizeof(*g));
	rig_init(&g->rig);
	c->now_ns = dray_now().ns;
	rig_session_init(&g->rig, &g->s, 5);
	assert_int_equal(transport_gpu.init(c, &c->transport_state[1]), 0);
	c->transports[1] = &transport_gpu;
	c->n_transports = 2;
	assert_int_equal(gpu_plugin_ops.open(&g->plugin, &err), 0);
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++)
		device_up(g, i, pieces, lanes);
}

void gpu_rig_init(struct gpu_rig *g, uint32_t pieces)
{
	rig_make(g, pieces, GPU_LANE_COPY_N);
}

void gpu_rig_init_watched(struct gpu_rig *g, uint32_t pieces)
{
	rig_make(g, pieces, GPU_LANE_N);
}

void gpu_rig_device(struct gpu_rig *g, unsigned device, bool up)
{
	message(g, up ? GPU_UP : GPU_DOWN, device, up ? &g->queues[device] : NULL);
	while (!up && !gpu_rig_told(g, GPU_GONE, device))
		gpu_rig_turn(g);
}

void gpu_rig_ended(struct gpu_rig *g, unsigned device)
{
	message(g, GPU_ENDED, device, NULL);
}

void gpu_rig_stage(struct gpu_rig *g, uint64_t bytes)
{
	struct dray_err err = DRAY_ERR_NULL;
	void *p;

	assert_int_equal(gpu_plugin_ops.host_alloc(g->plugin, bytes, &p, &err), 0);
	g->staging = (struct gpu_staging){ p, bytes };
	message(g, GPU_STAGING, 0, &g->staging);
}

void gpu_rig_lists(struct gpu_rig *g)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(gpu_plugin_ops.host_alloc(g->plugin, OPS_PINNED_BYTES, &g->lists, &err),
			 0);
	message(g, GPU_LISTS, 0, g->lists);
}

bool gpu_rig_told(const struct gpu_rig *g, enum gpu_event type, uint64_t id)
{
	for (unsigned i = 0; i < g->rig.n_told; i++)
		if (g->rig.told[i].type == type && g->rig.told[i].id == id)
			return true;
	return false;
}

void gpu_rig_memory(struct gpu_rig *g, unsigned device, uint64_t bytes)
{
	struct gpu_copy_memory *m = &g->memories[device];
	struct dray_err err = DRAY_ERR_NULL;

	if (bytes)
		assert_int_equal(gpu_plugin_ops.block_alloc(g->plugin, device, bytes,
							    &g->blocks[device], &m->address, &err),
				 0);
	m->bytes = bytes;
	message(g, GPU_COPY_MEMORY, device, bytes ? m : NULL);
}

void gpu_rig_deinit(struct gpu_rig *g)
{
	struct fake_gpu_status *status = fake_gpu_status();

	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++) {
		gpu_rig_device(g, i, false);
		if (!g->blocks[i])
			continue;
		assert_true(gpu_rig_told(g, GPU_COPY_MEMORY_BACK, i));
		gpu_plugin_ops.block_free(g->blocks[i]);
	}
	xfer_session_deinit(&g->s.xs);
	transport_gpu.deinit(&g->rig.core, g->rig.core.transport_state[1]);
	stage_deinit(&g->rig.core);
	rig_deinit(&g->rig);
	if (g->staging.base)
		gpu_plugin_ops.host_free(g->plugin, g->staging.base);
	if (g->lists)
		gpu_plugin_ops.host_free(g->plugin, g->lists);
	for (unsigned i = 0; i < g->n_pinned; i++)
		gpu_plugin_ops.unpin(g->plugin, g->pinned[i]);
	for (unsigned i = 0; i < g->n_regions; i++) {
		struct gpu_rig_region *r = &g->regions[i];

		free(g->remotes[i]);
		if (!r->import) {
			rig_region_deinit(&r->region);
			continue;
		}
		gpu_plugin_ops.release(r->import);
		munmap(r->region.memory, r->region.bytes);
		close(r->region.fd);
		free(r->region.view);
	}
	for (unsigned i = 0; i < GPU_RIG_DEVICES; i++) {
		for (unsigned k = 0; k < GPU_LANE_N; k++) {
			if (g->queues[i].queue[k])
				gpu_plugin_ops.queue_free(g->queues[i].queue[k]);
			if (k < GPU_LANE_COPY_N && g->queues[i].pieces[k])
				gpu_plugin_ops.host_free(g->plugin, g->queues[i].pieces[k]);
		}
		fake_gpu_lose(i, false);
		fake_gpu_busy(i, false);
		gpu_plugin_ops.stop(g->plugin, i);
	}
	gpu_plugin_ops.close(g->plugin);
	fake_gpu_hold(false);
	fake_gpu_peers(true);
	assert_int_equal(status->imports + status->queues + status->pins + status->host_allocs +
				 status->blocks + status->started + status->plugins,
			 0);
	assert_int_equal(status->illegal, 0);
}

dray_handle gpu_rig_handle(unsigned n)
{
	return 1ull << 32 | n;
}

static void import(struct gpu_rig *g, struct gpu_rig_region *r, unsigned device, uint64_t bytes,
		   uint32_t n_extents)
{
	struct gpu_import_spec spec = {
		.kind = GPU_IMPORT_VMM, .device = device, .bytes = bytes, .write = true
	};
	struct rig_region *g_region = &r->region;
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t address, there, piece = bytes / n_extents;
	struct region_view *v;

	spec.fd = memfd_create(device ? "fake-gpu-1" : "fake-gpu-0", MFD_CLOEXEC);
	assert_int_equal(ftruncate(spec.fd, (off_t)bytes), 0);
	assert_int_equal(
		gpu_plugin_ops.import(g->plugin, &spec, &r->import, &address, &there, &err), 0);
	v = calloc(1, sizeof(*v) + n_extents * sizeof(struct extent_view));
	assert_non_null(v);
	v->o = (struct object_view){ OBJECT_REGION,  gpu_rig_handle(g->n_regions), 77, 5, bytes,
				     DMSG_ACCESS_ALL };
	v->memory = REGION_GPU;
	v->gpu = (uint8_t)device;
	v->n_extents = n_extents;
	for (uint32_t i = 0; i < n_extents; i++)
		v->extents[i] = (struct extent_view){ .start = i * piece,
						      .length = piece,
						      .base = (uint8_t *)address +
							      (n_extents - 1 - i) * piece,
						      .node = -1 };
	*g_region = (struct rig_region){
		.view = v,
		.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, spec.fd, 0),
		.bytes = bytes,
		.fd = spec.fd,
	};
	object_publish(&g->rig.core, &v->o);
}

/* Rows of 256 bytes, each with other bytes than its neighbours and than the rows of other regions. */
static void fill(uint8_t *memory, uint64_t bytes, unsigned region)
{
	uint8_t row[512];
	uint64_t at, n;

	for (unsigned i = 0; i < sizeof(row); i++)
		row[i] = (uint8_t)(i * 31);
	for (at = 0; at < bytes; at += n) {
		n = dray_min(bytes - at, 256ull);
		memcpy(memory + at, row + (uint8_t)((at >> 8) * 7 + region * 101), n);
	}
}

struct rig_region *gpu_rig_region(struct gpu_rig *g, int device, uint64_t bytes, uint32_t n_extents)
{
	unsigned n = g->n_regions;
	struct gpu_rig_region *r = &g->regions[n];
	dray_handle handle;

	g->n_regions = n + 1;
	handle = gpu_rig_handle(g->n_regions);
	if (device < 0)
		rig_region_init(&g->rig, &r->region, handle, 5, bytes, n_extents);
	else
		import(g, r, (unsigned)device, bytes, n_extents);
	g->remotes[n] = rig_remote(&g->rig, handle, &r->region, 5);
	fill(r->region.memory, bytes, n);
	return &r->region;
}

void gpu_rig_pin(struct gpu_rig *g, struct rig_region *r)
{
	uint8_t *base = r->view->extents[r->view->n_extents - 1].base;
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(
		gpu_plugin_ops.pin(g->plugin, base, (r->bytes + 4095) & ~4095ull, true, &err), 0);
	g->pinned[g->n_pinned++] = base;
	message(g, GPU_PINNED, r->view->o.handle, NULL);
}

void gpu_rig_submit(struct gpu_rig *g, uint64_t id, bool write, unsigned local, unsigned remote,
		    const uint64_t (*ops)[3], uint32_t n)
{
	struct xfer_request r = { .request_id = id,
				  .spec.direction = write ? DMSG_DIRECTION_WRITE :
							    DMSG_DIRECTION_READ,
				  .spec.local = gpu_rig_handle(local),
				  .spec.remote = gpu_rig_handle(remote) };
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(rig_submit(&g->rig, &g->s, &r, ops, n, &err), 0);
}

struct xfer *gpu_rig_xfer(struct gpu_rig *g, uint64_t id)
{
	dray_list_for_each(&g->s.xs.xfers, x, struct xfer, session_link)
		if (x->request_id == id)
			return x;
	fail();
	return NULL;
}

bool gpu_rig_turn(struct gpu_rig *g)
{
	struct core *c = &g->rig.core;
	bool more;

	c->now_ns = dray_now().ns;
	xfers_tick(c);
	more = transport_gpu.progress(c, c->transport_state[1]);
	transport_gpu.tick(c, c->transport_state[1]);
	return more;
}

void gpu_rig_until(struct gpu_rig *g, unsigned ended)
{
	while (g->rig.n_ended < ended)
		if (!gpu_rig_turn(g))
			sched_yield();
	assert_int_equal(g->rig.n_ended, ended);
}

void gpu_rig_held(uint64_t n)
{
	while (atomic_load(&fake_gpu_status()->held) != n)
		sched_yield();
}
