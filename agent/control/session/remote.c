/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remotes: tokens that a session imported. A remote is lost if its owner revokes it or its peer is lost; its handle
 * then keeps the reason until the session releases it.
 *
 * The remote of a lease has ranges in its view. Its release says whether its session has used the lease, or is lost.
 *
 * However a remote ends, the workers release it first. Then its owner is informed: by the acknowledgement of a fence, by
 * a release, or, within this agent, by local_remote_gone(). A lost peer is not informed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/client.h"
#include "agent/control/session/internal.h"
#include "agent/model/handle.h"
#include "agent/model/keys.h"
#include "agent/model/ranges.h"
#include "schema/gen/errors.h"

static const struct sessions_deps *deps(const struct remote *r)
{
	return &r->session->owner->deps;
}

struct remote *remote_find(struct sessions *ss, dray_handle handle)
{
	return dray_handles_get(&ss->remotes, handle);
}

/*
 * Remotes of a session that is closing are refused to requests that come here. A worker knows nothing of that until the remote is released: it still
 * begins transfers with it of other sessions of the group, and ends them with session_closed then. The grant is given back after that, when no worker uses
 * the remote any more.
 */
struct remote *remote_get(struct session *s, dray_handle handle, struct dray_err *reterr)
{
	struct remote *r = remote_find(s->owner, handle);

	if (!r || r->state == REMOTE_RELEASING || r->session->closing ||
	    r->view.o.group != s->shared.group) {
		handle_refuse(reterr, handle, DMSG_HANDLE_KIND_REMOTE, "in this session's group");
		return NULL;
	}
	if (r->state == REMOTE_LOST) {
		dray_err_set(reterr, -EPIPE, (int)r->lost_code, "remote %" PRIu64 " is lost. %s",
			     handle, dray_error_fix(r->lost_code));
		return NULL;
	}
	return r;
}

/* Fences and keys name a remote by its peer and grant. */
static struct remote *find_of_peer(struct sessions *ss, dray_handle peer, uint64_t grant)
{
	struct remote_key key = { peer, grant };

	return dray_map_entry(dray_map_find(&ss->remotes_of_peers, &key, sizeof(key)),
			      struct remote, index);
}

struct remote *remote_new(struct session *s, struct dray_err *reterr)
{
	struct remote *r;
	struct object_view *o;

	if (owner_take(s->uid_owner, RESOURCE_REMOTES, 1, reterr) < 0)
		return NULL;
	r = calloc(1, sizeof(*r));
	if (!r || dray_handles_add(&s->owner->remotes, r, &r->view.o.handle) < 0) {
		free(r);
		owner_put(s->uid_owner, RESOURCE_REMOTES, 1);
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a remote");
		return NULL;
	}
	r->session = s;
	dray_list_init(&r->keys);
	dray_list_init(&r->source_link);
	o = &r->view.o;
	o->kind = OBJECT_REMOTE;
	o->group = s->shared.group;
	o->session = s->handle;
	dray_list_add(&s->remotes, &r->link);
	s->n_remotes++;
	return r;
}

void remote_free(struct remote *r)
{
	struct session *s = r->session;

	remote_leave_source(r);
	dray_list_del(&r->link);
	dray_handles_del(&s->owner->remotes, r->view.o.handle);
	s->n_remotes--;
	owner_put(s->uid_owner, RESOURCE_REMOTES, 1);
	owner_put(s->uid_owner, RESOURCE_ENGINE_BUFFERS, r->n_buffers);
	ranges_unref(r->view.ranges);
	mooncake_buffers_unref(r->buffers);
	rail_keys_unref(r->engine_keys);
	remote_keys_forget(&r->keys);
	free(r);
}

void remote_reply_imported(const struct remote *r, uint64_t request_id,
			   enum dmsg_transport transport, uint32_t expiry_ms)
{
	if (r->is_lease) {
		session_send(
			r->session, request_id, DMSG_LEASE_ACQUIRE_REPLY,
			&(union dmsg_body){ .lease_acquire_reply = { .remote = r->view.o.handle,
								     .length = r->view.o.length,
								     .access = r->view.o.access,
								     .transport = transport,
								     .expiry_ms = expiry_ms } });
		return;
	}
	session_send(r->session, request_id, DMSG_REMOTE_IMPORT_REPLY,
		     &(union dmsg_body){ .remote_import_reply = { .remote = r->view.o.handle,
								  .length = r->view.o.length,
								  .access = r->view.o.access,
								  .transport = transport } });
}

