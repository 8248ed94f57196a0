/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/region.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/region/internal.h"
#include "lib/cleanup.h"
#include "lib/share.h"
#include "schema/gen/errors.h"

static struct grant_peer *peer_find(struct regions *r, dray_handle peer)
{
	return dray_map_entry(dray_map_find(&r->peers, &peer, sizeof(peer)), struct grant_peer,
			      by_handle);
}

void regions_mooncake_each(struct regions *r, void (*fn)(void *arg, const struct grant_view *grant),
			   void *arg)
{
	struct grant_peer *p = peer_find(r, MOONCAKE_PEER);

	if (!p)
		return;
	dray_list_for_each(&p->grants, g, struct grant, peer_link)
		if (!g->ending)
			fn(arg, &g->view);
}

static struct grant_peer *peer_make(struct regions *r, dray_handle peer)
{
	struct grant_peer *p = peer_find(r, peer);

	if (p)
		return p;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->peer = peer;
	dray_list_init(&p->grants);
	dray_list_init(&p->unended);
	dray_list_init(&p->gone);
	dray_map_init(&p->shares);
	dray_map_add(&r->peers, &p->by_handle, &p->peer, sizeof(p->peer));
	return p;
}

static void peer_unref(struct regions *r, struct grant_peer *p)
{
	if (--p->n)
		return;
	dray_map_del(&r->peers, &p->by_handle);
	dray_list_del(&p->gone);
	grant_peer_free(p);
}

static struct grant_share *share_find(const struct grant_peer *p, const struct owner *owner)
{
	return dray_map_entry(dray_map_find(&p->shares, &owner, sizeof(owner)), struct grant_share,
			      by_owner);
}

static struct grant_share *share_make(struct grant_peer *p, struct owner *owner)
{
	struct grant_share *s = share_find(p, owner);

	if (s)
		return s;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->owner = owner_ref(owner);
	dray_map_add(&p->shares, &s->by_owner, &s->owner, sizeof(s->owner));
	return s;
}

static void share_free(struct grant_peer *p, struct grant_share *s)
{
	dray_map_del(&p->shares, &s->by_owner);
	owner_unref(s->owner);
	free(s);
}

static void share_unref(struct grant_peer *p, struct grant_share *s)
{
	if (!--s->n)
		share_free(p, s);
}

void grant_peer_free(struct grant_peer *p)
{
	dray_map_for_each(&p->shares, s, struct grant_share, by_owner)
		share_free(p, s);
	dray_map_deinit(&p->shares);
	free(p);
}

static struct grant *grant_get(struct regions *r, dray_handle peer, dray_handle handle)
{
	struct grant *g = dray_handles_get(&r->grants, handle);

	return g && g->peer->peer == peer ? g : NULL;
}

void grant_detach(struct grant *g)
{
	dray_list_del(&g->token_link);
	g->token = NULL;
}

/* Frees a grant that both sides have released, then its token and region if they waited for that. */
static void grant_check(struct grant *g)
{
	struct token *t = g->token;
	struct region *region = t ? t->region : NULL;

	if (!g->dropped || !g->fenced)
		return;
	dray_list_del(&g->token_link);
	dray_list_del(&g->peer_link);
	share_unref(g->peer, g->share);
	peer_unref(g->regions, g->peer);
	dray_handles_del(&g->regions->grants, g->view.o.handle);
	free(g);
	if (!t)
		return;
	token_check(t);
	region_check(region);
}

static void handle_dropped(void *arg)
{
	struct grant *g = arg;
	struct region *region = g->token->region;

	g->dropped = true;
	region->serving--;
	if (g->fenced)
		grant_check(g);
	else
		region_check(region);
}

static void mooncake_changed(struct regions *r)
{
	r->mooncake_changes++;
	r->deps.up->mooncake_changed(*r->deps.mooncake);
}

