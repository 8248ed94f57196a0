/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/bench.h"

#include <string.h>

#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/data.h"

/* Registration touches every page, which takes about 0.3 s for a GiB. */
#define REQUEST_MS_MIN 60000
/*
 * The sockets of an agent that was killed end first; then the kernel frees its memory, and only after that the process is dead. The
 * bench waits for the death, which proves that the agent is gone. Of a stopped agent, the drive reports the silence before that.
 */
#define CONFIRM_MS 10000
/* The defaults of libdray. */
#define RING_ENTRIES_MIN 256
#define ARENA_BYTES_MIN (4u << 20)
/* Each list in the arena has its own cache lines. */
#define LIST_UNIT 64

static enum ctl_exit exit_of(int code)
{
	switch (code) {
	case DRAY_E_DENIED:
	case DRAY_E_QUOTA:
	case DRAY_E_DRAINING:
	case DRAY_E_VERSION:
	case DRAY_E_TOKEN_INVALID:
	case DRAY_E_TOKEN_EXPIRED:
	case DRAY_E_TOKEN_USED:
	case DRAY_E_TOKEN_AUDIENCE:
	case DRAY_E_INCARNATION:
	case DRAY_E_REVOKED:
	case DRAY_E_PEER_DENIED:
		return CTL_EXIT_REFUSED;
	default:
		return CTL_EXIT_FAILED;
	}
}

int bench_failed(struct ctl *c, const struct dray *d, const char *what, int ret)
{
	const char *why = d ? dray_last_error(d) : "";

	return ctl_fail(c, exit_of(-ret), "%s failed: %s (%s)", what,
			*why ? why : dray_strerror(ret), dray_strerrorname(ret));
}

uint64_t bench_list_bytes(const struct bench_plan *p)
{
	uint64_t bytes = p->ops > 1 ? p->ops * DMSG_OP_SIZE : 0;

	return (bytes + LIST_UNIT - 1) / LIST_UNIT * LIST_UNIT;
}

/*
 * The end that submits needs rings and an arena for all transfers in flight; other ends need neither. Only a serving end
 * reconnects, because a restart of the agent makes a measurement void.
 */
static void options_of_role(const struct bench_plan *p, enum bench_role role,
			    struct dray_options *o)
{
	if (role != BENCH_SUBMITS) {
		o->flags = DRAY_OPTION_NO_RING |
			   (role == BENCH_OWNS ? DRAY_OPTION_NO_RECONNECT : 0);
		return;
	}
	o->socket = p->socket;
	o->flags = DRAY_OPTION_NO_RECONNECT |
		   (p->wait == CTL_WAIT_METHOD_SLEEP ? DRAY_OPTION_NO_SPIN : 0);
	o->confirm_ms = CONFIRM_MS;
	o->ring_entries = RING_ENTRIES_MIN;
	while (o->ring_entries < p->batch)
		o->ring_entries *= 2;
	o->arena_bytes = dray_max((uint64_t)ARENA_BYTES_MIN, bench_list_bytes(p) * p->batch);
}

static int session_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role)
{
	unsigned ms = (unsigned)(p->timeout_ns / DRAY_NS_PER_MS);
	struct dray_options options = { .socket = p->owner ? p->owner : p->socket,
					.name = "drayctl bench",
					.connect_ms = dray_max(ms, 1u),
					.request_ms = dray_max(ms, (unsigned)REQUEST_MS_MIN) };
	char why[240] = "";
	int ret;

	options_of_role(p, role, &options);
	ret = dray_connect(&options, &e->d, why, sizeof(why));
	if (!ret)
		return 0;
	if (ret == -DRAY_E_PEER_UNREACHABLE || ret == -DRAY_E_TIMEOUT)
		return ctl_fail(p->ctl, CTL_EXIT_UNREACHABLE, "%s",
				*why ? why : dray_strerror(ret));
	return ctl_fail(p->ctl, exit_of(-ret), "%s (%s)", *why ? why : dray_strerror(ret),
			dray_strerrorname(ret));
}

static int gpu_region_add(struct bench_end *e)
{
	const struct dray_extent extent = { .kind = DRAY_KIND_CUDA_IPC,
					    .fd = -1,
					    .length = e->length,
					    .handle = bench_gpu_memory_handle(e->gpu) };
	const struct dray_region_spec spec = { .name = "bench",
					       .access = DRAY_READ | DRAY_WRITE,
					       .extents = &extent,
					       .extents_n = 1,
					       .device = bench_gpu_memory_device(e->gpu) };

	return dray_region_add(e->d, &spec, &e->region);
}

/* Allocates memory on the GPU, or in the host if there is none. */
static int memory_make(struct bench_end *e, const struct bench_plan *p, const char *gpu)
{
	int ret;

	if (gpu)
		return bench_gpu_memory_new(p->gpus, gpu, e->length, &e->gpu);
	ret = dray_memory_alloc(e->length, 0, &e->memory);
	return ret ? bench_failed(p->ctl, NULL, "allocating memory", ret) : 0;
}

int bench_end_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role,
		   uint64_t memory)
{
	int ret;

	*e = (struct bench_end){ .length = memory };
	if (session_open(e, p, role) < 0 ||
	    memory_make(e, p, role == BENCH_OWNS ? p->far_gpu : p->gpu) < 0)
		return -1;
	ret = e->gpu ? gpu_region_add(e) :
		       dray_region_add_memory(e->d, &e->memory, DRAY_READ | DRAY_WRITE, &e->region);
	return ret ? bench_failed(p->ctl, e->d, "registering memory", ret) : 0;
}

void bench_end_close(struct bench_end *e)
{
	/* CUDA allows freeing memory only after other processes have closed it. A lost agent has, which is no failure here. */
	if (e->gpu && e->region.id)
		dray_region_remove(e->d, e->region);
	/* The agent releases everything with the session, and no transfer uses this memory again. */
	dray_disconnect(e->d);
	dray_memory_free(&e->memory);
	bench_gpu_memory_free(e->gpu);
	*e = (struct bench_end){ .d = NULL };
}

int bench_end_put(struct bench_end *e, uint64_t at, const void *from, uint64_t n)
{
	if (e->gpu)
		return bench_gpu_put(e->gpu, at, from, n);
	memcpy((uint8_t *)e->memory.address + at, from, n);
	return 0;
}

const uint8_t *bench_end_view(struct bench_end *e, uint64_t at, uint64_t n, uint8_t *buf)
{
	if (e->gpu)
		return bench_gpu_get(e->gpu, at, buf, n) < 0 ? NULL : buf;
	return (const uint8_t *)e->memory.address + at;
}
