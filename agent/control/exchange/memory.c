/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments of the store as regions, so that RDMA devices can reach them: workers land there what they read from other agents, and
 * peers read there what they have leased. A segment that leaves ends in the same order as a region of a client: first the workers
 * let go of it, then the devices. Its leases have ended before, because a lease holds its objects.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/exchange/internal.h"
#include "schema/gen/errors.h"

struct segment_region {
	struct exchange *x;
	struct store_segment *part;
	struct region_view view; /* the last: it has an extent */
};

static void deregistered(void *arg)
{
	struct segment_region *g = arg;
	struct store_segment *part = g->part;

	dray_handles_del(&g->x->segments, g->view.o.handle);
	free(g);
	store_segment_left(part);
}

static void dropped(void *arg)
{
	struct segment_region *g = arg;

	g->x->deps.up->segment_removed(*g->x->deps.rails, g->view.o.handle, deregistered, g);
}

static dray_handle added(void *arg, struct store_segment *part)
{
	struct exchange *x = arg;
	struct segment_region *g = calloc(1, sizeof(*g) + sizeof(g->view.extents[0]));
	struct object_view *o = g ? &g->view.o : NULL;

	/* without memory for it, its objects are read by TCP */
	if (!g || dray_handles_add(&x->segments, g, &o->handle) < 0) {
		free(g);
		return 0;
	}
	g->x = x;
	g->part = part;
	o->kind = OBJECT_REGION;
	o->length = part->bytes;
	o->access = DMSG_ACCESS_ALL;
	g->view.n_extents = 1;
	g->view.extents[0] =
		(struct extent_view){ .length = part->bytes, .base = part->base, .node = -1 };
	pool_publish(x->deps.pool, o);
	x->deps.up->segment_added(*x->deps.rails, &g->view, x->deps.cfg->store.lend);
	return o->handle;
}

static void leaves(void *arg, struct store_segment *part, dray_handle name)
{
	struct exchange *x = arg;
	struct segment_region *g = dray_handles_get(&x->segments, name);

	pool_drop(x->deps.pool, OBJECT_REGION, name, DRAY_E_CANCELLED, false, dropped, g);
}

static unsigned part_keys(const struct exchange *x, dray_handle peer, const struct memory_part *p,
			  uint8_t *buf, unsigned max)
{
	const struct segment_region *g = dray_handles_get(&x->segments, p->segment);

	return g ? x->deps.up->segment_keys(*x->deps.rails, peer, p->segment,
					    p->from - g->part->offset, p->to - p->from, p->from,
					    buf, max) :
		   0;
}

unsigned memory_keys(const struct exchange *x, dray_handle peer, const struct memory_part *parts,
		     uint32_t n, uint8_t *buf, unsigned max)
{
	unsigned at = 0;

	for (uint32_t i = 0; i < n; i++)
		at += part_keys(x, peer, &parts[i], buf + (size_t)at * PMSG_RAIL_SIZE, max - at);
	return at;
}

int memory_regions_init(struct exchange *x)
{
	const struct dray_config *cfg = x->deps.cfg;

	dray_handles_init(&x->segments, DRAY_HANDLES_MAX, EXCHANGE_HANDLES);
	/* a handle that no segment gets */
	if (dray_handles_add(&x->segments, x, &x->whole) < 0)
		return -ENOMEM;
	dray_handles_retire(&x->segments, x->whole);
	/* else no agent reads here or is read from */
	if (cfg->store.lend || exchange_asks(cfg))
		store_follow(x->deps.store, &(struct store_follower){
						    .added = added, .leaves = leaves, .arg = x });
	return 0;
}

void memory_regions_deinit(struct exchange *x)
{
	struct segment_region *g;

	for (uint32_t at = 0; (g = dray_handles_next(&x->segments, &at, NULL));)
		free(g);
	dray_handles_deinit(&x->segments);
}
