/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list with a device for each GPU. Some readers of such a list use the entry at the number of their GPU and refuse an
 * empty entry; others use all entries as allowed devices. So each GPU has an entry, a GPU without a usable RNIC of its own
 * shares the nearest RNIC of another GPU, and further RNICs of GPUs follow behind these entries.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/environment/internal.h"
#include "lib/cleanup.h"

struct places {
	const struct nd_scan *scan;
	const struct env_fabric *f;
	const struct nd_affinity **v; /* by GPU */
	unsigned *load;               /* GPUs by device */
	unsigned shared;              /* GPUs that share the RNIC of another one */
};

/* A preferred RNIC first, then by distance; of several at one distance, the RNIC of the fewest GPUs. */
static const struct nd_affinity *nearest(const struct places *p, size_t gpu)
{
	const struct nd_topology *t = &p->scan->topology;
	const struct nd_affinity *best = NULL;

	for (size_t i = 0; i < t->n_pairs; i++) {
		const struct nd_affinity *a = &t->pairs[i];

		if (a->gpu != gpu || !env_fabric_find(p->f, a->device))
			continue;
		if (a->preferred)
			return a;
		if (!best || a->distance < best->distance ||
		    (a->distance == best->distance && p->load[a->device] < p->load[best->device]))
			best = a;
	}
	return best;
}

static bool has_place(const struct places *p, size_t n, uint16_t device)
{
	for (size_t g = 0; g < n; g++)
		if (p->v[g]->device == device)
			return true;
	return false;
}

/* Is it the first pair in which a GPU prefers this device? So each device follows once. */
static bool is_first_preferred(const struct nd_topology *t, size_t pair)
{
	for (size_t i = 0; i < pair; i++)
		if (t->pairs[i].preferred && t->pairs[i].device == t->pairs[pair].device)
			return false;
	return t->pairs[pair].preferred;
}

/* Returns how many devices follow behind the entries of GPUs. */
static unsigned list_print(const struct places *p, FILE *s)
{
	const struct nd_topology *t = &p->scan->topology;
	const struct nd_device *d = p->scan->devices.v;
	unsigned more = 0;
	bool alike = true;

	for (size_t g = 1; g < t->n_gpus; g++)
		alike = alike && p->v[g]->device == p->v[0]->device;
	/* a list of one device serves every GPU */
	for (size_t g = 0; g < (alike ? 1 : t->n_gpus); g++)
		fprintf(s, "%s%s", g ? "," : "", d[p->v[g]->device].name);
	for (size_t i = 0; i < t->n_pairs; i++) {
		uint16_t device = t->pairs[i].device;

		if (!is_first_preferred(t, i) || has_place(p, t->n_gpus, device) ||
		    !env_fabric_find(p->f, device))
			continue;
		/* with a second device, each GPU needs its entry */
		for (size_t g = 1; alike && !more && g < t->n_gpus; g++)
			fprintf(s, ",%s", d[p->v[g]->device].name);
		fprintf(s, ",%s", d[device].name);
		more++;
	}
	return more;
}

static void reason_print(const struct places *p, unsigned more, FILE *s)
{
	const struct nd_topology *t = &p->scan->topology;

	fprintf(s, "an entry for each of %zu GPU%s, by PCI address", t->n_gpus,
		t->n_gpus == 1 ? "" : "s");
	for (size_t g = 0; p->shared && g < t->n_gpus; g++)
		if (!p->v[g]->preferred)
			fprintf(s,
				"; GPU %zu (%s) has no usable RNIC of its own and shares %s (%s)",
				g, t->gpus[g].bdf, p->scan->devices.v[p->v[g]->device].name,
				nd_distance_name(p->v[g]->distance));
	if (more)
		fprintf(s, "; then %u more that GPUs use", more);
	fputs(p->f->left_out, s);
}

static int places_say(const struct places *p, struct env_answer *a)
{
	dray_auto_free char *list = NULL, *reason = NULL;
	size_t list_n, reason_n;
	FILE *s = open_memstream(&list, &list_n);
	unsigned more;

	if (!s)
		return -ENOMEM;
	more = list_print(p, s);
	if (fclose(s) != 0)
		return -ENOMEM;
	s = open_memstream(&reason, &reason_n);
	if (!s)
		return -ENOMEM;
	reason_print(p, more, s);
	if (fclose(s) != 0)
		return -ENOMEM;
	return env_set(a, dray_take(list), "%s", reason);
}

int env_gpu_devices(const struct env_input *in, struct env_answer *a)
{
	struct places p = { .scan = in->facts->scan, .f = &in->fabric };
	dray_auto_free const struct nd_affinity **v = NULL;
	dray_auto_free unsigned *load = NULL;
	const struct nd_topology *t;

	if (!p.f->n)
		return env_omit(a, "%s%s", p.f->none, p.f->left_out);
	t = &p.scan->topology;
	if (t->hidden_gpus)
		return env_omit(
			a,
			"%u GPUs are not in this /sys, so the position of each GPU is unknown; "
			"mount the host's /sys",
			t->hidden_gpus);
	if (!t->n_gpus && p.f->n > 1)
		return env_omit(a, "no GPU is in /sys, so the list would have no entries");
	if (!t->n_gpus)
		return env_set(a, strdup(p.f->v[0].d->name), "the only usable RNIC%s",
			       p.f->left_out);
	p.v = v = calloc(t->n_gpus, sizeof(*v));
	p.load = load = calloc(p.scan->devices.n, sizeof(*load));
	if (!v || !load)
		return -ENOMEM;
	for (size_t g = 0; g < t->n_gpus; g++) {
		v[g] = nearest(&p, g);
		if (!v[g])
			return env_omit(a, "the distance of the RNICs to GPU %zu (%s) is not known",
					g, t->gpus[g].bdf);
		load[v[g]->device]++;
		p.shared += !v[g]->preferred;
	}
	return places_say(&p, a);
}
