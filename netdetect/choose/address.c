/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/choose/address.h"

#include <errno.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a score: a stronger rule outweighs all weaker ones together. */
#define SCORE_IPV4 1000
#define SCORE_DEFAULT_ROUTE 100
#define SCORE_KIND 10 /* times the rank of the link's kind, 2 to 4 */
#define SCORE_LAST 4  /* times that rank, 0 or 1 */
#define SCORE_LAST_IPV4 2
#define SCORE_GLOBAL 1
#define KIND_LAST 1

__attribute__((format(printf, 2, 3))) static void reject(struct nd_candidate *c, const char *fmt,
							 ...)
{
	int n = snprintf(c->reason, sizeof(c->reason), "rejected: ");
	va_list args;

	va_start(args, fmt);
	vsnprintf(c->reason + n, sizeof(c->reason) - (size_t)n, fmt, args);
	va_end(args);
	c->rejected = true;
	c->score = -1;
}

static bool is_default(const struct nd_route *r)
{
	return !r->prefix && r->type == RTN_UNICAST && r->ifindex;
}

/* Is it the interface of this family's default route, of those with the least metric? */
static bool default_route(const struct nd_links *l, uint8_t family, int ifindex)
{
	uint32_t least = UINT32_MAX;
	bool here = false;

	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];

		if (r->family != family || !is_default(r) || r->metric > least)
			continue;
		here = (r->metric == least && here) || r->ifindex == ifindex;
		least = r->metric;
	}
	return here;
}

/* The uplink of a host can be a bridge: then one of its ports is a device, a bond or a VLAN. */
static bool bridges_out(const struct nd_links *l, const struct nd_link *bridge)
{
	for (size_t i = 0; i < l->n_links; i++) {
		const struct nd_link *port = &l->links[i];

		if (port->master == bridge->ifindex &&
		    (port->kind == ND_LINK_DEVICE || port->kind == ND_LINK_BOND ||
		     port->kind == ND_LINK_VLAN))
			return true;
	}
	return false;
}

static int kind_rank(const struct nd_links *l, const struct nd_link *link, const char **ret_words)
{
	*ret_words = nd_link_kind_name(link->kind);
	switch (link->kind) {
	case ND_LINK_DEVICE:
	case ND_LINK_BOND:
	case ND_LINK_VLAN:
	case ND_LINK_MACVLAN:
		return 4;
	case ND_LINK_VETH:
		*ret_words = "veth, the way out of a pod";
		return 3;
	case ND_LINK_BRIDGE:
		if (bridges_out(l, link)) {
			*ret_words = "bridge to a device";
			return 4;
		}
		*ret_words = "bridge of containers, which this host alone reaches";
		return 0;
	case ND_LINK_TUNNEL:
		*ret_words = "tunnel";
		return 1;
	case ND_LINK_DUMMY:
		*ret_words = "dummy";
		return 1;
	case ND_LINK_LOOPBACK:
	case ND_LINK_OTHER:
		break;
	}
	return 2;
}

static bool link_local(const struct nd_addr *a)
{
	const uint8_t *b = a->addr.s6_addr;

	return a->family == AF_INET ? b[12] == 169 && b[13] == 254 :
				      IN6_IS_ADDR_LINKLOCAL(&a->addr);
}

static bool loopback(const struct nd_addr *a)
{
	return a->family == AF_INET ? a->addr.s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&a->addr);
}

/* True where there is nothing against it. */
static bool acceptable(struct nd_candidate *c, bool v4, bool v6)
{
	const struct nd_addr *a = c->addr;

	if (!c->link)
		reject(c, "its interface is gone");
	else if (c->link->kind == ND_LINK_LOOPBACK || loopback(a))
		reject(c, "loopback");
	else if (!(a->family == AF_INET ? v4 : v6))
		reject(c, "no listener of this family");
	else if (link_local(a))
		reject(c, "link-local");
	else if (!c->link->up)
		reject(c, "%s is down", c->link->name);
	else if (a->flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED))
		reject(c, "not yet known to be nobody else's (%s)",
		       a->flags & IFA_F_DADFAILED ? "duplicate" : "tentative");
	else if (a->flags & IFA_F_DEPRECATED)
		reject(c, "deprecated");
	return !c->rejected;
}

static void judge(const struct nd_links *l, struct nd_candidate *c, bool v4, bool v6)
{
	const char *words;
	bool def;
	int rank;

	if (!acceptable(c, v4, v6))
		return;
	def = default_route(l, c->addr->family, c->link->ifindex);
	rank = kind_rank(l, c->link, &words);
	c->score = c->addr->scope == RT_SCOPE_UNIVERSE ? SCORE_GLOBAL : 0;
	/* overlays and bridges of containers come after all others, of whatever family */
	if (rank <= KIND_LAST)
		c->score += rank * SCORE_LAST + (c->addr->family == AF_INET ? SCORE_LAST_IPV4 : 0);
	else
		c->score += rank * SCORE_KIND + (c->addr->family == AF_INET ? SCORE_IPV4 : 0) +
			    (def ? SCORE_DEFAULT_ROUTE : 0);
	snprintf(c->reason, sizeof(c->reason), "%s, %s%s%s", c->link->name, words,
		 def ? ", the default route leaves by it" : "",
		 c->addr->scope == RT_SCOPE_UNIVERSE ? "" : ", not of global scope");
}

static int compare_bytes(const struct nd_addr *a, const struct nd_addr *b)
{
	return memcmp(&a->addr, &b->addr, sizeof(a->addr));
}

static int by_score(const void *x, const void *y)
{
	const struct nd_candidate *a = x, *b = y;

	if (a->score != b->score)
		return a->score > b->score ? -1 : 1;
	if (a->addr->ifindex != b->addr->ifindex)
		return a->addr->ifindex < b->addr->ifindex ? -1 : 1;
	return compare_bytes(a->addr, b->addr);
}

int nd_advertise_rank(const struct nd_links *l, bool v4, bool v6, struct nd_candidate **ret,
		      size_t *ret_n)
{
	struct nd_candidate *c = calloc(l->n_addrs ? l->n_addrs : 1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	for (size_t i = 0; i < l->n_addrs; i++) {
		c[i].addr = &l->addrs[i];
		c[i].link = nd_link_by_index(l, l->addrs[i].ifindex);
		judge(l, &c[i], v4, v6);
	}
	qsort(c, l->n_addrs, sizeof(*c), by_score);
	*ret = c;
	*ret_n = l->n_addrs;
	return 0;
}
