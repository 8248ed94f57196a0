/* SPDX-License-Identifier: Apache-2.0 */
/* What can stand for a host: a name, or an address. Pure. */
#ifndef DRAY_AGENT_PLACEMENT_NET_HOST_H
#define DRAY_AGENT_PLACEMENT_NET_HOST_H

#include <stdbool.h>

#include "lib/addr.h"

#define HOST_MAX 253

/* An IPv4 address, or an IPv6 address without brackets and zone. ret: with port 0; may be undefined if false. */
bool host_is_address(const char *host, struct dray_addr *ret);

/* A name that name servers may be asked for; it may end in a dot. No address passes. */
bool host_is_name(const char *host);

#endif
