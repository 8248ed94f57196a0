/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/gid.h"

#include <arpa/inet.h>

const char *nd_gid_type_name(enum nd_gid_type t)
{
	switch (t) {
	case ND_GID_IB:
		return "InfiniBand";
	case ND_GID_ROCE_V1:
		return "RoCE v1";
	case ND_GID_ROCE_V2:
		return "RoCE v2";
	}
	return "unknown";
}

enum nd_gid_class nd_gid_class_of(const struct in6_addr *gid)
{
	if (IN6_IS_ADDR_V4MAPPED(gid))
		return gid->s6_addr[12] == 169 && gid->s6_addr[13] == 254 ? ND_GID_LINK_LOCAL :
									    ND_GID_IPV4;
	return IN6_IS_ADDR_LINKLOCAL(gid) ? ND_GID_LINK_LOCAL : ND_GID_IPV6;
}

const char *nd_gid_text(const struct in6_addr *gid, char *buf)
{
	if (IN6_IS_ADDR_V4MAPPED(gid))
		return inet_ntop(AF_INET, gid->s6_addr + 12, buf, INET6_ADDRSTRLEN);
	return inet_ntop(AF_INET6, gid, buf, INET6_ADDRSTRLEN);
}

const struct nd_gid *nd_gids_best(const struct nd_gids *g)
{
	return g->n && !g->v[0].rejected ? &g->v[0] : NULL;
}

uint32_t nd_gids_flid(const struct nd_gids *g)
{
	for (size_t i = 0; i < g->n; i++) {
		const uint8_t *b = g->v[i].gid.s6_addr;

		/* fec0:0000:FLID:subnet, at the index where drivers put it */
		if (g->v[i].index == 1 && b[0] == 0xfe && b[1] == 0xc0 && !b[2] && !b[3])
			return (uint32_t)b[4] << 8 | b[5];
	}
	return 0;
}
