/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/net/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"
#include "schema/gen/errors.h"

#ifndef IFF_LOWER_UP /* net/if.h and linux/if.h do not go together */
#define IFF_LOWER_UP 0x10000
#endif

const char *nd_link_kind_name(enum nd_link_kind k)
{
	static const char *const names[] = {
		[ND_LINK_DEVICE] = "device",   [ND_LINK_LOOPBACK] = "loopback",
		[ND_LINK_BOND] = "bond",       [ND_LINK_VLAN] = "vlan",
		[ND_LINK_MACVLAN] = "macvlan", [ND_LINK_VETH] = "veth",
		[ND_LINK_BRIDGE] = "bridge",   [ND_LINK_TUNNEL] = "tunnel",
		[ND_LINK_DUMMY] = "dummy",     [ND_LINK_OTHER] = "other",
	};

	return k < DRAY_ARRAY_SIZE(names) ? names[k] : "other";
}

/* --- one message -------------------------------------------------------------------------------------- */

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

static int vlan_attr(const struct nd_attr *a, void *arg)
{
	struct nd_link *l = arg;

	if (a->type == IFLA_VLAN_ID)
		l->vlan = nd_attr_u16(a);
	return 0;
}

static int info_attr(const struct nd_attr *a, void *arg)
{
	struct nd_link *l = arg;

	if (a->type == IFLA_INFO_KIND)
		nd_attr_text(a, l->kind_text, sizeof(l->kind_text));
	/* the kind comes first */
	if (a->type == IFLA_INFO_DATA && !strcmp(l->kind_text, "vlan"))
		return nd_attrs(a->data, a->n, vlan_attr, l);
	return 0;
}

struct link_arg {
	struct nd_link *l;
	int lower_netns;
};

static int link_attr(const struct nd_attr *a, void *arg)
{
	struct link_arg *x = arg;
	struct nd_link *l = x->l;

	switch (a->type) {
	case IFLA_IFNAME:
		nd_attr_text(a, l->name, sizeof(l->name));
		break;
	case IFLA_MTU:
		l->mtu = nd_attr_u32(a);
		break;
	case IFLA_MASTER:
		l->master = (int)nd_attr_u32(a);
		break;
	case IFLA_LINK:
		l->lower = (int)nd_attr_u32(a);
		break;
	case IFLA_LINK_NETNSID:
		x->lower_netns = 1;
		break;
	case IFLA_OPERSTATE:
		l->oper = nd_attr_u8(a);
		break;
	case IFLA_ADDRESS:
		l->mac_n = (uint8_t)dray_min(a->n, sizeof(l->mac));
		memcpy(l->mac, a->data, l->mac_n);
		break;
	case IFLA_LINKINFO:
		return nd_attrs(a->data, a->n, info_attr, l);
	default:
		break;
	}
	return 0;
}

static int parse_link(const void *payload, size_t n, struct nd_links *out)
{
	struct nd_link l = { .numa = -1 }, *place;
	struct link_arg arg = { .l = &l };
	struct ifinfomsg m;
	int r;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	/* bridges answer for their ports too, in messages of their own family */
	if (m.ifi_family != AF_UNSPEC)
		return 0;
	l.ifindex = m.ifi_index;
	l.flags = m.ifi_flags;
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), link_attr, &arg);
	if (r < 0)
		return r;
	if (l.ifindex <= 0 || !l.name[0])
		return -EBADMSG;
	l.kind = kind_of(l.kind_text, m.ifi_type);
	l.up = (l.flags & IFF_UP) && (l.flags & IFF_LOWER_UP);
	if (arg.lower_netns || l.lower == l.ifindex)
		l.lower = 0;
	place = nd_grow((void **)&out->links, &out->n_links, sizeof(l));
	if (!place)
		return -ENOMEM;
	*place = l;
	return 0;
}

static void addr_bytes(const struct nd_attr *a, uint8_t family, struct in6_addr *ret)
{
	if (family == AF_INET && a->n == 4) {
		memset(ret, 0, sizeof(*ret));
		ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
		memcpy(ret->s6_addr + 12, a->data, 4);
	} else if (family == AF_INET6 && a->n == 16) {
		memcpy(ret, a->data, 16);
	}
}

struct addr_arg {
	struct nd_addr *a;
	bool local;
};