static void tell_owner(struct remote *r)
{
	const struct sessions_deps *d = deps(r);
	enum pmsg_release_how how = r->used ? PMSG_RELEASE_HOW_USED : PMSG_RELEASE_HOW_LOST;

	if (r->view.is_local)
		local_remote_gone(d->regions, r->token_id, r->view.o.handle, how);
	else if (r->view.mooncake)
		mooncake_release(d->mooncake, r->view.peer);
	else if (r->owner_gone)
		return;
	else if (r->fenced)
		peers_fence_ack(d->peers, r->view.peer, r->view.grant);
	else
		peer_release(d->peers, r->view.peer, r->view.grant, how);
	r->owner_gone = true;
}

static void finish_release(struct remote *r)
{
	struct session *s = r->session;

	if (r->replies)
		session_send(s, r->request_id, DMSG_REMOTE_RELEASE_REPLY, NULL);
	remote_free(r);
	session_check(s);
}

static void handle_dropped(void *arg)
{
	struct remote *r = arg;

	r->dropping = r->retired = false;
	/* from here on the peer may reuse the grant */
	remote_leave_source(r);
	tell_owner(r);
	if (r->state == REMOTE_RELEASING)
		finish_release(r);
}

static void drop(struct remote *r, uint32_t code, bool urgent)
{
	if (!r->dropping) {
		r->dropping = true;
		pool_drop(deps(r)->pool, OBJECT_REMOTE, r->view.o.handle, code, urgent,
			  handle_dropped, r);
	} else if (urgent || r->retired) {
		r->retired = false;
		pool_drop(deps(r)->pool, OBJECT_REMOTE, r->view.o.handle, code, urgent, NULL, NULL);
	}
}

/* Tells the session that the remote is lost. */
static void tell_lost(struct remote *r, uint32_t code, const char *why)
{
	union dmsg_body m = { .remote_lost = {
				      .remote = r->view.o.handle,
				      .code = code,
				      .message = { why, (uint32_t)strnlen(why, DRAY_ERR_MSG_MAX) },
			      } };

	if (r->state != REMOTE_LIVE)
		return;
	r->state = REMOTE_LOST;
	r->lost_code = code;
	session_send(r->session, 0, DMSG_REMOTE_LOST, &m);
}

void remote_lose(struct remote *r, uint32_t code, const char *why, bool urgent)
{
	drop(r, code, urgent);
	tell_lost(r, code, why);
}

void remote_retire(struct remote *r)
{
	if (r->dropping || r->state != REMOTE_LIVE)
		return;
	r->dropping = r->retired = true;
	pool_retire(deps(r)->pool, OBJECT_REMOTE, r->view.o.handle, DRAY_E_DRAINING, handle_dropped,
		    r);
	tell_lost(r, DRAY_E_DRAINING, dray_error_doc(DRAY_E_DRAINING));
}

static void release(struct remote *r, uint32_t code)
{
	bool in_use = r->state == REMOTE_LIVE || r->retired;

	r->state = REMOTE_RELEASING;
	if (in_use)
		drop(r, code, false);
	if (!r->dropping)
		finish_release(r);
}

void sessions_remote_fenced(struct sessions *ss, dray_handle peer, uint64_t grant, uint32_t code)
{
	struct remote *r = find_of_peer(ss, peer, grant);

	if (!r) {
		/* the remote was released before the fence, or its import failed: nothing here uses the grant */
		peers_fence_ack(ss->deps.peers, peer, grant);
		return;
	}
	r->fenced = true;
	remote_lose(r, code, dray_error_doc(code), false);
}

void sessions_remote_keys(struct sessions *ss, dray_handle peer, uint64_t grant,
			  const struct dray_vec *rails)
{
	struct remote *r = find_of_peer(ss, peer, grant);

	if (r)
		pool_keys(ss->deps.pool, OBJECT_REMOTE, r->view.o.handle,
			  remote_keys_hold(&r->keys, rails, r->view.o.length));
}

void sessions_remote_rekey(struct sessions *ss, dray_handle peer, uint64_t grant,
			   uint64_t request_id)
{
	struct remote *r = find_of_peer(ss, peer, grant);
	struct dray_list none = DRAY_LIST_INIT(none);

	if (r)
		pool_keys(ss->deps.pool, OBJECT_REMOTE, r->view.o.handle, NULL);
	remote_keys_end(ss, r ? &r->keys : &none, peer, request_id);
}

void sessions_revoke_local(struct sessions *ss, dray_handle remote, uint32_t code, bool urgent)
{
	struct remote *r = remote_find(ss, remote);

	if (r)
		remote_lose(r, code, dray_error_doc(code), urgent);
}

