/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/own_echo.h"

#include <string.h>
#include <sys/socket.h>

#include "lib/addr.h"

bool net_is_own_echo(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };
	struct dray_addr here = { .len = sizeof(here.ss) }, there = { .len = sizeof(there.ss) };

	if (getsockname(fd, &here.sa, &here.len) < 0 || getpeername(fd, &there.sa, &there.len) < 0)
		return false;
	if (here.len != there.len || memcmp(&here.ss, &there.ss, here.len) != 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	return true;
}