static int addr_attr(const struct nd_attr *a, void *arg)
{
	struct addr_arg *x = arg;

	switch (a->type) {
	case IFA_LOCAL:
		/* of a point-to-point link, IFA_ADDRESS is the other end */
		addr_bytes(a, x->a->family, &x->a->addr);
		x->local = true;
		break;
	case IFA_ADDRESS:
		if (!x->local)
			addr_bytes(a, x->a->family, &x->a->addr);
		break;
	case IFA_FLAGS:
		x->a->flags = nd_attr_u32(a);
		break;
	default:
		break;
	}
	return 0;
}

static int parse_addr(const void *payload, size_t n, struct nd_links *out)
{
	struct addr_arg arg;
	struct nd_addr a, *place;
	struct ifaddrmsg m;
	int r;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	if (m.ifa_family != AF_INET && m.ifa_family != AF_INET6)
		return 0;
	a = (struct nd_addr){ .ifindex = (int)m.ifa_index,
			      .family = m.ifa_family,
			      .prefix = m.ifa_prefixlen,
			      .scope = m.ifa_scope,
			      .flags = m.ifa_flags };
	arg = (struct addr_arg){ .a = &a };
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), addr_attr, &arg);
	if (r < 0)
		return r;
	if (a.ifindex <= 0 || a.prefix > (a.family == AF_INET ? 32 : 128))
		return -EBADMSG;
	place = nd_grow((void **)&out->addrs, &out->n_addrs, sizeof(a));
	if (!place)
		return -ENOMEM;
	*place = a;
	return 0;
}

static int route_attr(const struct nd_attr *a, void *arg)
{
	struct nd_route *r = arg;

	switch (a->type) {
	case RTA_DST:
		addr_bytes(a, r->family, &r->dst);
		break;
	case RTA_GATEWAY:
		addr_bytes(a, r->family, &r->gateway);
		break;
	case RTA_PREFSRC:
		addr_bytes(a, r->family, &r->source);
		break;
	case RTA_OIF:
		r->ifindex = (int)nd_attr_u32(a);
		break;
	case RTA_PRIORITY:
		r->metric = nd_attr_u32(a);
		break;
	case RTA_TABLE:
		r->table = nd_attr_u32(a);
		break;
	case RTA_MULTIPATH:
		r->multipath = true;
		break;
	default:
		break;
	}
	return 0;
}

static int parse_route(const void *payload, size_t n, struct nd_links *out)
{
	struct nd_route r, *place;
	struct rtmsg m;
	int ret;

	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	if (m.rtm_family != AF_INET && m.rtm_family != AF_INET6)
		return 0;
	r = (struct nd_route){ .family = m.rtm_family,
			       .prefix = m.rtm_dst_len,
			       .type = m.rtm_type,
			       .table = m.rtm_table };
	ret = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), route_attr, &r);
	if (ret < 0)
		return ret;
	if (r.prefix > (r.family == AF_INET ? 32 : 128))
		return -EBADMSG;
	/* not what the kernel has made for its own use: addresses of this host, broadcasts, clones */
	if ((m.rtm_flags & RTM_F_CLONED) ||
	    (r.table != RT_TABLE_MAIN && r.table != RT_TABLE_DEFAULT))
		return 0;
	if (r.type != RTN_UNICAST && r.type != RTN_BLACKHOLE && r.type != RTN_UNREACHABLE &&
	    r.type != RTN_PROHIBIT)
		return 0;
	place = nd_grow((void **)&out->routes, &out->n_routes, sizeof(r));
	if (!place)
		return -ENOMEM;
	*place = r;
	return 0;
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
	default:
		return 0;
	}
}

/* --- the scan ------------------------------------------------------------------------------------------ */

static void restart_links(void *arg)
{
	((struct nd_links *)arg)->n_links = 0;
}

static void restart_addrs(void *arg)
{
	((struct nd_links *)arg)->n_addrs = 0;
}

static void restart_routes(void *arg)
{
	((struct nd_links *)arg)->n_routes = 0;
}

