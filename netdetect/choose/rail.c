/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/choose/rail.h"

#include <errno.h>
#include <limits.h>
#include <linux/rtnetlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a score. Each outweighs all weaker ones together. */
#define SCORE_DIRECT 1000 /* no gateway */
#define SCORE_ON_LINK 900
#define SCORE_MTU 100 /* both ends have the same MTU */
#define PKEY_VALUE 0x7fff
#define PKEY_FULL 0x8000
#define STACKED_LINKS_MAX 4 /* VLANs on a bond and the like */

struct pair {
	const struct nd_source *s;
	const struct nd_links *links;
	const struct nd_device *device;
	const struct nd_port *port;
	const struct nd_remote_port *remote;
	struct nd_rail *rail;
	int *error; /* takes that of a route that could not be asked for */
};

__attribute__((format(printf, 3, 4))) static void set_result(struct pair *p, bool reachable,
							     const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(p->rail->reason, sizeof(p->rail->reason), fmt, args);
	va_end(args);
	p->rail->reachable = reachable;
	if (!reachable)
		p->rail->score = -1;
}

/* True if the GID has the type, the family and the scope of the remote one. */
static bool fits(const struct nd_gid *g, const struct nd_remote_port *remote)
{
	return !g->rejected && g->type == remote->type &&
	       IN6_IS_ADDR_V4MAPPED(&g->gid) == IN6_IS_ADDR_V4MAPPED(&remote->gid) &&
	       (g->class == ND_GID_LINK_LOCAL) ==
		       (nd_gid_class_of(&remote->gid) == ND_GID_LINK_LOCAL);
}

/* True if the route's interface is the netdev, or its bond, or a MACVLAN on either. A VLAN has GIDs of its own, which alone send its tag. */
static bool leaves_by(const struct nd_links *l, int route_ifindex, int netdev)
{
	const struct nd_link *link = nd_link_by_index(l, route_ifindex);
	const struct nd_link *port = nd_link_by_index(l, netdev);

	if (route_ifindex == netdev)
		return true;
	for (int depth = 0; link && depth < STACKED_LINKS_MAX; depth++) {
		if (port && port->master == link->ifindex && link->kind == ND_LINK_BOND)
			return true;
		if (!link->lower || link->kind == ND_LINK_VLAN)
			return false;
		if (link->lower == netdev)
			return true;
		link = nd_link_by_index(l, link->lower);
	}
	return false;
}

/* True if an address of the interface is in the subnet of `to`. */
static bool on_link(const struct nd_links *l, int ifindex, const struct in6_addr *to)
{
	for (size_t i = 0; i < l->n_addrs; i++) {
		const struct nd_addr *a = &l->addrs[i];

		if (a->ifindex == ifindex &&
		    (a->family == AF_INET) == (IN6_IS_ADDR_V4MAPPED(to) != 0) &&
		    nd_prefix_covers(&a->addr, a->family, a->prefix, to))
			return true;
	}
	return false;
}

static const char *link_name(const struct nd_links *l, int ifindex)
{
	const struct nd_link *link = nd_link_by_index(l, ifindex);

	return link ? link->name : "another namespace";
}

/*
 * Of several next hops, the kernel takes one by the addresses of its packets, but a queue pair sends by the netdev of its GID. True if
 * one of them leaves by that netdev: *hop.
 */
static bool find_hop(const struct pair *p, const struct nd_gid *g, int vrf, struct nd_next_hop *hop)
{
	struct nd_next_hop v[ND_NEXT_HOPS_MAX];
	int n = nd_route_hops(p->s, p->links, &p->remote->gid, &g->gid, vrf, v);

	for (int i = 0; i < n; i++)
		if (leaves_by(p->links, v[i].ifindex, g->ifindex)) {
			*hop = v[i];
			return true;
		}
	if (n < 0 && n != -ENETUNREACH)
		*p->error = n;
	return false;
}

static void rate_route(struct pair *p, const struct nd_gid *g, const char *remote)
{
	const struct nd_links *links = p->links;
	const struct nd_link *link = nd_link_vrf(links, g->ifindex);
	struct nd_next_hop hop;
	int vrf = link ? link->ifindex : 0;
	int r = nd_route_to(p->s, links, &p->remote->gid, &g->gid, vrf, &hop);
	bool same;

	if (r < 0) {
		if (r != -ENETUNREACH)
			*p->error = r;
		set_result(p, false, "no route to %s", remote);
		return;
	}
	same = leaves_by(links, hop.ifindex, g->ifindex) ||
	       (hop.type == RTN_UNICAST && find_hop(p, g, vrf, &hop));
	if (hop.type == RTN_LOCAL) {
		p->rail->score += SCORE_DIRECT;
		set_result(p, true, "%s is an address of this host", remote);
	} else if (same) {
		p->rail->score += hop.direct ? SCORE_DIRECT : 0;
		set_result(p, true, "%s on %s, %s", hop.direct ? "same subnet" : "routed",
			   link_name(links, hop.ifindex), remote);
	} else if (on_link(links, g->ifindex, &p->remote->gid)) {
		/* of several ports on one subnet the kernel routes by one, but a queue pair sends by its own */
		p->rail->score += SCORE_ON_LINK;
		set_result(p, true, "same subnet on %s, %s, though the route uses %s", g->netdev,
			   remote, link_name(links, hop.ifindex));
	} else {
		set_result(p, false, "the route to %s uses %s, not %s", remote,
			   link_name(links, hop.ifindex), g->netdev);
	}
}

