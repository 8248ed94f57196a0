/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/topology/topology.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/choose/rnic.h"
#include "netdetect/source/attr.h"
#include "schema/gen/errors.h"

#define PCI "/sys/bus/pci/devices"
#define NODES "/sys/devices/system/node"

/* PCI code and ID assignment specification: base class and subclass */
#define CLASS_VGA 0x0300
#define CLASS_3D 0x0302
#define CLASS_DISPLAY_OTHER 0x0380
#define CLASS_ACCELERATOR 0x1200

#define VENDOR_NVIDIA 0x10de
#define VENDOR_AMD 0x1002
#define VENDOR_INTEL 0x8086

/* --- GPUs ----------------------------------------------------------------------------------------------- */

/* Makers of GPUs that compute; the picture on a server's console is somebody else's. */
static bool is_gpu(uint64_t vendor, uint64_t class)
{
	uint64_t kind = class >> 8;

	switch (vendor) {
	case VENDOR_NVIDIA:
		return kind == CLASS_VGA || kind == CLASS_3D;
	case VENDOR_AMD:
	case VENDOR_INTEL:
		return kind == CLASS_VGA || kind == CLASS_3D || kind == CLASS_DISPLAY_OTHER ||
		       kind == CLASS_ACCELERATOR;
	default:
		return false;
	}
}

static void read_driver(const struct nd_source *s, struct nd_gpu *g)
{
	char path[ND_PATH_MAX], target[ND_PATH_MAX];
	ssize_t n =
		readlink(nd_path(s, path, PCI "/%s/driver", g->bdf), target, sizeof(target) - 1);

	if (n <= 0)
		return;
	target[n] = '\0';
	snprintf(g->driver, sizeof(g->driver), "%.31s", basename(target));
}

static int look_at(const struct nd_source *s, const char *name, struct nd_topology *t)
{
	struct nd_gpu g = { .numa = -1 }, *place;
	uint64_t vendor, device, class;

	nd_bdf_of(name, g.bdf);
	if (!g.bdf[0] || nd_read_u64(s, &class, PCI "/%s/class", name) < 0)
		return 0;
	/* most functions are something else: the class alone says so */
	if ((class >> 16) != (CLASS_VGA >> 8) && (class >> 16) != (CLASS_ACCELERATOR >> 8))
		return 0;
	if (nd_read_u64(s, &vendor, PCI "/%s/vendor", name) < 0 || !is_gpu(vendor, class))
		return 0;
	if (nd_read_u64(s, &device, PCI "/%s/device", name) == 0)
		g.device = (uint16_t)device;
	g.vendor = (uint16_t)vendor;
	g.class = (uint32_t) class;
	(void)nd_read_int(s, &g.numa, PCI "/%s/numa_node", name);
	read_driver(s, &g);
	place = nd_grow((void **)&t->gpus, &t->n_gpus, sizeof(g));
	if (!place)
		return -ENOMEM;
	*place = g;
	return 0;
}

static int gpu_order(const void *a, const void *b)
{
	return strcmp(((const struct nd_gpu *)a)->bdf, ((const struct nd_gpu *)b)->bdf);
}

static int scan_gpus(const struct nd_source *s, struct nd_topology *t)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, PCI));
	struct dirent *e;
	int r = 0;

	if (!dir)
		return 0;
	while (r >= 0 && (e = readdir(dir)))
		if (e->d_name[0] != '.')
			r = look_at(s, e->d_name, t);
	closedir(dir);
	if (t->n_gpus)
		qsort(t->gpus, t->n_gpus, sizeof(*t->gpus), gpu_order);
	return r;
}

/* Entries of a directory whose names are a prefix and then digits alone, or anything where it is "". */
static unsigned count(const struct nd_source *s, const char *where, const char *prefix)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, "%s", where));
	size_t length = strlen(prefix);
	struct dirent *e;
	unsigned n = 0;

	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		const char *rest = e->d_name + length;

		if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, length) != 0)
			continue;
		if (length && (!*rest || rest[strspn(rest, "0123456789")]))
			continue;
		n++;
	}
	closedir(dir);
	return n;
}

/* The driver's GPUs are seen in pods whose /sys has others, or none. */
static void find_hidden(const struct nd_source *s, struct nd_topology *t)
{
	unsigned driver = count(s, "/proc/driver/nvidia/gpus", ""),
		 nodes = count(s, "/dev", "nvidia");
	unsigned known = dray_max(driver, nodes), seen = 0;

	for (size_t i = 0; i < t->n_gpus; i++)
		seen += t->gpus[i].vendor == VENDOR_NVIDIA;
	t->hidden_gpus = known > seen ? known - seen : 0;
}

/* --- NUMA nodes ------------------------------------------------------------------------------------------- */

/* "0-3,8,10-11" */
static void parse_cpus(const char *text, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	while (isdigit((unsigned char)*text)) {
		char *end;
		unsigned long first = strtoul(text, &end, 10), last = first;

		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (unsigned long c = first; c <= last && c < CPU_SETSIZE; c++)
			CPU_SET(c, ret);
		text = *end == ',' ? end + 1 : end;
	}
}

static uint64_t node_memory(const struct nd_source *s, int id)
{
	char text[2048], *at;

	if (nd_read_text(s, text, sizeof(text), NODES "/node%d/meminfo", id) <= 0)
		return 0;
	at = strstr(text, "MemTotal:");
	return at ? strtoull(at + strlen("MemTotal:"), NULL, 10) * 1024 : 0;
}

static int node_order(const void *a, const void *b)
{
	return ((const struct nd_node *)a)->id - ((const struct nd_node *)b)->id;
}

static int add_node(const struct nd_source *s, int id, struct nd_topology *t)
{
	struct nd_node *n = nd_grow((void **)&t->nodes, &t->n_nodes, sizeof(*n));

	if (!n)
		return -ENOMEM;
	*n = (struct nd_node){ .id = id };
	nd_read_text(s, n->cpu_list, sizeof(n->cpu_list), NODES "/node%d/cpulist", id);
	parse_cpus(n->cpu_list, &n->cpus);
	n->memory = node_memory(s, id);
	return 0;
}

static int scan_nodes(const struct nd_source *s, struct nd_topology *t)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, NODES));
	struct dirent *e;
	int r = 0;

	if (!dir)
		return 0;
	while (r >= 0 && (e = readdir(dir)))
		if (!strncmp(e->d_name, "node", 4) && isdigit((unsigned char)e->d_name[4]))
			r = add_node(s, (int)strtol(e->d_name + 4, NULL, 10), t);
	closedir(dir);
	if (t->n_nodes)
		qsort(t->nodes, t->n_nodes, sizeof(*t->nodes), node_order);
	return r;
}

/* --- both --------------------------------------------------------------------------------------------------- */

int nd_topology_scan(const struct nd_source *s, const struct nd_devices *devices, unsigned k,
		     struct nd_topology *ret, struct dray_err *reterr)
{
	struct nd_topology t = { 0 };
	int r = scan_gpus(s, &t);

	if (r >= 0)
		r = scan_nodes(s, &t);
	if (r >= 0)
		r = nd_affinity_make(s, devices, k, &t);
	if (r < 0) {
		nd_topology_deinit(&t);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "topology: %s",
				    dray_errno_text(r));
	}
	find_hidden(s, &t);
	*ret = t;
	return 0;
}

void nd_topology_deinit(struct nd_topology *t)
{
	free(t->gpus);
	free(t->nodes);
	free(t->pairs);
	*t = (struct nd_topology){ 0 };
}
