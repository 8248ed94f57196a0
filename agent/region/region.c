/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/region/region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/region/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Tokens and grants have limits of their own for each session and peer. */
#define HANDLES_MAX (1u << 30)

static void region_free(struct region *r)
{
	extents_deinit(&r->extents);
	free(r);
}

DRAY_DEFINE_CLEANUP(struct region *, region_free);
DRAY_DEFINE_CLEANUP(struct regions *, regions_free);

int regions_new(struct regions **ret, const struct regions_deps *deps)
{
	dray_auto(regions_free) struct regions *r = calloc(1, sizeof(*r));
	int e;

	if (!r)
		return -ENOMEM;
	r->cfg = deps->cfg;
	r->pool = deps->pool;
	r->up = deps->up;
	r->arg = deps->arg;
	r->incarnation = deps->incarnation;
	memcpy(r->agent_id, deps->agent_id, AGENT_ID_BYTES);
	dray_handles_init(&r->regions, (uint32_t)deps->cfg->limits.regions);
	dray_handles_init(&r->tokens, HANDLES_MAX);
	dray_handles_init(&r->grants, HANDLES_MAX);
	dray_list_init(&r->peers);
	e = closer_new(&r->closer);
	if (!e)
		e = closer_new(&r->unknown_closer);
	if (e < 0)
		return e;
	mappings_init(&r->mappings, r->closer);
	*ret = dray_take(r);
	return 0;
}

/* Regions are gone by now, unless the agent ends in a hurry, after its workers. */
struct regions *regions_free(struct regions *r)
{
	struct region *region;
	struct token *t;
	struct grant *g;

	if (!r)
		return NULL;
	for (uint32_t at = 0; (g = dray_handles_next(&r->grants, &at, NULL));)
		free(g);
	for (uint32_t at = 0; (t = dray_handles_next(&r->tokens, &at, NULL));) {
		dray_list_for_each(&t->locals, tie, struct local_tie, link)
			free(tie);
		free(t);
	}
	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));) {
		dray_list_for_each(&region->revocations, v, struct revocation, link)
			free(v);
		region_free(region);
	}
	dray_list_for_each(&r->peers, p, struct grant_peer, link)
		free(p);
	closer_free(r->closer);
	closer_free(r->unknown_closer);
	dray_handles_deinit(&r->regions);
	dray_handles_deinit(&r->tokens);
	dray_handles_deinit(&r->grants);
	free(r->graves);
	dray_expiry_deinit(&r->expiry);
	free(r);
	return NULL;
}

void regions_close_fds(struct regions *r, int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		bool memory = fds[i] >= 0 && fcntl(fds[i], F_GET_SEALS) >= 0;

		closer_close(memory ? r->closer : r->unknown_closer, fds[i]);
		fds[i] = -1;
	}
}

static bool is_pool(const struct dmsg_region_add *m)
{
	struct dmsg_extent e;

	dmsg_extent_get(m->extents.p, &e);
	return e.kind == DMSG_KIND_POOL;
}

static int check_request(struct regions *r, const struct dmsg_region_add *m, unsigned n_fds,
			 struct dray_err *reterr)
{
	uint64_t length;
	int e;

	if (r->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and takes no new regions");
	if (!m->access)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "access is neither read nor write");
	e = extents_length(m, &length, reterr);
	if (e < 0)
		return e;
	if (m->flags & DMSG_REGION_FLAG_HUGE && !is_pool(m))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "flag huge is for pools");
	if (is_pool(m) && n_fds)
		return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT,
				    "a pool takes no descriptors");
	return 0;
}

static int map_extents(struct region *region, const struct region_owner *owner,
		       const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		       struct dray_err *reterr)
{
	struct regions *r = region->regions;
	/* a reload may have lowered it */
	uint64_t limit = (uint64_t)r->cfg->limits.pool_bytes;
	uint64_t room = limit > r->pool_bytes ? limit - r->pool_bytes : 0;

	region->n_extents = m->extents.n;
	if (is_pool(m)) {
		region->kind = DMSG_KIND_POOL;
		return extents_map_pool(&r->mappings, owner->session, m, room, &region->extents,
					&region->pool_bytes, reterr);
	}
	region->kind = DMSG_KIND_MEMFD;
	return extents_map(&r->mappings, owner->session, m, fds, n_fds,
			   (uint64_t)r->cfg->limits.bytes_per_session, &region->extents, reterr);
}

int region_add(struct regions *r, const struct region_owner *owner, const struct dmsg_region_add *m,
	       const int *fds, unsigned n_fds, dray_handle *ret_region, uint64_t *ret_length,
	       int *ret_pool_fd, struct dray_err *reterr)
{
	dray_auto(region_free) struct region *region = NULL;
	struct object_view *o;
	int e;

	e = check_request(r, m, n_fds, reterr);
	if (e < 0)
		return e;
	region = calloc(1, sizeof(*region));
	if (!region)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	region->regions = r;
	region->session_tokens = owner->tokens;
	memcpy(region->name, m->name.p, dray_min((size_t)m->name.n, sizeof(region->name) - 1));
	dray_list_init(&region->tokens);
	dray_list_init(&region->revocations);
	e = map_extents(region, owner, m, fds, n_fds, reterr);
	if (e < 0)
		return e;
	e = dray_handles_add(&r->regions, region, &region->handle);
	if (e < 0)
		return dray_err_set(reterr, e, e == -ENOSPC ? DRAY_E_QUOTA : DRAY_E_NO_MEMORY,
				    "the agent has %" PRIu32 " regions (limits.regions)",
				    r->regions.count);
	o = &region->extents.view->o;
	o->kind = OBJECT_REGION;
	o->handle = region->handle;
	o->group = owner->group;
	o->session = owner->session;
	r->bytes += o->length;
	r->pool_bytes += region->pool_bytes;
	pool_publish(r->pool, o);
	r->up->added(r->arg, region->extents.view, -1);
	*ret_region = region->handle;
	*ret_length = o->length;
	*ret_pool_fd = region->kind == DMSG_KIND_POOL ? region->extents.maps[0]->fd : -1;
	region = NULL;
	return 0;
}

