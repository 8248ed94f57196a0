/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/scan.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/time.h"
#include "lib/units.h"
#include "netdetect/choose/gid.h"
#include "netdetect/choose/rnic.h"
#include "netdetect/source/netlink.h"
#include "schema/gen/errors.h"

/* Of the note about them. */
#define EXCLUDED_NAMES_MAX 100

struct gid_pin {
	char device[ND_DEVICE_NAME_MAX];
	int64_t port; /* 0: all of them */
	int64_t index;
};

__attribute__((format(printf, 3, 4))) static void add_note(struct nd_scan *scan, const char *about,
							   const char *fmt, ...)
{
	struct nd_note *n;
	va_list args;

	if (scan->n_notes == ND_NOTES_MAX)
		return;
	n = &scan->notes[scan->n_notes++];
	snprintf(n->about, sizeof(n->about), "%s", about);
	va_start(args, fmt);
	vsnprintf(n->text, sizeof(n->text), fmt, args);
	va_end(args);
}

/*
 * A failure that may not come again ends the scan: the part may have what this scan could not see. Any other one becomes a note,
 * because the next scan would fail alike: the kernel lacks or forbids the request, or its answer cannot be understood.
 */
static int part(struct nd_scan *scan, const char *about, int r, const struct dray_err *err,
		struct dray_err *reterr)
{
	if (r >= 0)
		return 0;
	if (nd_is_transient(r))
		return dray_err_set(reterr, r, err->code, "%s: %s", about, err->msg);
	add_note(scan, about, "%s", err->msg);
	return 0;
}

static bool parse_number(const char *s, int64_t min, int64_t max, int64_t *ret)
{
	return dray_int_parse(s, 0, ret) == 0 && *ret >= min && *ret <= max;
}

/* DEVICE:INDEX or DEVICE/PORT:INDEX */
static int parse_pin(const char *s, struct gid_pin *ret)
{
	char text[ND_DEVICE_NAME_MAX + 16], *slash, *colon;

	*ret = (struct gid_pin){ .port = 0 };
	if (strlen(s) >= sizeof(text))
		return -EINVAL;
	snprintf(text, sizeof(text), "%s", s);
	colon = strrchr(text, ':');
	if (!colon || !parse_number(colon + 1, 0, ND_GID_INDEX_MAX, &ret->index))
		return -EINVAL;
	*colon = '\0';
	slash = strchr(text, '/');
	if (slash && !parse_number(slash + 1, 1, 255, &ret->port))
		return -EINVAL;
	if (slash)
		*slash = '\0';
	if (!*text || strlen(text) >= sizeof(ret->device))
		return -EINVAL;
	memcpy(ret->device, text, strlen(text) + 1);
	return 0;
}

static int by_place(const void *x, const void *y)
{
	const struct gid_pin *a = x, *b = y;
	int r = strcmp(a->device, b->device);

	return r ? r : dray_compare(a->port, b->port);
}

/* Why two pins for one place, the later of which is p, are refused. */
static int pins_differ(const struct gid_pin *p, struct dray_err *reterr)
{
	if (!p->port)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "there are two GID indices for %s: keep one", p->device);
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "there are two GID indices for %s/%" PRId64 ": keep one", p->device,
			    p->port);
}

static int pins_check(const struct dray_strv *words, struct dray_err *reterr)
{
	dray_auto_free struct gid_pin *pins = calloc(words->n + 1, sizeof(*pins));
	int r = pins ? 0 : dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");

	for (size_t i = 0; i < words->n && !r; i++)
		if (parse_pin(words->v[i], &pins[i]) < 0)
			r = dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"GID index '%s': write DEVICE:INDEX or DEVICE/PORT:INDEX, such as mlx5_0:3, with INDEX at most %d",
				words->v[i], ND_GID_INDEX_MAX);
	if (!r)
		qsort(pins, words->n, sizeof(*pins), by_place);
	for (size_t i = 1; i < words->n && !r; i++)
		if (!by_place(&pins[i - 1], &pins[i]))
			r = pins_differ(&pins[i], reterr);
	return r;
}

int nd_scan_options_check(const struct nd_scan_options *o, struct dray_err *reterr)
{
	int r = pins_check(&o->gid_indices, reterr);

	if (r < 0)
		return r;
	if (o->gid_family != AF_UNSPEC && o->gid_family != AF_INET && o->gid_family != AF_INET6)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the GID family %u is neither IPv4 nor IPv6", o->gid_family);
	return 0;
}

static bool matches(const char *name, const struct dray_strv *patterns)
{
	for (size_t i = 0; i < patterns->n; i++)
		if (fnmatch(patterns->v[i], name, 0) == 0)
			return true;
	return false;
}

