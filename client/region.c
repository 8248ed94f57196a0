/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dray_region is a handle of this library; struct region.agent is the agent's handle of it in
 * this session. A pool is memory of the agent, mapped here. It stays this client's memory when the
 * agent is gone: the region keeps it as one memfd extent, and is registered again with that.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/internal.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"

struct region *dc_region_find(struct dray *d, dray_region handle)
{
	return dray_handles_get(&d->regions, handle.id);
}

struct region *dc_region_get(struct dray *d, dray_region handle)
{
	struct region *g = dc_region_find(d, handle);

	return g && g->state != REGION_REMOVING && g->state != REGION_ADDING ? g : NULL;
}

struct region *dc_region_find_agent(struct dray *d, uint64_t agent)
{
	uint32_t cursor = 0;
	struct region *g;

	while ((g = dray_handles_next(&d->regions, &cursor, NULL)))
		if (g->agent == agent)
			return g;
	return NULL;
}

static void close_fds(struct region *g)
{
	for (uint32_t i = 0; i < g->fds_n; i++)
		dray_close(g->fds[i]);
	g->fds_n = 0;
}

void dc_region_free(struct dray *d, struct region *g)
{
	if (g->handle.id)
		dray_handles_del(&d->regions, g->handle.id);
	if (g->map)
		munmap(g->map, g->map_bytes);
	close_fds(g);
	free(g->fds);
	free(g->handles);
	free(g->allocations);
	free(g->extents);
	free(g);
}

/* A region with a handle and nothing else. NULL with the handle's error set. */
static struct region *region_new(struct dray *d)
{
	struct region *g = calloc(1, sizeof(*g));

	if (g && dray_handles_add(&d->regions, g, &g->handle.id) == 0)
		return g;
	free(g);
	dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another region, or over %u of them",
		REGIONS_MAX);
	return NULL;
}

/* Sets up the region of a spec that was checked. */
static int region_take(struct dray *d, struct region *g, const struct dray_region_spec *s)
{
	g->state = REGION_ADDING;
	g->access = (uint16_t)s->access;
	g->waits = s->flags & DRAY_REGION_WAIT;
	g->name_n = s->name ? (uint32_t)strlen(s->name) : 0;
	memcpy(g->name, s->name ? s->name : "", g->name_n);
	g->device_n = s->device && s->extents_n ? (uint32_t)strlen(s->device) : 0;
	memcpy(g->device, s->device ? s->device : "", g->device_n);
	return dc_extents_take(d, g, s);
}

/* Without the lock, because populating memory can take seconds. */
static int prepare(struct dray *d, const struct dray_region_spec *spec)
{
	int error = dc_is_inherited(d) ? -DRAY_E_OUT_OF_ORDER : dc_extents_check(d, spec);

	return error ? error : dc_extents_populate(d, spec);
}

/* For a spec that is prepared. */
static int add(struct dray *d, const struct dray_region_spec *spec, void *arg, uint64_t *ret_id)
{
	struct request *r = dc_request_start(d, DMSG_REGION_ADD, arg);
	struct region *g = r ? region_new(d) : NULL;

	if (g && region_take(d, g, spec) == 0) {
		r->region = g->handle;
		return dc_request_go(d, r, ret_id);
	}
	if (g)
		dc_region_free(d, g);
	if (r)
		dc_request_free(d, r);
	return dc_failed();
}

int dray_region_add_start(struct dray *d, const struct dray_region_spec *spec, void *arg,
			  uint64_t *ret_id)
{
	int error = prepare(d, spec);
	struct dray *in dray_auto(dc_leave) = error ? NULL : dc_enter(d);

	return in ? add(d, spec, arg, ret_id) : error;
}

/* Touches a new pool, or removes it. Nobody else knows its handle yet, so it needs no lock meanwhile. */
static int populate_pool(struct dray *d, dray_region pool)
{
	uint64_t bytes;
	void *address;
	uint32_t depth;
	int error = dray_region_map(d, pool, &address, &bytes, NULL);

	if (error)
		return error;
	depth = dc_threads_release(d);
	error = dray_populate(address, bytes, true);
	dc_threads_acquire(d, depth);
	if (!error)
		return 0;
	dray_region_remove(d, pool);
	return dc_fail(d, error == -EFAULT ? DRAY_E_NO_MEMORY : dc_code_of_errno(error),
		       "populating the pool: %s", dray_errno_text(error));
}

