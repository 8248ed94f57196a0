/* SPDX-License-Identifier: Apache-2.0 */
/* Parses rtnetlink messages: bytes to links, addresses and routes. */
#include "netdetect/net/link.h"

#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <string.h>

#include "lib/array.h"
#include "lib/hash.h"
#include "netdetect/source/attr.h"

#ifndef IFF_LOWER_UP /* of linux/if.h, which cannot be included beside net/if.h */
#define IFF_LOWER_UP 0x10000
#endif

static enum nd_link_kind kind_of(const char *text, unsigned type)
{
	static const struct {
		const char *text;
		enum nd_link_kind kind;
	} kinds[] = {
		{ "bond", ND_LINK_BOND },        { "team", ND_LINK_BOND },
		{ "vlan", ND_LINK_VLAN },        { "macvlan", ND_LINK_MACVLAN },
		{ "macvtap", ND_LINK_MACVLAN },  { "ipvlan", ND_LINK_MACVLAN },
		{ "ipvtap", ND_LINK_MACVLAN },   { "veth", ND_LINK_VETH },
		{ "bridge", ND_LINK_BRIDGE },    { "openvswitch", ND_LINK_BRIDGE },
		{ "dummy", ND_LINK_DUMMY },      { "vxlan", ND_LINK_TUNNEL },
		{ "geneve", ND_LINK_TUNNEL },    { "gre", ND_LINK_TUNNEL },
		{ "gretap", ND_LINK_TUNNEL },    { "erspan", ND_LINK_TUNNEL },
		{ "ip6gre", ND_LINK_TUNNEL },    { "ip6gretap", ND_LINK_TUNNEL },
		{ "ip6erspan", ND_LINK_TUNNEL }, { "ipip", ND_LINK_TUNNEL },
		{ "ip6tnl", ND_LINK_TUNNEL },    { "sit", ND_LINK_TUNNEL },
		{ "vti", ND_LINK_TUNNEL },       { "vti6", ND_LINK_TUNNEL },
		{ "wireguard", ND_LINK_TUNNEL }, { "tun", ND_LINK_TUNNEL },
		{ "xfrm", ND_LINK_TUNNEL },      { "ppp", ND_LINK_TUNNEL },
		{ "ipoib", ND_LINK_DEVICE },     { "netkit", ND_LINK_VETH },
		{ "vrf", ND_LINK_VRF },
	};

	if (type == ARPHRD_LOOPBACK)
		return ND_LINK_LOOPBACK;
	if (!*text)
		return ND_LINK_DEVICE;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(kinds); i++)
		if (!strcmp(kinds[i].text, text))
			return kinds[i].kind;
	return ND_LINK_OTHER;
}

static int info_attr(const struct nd_attr *a, void *arg)
{
	static const struct nd_field vlan[] = { ND_NUMBER(IFLA_VLAN_ID, 2, struct nd_link, vlan) };
	struct nd_link *l = arg;

	if (a->type == IFLA_INFO_KIND)
		nd_attr_text(a, l->kind_text, sizeof(l->kind_text));
	/* the kernel sends the kind before its data */
	if (a->type == IFLA_INFO_DATA && !strcmp(l->kind_text, "vlan"))
		return nd_attrs_store(a->data, a->n, ND_FIELDS(vlan), l);
	return 0;
}

struct parsed_link {
	struct nd_link l;
	bool lower_elsewhere; /* the link below is in another namespace */
};

