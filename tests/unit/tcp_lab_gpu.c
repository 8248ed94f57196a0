/* SPDX-License-Identifier: Apache-2.0 */
/* Sides of the lab whose region is memory of the fake GPU (tests/gpu/fake.h). */
#include <sys/mman.h>

#include "agent/data/transport/gpu/gpu.h"
#include "tests/gpu/fake.h"
#include "tests/unit/tcp_lab.h"

#define PIECES 4096u

static struct gpu_plugin *plugin(void)
{
	static struct gpu_plugin *opened;
	struct dray_err err = DRAY_ERR_NULL;

	if (!opened)
		lab_check(gpu_plugin_ops.open(&opened, &err) == 0);
	return opened;
}

static void say(struct lab_side *s, enum gpu_command type, void *arg)
{
	transport_gpu.message(
		&s->core, s->gpu.state,
		&(struct transport_message){
			.transport = DMSG_TRANSPORT_GPU, .type = type, .id = LAB_GPU, .arg = arg });
}

/* Its addresses replace the agent's mapping. */
static void import(struct lab_side *s)
{
	struct gpu_import_spec spec = {
		.kind = GPU_IMPORT_VMM,
		.device = LAB_GPU,
		.fd = s->region.fd,
		.bytes = s->region.bytes,
		.write = true,
	};
	struct region_view *r = s->region.view;
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t address, bytes;

	lab_check(gpu_plugin_ops.import(plugin(), &spec, &s->gpu.import, &address, &bytes, &err) ==
		  0);
	lab_check(bytes >= s->region.bytes);
	r->memory = REGION_GPU;
	r->gpu = LAB_GPU;
	for (uint32_t i = 0; i < r->n_extents; i++)
		r->extents[i].base = (uint8_t *)(uintptr_t)address +
				     (r->extents[i].base - s->region.agent_memory);
}

void lab_gpu_start(struct lab_side *s)
{
	struct gpu_queue_spec spec = { .device = LAB_GPU, .share = 100 };
	struct dray_err err = DRAY_ERR_NULL;
	struct lab_gpu *g = &s->gpu;
	uint64_t bytes;
	uint32_t peers;
	void *p;

	fake_gpu_lose(LAB_GPU, false);
	fake_gpu_hold(false);
	lab_check(gpu_plugin_ops.start(plugin(), LAB_GPU, &bytes, &peers, &err) == 0);
	g->queues = (struct gpu_queues){ .ops = &gpu_plugin_ops,
					 .device = LAB_GPU,
					 .peers = 1u << LAB_GPU,
					 .n_pieces = PIECES,
					 .n_engine_pieces = PIECES };
	for (unsigned i = 0; i < GPU_LANE_COPY_N; i++) {
		spec.latency = i % GPU_LANE_ENGINE == DMSG_CLASS_LATENCY;
		lab_check(gpu_plugin_ops.queue_new(plugin(), &spec, &g->queues.queue[i], &err) ==
			  0);
		lab_check(gpu_plugin_ops.host_alloc(plugin(), PIECES * sizeof(struct dray_piece),
						    &p, &err) == 0);
		g->queues.pieces[i] = p;
	}
	import(s);
	say(s, GPU_UP, &g->queues);
	g->staging.bytes = s->gpu_staging;
	lab_check(gpu_plugin_ops.host_alloc(plugin(), g->staging.bytes, &p, &err) == 0);
	g->staging.base = p;
	say(s, GPU_STAGING, &g->staging);
}

void lab_gpu_stop(struct lab_side *s)
{
	struct lab_gpu *g = &s->gpu;

	fake_gpu_hold(false);
	say(s, GPU_DOWN, NULL);
	/* Every copy belonged to a transfer or frame that has ended. */
	lab_check(g->n_gone == 1);
	gpu_plugin_ops.release(g->import);
	for (unsigned i = 0; i < GPU_LANE_COPY_N; i++) {
		gpu_plugin_ops.queue_free(g->queues.queue[i]);
		gpu_plugin_ops.host_free(plugin(), g->queues.pieces[i]);
	}
	gpu_plugin_ops.host_free(plugin(), g->staging.base);
}

void lab_gpu_all_stopped(void)
{
	gpu_plugin_ops.stop(plugin(), LAB_GPU);
	lab_check(!atomic_load(&fake_gpu_status()->illegal));
}