/* What sysfs alone knows, of links with a device behind them. */
static void read_device(const struct nd_source *s, struct nd_link *l)
{
	char path[ND_PATH_MAX], target[ND_PATH_MAX];
	ssize_t n = readlink(nd_path(s, path, "/sys/class/net/%s/device", l->name), target,
			     sizeof(target) - 1);
	uint64_t speed;

	if (n <= 0)
		return;
	target[n] = '\0';
	nd_bdf_of(basename(target), l->bdf);
	(void)nd_read_int(s, &l->numa, "/sys/class/net/%s/device/numa_node", l->name);
	/* of a link that is down, reading fails or gives -1 */
	if (nd_read_u64(s, &speed, "/sys/class/net/%s/speed", l->name) == 0 && speed < UINT32_MAX)
		l->speed = (uint32_t)speed;
}

static int by_index(const void *a, const void *b)
{
	const struct nd_link *x = a, *y = b;

	return x->ifindex < y->ifindex ? -1 : x->ifindex > y->ifindex;
}

/* Stable: the kernel's order within an interface is the order of preference. */
static int sort_addrs(struct nd_links *l)
{
	struct nd_addr *out;
	size_t n = 0;

	if (!l->n_addrs)
		return 0;
	out = malloc(l->n_addrs * sizeof(*out));
	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < l->n_addrs; i++) {
		size_t at = n++;

		/* dumps come by interface, so that this moves little */
		for (; at && out[at - 1].ifindex > l->addrs[i].ifindex; at--)
			out[at] = out[at - 1];
		out[at] = l->addrs[i];
	}
	free(l->addrs);
	l->addrs = out;
	return 0;
}

static int dump_all(const struct nd_source *s, struct nd_links *l, struct dray_err *reterr)
{
	struct ifinfomsg link = { .ifi_family = AF_UNSPEC };
	struct ifaddrmsg addr = { .ifa_family = AF_UNSPEC };
	struct rtmsg route = { .rtm_family = AF_UNSPEC };
	int r;

	r = nd_dump(s, NETLINK_ROUTE, ND_RECORD_LINK, RTM_GETLINK, &link, sizeof(link),
		    nd_link_message, restart_links, l, reterr);
	if (r >= 0)
		r = nd_dump(s, NETLINK_ROUTE, ND_RECORD_ADDR, RTM_GETADDR, &addr, sizeof(addr),
			    nd_link_message, restart_addrs, l, reterr);
	if (r >= 0)
		r = nd_dump(s, NETLINK_ROUTE, ND_RECORD_ROUTE, RTM_GETROUTE, &route, sizeof(route),
			    nd_link_message, restart_routes, l, reterr);
	return r;
}

int nd_links_scan(const struct nd_source *s, struct nd_links *ret, struct dray_err *reterr)
{
	struct nd_links l = { 0 };
	int r = dump_all(s, &l, reterr);

	if (r >= 0 && l.n_links)
		qsort(l.links, l.n_links, sizeof(*l.links), by_index);
	if (r >= 0)
		r = sort_addrs(&l);
	if (r < 0) {
		nd_links_deinit(&l);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "interfaces: %s",
				    dray_errno_text(r));
	}
	for (size_t i = 0; i < l.n_links; i++)
		if (l.links[i].kind == ND_LINK_DEVICE)
			read_device(s, &l.links[i]);
	*ret = l;
	return 0;
}

void nd_links_deinit(struct nd_links *l)
{
	free(l->links);
	free(l->addrs);
	free(l->routes);
	*l = (struct nd_links){ 0 };
}

const struct nd_link *nd_link_by_index(const struct nd_links *l, int ifindex)
{
	struct nd_link key = { .ifindex = ifindex };

	return l->n_links ? bsearch(&key, l->links, l->n_links, sizeof(key), by_index) : NULL;
}

const struct nd_link *nd_link_by_name(const struct nd_links *l, const char *name)
{
	for (size_t i = 0; i < l->n_links; i++)
		if (!strcmp(l->links[i].name, name))
			return &l->links[i];
	return NULL;
}

const uint8_t *nd_addr_bytes(const struct in6_addr *a, uint8_t family, size_t *ret_n)
{
	*ret_n = family == AF_INET ? 4 : 16;
	return family == AF_INET ? a->s6_addr + 12 : a->s6_addr;
}

const char *nd_addr_text(const struct in6_addr *a, uint8_t family, char *buf)
{
	size_t n;

	return inet_ntop(family, nd_addr_bytes(a, family, &n), buf, INET6_ADDRSTRLEN);
}
