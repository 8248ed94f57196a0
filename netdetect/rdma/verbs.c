/* SPDX-License-Identifier: Apache-2.0 */
/* Reads ports, GID and P_Key tables of a device through libibverbs. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "netdetect/rdma/internal.h"
#include "netdetect/source/netlink.h"

/* Hop limit of an address handle from a port to itself. */
#define PROOF_HOPS 64

static uint32_t mtu_bytes(enum ibv_mtu m)
{
	return m >= IBV_MTU_256 && m <= IBV_MTU_4096 ? 128u << m : 0;
}

/* PortInfo LinkWidthActive, LinkSpeedActive and LinkSpeedExtActive (IBTA 14.2.5.6) have one bit set. */
static uint32_t lanes_of(uint8_t width)
{
	static const uint8_t lanes[] = { [1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2 };

	return width < DRAY_ARRAY_SIZE(lanes) ? lanes[width] : 0;
}

/* Of one lane, in Mb/s. */
static uint64_t lane_megabits(uint8_t speed)
{
	static const uint32_t megabits[] = {
		[1] = 2500,   [2] = 5000,   [4] = 10000,  [8] = 10313,
		[16] = 14063, [32] = 25781, [64] = 53125, [128] = 106250,
	};

	return speed < DRAY_ARRAY_SIZE(megabits) ? megabits[speed] : 0;
}

/* errno of a verb that failed: some return it, some set errno, and some providers do neither. */
static int failure(int r)
{
	return r > 0 ? r : r < -1 ? -r : errno ? errno : EIO;
}

static int query_pkeys(struct ibv_context *context, struct nd_port *p, uint16_t n)
{
	for (uint16_t i = 0; i < n; i++) {
		__be16 value;
		int r;

		errno = 0;
		r = ibv_query_pkey(context, (uint8_t)p->number, i, &value);
		/* RoCE has no partitions */
		if (r != 0 && p->layer == ND_LAYER_INFINIBAND)
			p->query_error = failure(r);
		if (r == 0 && nd_port_add_pkey(p, i, be16toh(value)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int query_port(struct ibv_context *context, struct nd_port *p)
{
	struct ibv_port_attr a = { 0 };
	int r;

	errno = 0;
	r = ibv_query_port(context, (uint8_t)p->number, &a);
	if (r != 0) {
		p->query_error = failure(r);
		return 0;
	}
	/* newer than the answer of netlink */
	p->state = (enum nd_port_state)a.state;
	p->physical = a.phys_state;
	p->layer = a.link_layer == IBV_LINK_LAYER_ETHERNET   ? ND_LAYER_ETHERNET :
		   a.link_layer == IBV_LINK_LAYER_INFINIBAND ? ND_LAYER_INFINIBAND :
							       p->layer;
	p->active_mtu = mtu_bytes(a.active_mtu);
	p->max_mtu = mtu_bytes(a.max_mtu);
	p->lid = a.lid;
	p->sm_lid = a.sm_lid;
	p->lanes = lanes_of(a.active_width);
	/* sysfs may know speeds that this library does not */
	if (!p->rate)
		p->rate = lane_megabits(a.active_speed) * p->lanes * 1000000;
	p->gids.table = (uint32_t)a.gid_tbl_len;
	return query_pkeys(context, p, a.pkey_tbl_len);
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

	/* the kernel refuses a query without room for the GIDs of all ports */
	for (size_t i = 0; i < d->n_ports; i++)
		room += d->ports[i].query_error ? ND_GID_INDEX_MAX + 1 : d->ports[i].gids.table;
	entries = calloc(room ? room : 1, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	errno = 0;
	n = room ? ibv_query_gid_table(context, entries, room, 0) : 0;
	for (size_t i = 0; n < 0 && i < d->n_ports; i++)
		if (!d->ports[i].query_error)
			d->ports[i].query_error = failure((int)n);
	for (ssize_t i = 0; i < n; i++) {
		struct nd_port *p = nd_port_by_number(d, entries[i].port_num);
		struct in6_addr gid;

		memcpy(&gid, entries[i].gid.raw, sizeof(gid));
		if (!p || nd_gid_is_unset(&gid))
			continue;
		if (nd_port_add_gid(p, entries[i].gid_index, type_of(entries[i].gid_type), &gid,
				    links,
				    nd_link_by_index(links, (int)entries[i].ndev_ifindex)) < 0)
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
	errno = 0;
	ah = ibv_create_ah(pd, &a);
	/* without memory, for instance, it says nothing about the GID */
	if (!ah && nd_is_transient(-errno))
		return;
	g->proof = ah ? ND_PROOF_OK : ND_PROOF_FAILED;
	g->proof_error = ah ? 0 : errno;
	if (ah)
		ibv_destroy_ah(ah);
}

/* Only of active ports, because a port that is down refuses every handle. */
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

void nd_verbs_deinit(struct nd_verbs *x)
{
	if (x->v)
		ibv_free_device_list(x->v);
}

/* NULL with errno set. Each listing reads the files of all devices. */
static struct ibv_context *open_by_name(struct nd_verbs *x, const char *name)
{
	if (!x->listed) {
		x->v = ibv_get_device_list(&x->n);
		x->error = x->v ? ENODEV : errno;
		x->listed = true;
	}
	errno = x->error;
	for (int i = 0; i < x->n; i++)
		if (!strcmp(ibv_get_device_name(x->v[i]), name))
			return ibv_open_device(x->v[i]);
	return NULL;
}

int nd_verbs_tables(struct nd_verbs *x, const struct nd_links *links, struct nd_device *d)
{
	struct ibv_context *context;
	int r = nd_descriptors_check();

	if (r < 0)
		return r;
	context = open_by_name(x, d->name);
	if (!context) {
		d->open_error = errno ? errno : ENODEV;
		return 0;
	}
	for (size_t i = 0; r >= 0 && i < d->n_ports; i++)
		r = query_port(context, &d->ports[i]);
	if (r >= 0)
		r = query_gids(context, links, d);
	if (r >= 0)
		prove_all(context, d);
	ibv_close_device(context);
	return r;
}
