/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "agent/model/handle.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static int check_quota(const struct session *s, const struct dmsg_region_add *m,
		       struct dray_err *reterr)
{
	const struct client_group *g = s->group;
	const struct dray_config *cfg = s->owner->deps.cfg;
	uint64_t bytes = 0;
	int r = extents_length(m, &bytes, reterr);
#define LIMIT(key, what, used, more)                                        \
	{                                                                   \
		what, "limits." #key, used, more, (uint64_t)cfg->limits.key \
	}
	const struct {
		const char *what, *key;
		uint64_t used, more, max;
	} limits[] = {
		LIMIT(regions_per_session, "regions of the session", s->n_regions, 1),
		LIMIT(regions_per_group, "regions of the group", g->n_regions, 1),
		LIMIT(extents_per_session, "extents of the session", s->n_extents, m->extents.n),
		LIMIT(bytes_per_session, "bytes of the session", s->bytes, bytes),
		LIMIT(bytes_per_group, "bytes of the group", g->bytes, bytes),
	};
#undef LIMIT

	for (size_t i = 0; r >= 0 && i < DRAY_ARRAY_SIZE(limits); i++)
		if (limits[i].used > limits[i].max ||
		    limits[i].more > limits[i].max - limits[i].used)
			r = dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
					 "the %s reached %s = %" PRIu64
					 "; remove some, or raise it",
					 limits[i].what, limits[i].key, limits[i].max);
	return r;
}

/* Adds the region to the counts of its session and group; sign -1: subtracts it. */
static void count(const struct session_region *r, int sign)
{
	struct session *s = r->session;

	s->n_regions += (uint32_t)sign;
	s->group->n_regions += (uint32_t)sign;
	s->n_extents += (uint32_t)sign * r->extents;
	s->bytes += (uint64_t)sign * r->bytes;
	s->group->bytes += (uint64_t)sign * r->bytes;
}

static void reply_added(struct session *s, const struct session_region *r, int *fds, unsigned n_fds)
{
	session_send_fds(s, r->request_id, DMSG_REGION_ADD_REPLY,
			 &(union dmsg_body){ .region_add_reply = { r->handle, r->bytes } }, fds,
			 n_fds);
}

static void forget(struct session_region *r)
{
	dray_map_del(&r->session->regions, &r->node);
	count(r, -1);
	owner_put(r->session->uid_owner, RESOURCE_REGIONS, 1);
	free(r);
}

static void handle_removed(void *arg)
{
	struct session_region *r = arg;
	struct session *s = r->session;

	if (r->replies)
		session_send(s, r->request_id, DMSG_REGION_REMOVE_REPLY, NULL);
	forget(r);
	session_check(s);
}

static void remove_region(struct session_region *r, bool urgent)
{
	int e = region_remove(r->session->owner->deps.regions, r->handle, r->session->handle,
			      urgent, handle_removed, r);

	dray_assert(e == 0);
	r->removing = true;
	requests_go_on(&r->held);
}

static void tell_lost(const struct session_region *r, const struct dray_err *err)
{
	session_send(
		r->session, 0, DMSG_REGION_LOST,
		&(union dmsg_body){ .region_lost = {
					    .region = r->handle,
					    .code = (uint32_t)err->code,
					    .message = { err->msg, (uint32_t)strlen(err->msg) },
				    } });
}

/* A region that was opened in the background is usable, or was refused. */
static void handle_added(void *arg, const struct dray_err *err)
{
	struct session_region *r = arg;
	struct session *s = r->session;
	uint64_t id = r->request_id;

	if (r->early) {
		r->early = false;
		if (err)
			tell_lost(r, err);
		requests_go_on(&r->held);
		return;
	}
	r->adding = false;
	if (!err) {
		reply_added(s, r, NULL, 0);
		return;
	}
	/* before the answer: if it cannot be sent, the session closes with its regions */
	forget(r);
	session_fail(s, id, -EIO, err);
	session_check(s);
}

/* Duplicates the descriptor of a pool for the reply. */
static int pass_pool(struct session_region *r, int pool_fd, int *ret_fd, struct dray_err *reterr)
{
	int e;

	*ret_fd = -1;
	if (pool_fd < 0)
		return 0;
	*ret_fd = fcntl(pool_fd, F_DUPFD_CLOEXEC, 3);
	if (*ret_fd >= 0)
		return 0;
	e = dray_err_set(
		reterr, -errno, DRAY_E_NO_FDS,
		"the pool's descriptor cannot be duplicated: %s; raise the agent's NOFILE limit",
		dray_errno_text(errno));
	remove_region(r, true);
	return e;
}

