/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory of regions, pinned so that GPUs reach it. Pages are pinned once: a region whose pages lie in a pin shares it;
 * a region that lies in a pin only in part stays unpinned, and its bytes are staged. Pins belong to no device: pinning begins
 * with the first device that is started, and all pins end with the last one that is stopped.
 */
#include <stdlib.h>

#include "agent/control/gpu/internal.h"
#include "lib/log.h"

#define PAGE 4096ull

struct pin {
	struct dray_list link;    /* on gpus->pins: those without regions first */
	struct dray_list waiting; /* struct host_region that is removed when the pin is gone */
	struct gpus *gpus;
	uintptr_t base;
	uint64_t bytes;
	bool write;
	uint32_t refs; /* regions; 0: being unpinned */
	enum { PIN_MAKING, PIN_MADE, PIN_FAILED } state;
	bool made; /* by the job */
	bool held; /* unpinned after gpu_copies_ended() */
	struct dray_err err;
	struct dray_job job;
};

struct host_region {
	struct dray_list link;
	struct dray_list wait_link; /* on pin->waiting */
	struct gpus *gpus;
	const struct region_view *view;
	struct pin **pins; /* NULL: not pinned */
	uint32_t n_pins;
	bool told, removing;
	bool held; /* removed after gpu_copies_ended(), even if other regions share its pins */
	void (*done)(void *arg);
	void *arg;
};

static void check_removing(struct host_region *r);

static bool overlaps(const struct pin *p, uintptr_t base, uint64_t bytes)
{
	return base < p->base + p->bytes && p->base < base + bytes;
}

static void unpin_run(struct dray_job *j)
{
	struct pin *p = dray_container_of(j, struct pin, job);

	if (p->made)
		p->gpus->ops->unpin(p->gpus->plugin, (void *)p->base);
	p->made = false;
}

static void unpin_done(struct dray_job *j)
{
	struct pin *p = dray_container_of(j, struct pin, job);
	struct dray_list waiting = DRAY_LIST_INIT(waiting);
	struct gpus *g = p->gpus;
	struct host_region *r;

	dray_list_del(&p->link);
	dray_list_splice(&waiting, &p->waiting);
	free(p);
	while ((r = dray_list_pop(&waiting, struct host_region, wait_link)))
		check_removing(r);
	pins_begin(g);
}

static void pin_drop(struct pin *p)
{
	p->held = p->made && !gpu_copies_ended(p->gpus, NULL);
	if (!p->held)
		dray_jobs_add(p->gpus->pinner, &p->job, unpin_run, unpin_done);
}

void pins_drop_held(struct gpus *g)
{
	struct dray_list waiting = DRAY_LIST_INIT(waiting);
	struct host_region *r;

	dray_list_for_each(&g->pins, p, struct pin, link)
		if (p->held)
			pin_drop(p);
	dray_list_for_each(&g->host_regions, it, struct host_region, link) {
		if (it->held)
			dray_list_add(&waiting, &it->wait_link);
		it->held = false;
	}
	while ((r = dray_list_pop(&waiting, struct host_region, wait_link)))
		check_removing(r);
}

/* A pin under construction is dropped at its end. */
static void pin_unref(struct pin *p)
{
	if (--p->refs)
		return;
	/* in front are those that regions may have to wait for, the last one first */
	dray_list_del(&p->link);
	dray_list_add_front(&p->gpus->pins, &p->link);
	if (p->state == PIN_MAKING)
		return;
	if (p->state == PIN_MADE)
		p->gpus->pinned_bytes -= p->bytes;
	pin_drop(p);
}

static void region_unpin(struct host_region *r)
{
	for (uint32_t i = 0; i < r->n_pins; i++)
		pin_unref(r->pins[i]);
	free(r->pins);
	r->pins = NULL;
	r->n_pins = 0;
}

static bool uses(const struct host_region *r, const struct pin *p)
{
	for (uint32_t i = 0; i < r->n_pins; i++)
		if (r->pins[i] == p)
			return true;
	return false;
}