/* A note for each pattern that selects nothing, because a wrong name leaves the node without rails. */
static void note_missing(struct nd_scan *scan, const struct nd_scan_options *o)
{
	for (size_t i = 0; i < o->only.n; i++) {
		const char *pattern = o->only.v[i];
		bool found = false;

		for (size_t k = 0; k < scan->devices.n && !found; k++)
			found = fnmatch(pattern, scan->devices.v[k].name, 0) == 0;
		if (!found)
			add_note(scan, "devices",
				 "the configuration selects %s, but no RDMA device here has such a "
				 "name; drayctl detect lists the names",
				 pattern);
	}
}

/* One note, because there is room for few: nodes have dozens of virtual functions. */
static void note_excluded(struct nd_scan *scan, const char *names, size_t more)
{
	if (more)
		add_note(scan, "devices", "excluded by configuration: %s, and %zu more", names,
			 more);
	else if (*names)
		add_note(scan, "devices", "excluded by configuration: %s", names);
}

static void exclude_devices(struct nd_scan *scan, const struct nd_scan_options *o)
{
	struct nd_devices *d = &scan->devices;
	char names[EXCLUDED_NAMES_MAX] = "";
	size_t kept = 0, at = 0, more = 0;

	note_missing(scan, o);
	for (size_t i = 0; i < d->n; i++) {
		const char *name = d->v[i].name;

		if ((!o->only.n || matches(name, &o->only)) && !matches(name, &o->without)) {
			d->v[kept++] = d->v[i];
			continue;
		}
		if (!more && at + strlen(name) + 2 < sizeof(names))
			at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s",
					       at ? ", " : "", name);
		else
			more++;
		nd_device_deinit(&d->v[i]);
	}
	d->n = kept;
	note_excluded(scan, names, more);
}

/* A pin of the port wins over one of its device. -1: none. */
static int pinned_index(const struct nd_scan_options *o, const struct nd_device *d, uint32_t port)
{
	struct gid_pin pin;
	int index = -1;

	for (size_t i = 0; i < o->gid_indices.n; i++) {
		if (parse_pin(o->gid_indices.v[i], &pin) < 0 || strcmp(pin.device, d->name) != 0)
			continue;
		if (pin.port == port)
			return (int)pin.index;
		if (!pin.port)
			index = (int)pin.index;
	}
	return index;
}

static void rank_gids(struct nd_scan *scan, const struct nd_scan_options *o)
{
	struct gid_pin pin;

	for (size_t i = 0; i < scan->devices.n; i++) {
		struct nd_device *d = &scan->devices.v[i];

		for (size_t k = 0; k < d->n_ports; k++) {
			struct nd_port *p = &d->ports[k];
			bool infiniband = p->layer == ND_LAYER_INFINIBAND;
			struct nd_gid_choice choice = {
				.family = o->gid_family,
				.fixed_index = pinned_index(o, d, p->number),
				.infiniband = infiniband,
				.flid = infiniband ? nd_gids_flid(&p->gids) : 0,
			};

			nd_gids_rank(&p->gids, &choice);
		}
	}
	for (size_t i = 0; i < o->gid_indices.n; i++) {
		const char *word = o->gid_indices.v[i];
		const struct nd_device *d;

		if (parse_pin(word, &pin) < 0)
			continue;
		d = nd_device_by_name(&scan->devices, pin.device);
		if (!d)
			add_note(scan, "devices", "GID index %s: there is no device %s", word,
				 pin.device);
		else if (pin.port && !nd_port_by_number(d, (uint32_t)pin.port))
			add_note(scan, "devices", "GID index %s: %s has no such port", word,
				 pin.device);
	}
}

/* The /sys of a pod can lack GPUs that the driver shows. */
static unsigned count_hidden(const struct nd_scan *scan)
{
	size_t known = dray_max(scan->nvidia.n_gpus, (size_t)scan->nvidia.nodes), seen = 0;

	for (size_t i = 0; i < scan->topology.n_gpus; i++)
		seen += scan->topology.gpus[i].vendor == ND_VENDOR_NVIDIA;
	return known > seen ? (unsigned)(known - seen) : 0;
}

static void note_failures(struct nd_scan *scan)
{
	for (size_t i = 0; i < scan->devices.n; i++) {
		const struct nd_device *d = &scan->devices.v[i];

		scan->failing |= nd_device_failing(d);
		for (size_t k = 0; k < d->n_ports; k++)
			if (d->ports[k].query_error)
				add_note(
					scan, "devices", "%s/%u cannot be read now: %s%s", d->name,
					d->ports[k].number,
					dray_errno_text(d->ports[k].query_error),
					d->ports[k].gids.n ?
						"; its GIDs of an earlier scan are used until it can" :
						"; it cannot be used until then");
	}
}

