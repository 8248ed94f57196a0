/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"

#define CLASS "/sys/class/infiniband"

/* Numbers of the form "4: ACTIVE". */
static unsigned leading(const struct nd_source *s, const char *device, uint32_t port,
			const char *file)
{
	char text[64];

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/%s", device, port, file) <= 0)
		return 0;
	return (unsigned)strtoul(text, NULL, 0);
}

/* "0002:c903:0010:1234" */
static uint64_t guid(const struct nd_source *s, const char *device, const char *file)
{
	char text[64];
	unsigned a, b, c, d;

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/%s", device, file) <= 0 ||
	    sscanf(text, "%4x:%4x:%4x:%4x", &a, &b, &c, &d) != 4)
		return 0;
	return (uint64_t)a << 48 | (uint64_t)b << 32 | (uint64_t)c << 16 | d;
}

int nd_sysfs_devices(const struct nd_source *s, struct nd_devices *d)
{
	char path[ND_PATH_MAX];
	struct dirent *e;
	DIR *dir;
	int r = 0;

	if (d->n)
		return 0;
	dir = opendir(nd_path(s, path, CLASS));
	/* none, or none that we may see */
	if (!dir)
		return 0;
	while (r >= 0 && (e = readdir(dir))) {
		struct nd_device *place;

		if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof(place->name))
			continue;
		place = nd_grow((void **)&d->v, &d->n, sizeof(*place));
		if (!place) {
			r = -ENOMEM;
			continue;
		}
		*place =
			(struct nd_device){ .index = UINT32_MAX, .numa = -1, .open_error = ENOENT };
		memcpy(place->name, e->d_name, strlen(e->d_name) + 1);
		place->node_guid = guid(s, place->name, "node_guid");
		place->system_guid = guid(s, place->name, "sys_image_guid");
		nd_read_text(s, place->firmware, sizeof(place->firmware), CLASS "/%s/fw_ver",
			     place->name);
	}
	closedir(dir);
	return r;
}

/* --- where it is ------------------------------------------------------------------------------------------ */

static const char *link_base(const struct nd_source *s, char target[ND_PATH_MAX],
			     const char *device, const char *file)
{
	char path[ND_PATH_MAX];
	ssize_t n =
		readlink(nd_path(s, path, CLASS "/%s/%s", device, file), target, ND_PATH_MAX - 1);

	if (n <= 0)
		return NULL;
	target[n] = '\0';
	return basename(target);
}

static void place_on_pci(const struct nd_source *s, struct nd_device *d)
{
	char target[ND_PATH_MAX], text[32], path[ND_PATH_MAX];
	const char *base = link_base(s, target, d->name, "device");

	if (base)
		nd_bdf_of(base, d->bdf);
	base = link_base(s, target, d->name, "device/driver");
	if (base)
		snprintf(d->driver, sizeof(d->driver), "%.*s", (int)sizeof(d->driver) - 1, base);
	else if (!strncmp(d->name, "rxe", 3) || !strncmp(d->name, "siw", 3))
		/* without a device behind it */
		snprintf(d->driver, sizeof(d->driver), "%.3s", d->name);
	d->virtual_function = access(nd_path(s, path, CLASS "/%s/device/physfn", d->name), F_OK) ==
			      0;
	(void)nd_read_int(s, &d->numa, CLASS "/%s/device/numa_node", d->name);
	nd_read_text(s, d->board, sizeof(d->board), CLASS "/%s/board_id", d->name);
	/* "1: CA" */
	if (!d->node_type &&
	    nd_read_text(s, text, sizeof(text), CLASS "/%s/node_type", d->name) > 0)
		d->node_type = (uint8_t)strtoul(text, NULL, 10);
}

static void find_uverbs(const struct nd_source *s, struct nd_device *d)
{
	char path[ND_PATH_MAX], name[ND_DEVICE_NAME_MAX];
	DIR *dir = opendir(nd_path(s, path, "/sys/class/infiniband_verbs"));
	struct dirent *e;

	if (!dir)
		return;
	while ((e = readdir(dir))) {
		if (strncmp(e->d_name, "uverbs", 6) != 0 || strlen(e->d_name) >= sizeof(d->uverbs))
			continue;
		if (nd_read_text(s, name, sizeof(name), "/sys/class/infiniband_verbs/%s/ibdev",
				 e->d_name) > 0 &&
		    !strcmp(name, d->name)) {
			snprintf(d->uverbs, sizeof(d->uverbs), "%.31s", e->d_name);
			break;
		}
	}
	closedir(dir);
}

/* --- ports ------------------------------------------------------------------------------------------------- */

static int find_ports(const struct nd_source *s, struct nd_device *d)
{
	char path[ND_PATH_MAX];
	struct dirent *e;
	DIR *dir;
	int r = 0;

	if (d->n_ports)
		return 0;
	dir = opendir(nd_path(s, path, CLASS "/%s/ports", d->name));
	if (!dir)
		return 0;
	while (r >= 0 && (e = readdir(dir))) {
		unsigned number = (unsigned)strtoul(e->d_name, NULL, 10);
		struct nd_port *p;

		if (!number)
			continue;
		p = nd_grow((void **)&d->ports, &d->n_ports, sizeof(*p));
		if (!p) {
			r = -ENOMEM;
			continue;
		}
		*p = (struct nd_port){ .number = number };
		p->state = (enum nd_port_state)leading(s, d->name, number, "state");
		p->physical = leading(s, d->name, number, "phys_state");
		p->lid = leading(s, d->name, number, "lid");
		p->sm_lid = leading(s, d->name, number, "sm_lid");
	}
	closedir(dir);
	return r;
}

/* "400 Gb/sec (4X NDR)" */
static void read_rate(const struct nd_source *s, const struct nd_device *d, struct nd_port *p)
{
	char text[64], *end, *width;
	double gigabits;

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/rate", d->name, p->number) <= 0)
		return;
	gigabits = strtod(text, &end);
	if (end == text || gigabits < 0 || gigabits > 1e6)
		return;
	p->rate = (uint64_t)(gigabits * 1000) * 1000000;
	width = strchr(text, '(');
	p->lanes = width ? (uint32_t)strtoul(width + 1, NULL, 10) : 0;
}

static void read_port(const struct nd_source *s, const struct nd_device *d, struct nd_port *p)
{
	char text[32];

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/link_layer", d->name,
			 p->number) > 0)
		p->layer = !strcmp(text, "Ethernet")   ? ND_LAYER_ETHERNET :
			   !strcmp(text, "InfiniBand") ? ND_LAYER_INFINIBAND :
							 ND_LAYER_UNSPECIFIED;
	read_rate(s, d, p);
}

int nd_sysfs_device(const struct nd_source *s, struct nd_device *d)
{
	int r;

	place_on_pci(s, d);
	find_uverbs(s, d);
	r = find_ports(s, d);
	for (size_t i = 0; i < d->n_ports; i++)
		read_port(s, d, &d->ports[i]);
	return r;
}