int request_remote_release(struct session *s, struct request *rq, struct dray_err *reterr)
{
	uint64_t handle = rq->m.remote_release.remote;
	struct remote *r = remote_find(s->owner, handle);

	if (!r || r->session != s || r->state == REMOTE_RELEASING)
		return handle_refuse(reterr, handle, DMSG_HANDLE_KIND_REMOTE, "in this session");
	if (r->state == REMOTE_LOST) {
		/* transfers that may still finish do so, and free it */
		r->state = REMOTE_RELEASING;
		if (!r->dropping)
			remote_free(r);
		session_send(s, rq->id, DMSG_REMOTE_RELEASE_REPLY, NULL);
		return 0;
	}
	r->replies = true;
	r->used = true;
	r->request_id = rq->id;
	release(r, DRAY_E_CANCELLED);
	return 0;
}

static int import_local(struct session *s, uint64_t request_id, const struct pmsg_token *token,
			const struct dray_str *label, struct dray_err *reterr)
{
	struct regions *regions = s->owner->deps.regions;
	struct remote *r = remote_new(s, reterr);
	uint32_t expiry_ms = 0;
	int e;

	if (!r)
		return -ENOMEM;
	r->view.is_local = true;
	r->token_id = token->token_id;
	r->is_lease = label;
	if (label)
		text_copy(r->view.label, sizeof(r->view.label), *label);
	e = label ? lease_acquire_local(regions, token, &r->view, &expiry_ms, reterr) :
		    token_import_local(regions, token, &r->view, reterr);
	if (e < 0) {
		remote_free(r);
		return e;
	}
	pool_publish(s->owner->deps.pool, &r->view.o);
	remote_reply_imported(r, request_id, DMSG_TRANSPORT_LOCAL, expiry_ms);
	return 0;
}

static void finish_import(struct pending_import *i, dray_handle peer,
			  const struct pmsg_import_reply *m, const struct peer_lease *lease)
{
	struct session *s = i->session;
	const struct sessions_deps *d = &s->owner->deps;
	struct dray_err err = DRAY_ERR_NULL;
	struct remote *r = remote_new(s, &err);

	if (!r || remote_join_source(r, peer, false, &err) < 0) {
		if (r)
			remote_free(r);
		peer_release(d->peers, peer, m->grant, PMSG_RELEASE_HOW_DECLINED);
		session_fail(s, i->request_id, -ENOMEM, &err);
		return;
	}
	r->key = (struct remote_key){ peer, m->grant };
	r->view.grant = m->grant;
	dray_map_add(&s->owner->remotes_of_peers, &r->index, &r->key, sizeof(r->key));
	r->view.o.length = m->length;
	r->view.o.access = m->access;
	r->is_lease = i->is_lease;
	memcpy(r->view.label, i->label, sizeof(i->label));
	if (lease)
		r->view.ranges = ranges_ref(lease->ranges);
	pool_publish(d->pool, &r->view.o);
	/* before the client can use the remote */
	if (m->rails.n)
		sessions_remote_keys(s->owner, peer, m->grant, &m->rails);
	remote_reply_imported(r, i->request_id,
			      m->rails.n ? DMSG_TRANSPORT_RDMA : DMSG_TRANSPORT_TCP,
			      lease ? lease->expiry_ms : 0);
}

struct pending_import *pending_import_new(struct session *s, uint64_t request_id,
					  struct dray_err *reterr)
{
	struct pending_import *i;

	if (owner_take(s->uid_owner, RESOURCE_REMOTES, 1, reterr) < 0)
		return NULL;
	i = calloc(1, sizeof(*i));
	if (!i) {
		owner_put(s->uid_owner, RESOURCE_REMOTES, 1);
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
		return NULL;
	}
	i->session = s;
	i->request_id = request_id;
	dray_list_add(&s->imports, &i->link);
	s->n_remotes++;
	return i;
}

void pending_import_uncount(struct pending_import *i)
{
	dray_list_del(&i->link);
	i->session->n_remotes--;
	owner_put(i->session->uid_owner, RESOURCE_REMOTES, 1);
}

static void handle_imported(void *arg, const struct dray_err *err, dray_handle peer,
			    const struct pmsg_import_reply *m, const struct peer_lease *lease)
{
	struct pending_import *i = arg;
	pending_import_uncount(i);
	if (err->code)
		session_fail(i->session, i->request_id, -EIO, err);
	else
		finish_import(i, peer, m, lease);
	free(i);
}

static int import_peer(struct session *s, uint64_t request_id, const struct pmsg_token *token,
		       const char *segment, uint32_t timeout_ms, const struct dray_str *label,
		       struct dray_err *reterr)
{
	struct peer_client client = peer_client_of(
		s->uid_owner->tenant, (uint32_t)strlen(s->uid_owner->tenant), s->who.uid);
	struct pending_import *i = pending_import_new(s, request_id, reterr);
	int e;

	if (!i)
		return -ENOSPC;
	i->is_lease = label;
	if (label)
		text_copy(i->label, sizeof(i->label), *label);
	e = peer_import(s->owner->deps.peers, token, label, segment, &client,
			timeout_ms * DRAY_NS_PER_MS, handle_imported, i, &i->id, reterr);
	if (e < 0) {
		pending_import_uncount(i);
		free(i);
	}
	return e;
}

