/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page tables of extents. They are filled in steps, each a job of its owner, so that nothing else that the owner asks for waits longer
 * than a step takes. The mappings stay until the step that runs has ended.
 */
#include <stdlib.h>
#include <unistd.h>

#include "agent/control/region/extents.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"

/* Bytes of one step: some milliseconds. */
#define STEP (32ull << 20)
/* Bytes of one call: a part of a millisecond, in which no thread of the process can map or unmap memory. */
#define CALL (4ull << 20)
/* A shorter call counts as so many bytes. */
#define CALL_LEAST (32ull << 10)
/* Smaller memory has few pages, and their faults cost less than the job. */
#define FILL_LEAST (2ull << 20)

struct range {
	uint8_t *at, *end; /* whole pages */
};

struct fill {
	struct owner_job job;
	struct extents *extents; /* NULL: they are released */
	struct mapping **maps;   /* they count this fill */
	uint32_t n_maps;
	uint32_t n, at; /* of the ranges; those before `at` are filled */
	struct range ranges[];
};

static void fill_free(struct fill *f)
{
	for (uint32_t i = 0; i < f->n_maps; i++)
		mapping_filled(f->maps[i]);
	free(f->maps);
	free(f);
}

DRAY_DEFINE_CLEANUP(struct fill *, fill_free);

static void fill_run(struct owner_job *j)
{
	struct fill *f = dray_container_of(j, struct fill, job);

	for (uint64_t cost = 0; cost < STEP && f->at < f->n;) {
		struct range *r = &f->ranges[f->at];
		uint64_t n = dray_min(CALL, (uint64_t)(r->end - r->at));

		if (dray_map_resident(r->at, n) < 0) {
			f->at = f->n;
			return;
		}
		r->at += n;
		f->at += r->at == r->end;
		cost += dray_max(n, CALL_LEAST);
	}
}

static void fill_done(struct owner_job *j)
{
	struct fill *f = dray_container_of(j, struct fill, job);

	if (f->extents && f->at < f->n) {
		owner_later_job(f->maps[0]->owner, &f->job, fill_run, fill_done);
		return;
	}
	if (f->extents)
		f->extents->fill = NULL;
	fill_free(f);
}

static uint8_t *page_of(const uint8_t *p)
{
	return (uint8_t *)((uintptr_t)p & -(uintptr_t)sysconf(_SC_PAGESIZE));
}

static struct fill *fill_new(struct extents *e)
{
	const struct region_view *v = e->view;
	dray_auto(fill_free) struct fill *f =
		calloc(1, sizeof(*f) + v->n_extents * sizeof(f->ranges[0]));

	if (f)
		f->maps = calloc(e->n_maps, sizeof(struct mapping *));
	if (!f || !f->maps)
		return NULL;
	f->extents = e;
	for (; f->n_maps < e->n_maps; f->n_maps++) {
		f->maps[f->n_maps] = e->maps[f->n_maps];
		e->maps[f->n_maps]->fills++;
	}
	for (; f->n < v->n_extents; f->n++) {
		const struct extent_view *x = &v->extents[f->n];
		const uint8_t *last = x->base + x->length - 1;

		f->ranges[f->n] =
			(struct range){ page_of(x->base), page_of(last) + sysconf(_SC_PAGESIZE) };
	}
	return dray_take(f);
}

void extents_fill(struct extents *e)
{
	if (!e->view->fault_guarded || e->view->o.length < FILL_LEAST)
		return;
	/* without memory for it, pages are mapped as they are used */
	e->fill = fill_new(e);
	if (e->fill)
		owner_later_job(e->maps[0]->owner, &e->fill->job, fill_run, fill_done);
}

void fill_cancel(struct fill *f)
{
	if (!f)
		return;
	f->extents->fill = NULL;
	f->extents = NULL;
	if (owner_later_cancel(&f->job))
		fill_free(f);
}
