/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: the kernel's credentials of a client must match the lists of the configuration. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "agent/control/session/internal.h"
#include "lib/cleanup.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

/* Supplementary groups that are checked, beside the gid. */
#define GROUPS_MAX 1024

static int load(struct id_list *l, const struct dray_strv *v, const char *key,
		struct dray_err *reterr)
{
	l->ids = calloc(v->n ? v->n : 1, sizeof(*l->ids));
	if (!l->ids)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for %s", key);
	for (; l->n < v->n; l->n++) {
		int64_t id;

		/* names are not resolved: a name service could block, now and at each reload */
		if (dray_int_parse(v->v[l->n], 0, &id) < 0 || id < 0 || id >= UINT32_MAX)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"%s: \"%s\" is not a numeric id; names are not resolved", key,
				v->v[l->n]);
		l->ids[l->n] = (uint32_t)id;
	}
	return 0;
}

int sessions_reload(struct sessions *ss, struct dray_err *reterr)
{
	struct id_list uids = { NULL, 0 }, gids = { NULL, 0 };
	int r = load(&uids, &ss->deps.cfg->data.allow_uids, "data.allow_uids", reterr);

	if (r >= 0)
		r = load(&gids, &ss->deps.cfg->data.allow_gids, "data.allow_gids", reterr);
	if (r < 0) {
		free(uids.ids);
		free(gids.ids);
		return r;
	}
	free(ss->allow_uids.ids);
	free(ss->allow_gids.ids);
	ss->allow_uids = uids;
	ss->allow_gids = gids;
	return 0;
}

static bool has(const struct id_list *l, uint32_t id)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->ids[i] == id)
			return true;
	return false;
}

static bool gid_allowed(const struct id_list *l, int fd, gid_t gid)
{
	gid_t *groups dray_auto_free = NULL;
	socklen_t bytes = GROUPS_MAX * sizeof(*groups);

	if (!l->n || has(l, gid))
		return true;
	groups = calloc(1, bytes);
	if (!groups || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
		return false;
	for (size_t i = 0; i < bytes / sizeof(*groups); i++)
		if (has(l, groups[i]))
			return true;
	return false;
}

int admission_check(struct sessions *ss, int fd, struct credentials *ret, struct dray_err *reterr)
{
	struct ucred cred;
	socklen_t bytes = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_DENIED,
				    "the kernel reports no credentials of the client: %s",
				    dray_errno_text(errno));
	*ret = (struct credentials){ cred.uid, cred.gid, cred.pid };
	if (ss->allow_uids.n && !has(&ss->allow_uids, cred.uid))
		return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
				    "uid %u is not in data.allow_uids; add it there", cred.uid);
	if (!gid_allowed(&ss->allow_gids, fd, cred.gid))
		return dray_err_set(
			reterr, -EACCES, DRAY_E_DENIED,
			"neither gid %u nor another group of the client is in data.allow_gids; add one there",
			cred.gid);
	return 0;
}
