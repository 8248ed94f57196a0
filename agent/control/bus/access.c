/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"

static bool in_group(int fd, gid_t primary, gid_t group)
{
	dray_auto_free gid_t *groups = NULL;
	socklen_t n = 0;

	if (primary == group)
		return true;
	/* with ERANGE the kernel stores the size it needs; the groups of a connection do not change */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) == 0 || errno != ERANGE)
		return false;
	groups = malloc(n);
	if (!groups || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) < 0)
		return false;
	for (size_t i = 0; i < n / sizeof(gid_t); i++)
		if (groups[i] == group)
			return true;
	return false;
}

int bus_client_get(int fd, const struct access_rules *rules, struct bus_client *ret)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return -errno;
	*ret = (struct bus_client){ .uid = cred.uid, .gid = cred.gid, .pid = cred.pid };
	ret->may_change = cred.uid == 0 || cred.uid == rules->owner ||
			  (rules->has_group && in_group(fd, cred.gid, rules->group));
	return 0;
}