int request_region_add(struct session *s, struct request *rq, struct dray_err *reterr)
{
	struct session_region *r dray_auto_free = NULL;
	struct region_owner owner = session_owner(s);
	const struct dmsg_region_add *m = &rq->m.region_add;
	struct region_added added;
	int e, fd;

	e = check_quota(s, m, reterr);
	if (e >= 0)
		e = owner_take(s->uid_owner, RESOURCE_REGIONS, 1, reterr);
	if (e < 0)
		return e;
	r = calloc(1, sizeof(*r));
	if (!r) {
		owner_put(s->uid_owner, RESOURCE_REGIONS, 1);
		return -ENOMEM;
	}
	dray_list_init(&r->held);
	r->session = s;
	r->extents = m->extents.n;
	r->request_id = rq->id;
	e = region_add(s->owner->deps.regions,
		       &(struct region_spec){ .owner = &owner,
					      .m = m,
					      .fds = rq->fds,
					      .n_fds = rq->n_fds,
					      .early = s->early &&
						       !(m->flags & DMSG_REGION_FLAG_WAIT),
					      .added = handle_added,
					      .arg = r },
		       &added, reterr);
	if (e < 0) {
		owner_put(s->uid_owner, RESOURCE_REGIONS, 1);
		return e;
	}
	r->handle = added.region;
	r->bytes = added.length;
	r->early = added.early;
	r->adding = added.pending && !added.early;
	dray_map_add(&s->regions, &r->node, &r->handle, sizeof(r->handle));
	count(r, 1);
	if (!r->adding) {
		e = pass_pool(r, added.pool_fd, &fd, reterr);
		if (e >= 0)
			reply_added(s, r, &fd, fd >= 0 ? 1 : 0);
	}
	r = NULL;
	return e;
}

static struct session_region *find(struct session *s, dray_handle handle)
{
	struct session_region *r = dray_map_entry(
		dray_map_find(&s->regions, &handle, sizeof(handle)), struct session_region, node);

	return r && !r->adding && !r->removing ? r : NULL;
}

int request_region_remove(struct session *s, struct request *rq, struct dray_err *reterr)
{
	uint64_t handle = rq->m.region_remove.region;
	struct session_region *r = find(s, handle);

	if (!r)
		return handle_refuse(reterr, handle, DMSG_HANDLE_KIND_REGION, "in this session");
	r->replies = true;
	r->request_id = rq->id;
	remove_region(r, false);
	return 0;
}

int request_region_export(struct session *s, struct request *rq, struct dray_err *reterr)
{
	struct region_owner owner = session_owner(s);
	uint8_t token[DMSG_TOKEN_MAX];
	union dmsg_body reply = { .region_export_reply = { .token = { .p = token } } };
	struct dmsg_region_export_reply *m = &reply.region_export_reply;
	int e = region_export(s->owner->deps.regions, &owner, &rq->m.region_export,
			      peers_segment(s->owner->deps.peers), &m->token_id, token, &m->token.n,
			      reterr);

	if (e >= 0)
		session_send(s, rq->id, DMSG_REGION_EXPORT_REPLY, &reply);
	return e;
}

/* A pending REGION_REVOKE; its session may end first. */
struct revoking {
	struct sessions *sessions;
	dray_handle session;
	uint64_t request_id;
};

static void handle_revoked(void *arg, uint32_t n)
{
	struct revoking *w = arg;
	struct session *s = session_get(w->sessions, w->session);

	if (s)
		session_send(s, w->request_id, DMSG_REGION_REVOKE_REPLY,
			     &(union dmsg_body){ .region_revoke_reply = { n } });
	free(w);
}

int request_region_revoke(struct session *s, struct request *rq, struct dray_err *reterr)
{
	struct revoking *w dray_auto_free = calloc(1, sizeof(*w));
	struct region_owner owner = session_owner(s);
	const struct dmsg_region_revoke *m = &rq->m.region_revoke;
	int e;

	if (!w)
		return -ENOMEM;
	*w = (struct revoking){ s->owner, s->handle, rq->id };
	e = region_revoke(s->owner->deps.regions, m->region, &owner, m->token_id, handle_revoked, w,
			  reterr);
	if (e < 0)
		return e;
	w = NULL;
	return 0;
}

void session_regions_close(struct session *s)
{
	dray_map_for_each(&s->regions, r, struct session_region, node) {
		r->replies = false;
		if (r->removing)
			region_hurry(s->owner->deps.regions, r->handle);
		else
			remove_region(r, true);
	}
}
