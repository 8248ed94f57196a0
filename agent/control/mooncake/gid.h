/* SPDX-License-Identifier: Apache-2.0 */
/* GIDs as Mooncake writes them: sixteen bytes in hexadecimal, with colons in between. Pure. */
#pragma once

#include <netinet/in.h>

#include "lib/addr.h"

#define MOONCAKE_GID_TEXT 48u /* sixteen times two digits and a separator */

const char *mooncake_gid_show(const struct in6_addr *gid, char buf[static MOONCAKE_GID_TEXT]);
/* 0 or -EINVAL. */
int mooncake_gid_parse(const char *text, struct in6_addr *ret);

/* The address in the GID of a RoCE port. */
static inline struct dray_addr mooncake_gid_address(const struct in6_addr *gid)
{
	return (struct dray_addr){ .in6 = { .sin6_family = AF_INET6, .sin6_addr = *gid },
				   .len = sizeof(struct sockaddr_in6) };
}
