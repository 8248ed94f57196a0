/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/tables.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"

#define CLASS "/sys/class/infiniband"
/* Hops that an address handle to the port itself may take. */
#define PROOF_HOPS 64
#define PKEY_FULL 0x8000

static bool is_null(const struct in6_addr *g)
{
	return IN6_IS_ADDR_UNSPECIFIED(g) || /* the subnet prefix alone: an unset GUID */
	       (g->s6_addr[0] == 0xfe && g->s6_addr[1] == 0x80 &&
		!memcmp(g->s6_addr + 2, "\0\0\0\0\0\0\0\0\0\0\0\0\0", 14));
}

static struct nd_gid *gid_add(struct nd_port *p, const struct nd_links *links, uint32_t index,
			      enum nd_gid_type type, const struct in6_addr *gid, int ifindex)
{
	const struct nd_link *link = ifindex ? nd_link_by_index(links, ifindex) : NULL;
	struct nd_gid *g = nd_grow((void **)&p->gids.v, &p->gids.n, sizeof(*g));

	if (!g)
		return NULL;
	*g = (struct nd_gid){ .index = index,
			      .type = type,
			      .class = nd_gid_class_of(gid),
			      .gid = *gid,
			      .ifindex = link ? ifindex : 0,
			      .netdev_up = link && link->up };
	if (link)
		memcpy(g->netdev, link->name, sizeof(g->netdev));
	return g;
}

static int pkey_add(struct nd_port *p, uint16_t index, uint16_t value)
{
	struct nd_pkey *k;

	if (!value)
		return 0;
	k = nd_grow((void **)&p->pkeys, &p->n_pkeys, sizeof(*k));
	if (!k)
		return -ENOMEM;
	*k = (struct nd_pkey){ .index = index, .value = value, .full = value & PKEY_FULL };
	return 0;
}

static struct nd_port *port_of(struct nd_device *d, uint32_t number)
{
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].number == number)
			return &d->ports[i];
	return NULL;
}

/* --- by libibverbs ------------------------------------------------------------------------------------------ */

static uint32_t mtu_bytes(enum ibv_mtu m)
{
	return m >= IBV_MTU_256 && m <= IBV_MTU_4096 ? 128u << m : 0;
}

static uint32_t lanes(uint8_t width)
{
	switch (width) {
	case 1:
		return 1;
	case 2:
		return 4;
	case 4:
		return 8;
	case 8:
		return 12;
	case 16:
		return 2;
	default:
		return 0;
	}
}

/* Of one lane, in Mb/s (IBTA 14.2.5.6, PortInfo LinkSpeedActive and LinkSpeedExtActive). */
static uint64_t lane_megabits(uint8_t speed)
{
	switch (speed) {
	case 1:
		return 2500;
	case 2:
		return 5000;
	case 4:
		return 10000;
	case 8:
		return 10313;
	case 16:
		return 14063;
	case 32:
		return 25781;
	case 64:
		return 53125;
	case 128:
		return 106250;
	default:
		return 0;
	}
}

