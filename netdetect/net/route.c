/* SPDX-License-Identifier: Apache-2.0 */
/* The next hop to an address: the kernel's answer, or a look-up in recorded routes. */
#include "netdetect/net/link.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>

#include "netdetect/source/attr.h"
#include "netdetect/source/netlink.h"

static uint8_t family_of(const struct in6_addr *a)
{
	return IN6_IS_ADDR_V4MAPPED(a) ? AF_INET : AF_INET6;
}

static int hop_attr(const struct nd_attr *a, void *arg)
{
	struct nd_next_hop *h = arg;

	if (a->type == RTA_OIF)
		h->ifindex = (int)nd_attr_number(a, 4);
	if (a->type == RTA_GATEWAY || a->type == RTA_VIA)
		h->direct = false;
	return 0;
}

static int hop_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	struct nd_next_hop *h = arg;
	struct rtmsg m;

	if (type != RTM_NEWROUTE)
		return 0;
	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	*h = (struct nd_next_hop){ .type = m.rtm_type, .direct = true };
	return nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), hop_attr, h);
}

static size_t put_attr(uint8_t *p, uint16_t type, const void *data, size_t n)
{
	struct rtattr h = { .rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(n) };

	memcpy(p, &h, sizeof(h));
	memcpy(p + RTA_LENGTH(0), data, n);
	return RTA_SPACE(n);
}

static size_t put_addr(uint8_t *p, uint16_t type, const struct in6_addr *a, uint8_t family)
{
	size_t n;
	const uint8_t *bytes = nd_addr_bytes(a, family, &n);

	return put_attr(p, type, bytes, n);
}

/* device: 0, or a VRF: the kernel looks in its table only if the request names it. */
static int ask_kernel(const struct in6_addr *to, const struct in6_addr *from, int device,
		      struct nd_next_hop *ret)
{
	uint8_t body[128] = { 0 }, family = family_of(to), bits = family == AF_INET ? 32 : 128;
	struct rtmsg m = { .rtm_family = family, .rtm_dst_len = bits, .rtm_src_len = bits };
	size_t n = NLMSG_ALIGN(sizeof(m));
	int r;

	memcpy(body, &m, sizeof(m));
	n += put_addr(body + n, RTA_DST, to, family);
	n += put_addr(body + n, RTA_SRC, from, family);
	if (device)
		n += put_attr(body + n, RTA_OIF, &device, sizeof(device));
	r = nd_query(&ND_SOURCE_LIVE, ND_GET_ROUTE_TO, body, n, hop_message, ret, NULL, NULL, NULL);
	if (r < 0)
		return nd_is_transient(r) ? r : -ENETUNREACH;
	return ret->type == RTN_UNICAST || ret->type == RTN_LOCAL ? 0 : -ENETUNREACH;
}

static bool better(const struct nd_route *a, const struct nd_route *b)
{
	if (!b || a->prefix != b->prefix)
		return !b || a->prefix > b->prefix;
	return a->metric < b->metric;
}

static int look_up(const struct nd_links *l, const struct in6_addr *to, struct nd_next_hop *ret)
{
	uint8_t family = family_of(to);
	const struct nd_route *best = NULL;

	for (size_t i = 0; i < l->n_addrs; i++)
		if (l->addrs[i].family == family && IN6_ARE_ADDR_EQUAL(&l->addrs[i].addr, to)) {
			*ret = (struct nd_next_hop){ .ifindex = l->addrs[i].ifindex,
						     .type = RTN_LOCAL,
						     .direct = true };
			return 0;
		}
	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];

		if (r->family == family && nd_prefix_covers(&r->dst, family, r->prefix, to) &&
		    better(r, best))
			best = r;
	}
	if (!best || best->type != RTN_UNICAST)
		return -ENETUNREACH;
	*ret = (struct nd_next_hop){ .ifindex = best->ifindex,
				     .type = RTN_UNICAST,
				     .direct = IN6_IS_ADDR_UNSPECIFIED(&best->gateway) };
	return 0;
}

int nd_route_to(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		const struct in6_addr *from, int device, struct nd_next_hop *ret)
{
	return nd_is_live(s) ? ask_kernel(to, from, device, ret) : look_up(l, to, ret);
}
