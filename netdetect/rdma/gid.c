/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/gid.h"

#include <arpa/inet.h>

const char *nd_gid_type_name(enum nd_gid_type t)
{
	static const char *const names[] = { "InfiniBand", "RoCE v1", "RoCE v2" };

	return t <= ND_GID_ROCE_V2 ? names[t] : "unknown";
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
