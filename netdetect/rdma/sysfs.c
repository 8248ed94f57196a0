/* SPDX-License-Identifier: Apache-2.0 */
/* Reads RDMA devices from sysfs (Documentation/ABI/stable/sysfs-class-infiniband). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netdetect/rdma/internal.h"
#include "lib/array.h"

#define CLASS "/sys/class/infiniband"
#define VERBS_CLASS "/sys/class/infiniband_verbs"

/* The number at the start of texts such as "4: ACTIVE". */
static unsigned leading_number(const struct nd_source *s, const char *device, uint32_t port,
			       const char *file)
{
	char text[64];

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/%s", device, port, file) <= 0)
		return 0;
	return (unsigned)strtoul(text, NULL, 0);
}

/* "0002:c903:0010:1234" */
static uint64_t read_guid(const struct nd_source *s, const char *device, const char *file)
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
	dray_auto(closedir) DIR *dir = nd_open_dir(s, CLASS);
	const char *name;
	int r = 0;

	while (r >= 0 && (name = nd_next_entry(dir))) {
		struct nd_device x = { .index = UINT32_MAX, .numa = -1, .open_error = ENOENT };

		if (strlen(name) >= sizeof(x.name))
			continue;
		memcpy(x.name, name, strlen(name) + 1);
		x.node_guid = read_guid(s, name, "node_guid");
		x.system_guid = read_guid(s, name, "sys_image_guid");
		nd_read_text(s, x.firmware, sizeof(x.firmware), CLASS "/%s/fw_ver", name);
		r = DRAY_APPEND(d->v, d->n, x);
	}
	return r;
}

static void read_place(const struct nd_source *s, struct nd_device *d)
{
	char target[ND_PATH_MAX], text[32], path[ND_PATH_MAX];
	const char *base = nd_read_link(s, target, CLASS "/%s/device", d->name);

	if (base)
		nd_bdf_parse(base, d->bdf);
	base = nd_read_link(s, target, CLASS "/%s/device/driver", d->name);
	if (base)
		snprintf(d->driver, sizeof(d->driver), "%.*s", (int)sizeof(d->driver) - 1, base);
	else if (!strncmp(d->name, "rxe", 3) || !strncmp(d->name, "siw", 3))
		/* software devices have no driver link */
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

void nd_sysfs_uverbs(const struct nd_source *s, struct nd_devices *d)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, VERBS_CLASS);
	char device[ND_DEVICE_NAME_MAX];
	const char *name;

	while ((name = nd_next_entry(dir))) {
		if (strncmp(name, "uverbs", 6) != 0 || strlen(name) >= sizeof(d->v->uverbs) ||
		    nd_read_text(s, device, sizeof(device), VERBS_CLASS "/%s/ibdev", name) <= 0)
			continue;
		for (size_t i = 0; i < d->n; i++)
			if (!strcmp(d->v[i].name, device))
				memcpy(d->v[i].uverbs, name, strlen(name) + 1);
	}
}

static int find_ports(const struct nd_source *s, struct nd_device *d)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, CLASS "/%s/ports", d->name);
	const char *name;
	int r = 0;

	while (r >= 0 && (name = nd_next_entry(dir))) {
		struct nd_port p = { .number = (uint32_t)strtoul(name, NULL, 10) };

		if (!p.number)
			continue;
		p.state = (enum nd_port_state)leading_number(s, d->name, p.number, "state");
		p.physical = leading_number(s, d->name, p.number, "phys_state");
		p.lid = leading_number(s, d->name, p.number, "lid");
		p.sm_lid = leading_number(s, d->name, p.number, "sm_lid");
		r = DRAY_APPEND(d->ports, d->n_ports, p);
	}
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

static void read_layer(const struct nd_source *s, const struct nd_device *d, struct nd_port *p)
{
	char text[32];

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/link_layer", d->name,
			 p->number) > 0)
		p->layer = !strcmp(text, "Ethernet")   ? ND_LAYER_ETHERNET :
			   !strcmp(text, "InfiniBand") ? ND_LAYER_INFINIBAND :
							 ND_LAYER_UNSPECIFIED;
}