static int link_attr(const struct nd_attr *a, void *arg)
{
	static const struct nd_field fields[] = {
		ND_TEXT(IFLA_IFNAME, struct nd_link, name),
		ND_NUMBER(IFLA_MTU, 4, struct nd_link, mtu),
		ND_NUMBER(IFLA_MASTER, 4, struct nd_link, master),
		ND_NUMBER(IFLA_LINK, 4, struct nd_link, lower),
	};
	struct parsed_link *x = arg;

	switch (a->type) {
	case IFLA_LINK_NETNSID:
		x->lower_elsewhere = true;
		return 0;
	case IFLA_ADDRESS:
		x->l.mac_n = (uint8_t)dray_min(a->n, sizeof(x->l.mac));
		memcpy(x->l.mac, a->data, x->l.mac_n);
		return 0;
	case IFLA_LINKINFO:
		return nd_attrs(a->data, a->n, info_attr, &x->l);
	default:
		nd_attr_store(a, ND_FIELDS(fields), &x->l);
		return 0;
	}
}

static int parse_link(const void *payload, size_t n, struct nd_links *out)
{
	struct parsed_link x = { .l.numa = -1 };
	struct nd_link *l = &x.l;
	struct ifinfomsg m;
	int r;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	/* bridges also describe their ports, in messages of family AF_BRIDGE */
	if (m.ifi_family != AF_UNSPEC)
		return 0;
	l->ifindex = m.ifi_index;
	l->flags = m.ifi_flags;
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), link_attr, &x);
	if (r < 0)
		return r;
	if (l->ifindex <= 0 || !l->name[0])
		return -EBADMSG;
	l->kind = kind_of(l->kind_text, m.ifi_type);
	l->up = (l->flags & IFF_UP) && (l->flags & IFF_LOWER_UP);
	if (x.lower_elsewhere || l->lower == l->ifindex)
		l->lower = 0;
	return DRAY_APPEND(out->links, out->n_links, *l);
}

static void read_addr(const struct nd_attr *a, uint8_t family, struct in6_addr *ret)
{
	if (a->n == (family == AF_INET ? 4 : 16))
		nd_addr_set(ret, family, a->data);
}

struct parsed_addr {
	struct nd_addr a;
	bool local;
};

static int addr_attr(const struct nd_attr *a, void *arg)
{
	struct parsed_addr *x = arg;

	if (a->type == IFA_FLAGS)
		x->a.flags = (uint32_t)nd_attr_number(a, 4);
	/* on a point-to-point link IFA_ADDRESS is the other end */
	if (a->type == IFA_LOCAL || (a->type == IFA_ADDRESS && !x->local))
		read_addr(a, x->a.family, &x->a.addr);
	x->local |= a->type == IFA_LOCAL;
	return 0;
}

static int parse_addr(const void *payload, size_t n, struct nd_links *out)
{
	struct parsed_addr x;
	struct ifaddrmsg m;
	int r;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	if (m.ifa_family != AF_INET && m.ifa_family != AF_INET6)
		return 0;
	x = (struct parsed_addr){ .a = { .ifindex = (int)m.ifa_index,
					 .family = m.ifa_family,
					 .prefix = m.ifa_prefixlen,
					 .scope = m.ifa_scope,
					 .flags = m.ifa_flags } };
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), addr_attr, &x);
	if (r < 0)
		return r;
	if (x.a.ifindex <= 0 || x.a.prefix > (x.a.family == AF_INET ? 32 : 128))
		return -EBADMSG;
	return DRAY_APPEND(out->addrs, out->n_addrs, x.a);
}

struct parsed_route {
	struct nd_route r;
	struct nd_attr hops; /* several next hops; n 0: none */
	uint64_t hash;
};

static int route_attr(const struct nd_attr *a, void *arg)
{
	static const struct nd_field fields[] = {
		ND_NUMBER(RTA_OIF, 4, struct nd_route, ifindex),
		ND_NUMBER(RTA_PRIORITY, 4, struct nd_route, metric),
		ND_NUMBER(RTA_TABLE, 4, struct nd_route, table),
	};
	struct parsed_route *x = arg;
	struct nd_route *r = &x->r;

	/* this has the lifetime of the route */
	if (a->type != RTA_CACHEINFO)
		x->hash = dray_hash(x->hash ^ a->type, a->data, a->n);
	if (a->type == RTA_DST)
		read_addr(a, r->family, &r->dst);
	else if (a->type == RTA_GATEWAY)
		read_addr(a, r->family, &r->gateway);
	else if (a->type == RTA_PREFSRC)
		read_addr(a, r->family, &r->source);
	else if (a->type == RTA_MULTIPATH)
		x->hops = *a;
	else
		nd_attr_store(a, ND_FIELDS(fields), r);
	return 0;
}