static void tell_workers(const struct host_region *r, enum gpu_command command)
{
	struct gpus *g = r->gpus;

	for (unsigned w = 0; w < g->n_workers; w++)
		gpus_tell(g, w, command, r->view->o.handle, NULL);
}

static void tell(struct host_region *r)
{
	if (r->told || r->removing || !r->n_pins)
		return;
	for (uint32_t i = 0; i < r->n_pins; i++)
		if (r->pins[i]->state != PIN_MADE)
			return;
	r->told = true;
	tell_workers(r, GPU_PINNED);
}

static void pin_run(struct dray_job *j)
{
	struct pin *p = dray_container_of(j, struct pin, job);
	const struct gpus *g = p->gpus;

	p->made = g->ops->pin(g->plugin, (void *)p->base, p->bytes, p->write, &p->err) >= 0;
}

static void pin_done(struct dray_job *j)
{
	struct pin *p = dray_container_of(j, struct pin, job);
	struct gpus *g = p->gpus;

	p->state = p->made ? PIN_MADE : PIN_FAILED;
	if (p->made)
		g->pinned_bytes += p->bytes;
	if (!p->refs) {
		/* its last region was removed meanwhile */
		p->refs = 1;
		pin_unref(p);
		return;
	}
	dray_list_for_each(&g->host_regions, r, struct host_region, link) {
		if (!uses(r, p))
			continue;
		if (p->made) {
			tell(r);
			continue;
		}
		log_limited(DRAY_LOG_INFO, AREA,
			    "the region is not pinned, its bytes are staged: %s region=%llx",
			    p->err.code ? p->err.msg : "the driver gives no reason",
			    (unsigned long long)r->view->o.handle);
		region_unpin(r);
	}
}

static struct pin *pin_get(struct gpus *g, uintptr_t base, uint64_t bytes, bool write)
{
	struct pin *p;

	dray_list_for_each(&g->pins, it, struct pin, link) {
		if (!overlaps(it, base, bytes))
			continue;
		if (!it->refs || it->state == PIN_FAILED || it->write != write || base < it->base ||
		    base + bytes > it->base + it->bytes)
			return NULL;
		it->refs++;
		return it;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->gpus = g;
	p->base = base;
	p->bytes = bytes;
	p->write = write;
	p->refs = 1;
	dray_list_init(&p->waiting);
	dray_list_add(&g->pins, &p->link);
	dray_jobs_add(g->pinner, &p->job, pin_run, pin_done);
	return p;
}

struct pages {
	uintptr_t base, end;
};

static int by_base(const void *a, const void *b)
{
	const struct pages *x = a, *y = b;

	return dray_compare(x->base, y->base);
}

/* The ranges of the region's pages, each page once. Returns their number. */
static uint32_t pages_of(const struct region_view *v, struct pages *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->n_extents; i++) {
		uintptr_t base = (uintptr_t)v->extents[i].base;

		ret[i].base = base / PAGE * PAGE;
		ret[i].end = (base + v->extents[i].length + PAGE - 1) / PAGE * PAGE;
	}
	qsort(ret, v->n_extents, sizeof(*ret), by_base);
	for (uint32_t i = 0; i < v->n_extents; i++)
		if (n && ret[i].base < ret[n - 1].end)
			ret[n - 1].end = dray_max(ret[i].end, ret[n - 1].end);
		else
			ret[n++] = ret[i];
	return n;
}

static void region_pin(struct host_region *r)
{
	const struct region_view *v = r->view;
	struct pages *pages = malloc(v->n_extents * sizeof(*pages));
	uint32_t n = pages ? pages_of(v, pages) : 0;

	r->pins = n ? calloc(n, sizeof(struct pin *)) : NULL;
	for (uint32_t i = 0; r->pins && i < n; i++) {
		struct pin *p = pin_get(r->gpus, pages[i].base, pages[i].end - pages[i].base,
					v->o.access & DMSG_ACCESS_WRITE);

		if (p)
			r->pins[r->n_pins++] = p;
		else {
			log_debug(AREA,
				  "the region is not pinned, its bytes are staged: other regions "
				  "have pinned a part of its pages region=%llx",
				  (unsigned long long)v->o.handle);
			region_unpin(r);
		}
	}
	free(pages);
	tell(r);
}