/* Order of the two: memory goes first, so that whoever hears of the end finds it gone. */
static void region_gone(void *of)
{
	struct region *region = of;
	struct regions *r = region->regions;
	void (*done)(void *arg) = region->done;
	void *arg = region->arg;

	dray_assert(dray_list_empty(&region->tokens) && dray_list_empty(&region->revocations));
	dray_handles_del(&r->regions, region->handle);
	r->bytes -= region_view_of(region)->o.length;
	r->pool_bytes -= region->pool_bytes;
	region_free(region);
	done(arg);
}

/* Can a peer's device reach it that has not acknowledged its fence? */
static bool exposed(const struct region *region)
{
	dray_list_for_each(&region->tokens, t, struct token, link)
		dray_list_for_each(&t->grants, g, struct grant, token_link)
			if (g->exposed && !g->fenced)
				return true;
	return false;
}

/*
 * With an urgent end the grants need only be dropped here, which serving counts; what peers still
 * have to acknowledge is theirs to finish.
 */
void region_check(struct region *region)
{
	if (!region->removing || !region->dropped || region->barriers || region->leaving)
		return;
	if (region->urgent && !region->serving && !exposed(region))
		tokens_abandon(region);
	if (!dray_list_empty(&region->tokens) || !dray_list_empty(&region->revocations))
		return;
	region->leaving = true;
	region->regions->up->removed(region->regions->arg, region->handle, region_gone, region);
}

static void handle_dropped(void *arg)
{
	struct region *region = arg;

	region->dropped = true;
	region_check(region);
}

static struct region *region_get(struct regions *r, dray_handle handle)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	return region && !region->removing ? region : NULL;
}

int region_remove(struct regions *r, dray_handle handle, dray_handle session, bool urgent,
		  void (*done)(void *arg), void *arg)
{
	struct region *region = region_get(r, handle);

	if (!region || region_view_of(region)->o.session != session)
		return -ENOENT;
	region->removing = true;
	region->urgent = urgent;
	region->done = done;
	region->arg = arg;
	tokens_revoke(region, NULL, ++r->revocations);
	pool_drop(r->pool, OBJECT_REGION, handle, urgent ? DRAY_E_SESSION_CLOSED : DRAY_E_CANCELLED,
		  urgent, handle_dropped, region);
	return 0;
}

static void handle_hurried(void *arg)
{
	struct region *region = arg;

	region->barriers--;
	region_check(region);
}

/*
 * Dropping again what is being dropped makes that urgent; what was dropped before answers at
 * once.
 */
void region_hurry(struct regions *r, dray_handle handle)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (!region || !region->removing || region->urgent)
		return;
	region->urgent = true;
	dray_list_for_each(&region->tokens, t, struct token, link)
		dray_list_for_each(&t->grants, g, struct grant, token_link)
			if (!g->dropped)
				pool_drop(r->pool, OBJECT_GRANT, g->view.o.handle, DRAY_E_REVOKED,
					  true, NULL, NULL);
	region->barriers++;
	pool_drop(r->pool, OBJECT_REGION, handle, DRAY_E_SESSION_CLOSED, true, handle_hurried,
		  region);
}

dray_handle region_group(struct regions *r, dray_handle handle, dray_handle *ret_session)
{
	struct region *region = region_get(r, handle);

	if (!region)
		return 0;
	if (ret_session)
		*ret_session = region_view_of(region)->o.session;
	return region_view_of(region)->o.group;
}

void regions_drain(struct regions *r, bool on)
{
	r->draining = on;
}

void regions_each(struct regions *r, void (*fn)(void *arg, const struct region_info *info),
		  void *arg)
{
	struct region *region;

	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));) {
		const struct region_view *v = region_view_of(region);

		fn(arg, &(struct region_info){
				.region = region->handle,
				.session = v->o.session,
				.name = region->name,
				.kind = dmsg_kind_name(region->kind),
				.state = region->removing ? "removing" : "live",
				.access = v->o.access,
				.extents = region->n_extents,
				.tokens = region->n_tokens,
				.grants = region->serving,
				.length = v->o.length,
			});
	}
}

void regions_totals(struct regions *r, uint64_t *ret_regions, uint64_t *ret_bytes,
		    uint64_t *ret_tokens)
{
	tokens_expire(r);
	*ret_regions = r->regions.count;
	*ret_bytes = r->bytes;
	*ret_tokens = r->tokens.count;
}
