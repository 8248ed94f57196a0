/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/access.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* Linux allows 65,536 supplementary groups. */
#define GROUPS_BYTES_MAX (65536 * sizeof(gid_t))

int control_group_parse(const char *group, bool *ret_has, gid_t *ret_gid, struct dray_err *reterr)
{
	struct group buffer, *found = NULL;
	dray_auto_free char *text = NULL;
	int64_t number;
	int err;

	*ret_has = false;
	if (!*group)
		return 0;
	if (dray_int_parse(group, 0, &number) == 0 && number >= 0 && number < UINT32_MAX) {
		*ret_has = true;
		*ret_gid = (gid_t)number;
		return 0;
	}
	/* a group with many members needs a long buffer */
	for (size_t n = 4096;; n *= 4) {
		free(text);
		text = malloc(n);
		if (!text)
			return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
		err = getgrnam_r(group, &buffer, text, n, &found);
		if (err != ERANGE || n > (1u << 24))
			break;
	}
	if (!found)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "control.group: there is no group %.60s; name one of this "
				    "system, or give its number",
				    group);
	*ret_has = true;
	*ret_gid = found->gr_gid;
	return 0;
}

static bool in_group(int fd, gid_t primary, gid_t group)
{
	dray_auto_free gid_t *groups = NULL;
	socklen_t n = 64 * sizeof(gid_t);

	if (primary == group)
		return true;
	for (;;) {
		socklen_t room = n;

		free(groups);
		groups = malloc(n);
		if (!groups)
			return false;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) == 0)
			break;
		/* ERANGE says how much it takes */
		if (errno != ERANGE || n <= room || n > GROUPS_BYTES_MAX)
			return false;
	}
	for (size_t i = 0; i < n / sizeof(gid_t); i++)
		if (groups[i] == group)
			return true;
	return false;
}

int control_who_get(int fd, const struct control_rules *rules, struct control_who *ret)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return -errno;
	*ret = (struct control_who){ .uid = cred.uid, .gid = cred.gid, .pid = cred.pid };
	ret->may_change = cred.uid == 0 || cred.uid == rules->owner ||
			  (rules->has_group && in_group(fd, cred.gid, rules->group));
	return 0;
}