/* Excludes the routes that the kernel adds itself: to this host's addresses, broadcasts, clones. */
static bool is_configured(const struct nd_route *r, const struct rtmsg *m)
{
	return !(m->rtm_flags & RTM_F_CLONED) &&
	       (r->table == RT_TABLE_MAIN || r->table == RT_TABLE_DEFAULT) &&
	       (r->type == RTN_UNICAST || r->type == RTN_BLACKHOLE || r->type == RTN_UNREACHABLE ||
		r->type == RTN_PROHIBIT);
}

static int hop_attr(const struct nd_attr *a, void *arg)
{
	struct nd_route *r = arg;

	if (a->type == RTA_GATEWAY)
		read_addr(a, r->family, &r->gateway);
	return 0;
}

int nd_multipath(const void *data, size_t n, nd_hop_fn fn, void *arg)
{
	const uint8_t *p = data;
	struct rtnexthop h;
	int r = 0;

	for (size_t step; n >= sizeof(h) && r >= 0; n -= step, p += step) {
		memcpy(&h, p, sizeof(h));
		if (h.rtnh_len < sizeof(h) || h.rtnh_len > n)
			return -EBADMSG;
		if (!(h.rtnh_flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN)))
			r = fn(h.rtnh_ifindex, p + sizeof(h), h.rtnh_len - sizeof(h), arg);
		step = dray_min((size_t)RTNH_ALIGN(h.rtnh_len), n);
	}
	return r;
}

struct hops {
	struct nd_links *out;
	const struct nd_route *route;
};

/* Each is a route of its own. */
static int add_hop(int ifindex, const void *attrs, size_t n, void *arg)
{
	const struct hops *hops = arg;
	struct nd_route r = *hops->route;
	int ret;

	r.multipath = true;
	r.ifindex = ifindex;
	ret = nd_attrs(attrs, n, hop_attr, &r);
	return ret < 0 ? ret : DRAY_APPEND(hops->out->routes, hops->out->n_routes, r);
}

static int parse_route(const void *payload, size_t n, struct nd_links *out)
{
	struct parsed_route x;
	struct rtmsg m;
	int r;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	if (m.rtm_family != AF_INET && m.rtm_family != AF_INET6)
		return 0;
	x = (struct parsed_route){ .r = { .family = m.rtm_family,
					  .prefix = m.rtm_dst_len,
					  .type = m.rtm_type,
					  .table = m.rtm_table },
				   .hash = dray_hash(0, &m, sizeof(m)) };
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), route_attr, &x);
	if (r < 0)
		return r;
	if (x.r.prefix > (x.r.family == AF_INET ? 32 : 128))
		return -EBADMSG;
	/* a sum, because the order of routes does not matter */
	if (!(m.rtm_flags & RTM_F_CLONED))
		out->routes_hash += x.hash;
	if (!is_configured(&x.r, &m))
		return 0;
	if (x.hops.n)
		return nd_multipath(x.hops.data, x.hops.n, add_hop, &(struct hops){ out, &x.r });
	return DRAY_APPEND(out->routes, out->n_routes, x.r);
}

int nd_link_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	switch (type) {
	case RTM_NEWLINK:
		return parse_link(payload, n, arg);
	case RTM_NEWADDR:
		return parse_addr(payload, n, arg);
	case RTM_NEWROUTE:
		return parse_route(payload, n, arg);
	case RTM_NEWRULE:
		((struct nd_links *)arg)->routes_hash += dray_hash(0, payload, n);
		return 0;
	default:
		return 0;
	}
}
