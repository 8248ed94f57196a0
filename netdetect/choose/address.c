/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/choose/address.h"

#include <errno.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"

/* Parts of a score. Each outweighs all weaker ones together. */
#define SCORE_IPV4 1000
#define SCORE_DEFAULT_ROUTE 100
#define SCORE_KIND 10 /* times the rank of the link's kind, 2 to 4 */
#define SCORE_LAST 4  /* times that rank, 0 or 1 */
#define SCORE_LAST_IPV4 2
#define SCORE_GLOBAL 1
#define KIND_LAST 1

/* The interfaces of a family's default routes with the lowest metric. */
struct defaults {
	int *v;
	size_t n;
	uint32_t metric;
};

static int defaults_find(const struct nd_links *l, uint8_t family, struct defaults *d)
{
	int r = 0;

	for (size_t i = 0; i < l->n_routes && r >= 0; i++) {
		const struct nd_route *route = &l->routes[i];

		if (route->family != family || route->prefix || route->type != RTN_UNICAST ||
		    !route->ifindex || (d->n && route->metric > d->metric))
			continue;
		if (route->metric < d->metric)
			d->n = 0;
		d->metric = route->metric;
		r = DRAY_APPEND(d->v, d->n, route->ifindex);
	}
	return r;
}

static bool is_default_route(const struct defaults *d, int ifindex)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i] == ifindex)
			return true;
	return false;
}

/*
 * The uplink of a host can be a bridge; one of its ports is then a device, a bond or a VLAN. All ports of Open vSwitch are
 * ports of ovs-system, so only the default route shows which of its bridges is the uplink.
 */
static bool has_uplink(const struct nd_links *l, const struct nd_link *bridge, bool is_default)
{
	if (is_default && !strcmp(bridge->kind_text, "openvswitch"))
		return true;
	for (size_t i = 0; i < l->n_links; i++) {
		const struct nd_link *port = &l->links[i];

		if (port->master == bridge->ifindex &&
		    (port->kind == ND_LINK_DEVICE || port->kind == ND_LINK_BOND ||
		     port->kind == ND_LINK_VLAN))
			return true;
	}
	return false;
}

static int kind_rank(const struct nd_links *l, const struct nd_link *link, bool is_default,
		     const char **ret_words)
{
	*ret_words = nd_link_kind_name(link->kind);
	switch (link->kind) {
	case ND_LINK_DEVICE:
	case ND_LINK_BOND:
	case ND_LINK_VLAN:
	case ND_LINK_MACVLAN:
		return 4;
	case ND_LINK_VETH:
		*ret_words = "veth, the uplink of a pod";
		return 3;
	case ND_LINK_BRIDGE:
		if (has_uplink(l, link, is_default)) {
			*ret_words = "bridge to a device";
			return 4;
		}
		*ret_words = "bridge of containers, reachable from this host only";
		return 0;
	case ND_LINK_TUNNEL:
	case ND_LINK_DUMMY:
		return 1;
	case ND_LINK_LOOPBACK:
	case ND_LINK_VRF:
	case ND_LINK_OTHER:
		break;
	}
	return 2;
}

/* NULL: the address can be used. */
static const char *defect_of(const struct nd_candidate *c, bool v4, bool v6)
{
	const struct nd_addr *a = c->addr;

	if (!c->link)
		return "its interface no longer exists";
	if (c->link->kind == ND_LINK_LOOPBACK || nd_addr_is_loopback(&a->addr))
		return "loopback";
	if (!(a->family == AF_INET ? v4 : v6))
		return "no listener of this family";
	if (nd_gid_class_of(&a->addr) == ND_GID_LINK_LOCAL)
		return "link-local";
	if (!c->link->up)
		return "its interface is down";
	if (a->flags & IFA_F_DADFAILED)
		return "another host has it (duplicate)";
	if (a->flags & IFA_F_TENTATIVE)
		return "not yet checked for duplicates (tentative)";
	return a->flags & IFA_F_DEPRECATED ? "deprecated" : NULL;
}

/* IPv4: a virtual address that moves between hosts is in the subnet of an earlier one, or has none; IPv6: it is replaced after a day. */
static bool is_passing(const struct nd_addr *a)
{
	return a->flags & IFA_F_SECONDARY || (a->family == AF_INET && a->prefix == 32);
}

static void rate(const struct nd_links *l, struct nd_candidate *c, bool v4, bool v6,
		 const struct defaults *defaults)
{
	const char *defect = defect_of(c, v4, v6), *words;
	bool is_v4 = c->addr->family == AF_INET, is_default;
	int rank;

	if (defect) {
		c->rejected = true;
		c->score = -1;
		snprintf(c->reason, sizeof(c->reason), "rejected: %s", defect);
		return;
	}
	is_default = is_default_route(&defaults[is_v4], c->link->ifindex);
	rank = kind_rank(l, c->link, is_default, &words);
	c->score = c->addr->scope == RT_SCOPE_UNIVERSE ? SCORE_GLOBAL : 0;
	/* overlays and bridges of containers come after all others, whatever the family */
	if (rank <= KIND_LAST)
		c->score += rank * SCORE_LAST + (is_v4 ? SCORE_LAST_IPV4 : 0);
	else
		c->score += rank * SCORE_KIND + (is_v4 ? SCORE_IPV4 : 0) +
			    (is_default ? SCORE_DEFAULT_ROUTE : 0);
	snprintf(c->reason, sizeof(c->reason), "%s, %s%s%s%s", c->link->name, words,
		 is_default ? ", has the default route" : "",
		 c->addr->scope == RT_SCOPE_UNIVERSE ? "" : ", not of global scope",
		 !is_passing(c->addr)             ? "" :
		 !is_v4                           ? ", temporary" :
		 c->addr->flags & IFA_F_SECONDARY ? ", secondary" :
						    ", without a subnet");
}

static int by_score(const void *x, const void *y)
{
	const struct nd_candidate *a = x, *b = y;
	/* each key outweighs those behind it */
	int r = 4 * dray_compare(b->score, a->score) +
		2 * dray_compare(a->addr->ifindex, b->addr->ifindex) +
		dray_compare(is_passing(a->addr), is_passing(b->addr));

	return r ? r : memcmp(&a->addr->addr, &b->addr->addr, sizeof(a->addr->addr));
}

int nd_advertise_rank(const struct nd_links *l, bool v4, bool v6, struct nd_candidate **ret,
		      size_t *ret_n)
{
	struct nd_candidate *c = calloc(l->n_addrs ? l->n_addrs : 1, sizeof(*c));
	struct defaults defaults[2] = { { .n = 0 } }; /* of IPv6, of IPv4 */
	int r = c ? defaults_find(l, AF_INET6, &defaults[0]) : -ENOMEM;

	if (r >= 0)
		r = defaults_find(l, AF_INET, &defaults[1]);
	for (size_t i = 0; i < l->n_addrs && r >= 0; i++) {
		c[i].addr = &l->addrs[i];
		c[i].link = nd_link_by_index(l, l->addrs[i].ifindex);
		rate(l, &c[i], v4, v6, defaults);
	}
	free(defaults[0].v);
	free(defaults[1].v);
	if (r < 0) {
		free(c);
		return r;
	}
	qsort(c, l->n_addrs, sizeof(*c), by_score);
	*ret = c;
	*ret_n = l->n_addrs;
	return 0;
}
