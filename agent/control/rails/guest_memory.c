/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges that owners exported to guests, each registered in the protection domain of guests by itself and with its access: a
 * key that a guest has reaches that range alone, and ends with it.
 *
 * The end of a range is its deregistration, after which the device refuses its key; guests are not asked. On Soft-RoCE a message that
 * has begun holds its memory region until its last packet (qp->resp.mr in drivers/infiniband/sw/rxe of Linux 6.1), and the
 * deregistration does not wait longer than a moment for it. So queue pairs of guests that are silent are destroyed before. Those of
 * others are kept, because their devices would repeat messages to a queue pair that is gone for ever, instead of failing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/log.h"

struct guest_range {
	struct dray_list link; /* in rails->guests.ranges */
	struct rails *rails;
	dray_handle grant;
	uint64_t address;
	uint16_t access;
	bool ending;
	unsigned n;
	struct registration *v[];
};

static void count_piece(void *arg, uint8_t *base, uint64_t offset, uint64_t length)
{
	unsigned *n = arg;

	(*n)++;
}

static void add_piece(void *arg, uint8_t *base, uint64_t offset, uint64_t length)
{
	struct guest_range *g = arg;
	struct registration *made =
		registration_for_guests(g, g->rails, base, length, g->access, g->address + offset);

	if (made)
		g->v[g->n++] = made;
}

static void range_release(struct guest_range *g)
{
	while (g->n)
		registration_unref(g->v[--g->n]);
	free(g);
}

void rails_guest_range_add(struct rails *r, const struct grant_view *view)
{
	struct guest_range *g;
	unsigned n = 0;

	if (!guests_wanted(r))
		return;
	rail_region_pieces(r, view->region, view->offset, view->o.length, count_piece, &n);
	g = n ? calloc(1, sizeof(*g) + n * sizeof(g->v[0])) : NULL;
	if (g) {
		g->rails = r;
		g->grant = view->o.handle;
		g->address = view->mooncake;
		g->access = view->o.access;
		rail_region_pieces(r, view->region, view->offset, view->o.length, add_piece, g);
	}
	if (!g || g->n < n) {
		log_warning(
			AREA,
			"a range for Mooncake's engines is not registered: no memory, or RDMA is "
			"off (rdma.enable) address=%#" PRIx64,
			view->mooncake);
		if (g)
			range_release(g);
		return;
	}
	dray_list_add(&r->guests.ranges, &g->link);
	for (unsigned i = 0; i < g->n; i++)
		dray_list_for_each(&r->devices, d, struct device, link)
			registration_make(g->v[i], d);
}

static bool is_on(const struct guest_range *g, const struct device *d)
{
	for (unsigned i = 0; i < g->n; i++)
		dray_list_for_each(&g->v[i]->mrs, m, const struct mrs, link)
			if (m->device == d)
				return true;
	return false;
}

/* Deregisters the range from each device, if guests do not prevent that. True: no device has any of it. */
static bool range_step(struct guest_range *g)
{
	bool gone = true;

	for (unsigned i = 0; i < g->n; i++) {
		bool ready = true;

		dray_list_for_each(&g->v[i]->mrs, m, const struct mrs, link)
			ready &= !m->device->soft_roce || !guests_are_ending(m->device);
		gone &= dray_list_empty(&g->v[i]->mrs);
		if (ready)
			registration_drop(g->v[i]);
	}
	return gone;
}

static void range_end(struct guest_range *g)
{
	struct rails *r = g->rails;
	dray_handle grant = g->grant;

	dray_list_del(&g->link);
	range_release(g);
	grant_fenced(r->deps.regions, MOONCAKE_PEER, grant);
}

void guest_range_check(struct guest_range *g)
{
	if (g->ending && range_step(g))
		range_end(g);
}

static struct guest_range *next_ended(struct rails *r)
{
	dray_list_for_each(&r->guests.ranges, g, struct guest_range, link)
		if (g->ending && range_step(g))
			return g;
	return NULL;
}

void guest_ranges_check(struct rails *r)
{
	struct guest_range *g;

	while ((g = next_ended(r)))
		range_end(g);
}

void rails_guest_range_end(struct rails *r, dray_handle grant)
{
	struct guest_range *g = NULL;

	dray_list_for_each(&r->guests.ranges, it, struct guest_range, link)
		if (it->grant == grant)
			g = it;
	if (!g) {
		grant_fenced(r->deps.regions, MOONCAKE_PEER, grant);
		return;
	}
	g->ending = true;
	dray_list_for_each(&r->devices, d, struct device, link)
		if (d->soft_roce && is_on(g, d))
			guests_end_silent(d);
	guest_range_check(g);
}

bool rails_guest_ready(const struct rails *r)
{
	if (r->cfg->rdma.enable && !r->scan)
		return false;
	for (unsigned i = 0; i < r->n; i++)
		if (r->v[i]->state == RAIL_OPENING)
			return false;
	dray_list_for_each(&r->guests.ranges, g, const struct guest_range, link)
		for (unsigned i = 0; !g->ending && i < g->n; i++)
			dray_list_for_each(&g->v[i]->mrs, m, const struct mrs, link)
				if (m->state == MRS_MAKING && device_is_open(m->device))
					return false;
	return true;
}

uint64_t rails_guest_changes(const struct rails *r)
{
	return r->guests.changes;
}

struct offer {
	const struct device *devices[RAILS_MAX];
	unsigned n;
	void (*fn)(void *arg, uint64_t address, uint64_t length, const uint32_t *keys, unsigned n);
	void *arg;
};

static bool is_offered(const struct guest_range *g, const struct offer *o)
{
	for (unsigned i = 0; i < g->n; i++)
		for (unsigned k = 0; k < o->n; k++) {
			const struct mrs *m = registration_mrs(g->v[i], o->devices[k]);

			if (!m || m->state != MRS_READY)
				return false;
		}
	return !g->ending && o->n;
}

/* Each piece ends where the memory region of any device ends. */
static void offer_registration(const struct registration *g, const struct offer *o)
{
	uint32_t keys[RAILS_MAX];

	for (uint64_t at = 0, n; at < g->length; at += n) {
		n = g->length - at;
		for (unsigned k = 0; k < o->n; k++) {
			const struct mrs *m = registration_mrs(g, o->devices[k]);
			uint64_t slice = at / m->slice;

			n = dray_min(n, (slice + 1) * m->slice - at);
			keys[k] = m->v[slice]->rkey;
		}
		o->fn(o->arg, g->iova + at, n, keys, o->n);
	}
}

void rails_guest_buffers(const struct rails *r,
			 void (*fn)(void *arg, uint64_t address, uint64_t length,
				    const uint32_t *keys, unsigned n),
			 void *arg)
{
	struct rails_guest_device used[RAILS_MAX];
	struct offer o = { .fn = fn, .arg = arg, .n = rails_guest_devices(r, used) };

	for (unsigned k = 0; k < o.n; k++)
		dray_list_for_each(&r->devices, d, const struct device, link)
			if (device_is_open(d) && !strcmp(d->name, used[k].name))
				o.devices[k] = d;
	dray_list_for_each(&r->guests.ranges, g, const struct guest_range, link)
		for (unsigned i = 0; is_offered(g, &o) && i < g->n; i++)
			offer_registration(g->v[i], &o);
}

void guest_ranges_free(struct rails *r)
{
	dray_list_for_each(&r->guests.ranges, g, struct guest_range, link)
		free(g);
}
