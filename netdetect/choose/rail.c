/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/choose/rail.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a score, as for GIDs. */
#define SCORE_DIRECT 1000 /* no gateway between */
#define SCORE_ON_LINK 900
#define SCORE_MTU 100 /* both ends of one MTU */
#define PKEY_VALUE 0x7fff
#define PKEY_FULL 0x8000

struct pair {
	const struct nd_source *s;
	const struct nd_scan *scan;
	const struct nd_device *device;
	const struct nd_port *port;
	const struct nd_remote_port *remote;
	struct nd_rail *rail;
};

__attribute__((format(printf, 3, 4))) static void verdict(struct pair *p, bool reachable,
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

static bool same_family(const struct in6_addr *a, const struct in6_addr *b)
{
	return IN6_IS_ADDR_V4MAPPED(a) == IN6_IS_ADDR_V4MAPPED(b);
}

/* The best of ours that speaks the peer's way. */
static const struct nd_gid *gid_for(const struct pair *p)
{
	for (size_t i = 0; i < p->port->gids.n; i++) {
		const struct nd_gid *g = &p->port->gids.v[i];

		if (!g->rejected && g->type == p->remote->type &&
		    same_family(&g->gid, &p->remote->gid) &&
		    (g->class == ND_GID_LINK_LOCAL) ==
			    (nd_gid_class_of(&p->remote->gid) == ND_GID_LINK_LOCAL))
			return g;
	}
	return NULL;
}

/* Is the interface of the route this port's, or its bond, its VLAN, what it is enslaved to? */
static bool same_way(const struct nd_links *l, int way, int netdev)
{
	const struct nd_link *link = nd_link_by_index(l, way);

	if (way == netdev)
		return true;
	for (int depth = 0; link && depth < 4; depth++) {
		const struct nd_link *port = nd_link_by_index(l, netdev);

		if (port && port->master == link->ifindex && link->kind == ND_LINK_BOND)
			return true;
		if (!link->lower)
			return false;
		if (link->lower == netdev)
			return true;
		link = nd_link_by_index(l, link->lower);
	}
	return false;
}

/* Has the interface an address of the subnet that this one is in? */
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

static void judge_ethernet(struct pair *p)
{
	const struct nd_links *links = &p->scan->links;
	const struct nd_gid *g = gid_for(p);
	char text[INET6_ADDRSTRLEN];
	struct nd_way way;
	int r;

	nd_gid_text(&p->remote->gid, text);
	if (!g) {
		verdict(p, false, "no GID of this port is %s of the family of %s",
			nd_gid_type_name(p->remote->type), text);
		return;
	}
	p->rail->gid = (uint16_t)(g - p->port->gids.v);
	if (g->type == ND_GID_ROCE_V1 || g->class == ND_GID_LINK_LOCAL) {
		/* both are of one link, about which no route tells */
		verdict(p, true, "%s on %s, if %s is on the same link", nd_gid_type_name(g->type),
			g->netdev, text);
		return;
	}
	r = nd_route_to(p->s, links, &p->remote->gid, &g->gid, 0, &way);
	if (r < 0) {
		verdict(p, false, "no route to %s", text);
	} else if (way.type == RTN_LOCAL) {
		p->rail->score += SCORE_DIRECT;
		verdict(p, true, "%s is an address of this host", text);
	} else if (!same_way(links, way.ifindex, g->ifindex) &&
		   on_link(links, g->ifindex, &p->remote->gid)) {
		/* several ports on one subnet: the kernel routes by one of them, a queue pair goes by its own */
		p->rail->score += SCORE_ON_LINK;
		verdict(p, true, "same subnet on %s, %s, though routes prefer %s", g->netdev, text,
			link_name(links, way.ifindex));
	} else if (!same_way(links, way.ifindex, g->ifindex)) {
		verdict(p, false, "the route to %s leaves by %s, not %s", text,
			link_name(links, way.ifindex), g->netdev);
	} else {
		p->rail->score += way.direct ? SCORE_DIRECT : 0;
		verdict(p, true, "%s on %s, %s", way.direct ? "same subnet" : "routed",
			link_name(links, way.ifindex), text);
	}
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

static void judge_infiniband(struct pair *p)
{
	const struct nd_gid *g = nd_gids_best(&p->port->gids);
	bool both_limited;

	if (!g) {
		verdict(p, false, "this port has no GID that can be used");
		return;
	}
	p->rail->gid = (uint16_t)(g - p->port->gids.v);
	if (memcmp(&g->gid, &p->remote->gid, 8) != 0)
		verdict(p, false, "another subnet prefix");
	else if (pkeys_match(p->port, p->remote->pkey, &both_limited))
		verdict(p, true, "same subnet prefix and P_Key 0x%04x", p->remote->pkey);
	else if (both_limited)
		verdict(p, false,
			"both are limited members of P_Key 0x%04x: one of them must be a full member",
			p->remote->pkey & PKEY_VALUE);
	else
		verdict(p, false, "this port is not in P_Key 0x%04x", p->remote->pkey);
}

static void judge(struct pair *p)
{
	p->rail->mtu = p->port->active_mtu && p->port->active_mtu < p->remote->mtu ?
			       p->port->active_mtu :
			       p->remote->mtu;
	p->rail->score = p->port->active_mtu == p->remote->mtu ? SCORE_MTU : 0;
	if (p->port->state != ND_PORT_ACTIVE)
		verdict(p, false, "%s/%u is %s", p->device->name, p->port->number,
			nd_port_state_name(p->port->state));
	else if (p->port->layer != p->remote->layer)
		verdict(p, false, "%s here, %s there", nd_link_layer_name(p->port->layer),
			nd_link_layer_name(p->remote->layer));
	else if (p->port->layer == ND_LAYER_INFINIBAND)
		judge_infiniband(p);
	else
		judge_ethernet(p);
}

static int by_score(const void *x, const void *y)
{
	const struct nd_rail *a = x, *b = y;

	if (a->score != b->score)
		return a->score > b->score ? -1 : 1;
	if (a->device != b->device)
		return a->device < b->device ? -1 : 1;
	if (a->port != b->port)
		return a->port < b->port ? -1 : 1;
	return a->remote < b->remote ? -1 : a->remote > b->remote;
}

int nd_rails_to(const struct nd_source *s, const struct nd_scan *scan,
		const struct nd_remote_port *ports, size_t n_ports, struct nd_rail **ret,
		size_t *ret_n)
{
	struct nd_rail *v;
	size_t n = 0;

	for (size_t i = 0; i < scan->devices.n; i++)
		n += scan->devices.v[i].n_ports * n_ports;
	v = calloc(n ? n : 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	n = 0;
	for (size_t i = 0; i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++)
			for (size_t m = 0; m < n_ports; m++) {
				struct pair p = { s,
						  scan,
						  &scan->devices.v[i],
						  &scan->devices.v[i].ports[k],
						  &ports[m],
						  &v[n] };

				v[n++] = (struct nd_rail){ .device = (uint16_t)i,
							   .port = (uint16_t)k,
							   .remote = (uint16_t)m };
				judge(&p);
			}
	qsort(v, n, sizeof(*v), by_score);
	*ret = v;
	*ret_n = n;
	return 0;
}
