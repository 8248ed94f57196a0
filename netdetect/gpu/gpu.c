/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"

#define PCI "/sys/bus/pci/devices"

/* PCI code and ID assignment specification: base class and subclass */
#define CLASS_VGA 0x0300
#define CLASS_3D 0x0302
#define CLASS_DISPLAY_OTHER 0x0380
#define CLASS_ACCELERATOR 0x1200

#define VENDOR_AMD 0x1002
#define VENDOR_INTEL 0x8086

/* Only vendors of GPUs that compute, so that the display controller of a server's console is excluded. */
static bool is_gpu(int vendor, int class)
{
	int kind = class >> 8;

	switch (vendor) {
	case ND_VENDOR_NVIDIA:
		return kind == CLASS_VGA || kind == CLASS_3D;
	case VENDOR_AMD:
	case VENDOR_INTEL:
		return kind == CLASS_VGA || kind == CLASS_3D || kind == CLASS_DISPLAY_OTHER ||
		       kind == CLASS_ACCELERATOR;
	default:
		return false;
	}
}

/* True if the function is a GPU. */
static bool read_gpu(const struct nd_source *s, const char *name, struct nd_gpu *g)
{
	char target[ND_PATH_MAX];
	const char *driver;
	int vendor, device = 0, class;

	nd_bdf_parse(name, g->bdf);
	/* the class alone rules out most functions, without a second read */
	if (!g->bdf[0] || nd_read_int(s, &class, PCI "/%s/class", name) < 0 ||
	    ((class >> 16) != (CLASS_VGA >> 8) && (class >> 16) != (CLASS_ACCELERATOR >> 8)) ||
	    nd_read_int(s, &vendor, PCI "/%s/vendor", name) < 0 || !is_gpu(vendor, class))
		return false;
	(void)nd_read_int(s, &device, PCI "/%s/device", name);
	g->vendor = (uint16_t)vendor;
	g->device = (uint16_t)device;
	g->class = (uint32_t) class;
	(void)nd_read_int(s, &g->numa, PCI "/%s/numa_node", name);
	driver = nd_read_link(s, target, PCI "/%s/driver", g->bdf);
	if (driver)
		snprintf(g->driver, sizeof(g->driver), "%.31s", driver);
	return true;
}

static int by_bdf(const void *a, const void *b)
{
	return strcmp(((const struct nd_gpu *)a)->bdf, ((const struct nd_gpu *)b)->bdf);
}

int nd_gpus_scan(const struct nd_source *s, struct nd_gpu **ret, size_t *ret_n)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, PCI);
	dray_auto_free struct nd_gpu *v = NULL;
	const char *name;
	size_t n = 0;

	while ((name = nd_next_entry(dir))) {
		struct nd_gpu g = { .numa = -1 };

		if (read_gpu(s, name, &g) && DRAY_APPEND(v, n, g) < 0)
			return -ENOMEM;
	}
	if (n)
		qsort(v, n, sizeof(*v), by_bdf);
	*ret = dray_take(v);
	*ret_n = n;
	return 0;
}