void grant_end(struct grant *g, bool fence, bool urgent)
{
	uint32_t code = g->token ? region_rights_code(g->token->region) : DRAY_E_REVOKED;
	struct regions *r = g->regions;

	if (g->ending)
		return;
	g->ending = true;
	if (g->token)
		dray_list_move(&g->token->grants, &g->token_link);
	r->ends.done++;
	if (g->view.peer == MOONCAKE_PEER)
		mooncake_changed(r);
	/* Mooncake's engines acknowledge nothing: they reach the range by the workers, or by keys that end here */
	fence = fence && (g->view.peer != MOONCAKE_PEER || g->exposed);
	g->fenced = !fence;
	pool_drop(r->deps.pool, OBJECT_GRANT, g->view.o.handle, code, urgent, handle_dropped, g);
	if (fence && g->view.peer == MOONCAKE_PEER)
		r->deps.up->mooncake_ended(*r->deps.rails, g->view.o.handle);
	else if (fence)
		r->deps.up->fence(*r->deps.peers, g->view.peer, g->view.o.handle, code);
}

static struct grant *grant_new(struct token *t, dray_handle peer)
{
	struct regions *r = t->region->regions;
	struct grant_peer *p = peer_make(r, peer);
	struct grant_share *s = p ? share_make(p, t->region->owner.uid_owner) : NULL;
	struct grant *g = calloc(1, sizeof(*g));

	if (p)
		p->n++;
	if (s)
		s->n++;
	if (!s || !g || dray_handles_add(&r->grants, g, &g->view.o.handle) < 0) {
		free(g);
		if (s)
			share_unref(p, s);
		if (p)
			peer_unref(r, p);
		return NULL;
	}
	g->regions = r;
	g->token = t;
	g->peer = p;
	g->share = s;
	dray_list_add(&p->grants, &g->peer_link);
	dray_list_add(&t->grants, &g->token_link);
	return g;
}

/* No owner's client may use up what the clients of others need to give grants to the same peer. */
static int check_share(struct regions *r, const struct token *t, dray_handle peer,
		       struct dray_err *reterr)
{
	uint32_t max = (uint32_t)r->deps.cfg->limits.grants_per_peer;
	const struct grant_peer *p = peer_find(r, peer);
	const struct grant_share *s = p ? share_find(p, t->region->owner.uid_owner) : NULL;
	uint32_t all = p ? p->n : 0, held = s ? s->n : 0;

	if (dray_share_fits(max - dray_min(all, max), held, 1))
		return 0;
	return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
			    "the owner's agent holds %" PRIu32 " grants for this agent, %" PRIu32
			    " of them for regions of that owner, who may have half of what others "
			    "leave of limits.grants_per_peer there; release some, or raise it",
			    all, held);
}

struct grant *grant_make(struct token *t, dray_handle peer, struct dray_err *reterr)
{
	struct regions *r = t->region->regions;
	struct grant *g;

	if (peer != MOONCAKE_PEER && check_share(r, t, peer, reterr) < 0)
		return NULL;
	g = grant_new(t, peer);
	if (!g) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a grant");
		return NULL;
	}
	t->used = true;
	t->region->serving++;
	g->view.o.kind = OBJECT_GRANT;
	g->view.o.length = t->length;
	g->view.o.access = t->access;
	g->view.o.session = region_view_of(t->region)->o.session;
	g->view.peer = peer;
	g->view.region = t->region->handle;
	g->view.offset = t->offset;
	g->view.mooncake = peer == MOONCAKE_PEER ? t->mooncake : 0;
	g->view.pieces = peer == MOONCAKE_PEER ? t->mooncake_pieces : 0;
	g->view.ranges = t->lease ? lease_ranges(t) : NULL;
	if (peer == MOONCAKE_PEER)
		mooncake_changed(r);
	pool_publish(r->deps.pool, &g->view.o);
	if (peer == MOONCAKE_PEER && r->mooncake_rdma) {
		g->exposed = true;
		r->deps.up->mooncake_added(*r->deps.rails, &g->view);
	}
	return g;
}

int grant_import(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		 const struct pmsg_import *m, struct pmsg_import_reply *ret,
		 struct dray_err *reterr)
{
	struct token *t = token_find(r, false, m, peer_agent_id, reterr);
	struct grant *g = t ? grant_make(t, peer, reterr) : NULL;

	if (!g)
		return -EPERM;
	ret->grant = g->view.o.handle;
	ret->length = t->length;
	ret->access = t->access;
	return 0;
}

