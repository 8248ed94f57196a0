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

struct answer {
	struct nd_next_hop v[ND_NEXT_HOPS_MAX];
	int n;
	uint8_t type;
};

static int hop_attr(const struct nd_attr *a, void *arg)
{
	struct nd_next_hop *h = arg;

	if (a->type == RTA_OIF)
		h->ifindex = (int)nd_attr_number(a, 4);
	if (a->type == RTA_GATEWAY || a->type == RTA_VIA)
		h->direct = false;
	return 0;
}

static int add_hop(int ifindex, const void *attrs, size_t n, void *arg)
{
	struct answer *answer = arg;
	struct nd_next_hop h = { .ifindex = ifindex, .type = answer->type, .direct = true };
	int r = nd_attrs(attrs, n, hop_attr, &h);

	if (r >= 0 && answer->n < ND_NEXT_HOPS_MAX)
		answer->v[answer->n++] = h;
	return r;
}

static int multipath_attr(const struct nd_attr *a, void *arg)
{
	return a->type == RTA_MULTIPATH ? nd_multipath(a->data, a->n, add_hop, arg) : 0;
}

static int answer_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	const uint8_t *attrs = (const uint8_t *)payload + sizeof(struct rtmsg);
	struct answer *answer = arg;
	struct rtmsg m;
	int r;

	if (type != RTM_NEWROUTE)
		return 0;
	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	*answer = (struct answer){ .type = m.rtm_type };
	r = nd_attrs(attrs, n - sizeof(m), multipath_attr, answer);
	/* the attributes of a route with one next hop are those of the next hop */
	return r < 0 || answer->n ? r : add_hop(0, attrs, n - sizeof(m), answer);
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
		      uint32_t flags, struct answer *ret)
{
	uint8_t body[128] = { 0 }, family = family_of(to), bits = family == AF_INET ? 32 : 128;
	struct rtmsg m = {
		.rtm_family = family, .rtm_dst_len = bits, .rtm_src_len = bits, .rtm_flags = flags
	};
	size_t n = NLMSG_ALIGN(sizeof(m));
	int r;

	*ret = (struct answer){ .n = 0 };
	memcpy(body, &m, sizeof(m));
	n += put_addr(body + n, RTA_DST, to, family);
	n += put_addr(body + n, RTA_SRC, from, family);
	if (device)
		n += put_attr(body + n, RTA_OIF, &device, sizeof(device));
	r = nd_query(&ND_SOURCE_LIVE, ND_GET_ROUTE_TO, body, n, answer_message, ret, NULL, NULL,
		     NULL);
	if (r < 0)
		return nd_is_transient(r) ? r : -ENETUNREACH;
	return ret->n && (ret->type == RTN_UNICAST || ret->type == RTN_LOCAL) ? 0 : -ENETUNREACH;
}

static bool better(const struct nd_route *a, const struct nd_route *b)
{
	if (!b || a->prefix != b->prefix)
		return !b || a->prefix > b->prefix;
	return a->metric < b->metric;
}

static int look_up(const struct nd_links *l, const struct in6_addr *to, struct answer *ret)
{
	uint8_t family = family_of(to);
	const struct nd_route *best = NULL;

	*ret = (struct answer){ .n = 0 };
	for (size_t i = 0; i < l->n_addrs; i++)
		if (l->addrs[i].family == family && IN6_ARE_ADDR_EQUAL(&l->addrs[i].addr, to)) {
			ret->v[ret->n++] = (struct nd_next_hop){ .ifindex = l->addrs[i].ifindex,
								 .type = RTN_LOCAL,
								 .direct = true };
			return 0;
		}
	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];

		if (r->family != family || !nd_prefix_covers(&r->dst, family, r->prefix, to) ||
		    (best && better(best, r)))
			continue;
		if (better(r, best)) {
			best = r;
			ret->n = 0;
		}
		if (ret->n < ND_NEXT_HOPS_MAX)
			ret->v[ret->n++] = (struct nd_next_hop){ .ifindex = r->ifindex,
								 .type = RTN_UNICAST,
								 .direct = IN6_IS_ADDR_UNSPECIFIED(
									 &r->gateway) };
	}
	return best && best->type == RTN_UNICAST ? 0 : -ENETUNREACH;
}

int nd_route_to(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		const struct in6_addr *from, int device, struct nd_next_hop *ret)
{
	struct answer answer;
	int r = nd_is_live(s) ? ask_kernel(to, from, device, 0, &answer) : look_up(l, to, &answer);

	if (r >= 0)
		*ret = answer.v[0];
	return r;
}

int nd_route_hops(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		  const struct in6_addr *from, int device, struct nd_next_hop ret[ND_NEXT_HOPS_MAX])
{
	struct answer answer;
	int r = nd_is_live(s) ? ask_kernel(to, from, device, RTM_F_FIB_MATCH, &answer) :
				look_up(l, to, &answer);

	if (r < 0)
		return r;
	memcpy(ret, answer.v, (size_t)answer.n * sizeof(answer.v[0]));
	return answer.n;
}