static bool any_device(const struct gpus *g, enum device_state first, enum device_state last)
{
	for (unsigned i = 0; i < g->n; i++)
		if (g->devices[i].state >= first && g->devices[i].state <= last)
			return true;
	return false;
}

void pins_begin(struct gpus *g)
{
	if (g->pinning || !g->cfg->gpu.pin_host)
		return;
	/* pins from before the last stop are still being dropped, and would keep regions from being pinned */
	if (!dray_list_empty(&g->pins) || !any_device(g, DEVICE_READY, DEVICE_READY))
		return;
	g->pinning = true;
	dray_list_for_each(&g->host_regions, r, struct host_region, link)
		if (!r->removing)
			region_pin(r);
}

/*
 * The opener runs its jobs one after another, and they end in that order. So when a stop ends, a device that is STARTING
 * starts after it: no device was started in between, and all pins have ended. One in a later state has kept them.
 */
void pins_end(struct gpus *g)
{
	if (!g->pinning || any_device(g, DEVICE_READY, DEVICE_STOPPING))
		return;
	g->pinning = false;
	dray_list_for_each(&g->host_regions, r, struct host_region, link) {
		if (r->told && !r->removing)
			tell_workers(r, GPU_UNPINNED);
		r->told = false;
		region_unpin(r);
	}
}

void gpus_region_added(struct gpus *g, const struct region_view *view)
{
	struct host_region *r;

	if (!g->cfg->gpu.enable || view->memory != REGION_HOST)
		return;
	r = calloc(1, sizeof(*r));
	if (!r)
		return;
	r->gpus = g;
	r->view = view;
	dray_list_init(&r->wait_link);
	dray_list_add(&g->host_regions, &r->link);
	if (g->pinning)
		region_pin(r);
}

/* A pin that has some of its pages, has no region any more and is not unpinned yet. Of several the one that ends last. NULL: none. */
static struct pin *pinned_by(const struct host_region *r)
{
	dray_list_for_each(&r->gpus->pins, p, struct pin, link) {
		if (p->refs)
			break;
		for (uint32_t i = 0; i < r->view->n_extents; i++) {
			const struct extent_view *e = &r->view->extents[i];

			if (overlaps(p, (uintptr_t)e->base, e->length))
				return p;
		}
	}
	return NULL;
}

/* Ends the region, or puts it where it is looked at again. */
static void check_removing(struct host_region *r)
{
	struct pin *p = r->held ? NULL : pinned_by(r);
	void (*done)(void *arg) = r->done;
	void *arg = r->arg;

	if (p)
		dray_list_move(&p->waiting, &r->wait_link);
	if (p || r->held)
		return;
	dray_list_del(&r->wait_link);
	dray_list_del(&r->link);
	free(r);
	done(arg);
}

void gpus_region_removed(struct gpus *g, dray_handle handle, void (*done)(void *arg),
			 void *done_arg)
{
	dray_list_for_each(&g->host_regions, r, struct host_region, link) {
		if (r->view->o.handle != handle)
			continue;
		r->removing = true;
		r->done = done;
		r->arg = done_arg;
		r->held = r->told && !gpu_copies_ended(g, NULL);
		region_unpin(r);
		check_removing(r);
		return;
	}
	done(done_arg);
}

void pins_release(struct gpus *g)
{
	dray_list_for_each(&g->pins, p, struct pin, link) {
		unpin_run(&p->job);
		free(p);
	}
}

void host_regions_free(struct gpus *g)
{
	dray_list_for_each(&g->host_regions, r, struct host_region, link) {
		free(r->pins);
		free(r);
	}
}