static int query_port(struct ibv_context *context, struct nd_port *p)
{
	struct ibv_port_attr a = { 0 };

	if (ibv_query_port(context, (uint8_t)p->number, &a) != 0)
		return 0;
	/* newer than what netlink said */
	p->state = (enum nd_port_state)a.state;
	p->physical = a.phys_state;
	p->layer = a.link_layer == IBV_LINK_LAYER_ETHERNET   ? ND_LAYER_ETHERNET :
		   a.link_layer == IBV_LINK_LAYER_INFINIBAND ? ND_LAYER_INFINIBAND :
							       p->layer;
	p->active_mtu = mtu_bytes(a.active_mtu);
	p->max_mtu = mtu_bytes(a.max_mtu);
	p->lid = a.lid;
	p->sm_lid = a.sm_lid;
	p->lanes = lanes(a.active_width);
	/* sysfs knows speeds that are younger than this library */
	if (!p->rate)
		p->rate = lane_megabits(a.active_speed) * p->lanes * 1000000;
	p->gids.table = (uint32_t)a.gid_tbl_len;
	for (uint16_t i = 0; i < a.pkey_tbl_len; i++) {
		__be16 value;

		if (ibv_query_pkey(context, (uint8_t)p->number, i, &value) == 0 &&
		    pkey_add(p, i, be16toh(value)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static enum nd_gid_type type_of(uint32_t verbs)
{
	return verbs == IBV_GID_TYPE_ROCE_V2 ? ND_GID_ROCE_V2 :
	       verbs == IBV_GID_TYPE_ROCE_V1 ? ND_GID_ROCE_V1 :
					       ND_GID_IB;
}

static int query_gids(struct ibv_context *context, const struct nd_links *links,
		      struct nd_device *d)
{
	dray_auto_free struct ibv_gid_entry *entries = NULL;
	size_t room = 0;
	ssize_t n;

	for (size_t i = 0; i < d->n_ports; i++)
		room += d->ports[i].gids.table;
	entries = calloc(room ? room : 1, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	n = room ? ibv_query_gid_table(context, entries, room, 0) : 0;
	for (ssize_t i = 0; i < n; i++) {
		struct nd_port *p = port_of(d, entries[i].port_num);
		struct in6_addr gid;

		memcpy(&gid, entries[i].gid.raw, sizeof(gid));
		if (!p || is_null(&gid))
			continue;
		if (!gid_add(p, links, entries[i].gid_index, type_of(entries[i].gid_type), &gid,
			     (int)entries[i].ndev_ifindex))
			return -ENOMEM;
	}
	return 0;
}

static void prove(struct ibv_pd *pd, const struct nd_port *p, struct nd_gid *g)
{
	struct ibv_ah_attr a = { .is_global = 1,
				 .port_num = (uint8_t)p->number,
				 .dlid = (uint16_t)p->lid,
				 .grh = { .sgid_index = (uint8_t)g->index,
					  .hop_limit = PROOF_HOPS } };
	struct ibv_ah *ah;

	memcpy(a.grh.dgid.raw, &g->gid, sizeof(a.grh.dgid.raw));
	ah = ibv_create_ah(pd, &a);
	g->proof = ah ? ND_PROOF_OK : ND_PROOF_FAILED;
	g->proof_error = ah ? 0 : errno;
	if (ah)
		ibv_destroy_ah(ah);
}

/* A port that is down refuses all, which says nothing about its GIDs. */
static void prove_all(struct ibv_context *context, struct nd_device *d)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	if (!pd)
		return;
	for (size_t i = 0; i < d->n_ports; i++) {
		struct nd_port *p = &d->ports[i];

		for (size_t k = 0; p->state == ND_PORT_ACTIVE && k < p->gids.n; k++)
			if (p->gids.v[k].index <= ND_GID_INDEX_MAX &&
			    (p->layer == ND_LAYER_INFINIBAND || p->gids.v[k].netdev_up))
				prove(pd, p, &p->gids.v[k]);
	}
	ibv_dealloc_pd(pd);
}

static struct ibv_context *open_by_name(const char *name)
{
	int n = 0, error = ENODEV;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context = NULL;

	for (int i = 0; list && i < n; i++) {
		if (strcmp(ibv_get_device_name(list[i]), name) != 0)
			continue;
		context = ibv_open_device(list[i]);
		error = errno;
	}
	if (list)
		ibv_free_device_list(list);
	errno = error;
	return context;
}

static int by_verbs(struct ibv_context *context, const struct nd_links *links, struct nd_device *d)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < d->n_ports; i++)
		r = query_port(context, &d->ports[i]);
	if (r >= 0)
		r = query_gids(context, links, d);
	if (r >= 0)
		prove_all(context, d);
	return r;
}

/* --- by sysfs ------------------------------------------------------------------------------------------------ */

static int read_gid(const struct nd_source *s, const struct nd_links *links, struct nd_device *d,
		    struct nd_port *p, uint32_t index)
{
	const struct nd_link *link;
	char text[64];
	struct in6_addr gid;
	unsigned short w[8];
	int r;

	if (nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/gids/%u", d->name, p->number,
			 index) <= 0 ||
	    sscanf(text, "%4hx:%4hx:%4hx:%4hx:%4hx:%4hx:%4hx:%4hx", &w[0], &w[1], &w[2], &w[3],
		   &w[4], &w[5], &w[6], &w[7]) != 8)
		return 0;
	for (int i = 0; i < 8; i++) {
		gid.s6_addr[2 * i] = (uint8_t)(w[i] >> 8);
		gid.s6_addr[2 * i + 1] = (uint8_t)w[i];
	}
	if (is_null(&gid))
		return 0;
	r = nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/gid_attrs/types/%u", d->name,
			 p->number, index);
	/* not of this network namespace */
	if (r < 0 && p->layer != ND_LAYER_INFINIBAND) {
		/* a recorded machine has a directory there */
		p->gids.unmapped += r == -EINVAL || r == -EISDIR;
		return 0;
	}
	enum nd_gid_type type = !strcmp(text, "RoCE v2")        ? ND_GID_ROCE_V2 :
				p->layer == ND_LAYER_INFINIBAND ? ND_GID_IB :
								  ND_GID_ROCE_V1;

	nd_read_text(s, text, sizeof(text), CLASS "/%s/ports/%u/gid_attrs/ndevs/%u", d->name,
		     p->number, index);
	link = *text ? nd_link_by_name(links, text) : NULL;
	return gid_add(p, links, index, type, &gid, link ? link->ifindex : 0) ? 0 : -ENOMEM;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* The numbers that a directory's entries are, in order; *ret is the caller's. */
static int numbers(const struct nd_source *s, const char *device, uint32_t port, const char *what,
		   uint32_t **ret, size_t *ret_n)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, CLASS "/%s/ports/%u/%s", device, port, what));
	struct dirent *e;

	*ret = NULL;
	*ret_n = 0;
	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		uint32_t *v;

		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		v = nd_grow((void **)ret, ret_n, sizeof(*v));
		if (!v) {
			closedir(dir);
			return -ENOMEM;
		}
		*v = (uint32_t)strtoul(e->d_name, NULL, 10);
	}
	closedir(dir);
	if (*ret_n)
		qsort(*ret, *ret_n, sizeof(**ret), by_number);
	return 0;
}

