/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "netdetect/rdma/internal.h"
#include "netdetect/source/netlink.h"
#include "lib/array.h"

#define NODE_CHANNEL_ADAPTER 1 /* RDMA_NODE_IB_CA */
#define PKEY_FULL 0x8000
/* Of the reason for a GID, beside the reason why it cannot be read. */
#define KEPT_REASON_MAX 90

const char *nd_port_state_name(enum nd_port_state s)
{
	static const char *const names[] = { "NOP",   "DOWN",   "INIT",
					     "ARMED", "ACTIVE", "ACTIVE_DEFER" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "unknown";
}

const char *nd_port_physical_name(unsigned s)
{
	static const char *const names[] = { "NOP",
					     "SLEEP",
					     "POLLING",
					     "DISABLED",
					     "PORT_CONFIGURATION_TRAINING",
					     "LINK_UP",
					     "LINK_ERROR_RECOVER",
					     "PHY_TEST" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "unknown";
}

const char *nd_link_layer_name(enum nd_link_layer l)
{
	static const char *const names[] = { "unspecified", "InfiniBand", "Ethernet" };

	return l < DRAY_ARRAY_SIZE(names) ? names[l] : "unspecified";
}

void nd_device_deinit(struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++) {
		free(d->ports[i].gids.v);
		free(d->ports[i].pkeys);
	}
	free(d->ports);
}

void nd_devices_deinit(struct nd_devices *d)
{
	for (size_t i = 0; i < d->n; i++)
		nd_device_deinit(&d->v[i]);
	free(d->v);
	*d = (struct nd_devices){ 0 };
}

bool nd_device_failing(const struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].query_error)
			return true;
	return nd_is_transient(-d->open_error);
}

const char *nd_port_why(const struct nd_port *p, char buf[ND_REASON_MAX])
{
	const struct nd_gid *g = nd_gids_best(&p->gids);

	if (!p->query_error)
		snprintf(buf, ND_REASON_MAX, "%s", g ? g->reason : "no GID is usable");
	else
		snprintf(buf, ND_REASON_MAX, "its GIDs cannot be read now: %s%s%.*s",
			 dray_errno_text(p->query_error),
			 g ? "; that of an earlier scan is used: " : "", KEPT_REASON_MAX,
			 g ? g->reason : "");
	return buf;
}

bool nd_device_is_usable_kind(const struct nd_device *d)
{
	/* 0: unknown */
	return !d->node_type || d->node_type == NODE_CHANNEL_ADAPTER;
}

bool nd_device_active(const struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].state == ND_PORT_ACTIVE)
			return true;
	return false;
}

const struct nd_device *nd_device_by_name(const struct nd_devices *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (!strcmp(d->v[i].name, name))
			return &d->v[i];
	return NULL;
}

struct nd_port *nd_port_by_number(const struct nd_device *d, uint32_t number)
{
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].number == number)
			return &d->ports[i];
	return NULL;
}

bool nd_gid_is_unset(const struct in6_addr *gid)
{
	static const struct in6_addr prefix = { .s6_addr = { 0xfe, 0x80 } };

	return IN6_IS_ADDR_UNSPECIFIED(gid) || IN6_ARE_ADDR_EQUAL(gid, &prefix);
}

/* The kernel also makes a GID of the MAC alone, by addrconf_ifid_eui48(): the driver chooses the two bytes in the middle. */
static bool is_of_mac(const struct in6_addr *gid, const struct nd_link *link)
{
	const uint8_t *id = gid->s6_addr + 8, *mac = link->mac;

	return IN6_IS_ADDR_LINKLOCAL(gid) && link->mac_n == 6 && ((id[0] ^ mac[0]) & ~2) == 0 &&
	       !memcmp(id + 1, mac + 1, 2) && !memcmp(id + 5, mac + 3, 3);
}

static bool has_address(const struct nd_links *links, const struct nd_link *link,
			const struct in6_addr *a)
{
	for (size_t i = 0; i < links->n_addrs; i++)
		if (links->addrs[i].ifindex == link->ifindex &&
		    IN6_ARE_ADDR_EQUAL(&links->addrs[i].addr, a))
			return true;
	return false;
}

void nd_gid_set_link(struct nd_gid *g, const struct nd_links *links, const struct nd_link *link)
{
	if (link && !is_of_mac(&g->gid, link) && !has_address(links, link, &g->gid))
		link = NULL;
	g->ifindex = link ? link->ifindex : 0;
	g->netdev_up = link && link->up;
	memcpy(g->netdev, link ? link->name : "", link ? sizeof(g->netdev) : 1);
}

int nd_port_add_gid(struct nd_port *p, uint32_t index, enum nd_gid_type type,
		    const struct in6_addr *gid, const struct nd_links *links,
		    const struct nd_link *link)
{
	struct nd_gid g = {
		.index = index, .type = type, .class = nd_gid_class_of(gid), .gid = *gid
	};

	nd_gid_set_link(&g, links, link);
	p->gids.unmapped += type != ND_GID_IB && !g.netdev[0];
	return DRAY_APPEND(p->gids.v, p->gids.n, g);
}

int nd_port_add_pkey(struct nd_port *p, uint16_t index, uint16_t value)
{
	struct nd_pkey k = { .index = index, .value = value, .full = value & PKEY_FULL };

	return value ? DRAY_APPEND(p->pkeys, p->n_pkeys, k) : 0;
}