/* The handle in a token tells whether it is of a lease. */
static int check_kind(const struct pmsg_token *token, bool is_lease, struct dray_err *reterr)
{
	if ((dray_handle_kind(token->token_id) == DMSG_HANDLE_KIND_LEASE) == is_lease)
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
			    is_lease ? "the token is of an export, not of a lease; import it" :
				       "the token is of a lease, not of an export; acquire it");
}

/* label: of a lease; NULL: the token is of an export. */
static int import(struct session *s, uint64_t request_id, struct dray_blob bytes,
		  uint32_t timeout_ms, const struct dray_str *label, struct dray_err *reterr)
{
	const struct sessions *ss = s->owner;
	struct pmsg_token token;
	char segment[256];
	bool own;
	int e;

	if (s->n_remotes >= ss->deps.cfg->limits.remotes_per_session)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "the session has %" PRIu32 " remotes, as many as "
				    "limits.remotes_per_session allows; release some",
				    s->n_remotes);
	if (is_engine_token(bytes) && !label)
		return import_engine(s, request_id, bytes, timeout_ms, reterr);
	e = token_parse(bytes.p, bytes.n, &token, segment, reterr);
	if (e == 0)
		e = check_kind(&token, label, reterr);
	if (e < 0)
		return e;
	own = !memcmp(token.agent_id, ss->deps.agent_id, sizeof(token.agent_id));
	/* each start of this state directory has a greater incarnation than all before */
	if (own && token.incarnation > ss->deps.incarnation)
		return dray_err_set(
			reterr, -EPERM, DRAY_E_IDENTITY,
			"another agent, which was started later, uses this agent's id: give each agent its own state directory");
	if (own)
		return import_local(s, request_id, &token, label, reterr);
	if (!*segment)
		return dray_err_set(
			reterr, -EHOSTUNREACH, DRAY_E_PEER_UNREACHABLE,
			"the token names no segment, because its owner has no listener; set peer.listen there");
	return import_peer(s, request_id, &token, segment, timeout_ms, label, reterr);
}

int request_remote_import(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_remote_import *m = &rq->m.remote_import;

	return import(s, rq->id, m->token, m->timeout_ms, NULL, reterr);
}

int request_lease_acquire(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_lease_acquire *m = &rq->m.lease_acquire;

	return import(s, rq->id, m->token, m->timeout_ms, &m->label, reterr);
}

/* This may free the session. */
static void leave(struct remote *r)
{
	struct session *s = r->session;

	s->owner->remote_ends.done++;
	dray_list_add(&s->remotes, &r->link);
	r->replies = false;
	release(r, DRAY_E_SESSION_CLOSED);
}

/* False: no closed session has remotes. */
static bool one_leaves(struct sessions *ss)
{
	struct session *s = dray_list_pop(&ss->leaving, struct session, leaving);
	struct remote *r;

	if (!s)
		return false;
	r = dray_list_pop(&s->unreleased, struct remote, link);
	if (!dray_list_empty(&s->unreleased))
		dray_list_add(&ss->leaving, &s->leaving);
	if (r)
		leave(r);
	return true;
}

/* Sessions and peers take turns, so that one with few remotes does not wait for one with many. */
static int on_turn(sd_event_source *source, uint64_t usec, void *arg)
{
	struct sessions *ss = arg;
	bool more = true;

	while (more && turn_work_has_room(&ss->remote_ends)) {
		more = one_leaves(ss);
		more |= remote_sources_step(ss);
	}
	if (more)
		turn_work_go_on(&ss->remote_ends);
	return 0;
}

int remotes_work_init(struct sessions *ss)
{
	return turn_work_init(&ss->remote_ends, ss->deps.event, REMOTES_PER_TURN, on_turn, ss);
}

void session_remotes_close(struct session *s)
{
	struct sessions *ss = s->owner;
	struct remote *r;

	dray_list_for_each(&s->imports, i, struct pending_import, link) {
		if (i->is_mooncake)
			mooncake_import_cancel(s->owner->deps.mooncake, i->id);
		else
			peer_import_cancel(s->owner->deps.peers, i->id);
		pending_import_uncount(i);
		free(i);
	}
	dray_list_splice(&s->unreleased, &s->remotes);
	/* the session stays, because its worker has not answered the close */
	while (turn_work_has_room(&ss->remote_ends) &&
	       (r = dray_list_pop(&s->unreleased, struct remote, link)))
		leave(r);
	if (dray_list_empty(&s->unreleased))
		return;
	dray_list_add(&ss->leaving, &s->leaving);
	turn_work_go_on(&ss->remote_ends);
}