int dray_region_add(struct dray *d, const struct dray_region_spec *spec, dray_region *ret)
{
	int error = prepare(d, spec);
	struct dray *in dray_auto(dc_leave) = error ? NULL : dc_enter(d);
	struct dray_completion c;
	uint64_t id;

	if (!in)
		return error;
	error = dc_request_wait(d, add(d, spec, NULL, &id), &id, 0, &c);
	if (!error && spec->pool_bytes)
		error = populate_pool(d, c.region);
	if (!error)
		*ret = c.region;
	return error;
}

int dray_region_add_memory(struct dray *d, const struct dray_memory *m, unsigned int access,
			   dray_region *ret)
{
	struct dray_extent e = { .kind = DRAY_KIND_MEMFD, .fd = m->fd, .length = m->length };
	struct dray_region_spec spec = {
		.access = access,
		.flags = DRAY_REGION_NO_POPULATE, /* dray_memory_alloc() has done it */
		.extents = &e,
		.extents_n = 1,
	};

	return dray_region_add(d, &spec, ret);
}

int dray_region_add_pool(struct dray *d, uint64_t bytes, unsigned int access, unsigned int flags,
			 dray_region *ret)
{
	struct dray_region_spec spec = { .access = access, .flags = flags, .pool_bytes = bytes };

	return dray_region_add(d, &spec, ret);
}

/* Maps the pool's memory, which is a memfd extent of the region from then on. */
static int map_pool(struct dray *d, struct region *g, uint64_t bytes, struct dray_fds *fds)
{
	struct dmsg_extent e = { .kind = DMSG_KIND_MEMFD, .length = bytes };
	void *p;

	if (d->fds_lost)
		return -DRAY_E_FD_LIMIT;
	if (fds->n != 1 || !dc_shared_memory_ok(fds->fd[0], bytes) || bytes < g->length)
		return dc_session_defect(d,
					 "the agent's pool has %u descriptors and %" PRIu64
					 " bytes, %" PRIu64 " were requested",
					 fds->n, bytes, g->length);
	p = dray_map_shared(fds->fd[0], 0, bytes, PROT_READ | PROT_WRITE);
	if (p == MAP_FAILED)
		return -dc_code_of_errno(errno);
	dmsg_extent_put(g->extents, &e);
	g->fds[0] = dray_take_fd(fds->fd[0]);
	g->fds_n = 1;
	g->flags = 0;
	g->map = p;
	g->map_bytes = g->length = bytes;
	return 0;
}

int dc_region_added(struct dray *d, struct request *r, const struct dmsg_region_add_reply *m,
		    struct dray_fds *fds)
{
	struct region *g = dc_region_find(d, r->region);

	if (!g || !m->region)
		return dc_session_defect(d, "the agent added a region without a handle");
	g->agent = m->region;
	if (g->is_pool && !g->map)
		return map_pool(d, g, m->length, fds);
	if (m->length != g->length)
		return dc_session_defect(d,
					 "the region has %" PRIu64
					 " bytes, the agent says %" PRIu64,
					 g->length, m->length);
	if ((d->flags & DRAY_OPTION_NO_RECONNECT) && !g->is_pool)
		close_fds(g);
	return 0;
}

static void lose(struct dray *d, struct region *g, int code, struct dray_str text)
{
	struct dray_event *e;

	g->code = code;
	if (g->state != REGION_LIVE)
		return;
	g->state = REGION_BROKEN;
	e = dc_event_add(d, DRAY_EVENT_REGION_LOST, code, text);
	if (e)
		e->region = g->handle;
}

void dc_region_lost(struct dray *d, const struct dmsg_region_lost *m, int code)
{
	struct region *g = dc_region_find_agent(d, m->region);

	if (g)
		lose(d, g, code, m->message);
}

/* A region was registered again in a new session, or could not be. */
static void restored(struct dray *d, struct region *g, int status, struct dray_str text)
{
	/* this session is lost too; the next one registers the region again */
	if (d->loss.code)
		return;
	if (status)
		lose(d, g, status, text);
	dc_session_object_restored(d);
}

