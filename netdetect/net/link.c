/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/net/link.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* A port of a bond, which is one of a bridge, which is one of a VRF. */
#define MASTERS_MAX 4

const char *nd_link_kind_name(enum nd_link_kind k)
{
	static const char *const names[] = {
		[ND_LINK_DEVICE] = "device",   [ND_LINK_LOOPBACK] = "loopback",
		[ND_LINK_BOND] = "bond",       [ND_LINK_VLAN] = "vlan",
		[ND_LINK_MACVLAN] = "macvlan", [ND_LINK_VETH] = "veth",
		[ND_LINK_BRIDGE] = "bridge",   [ND_LINK_TUNNEL] = "tunnel",
		[ND_LINK_DUMMY] = "dummy",     [ND_LINK_VRF] = "vrf",
		[ND_LINK_OTHER] = "other",
	};

	return k < DRAY_ARRAY_SIZE(names) ? names[k] : "other";
}

void nd_links_deinit(struct nd_links *l)
{
	free(l->links);
	free(l->addrs);
	free(l->routes);
	*l = (struct nd_links){ 0 };
}

static int compare_index(const void *key, const void *link)
{
	int a = *(const int *)key, b = ((const struct nd_link *)link)->ifindex;

	return dray_compare(a, b);
}

const struct nd_link *nd_link_by_index(const struct nd_links *l, int ifindex)
{
	return l->n_links ?
		       bsearch(&ifindex, l->links, l->n_links, sizeof(*l->links), compare_index) :
		       NULL;
}

const struct nd_link *nd_link_vrf(const struct nd_links *l, int ifindex)
{
	const struct nd_link *link = nd_link_by_index(l, ifindex);

	for (int depth = 0; link && link->kind != ND_LINK_VRF; depth++)
		link = depth < MASTERS_MAX && link->master ? nd_link_by_index(l, link->master) :
							     NULL;
	return link;
}

const struct nd_link *nd_link_by_name(const struct nd_links *l, const char *name)
{
	for (size_t i = 0; i < l->n_links; i++)
		if (!strcmp(l->links[i].name, name))
			return &l->links[i];
	return NULL;
}

void nd_addr_set(struct in6_addr *ret, uint8_t family, const void *bytes)
{
	if (family == AF_INET6) {
		memcpy(ret, bytes, 16);
		return;
	}
	*ret = (struct in6_addr){ .s6_addr = { [10] = 0xff, [11] = 0xff } };
	memcpy(ret->s6_addr + 12, bytes, 4);
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

bool nd_addr_is_loopback(const struct in6_addr *a)
{
	return IN6_IS_ADDR_V4MAPPED(a) ? a->s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(a);
}

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
