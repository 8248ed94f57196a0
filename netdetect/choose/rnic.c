/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs choose in rounds, in the order of their addresses. In each round a GPU takes the nearest device that it does not
 * have yet; of several, the one that fewest GPUs have; of several, the first by name. So every process of a node
 * computes the same map, and GPUs at equal distance spread over the devices.
 */
#include "netdetect/choose/rnic.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/cleanup.h"

struct plan {
	const struct nd_devices *devices;
	struct nd_topology *t;
	unsigned *load; /* GPUs that have each device */
};

static struct nd_affinity *pair_of(struct plan *p, size_t gpu, size_t device)
{
	return &p->t->pairs[gpu * p->devices->n + device];
}

/* One of its ports is active, and has a usable GID unless its table could not be read. */
static bool is_usable(const struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++) {
		const struct nd_port *p = &d->ports[i];

		if (p->state == ND_PORT_ACTIVE &&
		    (nd_gids_best(&p->gids) || !(p->gids.n + p->gids.unmapped)))
			return true;
	}
	return false;
}

/* Usable before unusable, near before far; 0 if both are equal. */
static int compare(const struct plan *p, const struct nd_affinity *a, const struct nd_affinity *b)
{
	bool x = is_usable(&p->devices->v[a->device]), y = is_usable(&p->devices->v[b->device]);

	return 2 * dray_compare(y, x) + dray_compare(a->distance, b->distance);
}

static void choose(struct plan *p, size_t gpu)
{
	struct nd_affinity *best = NULL, *nearest = NULL;

	/* devices come by name, so the first of several equal ones wins */
	for (size_t i = 0; i < p->devices->n; i++) {
		struct nd_affinity *a = pair_of(p, gpu, i);
		int order = best ? compare(p, a, best) : -1;

		if (a->preferred)
			continue;
		if (order < 0 || (order == 0 && p->load[i] < p->load[best->device]))
			best = a;
		if (!nearest || compare(p, a, nearest) < 0)
			nearest = a;
	}
	if (!best)
		return;
	best->preferred = true;
	best->spread = best != nearest;
	p->load[best->device]++;
}

static int by_preference(const void *x, const void *y)
{
	const struct nd_affinity *a = x, *b = y;

	/* each key outweighs those behind it */
	return 8 * dray_compare(a->gpu, b->gpu) + 4 * dray_compare(b->preferred, a->preferred) +
	       2 * dray_compare(a->distance, b->distance) + dray_compare(a->device, b->device);
}

static int measure(const struct nd_source *s, struct plan *p)
{
	dray_auto_free struct nd_pci_place *places = calloc(p->devices->n, sizeof(*places));

	if (!places)
		return -ENOMEM;
	for (size_t i = 0; i < p->devices->n; i++)
		(void)nd_pci_place_of(s, p->devices->v[i].bdf, &places[i]);
	for (size_t g = 0; g < p->t->n_gpus; g++) {
		struct nd_pci_place gpu;

		(void)nd_pci_place_of(s, p->t->gpus[g].bdf, &gpu);
		for (size_t i = 0; i < p->devices->n; i++)
			*pair_of(p, g, i) = (struct nd_affinity){
				.gpu = (uint16_t)g,
				.device = (uint16_t)i,
				.distance = nd_pci_distance_of(&gpu, &places[i]),
			};
	}
	return 0;
}

int nd_affinity_make(const struct nd_source *s, const struct nd_devices *devices, unsigned k,
		     struct nd_topology *t)
{
	dray_auto_free unsigned *load = NULL;
	struct plan p = { .devices = devices, .t = t };
	size_t rounds = k && k < devices->n ? k : devices->n;
	int r;

	if (!devices->n || !t->n_gpus)
		return 0;
	p.load = load = calloc(devices->n, sizeof(*load));
	t->pairs = calloc(devices->n * t->n_gpus, sizeof(*t->pairs));
	if (!load || !t->pairs)
		return -ENOMEM;
	t->n_pairs = devices->n * t->n_gpus;
	r = measure(s, &p);
	if (r < 0)
		return r;
	for (size_t round = 0; round < rounds; round++)
		for (size_t g = 0; g < t->n_gpus; g++)
			choose(&p, g);
	qsort(t->pairs, t->n_pairs, sizeof(*t->pairs), by_preference);
	return 0;
}