void dc_region_ended(struct dray *d, struct request *r, struct dray_str text)
{
	struct region *g = dc_region_find(d, r->region);

	if (!g)
		return;
	if (r->type == DMSG_REGION_REMOVE) {
		dc_region_free(d, g);
	} else if (r->internal) {
		restored(d, g, r->status, text);
	} else if (!r->status && !r->abandoned) {
		g->state = REGION_LIVE;
	} else {
		r->region.id = 0;
		/*
		 * the agent may have registered it; without memory for the request, the session's
		 * end removes it
		 */
		g->state = REGION_REMOVING;
		if (g->agent && !d->loss.code)
			dc_request_internal(d, DMSG_REGION_REMOVE, g->handle, NO_REMOTE, 0);
		else
			dc_region_free(d, g);
	}
}

struct request *dc_region_request(struct dray *d, uint16_t type, dray_region region, void *arg,
				  struct region **ret)
{
	struct request *r = dc_request_start(d, type, arg);

	if (!r)
		return NULL;
	r->region = region;
	*ret = dc_region_get(d, region);
	if (*ret)
		return r;
	dc_no_such(d, region.id, DMSG_HANDLE_KIND_REGION);
	dc_request_free(d, r);
	return NULL;
}

int dray_region_remove_start(struct dray *d, dray_region region, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct region *g;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	r = dc_region_request(d, DMSG_REGION_REMOVE, region, arg, &g);
	if (!r)
		return dc_failed();
	g->state = REGION_REMOVING;
	if (g->borrowed)
		dc_request_end(d, r, 0, NO_TEXT);
	else if (d->state == SESSION_CLOSED)
		dc_request_end(d, r, d->lost_code, dc_text(d->loss.msg));
	else if (d->state == SESSION_DOWN || d->state == SESSION_HELLO)
		dc_proof_hold(d, r);
	else
		return dc_request_go(d, r, ret_id);
	return dc_request_started(r, ret_id);
}

int dray_region_remove(struct dray *d, dray_region region)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return dc_request_wait(d, dray_region_remove_start(d, region, NULL, &id), &id, 0, NULL);
}

void dc_regions_lost(struct dray *d)
{
	uint32_t cursor = 0;
	struct region *g;

	while ((g = dray_handles_next(&d->regions, &cursor, NULL))) {
		g->agent = 0;
		if (!g->borrowed)
			continue;
		g->state = REGION_BROKEN;
		g->code = -d->loss.code;
	}
}

void dc_regions_restore(struct dray *d)
{
	uint32_t cursor = 0;
	struct region *g;

	while ((g = dray_handles_next(&d->regions, &cursor, NULL))) {
		if (g->state != REGION_LIVE || g->borrowed)
			continue;
		if (!dc_request_internal(d, DMSG_REGION_ADD, g->handle, NO_REMOTE, 0)) {
			dc_session_break(d, DRAY_E_NO_MEMORY, "no memory");
			return;
		}
		d->restoring++;
	}
}

int dray_region_map(struct dray *d, dray_region region, void **ret_address, uint64_t *ret_length,
		    int *ret_fd)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	const struct region *g;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	g = dc_region_get(d, region);
	if (!g)
		return dc_no_such(d, region.id, DMSG_HANDLE_KIND_REGION);
	if (!g->map)
		return dc_fail(d, DRAY_E_REGION_KIND, "the region is not a pool");
	*ret_address = g->map;
	*ret_length = g->map_bytes;
	if (ret_fd)
		*ret_fd = g->fds[0];
	return 0;
}

int dray_region_get_info(struct dray *d, dray_region region, struct dray_region_info *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	const struct region *g;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	g = dc_region_get(d, region);
	if (!g)
		return dc_no_such(d, region.id, DMSG_HANDLE_KIND_REGION);
	*ret = (struct dray_region_info){
		.length = g->length, .access = g->access, .lost = g->code, .agent_region = g->agent
	};
	return 0;
}

int dray_region_borrow(struct dray *d, uint64_t agent_region, dray_region *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct region *g;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (!agent_region)
		return dc_fail(d, DRAY_E_INVALID, "0 is not a region");
	if (!dc_session_is_up(d))
		return dc_fail(d, DRAY_E_SESSION_CLOSED, "not connected");
	g = region_new(d);
	if (!g)
		return -DRAY_E_NO_MEMORY;
	g->agent = agent_region;
	g->state = REGION_LIVE;
	g->borrowed = true;
	*ret = g->handle;
	return 0;
}
