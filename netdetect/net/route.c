/* SPDX-License-Identifier: Apache-2.0 */
/* Which way packets to an address leave. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>

#include "netdetect/source/attr.h"
#include "netdetect/net/link.h"

static uint8_t family_of(const struct in6_addr *a)
{
	return IN6_IS_ADDR_V4MAPPED(a) ? AF_INET : AF_INET6;
}

/* --- the kernel's answer -------------------------------------------------------------------------------- */

static int way_attr(const struct nd_attr *a, void *arg)
{
	struct nd_way *w = arg;

	switch (a->type) {
	case RTA_OIF:
		w->ifindex = (int)nd_attr_u32(a);
		break;
	case RTA_GATEWAY:
	case RTA_VIA:
		w->direct = false;
		break;
	case RTA_PREFSRC:
		if (a->n == 16) {
			memcpy(&w->source, a->data, 16);
		} else if (a->n == 4) {
			w->source.s6_addr[10] = w->source.s6_addr[11] = 0xff;
			memcpy(w->source.s6_addr + 12, a->data, 4);
		}
		break;
	default:
		break;
	}
	return 0;
}

static int way_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	struct nd_way *w = arg;
	struct rtmsg m;

	if (type != RTM_NEWROUTE)
		return 0;
	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	*w = (struct nd_way){ .type = m.rtm_type, .direct = true };
	return nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), way_attr, w);
}

static size_t put(uint8_t *p, uint16_t type, const void *data, size_t n)
{
	struct rtattr h = { .rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(n) };

	memcpy(p, &h, sizeof(h));
	memcpy(p + RTA_LENGTH(0), data, n);
	return RTA_SPACE(n);
}

static int ask_kernel(const struct in6_addr *to, const struct in6_addr *from, int oif,
		      struct nd_way *ret)
{
	uint8_t body[128] = { 0 }, family = family_of(to);
	struct rtmsg m = { .rtm_family = family };
	const uint8_t *bytes;
	size_t n = NLMSG_ALIGN(sizeof(m)), length;
	struct dray_err err = DRAY_ERR_NULL;
	int r;

	bytes = nd_addr_bytes(to, family, &length);
	m.rtm_dst_len = (unsigned char)(length * 8);
	n += put(body + n, RTA_DST, bytes, length);
	if (from && !IN6_IS_ADDR_UNSPECIFIED(from) && family_of(from) == family) {
		m.rtm_src_len = (unsigned char)(length * 8);
		n += put(body + n, RTA_SRC, nd_addr_bytes(from, family, &length), length);
	}
	if (oif)
		n += put(body + n, RTA_OIF, &oif, sizeof(oif));
	memcpy(body, &m, sizeof(m));
	r = nd_request(&ND_SOURCE_LIVE, NETLINK_ROUTE, ND_RECORD_ROUTE, RTM_GETROUTE, body, n,
		       way_message, ret, &err);
	if (r < 0)
		return r == -EHOSTUNREACH ? -ENETUNREACH : r;
	return ret->type == RTN_UNICAST || ret->type == RTN_LOCAL ? 0 : -ENETUNREACH;
}

/* --- recorded routes ------------------------------------------------------------------------------------- */

bool nd_prefix_covers(const struct in6_addr *prefix, uint8_t family, unsigned bits,
		      const struct in6_addr *a)
{
	size_t n;
	const uint8_t *p = nd_addr_bytes(prefix, family, &n);
	const uint8_t *q = nd_addr_bytes(a, family, &n);

	if (memcmp(p, q, bits / 8) != 0)
		return false;
	return bits % 8 == 0 || (p[bits / 8] ^ q[bits / 8]) >> (8 - bits % 8) == 0;
}

static bool better(const struct nd_route *a, const struct nd_route *b)
{
	if (!b || a->prefix != b->prefix)
		return !b || a->prefix > b->prefix;
	return a->metric < b->metric;
}

static int look_up(const struct nd_links *l, const struct in6_addr *to, int oif, struct nd_way *ret)
{
	uint8_t family = family_of(to);
	const struct nd_route *best = NULL;

	for (size_t i = 0; i < l->n_addrs; i++)
		if (l->addrs[i].family == family && IN6_ARE_ADDR_EQUAL(&l->addrs[i].addr, to)) {
			*ret = (struct nd_way){ .ifindex = l->addrs[i].ifindex,
						.type = RTN_LOCAL,
						.direct = true,
						.source = *to };
			return 0;
		}
	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];

		if (r->family == family && nd_prefix_covers(&r->dst, family, r->prefix, to) &&
		    (!oif || !r->ifindex || r->ifindex == oif) && better(r, best))
			best = r;
	}
	if (!best || best->type != RTN_UNICAST)
		return -ENETUNREACH;
	*ret = (struct nd_way){ .ifindex = best->ifindex ? best->ifindex : oif,
				.type = RTN_UNICAST,
				.direct = IN6_IS_ADDR_UNSPECIFIED(&best->gateway),
				.source = best->source };
	return 0;
}

int nd_route_to(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		const struct in6_addr *from, int oif, struct nd_way *ret)
{
	return nd_is_live(s) ? ask_kernel(to, from, oif, ret) : look_up(l, to, oif, ret);
}