/* The peer does not use the grant any more. May free it. */
static void holder_gone(struct grant *g, enum pmsg_release_how how)
{
	/* the workers may still have a grant that its holder has released */
	bool first = !g->ending;

	grant_end(g, false, false);
	g->fenced = true;
	/* its other grants may end, too; none of them is freed before the workers have answered */
	if (first && g->token)
		lease_holder_gone(g->token, how);
	grant_check(g);
}

/* A release that crosses a fence counts as its acknowledgement. */
void grant_release(struct regions *r, dray_handle peer, dray_handle handle,
		   enum pmsg_release_how how)
{
	struct grant *g = grant_get(r, peer, handle);

	if (g)
		holder_gone(g, how);
}

void grant_fenced(struct regions *r, dray_handle peer, dray_handle handle)
{
	struct grant *g = grant_get(r, peer, handle);

	if (!g || !g->ending)
		return;
	g->fenced = true;
	grant_check(g);
}

static void end_gone(struct regions *r, struct grant_peer *p)
{
	struct grant *g;

	/* p stays for its grants; the last one may end here */
	p->n++;
	while (turn_work_has_room(&r->ends) &&
	       (g = dray_list_pop(&p->unended, struct grant, peer_link))) {
		r->ends.done++;
		dray_list_add(&p->grants, &g->peer_link);
		holder_gone(g, PMSG_RELEASE_HOW_LOST);
	}
	if (!dray_list_empty(&p->unended))
		dray_list_move(&r->gone_peers, &p->gone);
	peer_unref(r, p);
}

void grants_end_gone(struct regions *r)
{
	struct grant_peer *p = dray_list_pop(&r->gone_peers, struct grant_peer, gone);

	if (p)
		end_gone(r, p);
}

void grants_peer_gone(struct regions *r, dray_handle peer)
{
	struct grant_peer *p = peer_find(r, peer);

	if (!p)
		return;
	dray_list_splice(&p->unended, &p->grants);
	end_gone(r, p);
	if (!dray_list_empty(&r->gone_peers))
		turn_work_go_on(&r->ends);
}

/* Its end has begun, or will in a later turn: the peer gets no new keys for it. */
static bool is_over(const struct grant *g)
{
	return g->ending || token_is_over(g->token);
}

struct grant *grant_live(struct regions *r, dray_handle peer, dray_handle handle)
{
	struct grant *g = grant_get(r, peer, handle);

	return g && !is_over(g) ? g : NULL;
}

const struct grant_view *grant_find(struct regions *r, dray_handle peer, dray_handle handle)
{
	struct grant *g = grant_live(r, peer, handle);

	return g ? &g->view : NULL;
}

dray_handle grant_region(struct regions *r, dray_handle peer, dray_handle handle)
{
	const struct grant_view *g = grant_find(r, peer, handle);

	return g ? g->region : 0;
}

void grant_expose(struct regions *r, dray_handle peer, dray_handle handle)
{
	struct grant *g = grant_get(r, peer, handle);

	if (!g)
		return;
	g->exposed = true;
	if (g->token)
		g->token->exposed = g->token->region->exposed = true;
}

static bool has_keys(const struct grant *g)
{
	return g->exposed && !g->fenced;
}

static bool is_live(const struct grant *g)
{
	return !is_over(g);
}

/* Those of peers, without a walk over the grants of other regions. */
static void each_of_region(struct regions *r, dray_handle handle, bool (*is)(const struct grant *g),
			   void (*fn)(void *arg, const struct grant_view *grant), void *arg)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (!region)
		return;
	dray_list_for_each(&region->tokens, t, struct token, link)
		dray_list_for_each(&t->grants, g, struct grant, token_link)
			if (g->view.peer != MOONCAKE_PEER && is(g))
				fn(arg, &g->view);
}

void grants_of_region(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg)
{
	each_of_region(r, region, is_live, fn, arg);
}

void grants_with_keys(struct regions *r, dray_handle region,
		      void (*fn)(void *arg, const struct grant_view *grant), void *arg)
{
	each_of_region(r, region, has_keys, fn, arg);
}

uint32_t grants_total(struct regions *r)
{
	return r->grants.count - grants_count(r, MOONCAKE_PEER);
}

uint32_t grants_count(struct regions *r, dray_handle peer)
{
	struct grant_peer *p = peer_find(r, peer);

	return p ? p->n : 0;
}