static int read_gids(const struct nd_source *s, const struct nd_links *links, struct nd_device *d,
		     struct nd_port *p)
{
	dray_auto_free uint32_t *v = NULL;
	size_t n;
	int r = numbers(s, d->name, p->number, "gids", &v, &n);

	p->gids.table = (uint32_t)n;
	for (size_t i = 0; r >= 0 && i < n; i++)
		r = read_gid(s, links, d, p, v[i]);
	return r;
}

static int read_pkeys(const struct nd_source *s, struct nd_device *d, struct nd_port *p)
{
	dray_auto_free uint32_t *v = NULL;
	size_t n;
	int r = numbers(s, d->name, p->number, "pkeys", &v, &n);

	for (size_t i = 0; r >= 0 && i < n; i++) {
		uint64_t value;

		if (nd_read_u64(s, &value, CLASS "/%s/ports/%u/pkeys/%u", d->name, p->number,
				v[i]) == 0)
			r = pkey_add(p, (uint16_t)v[i], (uint16_t)value);
	}
	return r;
}

/* RoCE takes the largest of its MTUs that fits a frame with all headers (IBTA A17.9.1). */
static uint32_t roce_mtu(uint32_t netdev_mtu)
{
	for (uint32_t m = 4096; m >= 256; m /= 2)
		if (m + 64 <= netdev_mtu)
			return m;
	return 0;
}

static int by_sysfs(const struct nd_source *s, const struct nd_links *links, struct nd_device *d)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < d->n_ports; i++) {
		struct nd_port *p = &d->ports[i];

		r = read_gids(s, links, d, p);
		if (r >= 0)
			r = read_pkeys(s, d, p);
	}
	return r;
}

/* --- both ------------------------------------------------------------------------------------------------------ */

static void match_netdevs(const struct nd_links *links, struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++) {
		struct nd_port *p = &d->ports[i];
		const struct nd_link *link = p->ifindex ? nd_link_by_index(links, p->ifindex) :
							  NULL;

		/* netlink names no netdev where the kernel is old: its GIDs do */
		for (size_t k = 0; !link && k < p->gids.n; k++)
			link = nd_link_by_index(links, p->gids.v[k].ifindex);
		p->ifindex = link ? link->ifindex : 0;
		p->netdev[0] = '\0';
		if (link)
			memcpy(p->netdev, link->name, sizeof(p->netdev));
		if (link && d->numa < 0)
			d->numa = link->numa;
		if (link && !p->active_mtu && p->layer == ND_LAYER_ETHERNET)
			p->active_mtu = roce_mtu(link->mtu);
	}
}

/* The node of a recorded machine is a file like any other, and is not opened. */
static int try_node(const struct nd_source *s, const struct nd_device *d)
{
	char path[ND_PATH_MAX];
	int fd;

	if (!d->uverbs[0])
		return ENOENT;
	nd_path(s, path, "/dev/infiniband/%s", d->uverbs);
	if (!nd_is_live(s))
		return access(path, F_OK) == 0 ? ENOTSUP : errno;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

int nd_port_tables(const struct nd_source *s, const struct nd_links *links, struct nd_device *d)
{
	struct ibv_context *context = NULL;
	int r;

	d->open_error = try_node(s, d);
	if (!d->open_error) {
		context = open_by_name(d->name);
		if (!context)
			d->open_error = errno ? errno : ENODEV;
	}
	r = context ? by_verbs(context, links, d) : by_sysfs(s, links, d);
	if (context)
		ibv_close_device(context);
	match_netdevs(links, d);
	return r;
}