static void rate_gid(struct pair *p, const struct nd_gid *g, const char *remote)
{
	p->rail->gid = (uint16_t)(g - p->port->gids.v);
	/* these stay on one link, and no route shows whether the peer is on it */
	if (g->type == ND_GID_ROCE_V1 || g->class == ND_GID_LINK_LOCAL)
		set_result(p, true, "%s on %s, if %s is on the same link",
			   nd_gid_type_name(g->type), g->netdev, remote);
	else
		rate_route(p, g, remote);
}

/* Takes the GID that reaches the peer best, because those of one port may be in several subnets and VLANs; the first of equal ones. */
static void rate_ethernet(struct pair *p)
{
	struct nd_rail start = *p->rail, best = { .score = INT_MIN };
	char remote[INET6_ADDRSTRLEN];

	nd_gid_text(&p->remote->gid, remote);
	for (size_t i = 0; i < p->port->gids.n && best.score < SCORE_DIRECT; i++) {
		if (!fits(&p->port->gids.v[i], p->remote))
			continue;
		*p->rail = start;
		rate_gid(p, &p->port->gids.v[i], remote);
		if (p->rail->score > best.score)
			best = *p->rail;
	}
	if (best.score > INT_MIN)
		*p->rail = best;
	else
		set_result(p, false, "this port has no %s GID of the family of %s",
			   nd_gid_type_name(p->remote->type), remote);
}

static bool pkeys_match(const struct nd_port *p, uint16_t remote, bool *ret_both_limited)
{
	bool match = false;

	*ret_both_limited = false;
	for (size_t i = 0; i < p->n_pkeys; i++) {
		uint16_t own = p->pkeys[i].value;

		if ((own & PKEY_VALUE) != (remote & PKEY_VALUE))
			continue;
		if ((own | remote) & PKEY_FULL)
			match = true;
		else
			*ret_both_limited = true;
	}
	return match;
}

static void rate_infiniband(struct pair *p)
{
	const struct nd_gid *g = nd_gids_best(&p->port->gids);
	bool both_limited;

	if (!g) {
		set_result(p, false, "this port has no usable GID");
		return;
	}
	p->rail->gid = (uint16_t)(g - p->port->gids.v);
	if (memcmp(&g->gid, &p->remote->gid, 8) != 0)
		set_result(p, false, "the subnet prefixes differ");
	else if (pkeys_match(p->port, p->remote->pkey, &both_limited))
		set_result(p, true, "same subnet prefix and P_Key 0x%04x", p->remote->pkey);
	else if (both_limited)
		set_result(
			p, false,
			"both are limited members of P_Key 0x%04x: one of them must be a full member",
			p->remote->pkey & PKEY_VALUE);
	else
		set_result(p, false, "this port is not in P_Key 0x%04x", p->remote->pkey);
}

static void rate(struct pair *p)
{
	uint32_t mtu = p->port->active_mtu;

	p->rail->mtu = mtu ? dray_min(mtu, p->remote->mtu) : p->remote->mtu;
	p->rail->score = mtu == p->remote->mtu ? SCORE_MTU : 0;
	if (p->port->state != ND_PORT_ACTIVE)
		set_result(p, false, "%s/%u is %s", p->device->name, p->port->number,
			   nd_port_state_name(p->port->state));
	else if (p->port->layer != p->remote->layer)
		set_result(p, false, "this port is %s, the peer's is %s",
			   nd_link_layer_name(p->port->layer),
			   nd_link_layer_name(p->remote->layer));
	else if (p->port->layer == ND_LAYER_INFINIBAND)
		rate_infiniband(p);
	else
		rate_ethernet(p);
}

static int by_score(const void *x, const void *y)
{
	const struct nd_rail *a = x, *b = y;

	/* each key outweighs those behind it */
	return 8 * dray_compare(b->score, a->score) + 4 * dray_compare(a->device, b->device) +
	       2 * dray_compare(a->port, b->port) + dray_compare(a->remote, b->remote);
}

int nd_rails_to(const struct nd_source *s, const struct nd_links *links,
		const struct nd_devices *devices, const struct nd_remote_port *ports,
		size_t n_ports, struct nd_rail **ret, size_t *ret_n)
{
	struct nd_rail *v;
	size_t n = 0;
	int error = 0;

	for (size_t i = 0; i < devices->n; i++)
		n += devices->v[i].n_ports * n_ports;
	v = calloc(n ? n : 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	n = 0;
	for (size_t i = 0; i < devices->n; i++)
		for (size_t k = 0; k < devices->v[i].n_ports; k++)
			for (size_t m = 0; m < n_ports; m++, n++) {
				v[n] = (struct nd_rail){ .device = (uint16_t)i,
							 .port = (uint16_t)k,
							 .remote = (uint16_t)m };
				rate(&(struct pair){ s, links, &devices->v[i],
						     &devices->v[i].ports[k], &ports[m], &v[n],
						     &error });
			}
	if (error < 0) {
		free(v);
		return error;
	}
	qsort(v, n, sizeof(*v), by_score);
	*ret = v;
	*ret_n = n;
	return 0;
}
