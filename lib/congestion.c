/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/congestion.h"

#include <netinet/tcp.h>

/* Every kernel has it, and lets everyone choose it unless its administrator forbids that. */
static const char unpaced[] = "reno";

static void set_unpaced(int fd)
{
	setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, unpaced, sizeof(unpaced) - 1);
}

void dray_congestion_at(int fd, const struct dray_addr *addr)
{
	if (dray_addr_is_loopback(addr))
		set_unpaced(fd);
}

void dray_congestion_connected(int fd)
{
	struct dray_addr here = { .len = sizeof(here.ss) }, there = { .len = sizeof(there.ss) };

	if (getsockname(fd, &here.sa, &here.len) < 0 || getpeername(fd, &there.sa, &there.len) < 0)
		return;
	if (dray_addr_same_host(&here, &there) ||
	    (dray_addr_is_loopback(&here) && dray_addr_is_loopback(&there)))
		set_unpaced(fd);
}