int nd_sysfs_device(const struct nd_source *s, struct nd_device *d)
{
	int r;

	read_place(s, d);
	r = d->n_ports ? 0 : find_ports(s, d);
	for (size_t i = 0; i < d->n_ports; i++) {
		read_layer(s, d, &d->ports[i]);
		read_rate(s, d, &d->ports[i]);
	}
	return r;
}

/* "fe80:0000:0000:0000:0002:c903:0010:1234" */
static bool parse_gid(const char *text, struct in6_addr *ret)
{
	unsigned short w[8];

	if (sscanf(text, "%4hx:%4hx:%4hx:%4hx:%4hx:%4hx:%4hx:%4hx", &w[0], &w[1], &w[2], &w[3],
		   &w[4], &w[5], &w[6], &w[7]) != 8)
		return false;
	for (int i = 0; i < 8; i++) {
		ret->s6_addr[2 * i] = (uint8_t)(w[i] >> 8);
		ret->s6_addr[2 * i + 1] = (uint8_t)w[i];
	}
	return true;
}

struct table {
	const struct nd_source *s;
	const struct nd_links *links;
	const struct nd_device *d;
	struct nd_port *p;
};

static int read_gid(const struct table *t, uint32_t index)
{
	const char *device = t->d->name;
	struct nd_port *p = t->p;
	enum nd_gid_type type = p->layer == ND_LAYER_INFINIBAND ? ND_GID_IB : ND_GID_ROCE_V1;
	struct in6_addr gid;
	char text[64];
	int r;

	if (nd_read_text(t->s, text, sizeof(text), CLASS "/%s/ports/%u/gids/%u", device, p->number,
			 index) <= 0 ||
	    !parse_gid(text, &gid) || nd_gid_is_unset(&gid))
		return 0;
	r = nd_read_text(t->s, text, sizeof(text), CLASS "/%s/ports/%u/gid_attrs/types/%u", device,
			 p->number, index);
	if (!strcmp(text, "RoCE v2"))
		type = ND_GID_ROCE_V2;
	if (r < 0 && p->layer != ND_LAYER_INFINIBAND) {
		/* EINVAL: of another network namespace; EISDIR: how a recorded machine stores that */
		p->gids.unmapped += r == -EINVAL || r == -EISDIR;
		return 0;
	}
	nd_read_text(t->s, text, sizeof(text), CLASS "/%s/ports/%u/gid_attrs/ndevs/%u", device,
		     p->number, index);
	return nd_port_add_gid(p, index, type, &gid, t->links,
			       *text ? nd_link_by_name(t->links, text) : NULL);
}

static int read_pkey(const struct table *t, uint32_t index)
{
	int value;

	if (nd_read_int(t->s, &value, CLASS "/%s/ports/%u/pkeys/%u", t->d->name, t->p->number,
			index) < 0)
		return 0;
	return nd_port_add_pkey(t->p, (uint16_t)index, (uint16_t)value);
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return dray_compare(x, y);
}

/* Calls fn for each entry of the table, by index. *ret_n: how many there are. 0 or what fn returned. */
static int read_table(const struct table *t, const char *name,
		      int (*fn)(const struct table *, uint32_t), uint32_t *ret_n)
{
	dray_auto(closedir) DIR *dir =
		nd_open_dir(t->s, CLASS "/%s/ports/%u/%s", t->d->name, t->p->number, name);
	dray_auto_free uint32_t *v = NULL;
	const char *entry;
	size_t n = 0;
	int r = 0;

	while (r >= 0 && (entry = nd_next_entry(dir))) {
		uint32_t index = (uint32_t)strtoul(entry, NULL, 10);

		if (*entry >= '0' && *entry <= '9')
			r = DRAY_APPEND(v, n, index);
	}
	if (n)
		qsort(v, n, sizeof(*v), by_value);
	*ret_n = (uint32_t)n;
	for (size_t i = 0; r >= 0 && i < n; i++)
		r = fn(t, v[i]);
	return r;
}

int nd_sysfs_tables(const struct nd_source *s, const struct nd_links *links, struct nd_device *d)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < d->n_ports; i++) {
		struct table t = { s, links, d, &d->ports[i] };
		uint32_t n_pkeys;

		r = read_table(&t, "gids", read_gid, &t.p->gids.table);
		if (r >= 0)
			r = read_table(&t, "pkeys", read_pkey, &n_pkeys);
	}
	return r;
}