static int scan_network(const struct nd_source *s, const struct nd_scan_options *o,
			struct nd_scan *scan, struct dray_err *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;
	int r = part(scan, "links", nd_links_scan(s, &scan->links, &err), &err, reterr);

	if (r < 0)
		return r;
	err = DRAY_ERR_NULL;
	r = part(scan, "devices", nd_devices_list(s, &scan->devices, &err), &err, reterr);
	if (r < 0)
		return r;
	/* before they are opened, which an operator may have excluded them for */
	exclude_devices(scan, o);
	err = DRAY_ERR_NULL;
	r = part(scan, "devices",
		 nd_devices_read(s, &scan->links, o->before ? &o->before->devices : NULL,
				 &scan->devices, &err),
		 &err, reterr);
	note_failures(scan);
	return r;
}

static int scan_listeners(const struct nd_source *s, const struct nd_scan_options *o,
			  struct nd_scan *scan, struct dray_err *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (!(o->flags & ND_SCAN_LISTENERS))
		return 0;
	return part(scan, "listeners",
		    nd_listeners_scan(s, &scan->links, &o->node_addresses,
				      o->flags & ND_SCAN_OWNERS, &scan->listeners, &err),
		    &err, reterr);
}

static int scan_topology(const struct nd_source *s, const struct nd_scan_options *o,
			 struct nd_scan *scan)
{
	struct nd_topology *t = &scan->topology;
	int r = nd_topology_scan(s, t);

	if (r >= 0)
		r = nd_affinity_make(s, &scan->devices, o->rnics_per_gpu, t);
	if (r >= 0)
		r = nd_nvidia_scan(s, t->gpus, t->n_gpus, &scan->nvidia);
	if (r < 0)
		return r;
	t->hidden_gpus = count_hidden(scan);
	if (t->hidden_gpus)
		add_note(
			scan, "gpus",
			"%u GPUs of the driver are hidden from /sys, so their distance to RNICs is "
			"unknown: mount the host's /sys",
			t->hidden_gpus);
	return 0;
}

static int scan_parts(const struct nd_source *s, const struct nd_scan_options *o,
		      struct nd_scan *scan, struct dray_err *reterr)
{
	int r = scan_network(s, o, scan, reterr);

	if (r < 0)
		return r;
	rank_gids(scan, o);
	r = scan_topology(s, o, scan);
	if (r >= 0)
		r = scan_listeners(s, o, scan, reterr);
	if (r >= 0 && *s->shortage)
		r = dray_err_set(reterr, *s->shortage, nd_error_code(*s->shortage),
				 "files of the kernel: %s", dray_errno_text(*s->shortage));
	return r;
}

int nd_scan_run(const struct nd_source *s, const struct nd_scan_options *o, struct nd_scan **ret,
		struct dray_err *reterr)
{
	int64_t start = dray_now().ns;
	dray_auto(nd_scan_free) struct nd_scan *scan = NULL;
	struct nd_source source = *s;
	int shortage = 0, r = nd_scan_options_check(o, reterr);

	if (r < 0)
		return r;
	source.shortage = &shortage;
	scan = calloc(1, sizeof(*scan));
	if (scan)
		atomic_init(&scan->refs, 1);
	r = scan ? scan_parts(&source, o, scan, reterr) : -ENOMEM;
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "out of memory during the scan");
	scan->took_ns = dray_now().ns - start;
	*ret = dray_take(scan);
	return 0;
}

const char *nd_scan_remedy(int r)
{
	if (nd_is_shortage(r))
		return "raise the limit on open files (LimitNOFILE= of the unit, ulimit -n)";
	if (r == -EINTR || r == -ENOBUFS)
		return "it changed during each of several tries: try again";
	return "try again, and read the kernel log if that fails too";
}

struct nd_scan *nd_scan_ref(struct nd_scan *scan)
{
	atomic_fetch_add_explicit(&scan->refs, 1, memory_order_relaxed);
	return scan;
}

struct nd_scan *nd_scan_free(struct nd_scan *scan)
{
	/* release: our reads come before the end; acquire: the end comes after every holder's reads */
	if (!scan || atomic_fetch_sub_explicit(&scan->refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	nd_listeners_deinit(&scan->listeners);
	nd_nvidia_deinit(&scan->nvidia);
	nd_topology_deinit(&scan->topology);
	nd_devices_deinit(&scan->devices);
	nd_links_deinit(&scan->links);
	free(scan);
	return NULL;
}
