/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions as the caller knows them. A dray_region is a handle of ours; `agent` is what the agent
 * calls it in this session, and is 0 while it is not registered.
 */
#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/cleanup.h"

_Static_assert((int)DRAY_KIND_MEMFD == DMSG_KIND_MEMFD &&
		       (int)DRAY_KIND_DMABUF == DMSG_KIND_DMABUF &&
		       (int)DRAY_KIND_CUDA_IPC == DMSG_KIND_CUDA_IPC &&
		       (int)DRAY_KIND_CUDA_VMM == DMSG_KIND_CUDA_VMM &&
		       (int)DRAY_TRANSPORT_GPU == DMSG_TRANSPORT_GPU,
	       "the public header repeats the schema");

struct region *dc_region_find(struct dray *d, dray_region handle)
{
	return dray_handles_get(&d->regions, handle);
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
	if (g->handle)
		dray_handles_del(&d->regions, g->handle);
	if (g->map)
		munmap(g->map, g->map_bytes);
	close_fds(g);
	free(g->fds);
	free(g->handles);
	free(g->allocations);
	free(g->extents);
	free(g);
}

static bool is_cuda(enum dray_kind kind)
{
	return kind == DRAY_KIND_CUDA_IPC || kind == DRAY_KIND_CUDA_VMM;
}

static int check_extent(struct dray *d, const struct dray_region_spec *s, size_t i)
{
	const struct dray_extent *e = &s->extents[i];

	if (!dmsg_kind_valid(e->kind) || (int)e->kind == DMSG_KIND_POOL)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu is of kind %u", i, e->kind);
	if (!e->length)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu is empty", i);
	if (e->kind == DRAY_KIND_CUDA_IPC && !e->handle)
		return dc_fail(d, DRAY_E_INVALID, "extent %zu has no handle", i);
	if (is_cuda(e->kind) && (!s->device || !*s->device))
		return dc_fail(d, DRAY_E_INVALID, "extent %zu is GPU memory: device is missing", i);
	return 0;
}

static int check_spec(struct dray *d, const struct dray_region_spec *s)
{
	const unsigned int flags = DRAY_REGION_HUGE | DRAY_REGION_NO_POPULATE;
	int error = 0;

	if (!s->access || (s->access & ~DMSG_ACCESS_ALL))
		return dc_fail(d, DRAY_E_INVALID, "access is 0x%x", s->access);
	if (s->flags & ~flags)
		return dc_fail(d, DRAY_E_UNSUPPORTED, "flags has unknown bits 0x%x",
			       s->flags & ~flags);
	if (s->name && strlen(s->name) > NAME_MAX_BYTES)
		return dc_fail(d, DRAY_E_TOO_LARGE, "name is over %d bytes", NAME_MAX_BYTES);
	if (s->device && strlen(s->device) > NAME_MAX_BYTES)
		return dc_fail(d, DRAY_E_TOO_LARGE, "device is over %d bytes", NAME_MAX_BYTES);
	if (!s->pool_bytes == !s->extents_n || (s->extents_n && !s->extents))
		return dc_fail(d, DRAY_E_INVALID, "either extents or pool_bytes");
	if (s->extents_n > DMSG_EXTENTS_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%zu extents, the limit is %d", s->extents_n,
			       DMSG_EXTENTS_MAX);
	for (size_t i = 0; i < s->extents_n && !error; i++)
		error = check_extent(d, s, i);
	return error;
}

/* What extents of one descriptor say of its allocation; those that say nothing leave it to others. Negated code. */
static int add_allocation(struct dray *d, struct region *g, size_t fd, uint64_t bytes, size_t i)
{
	uint8_t *at = g->allocations + fd * DMSG_ALLOCATION_SIZE;
	uint64_t known = dray_le_get64(at);

	if (!bytes)
		return 0;
	if (known && known != bytes)
		return dc_fail(
			d, DRAY_E_INVALID,
			"extent %zu is in an allocation of %llu bytes, others of its descriptor in "
			"one of %llu",
			i, (unsigned long long)bytes, (unsigned long long)known);
	dmsg_allocation_put(at, &(struct dmsg_allocation){ bytes });
	g->has_sizes = true;
	return 0;
}

/*
 * Index of a duplicate of extent i's descriptor, which extents before it may share. Negated code.
 */
static int add_fd(struct dray *d, struct region *g, const struct dray_extent *e, size_t i)
{
	int fd, error;

	for (size_t k = 0; k < i; k++)
		if (e[k].kind != DRAY_KIND_CUDA_IPC && e[k].fd == e[i].fd) {
			fd = dray_le_get16(g->extents + k * DMSG_EXTENT_SIZE + 2);
			error = add_allocation(d, g, (size_t)fd, e[i].allocation, i);
			return error < 0 ? error : fd;
		}
	if (g->fds_n == DMSG_FDS_MAX)
		return dc_fail(d, DRAY_E_FD_LIMIT, "more than %d descriptors", DMSG_FDS_MAX);
	fd = fcntl(e[i].fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return dc_fail(d, errno == EBADF ? DRAY_E_INVALID : dc_code_of_errno(errno),
			       "descriptor %d of extent %zu: %s", e[i].fd, i,
			       dray_errno_text(errno));
	g->fds[g->fds_n] = fd;
	error = add_allocation(d, g, g->fds_n++, e[i].allocation, i);
	return error < 0 ? error : (int)g->fds_n - 1;
}

/* Index of extent i's handle, which extents before it may share. Negated code. */
static int add_handle(struct dray *d, struct region *g, const void *handle)
{
	uint32_t k;

	for (k = 0; k < g->handles_n; k++)
		if (!memcmp(g->handles + k * DRAY_CUDA_IPC_BYTES, handle, DRAY_CUDA_IPC_BYTES))
			return (int)k;
	if (k == HANDLES_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "more than %d handles", HANDLES_MAX);
	memcpy(g->handles + k * DRAY_CUDA_IPC_BYTES, handle, DRAY_CUDA_IPC_BYTES);
	g->handles_n++;
	return (int)k;
}

static int take_extents(struct dray *d, struct region *g, const struct dray_region_spec *s)
{
	size_t handles = 0;

	for (size_t i = 0; i < s->extents_n; i++)
		handles += s->extents[i].kind == DRAY_KIND_CUDA_IPC;
	g->fds = calloc(dray_min(s->extents_n, (size_t)DMSG_FDS_MAX), sizeof(*g->fds));
	g->handles = calloc(dray_min(handles, (size_t)HANDLES_MAX) + 1, DRAY_CUDA_IPC_BYTES);
	g->allocations = calloc(dray_min(s->extents_n, (size_t)DMSG_FDS_MAX), DMSG_ALLOCATION_SIZE);
	if (!g->fds || !g->handles || !g->allocations)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
	g->device_n = s->device ? (uint32_t)strlen(s->device) : 0;
	memcpy(g->device, s->device ? s->device : "", g->device_n);
	for (size_t i = 0; i < s->extents_n; i++) {
		const struct dray_extent *e = &s->extents[i];
		struct dray_err err = DRAY_ERR_NULL;
		int index = e->kind == DRAY_KIND_CUDA_IPC ? add_handle(d, g, e->handle) :
							    add_fd(d, g, s->extents, i);

		if (index < 0)
			return index;
		g->needs_gpu |= is_cuda(e->kind);
		dmsg_extent_put(g->extents + i * DMSG_EXTENT_SIZE,
				&(struct dmsg_extent){ (uint16_t)e->kind, (uint16_t)index, 0,
						       e->offset, e->length });
		if (__builtin_add_overflow(g->length, e->length, &g->length))
			return dc_fail(d, DRAY_E_RANGE, "the extents are over 2^64 bytes");
		if (e->kind == DRAY_KIND_MEMFD && !(s->flags & DRAY_REGION_NO_POPULATE) &&
		    dc_populate_extent(e->fd, e->offset, e->length, &err) < 0)
			return dc_fail_err(d, &err, DRAY_E_IO);
	}
	return 0;
}

static void take_pool(struct region *g, const struct dray_region_spec *s)
{
	g->is_pool = true;
	g->flags = s->flags & DRAY_REGION_HUGE ? DMSG_REGION_FLAG_HUGE : 0;
	g->length = s->pool_bytes;
	dmsg_extent_put(g->extents,
			&(struct dmsg_extent){ DMSG_KIND_POOL, UINT16_MAX, 0, 0, s->pool_bytes });
}

static struct region *region_new(struct dray *d, const struct dray_region_spec *s)
{
	struct region *g = calloc(1, sizeof(*g));
	int error = 0;

	if (!g) {
		dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
		return NULL;
	}
	g->access = (uint16_t)s->access;
	g->name_n = s->name ? (uint32_t)strlen(s->name) : 0;
	memcpy(g->name, s->name ? s->name : "", g->name_n);
	g->extents_n = s->pool_bytes ? 1 : (uint32_t)s->extents_n;
	g->extents = calloc(g->extents_n, DMSG_EXTENT_SIZE);
	if (!g->extents)
		error = dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
	else if (s->pool_bytes)
		take_pool(g, s);
	else
		error = take_extents(d, g, s);
	if (!error && dray_handles_add(&d->regions, g, &g->handle) < 0)
		error = dc_fail(d, DRAY_E_NO_MEMORY, "too many regions");
	if (!error)
		return g;
	dc_region_free(d, g);
	return NULL;
}

static struct request *start_add(struct dray *d, const struct dray_region_spec *spec, void *arg)
{
	struct region *g;
	struct request *r;

	if (!dc_requests_admit(d) || check_spec(d, spec) < 0)
		return NULL;
	g = region_new(d, spec);
	if (!g)
		return NULL;
	r = dc_request_start(d, DMSG_REGION_ADD, arg);
	if (!r) {
		dc_region_free(d, g);
		return NULL;
	}
	g->state = REGION_ADDING;
	r->region = g->handle;
	return dc_request_go(d, r);
}

int dray_region_add_start(struct dray *d, const struct dray_region_spec *spec, void *arg,
			  uint64_t *ret_id)
{
	return dc_request_told(d, start_add(d, spec, arg), ret_id);
}

int dray_region_add(struct dray *d, const struct dray_region_spec *spec, dray_region *ret)
{
	struct dray_completion c;
	int error = dc_request_wait(d, start_add(d, spec, NULL), 0, &c);

	if (!error)
		*ret = c.handle;
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

int dc_region_encode_add(struct dray *d, const struct region *g, uint64_t id)
{
	struct dmsg_region_add m = {
		.access = g->access,
		.flags = g->flags,
		.name = { g->name, g->name_n },
		.extents = { g->extents, g->extents_n },
		.device = { g->device, g->device_n },
		.handles = { g->handles, g->handles_n * DRAY_CUDA_IPC_BYTES },
		.allocations = { g->allocations, g->has_sizes ? g->fds_n : 0 },
	};

	return dmsg_region_add_encode(d->out, DMSG_MESSAGE_MAX, id, &m);
}

/* The agent has it, we do not want it. */
static void unregister(struct dray *d, struct region *g)
{
	struct request *r = dc_request_new(d, DMSG_REGION_REMOVE, NULL);

	g->state = REGION_REMOVING;
	if (!r)
		return; /* goes with the session */
	r->internal = true;
	r->region = g->handle;
	dc_request_queue(d, r);
}

/* What was added as a pool and is not mapped yet comes with its memory. */
static int added_pool(struct dray *d, struct region *g, uint64_t length, int *fds, unsigned n_fds,
		      struct dray_err *reterr)
{
	int fd;

	if (d->fds_lost)
		return -DRAY_E_FD_LIMIT;
	if (n_fds != 1)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "a pool came with %u descriptors", n_fds);
	fd = dray_take_fd(fds[0]);
	return dc_pool_map(g, fd, length, reterr);
}

int dc_region_added(struct dray *d, struct request *r, const struct dmsg_region_add_reply *m,
		    int *fds, unsigned n_fds, struct dray_err *reterr)
{
	struct region *g = dc_region_find(d, r->region);

	if (!g || !m->region)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "a region without handle");
	g->agent = m->region;
	if (g->is_pool && !g->map)
		return added_pool(d, g, m->length, fds, n_fds, reterr);
	if (m->length != g->length)
		return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
				    "the region has %" PRIu64 " bytes, the agent says %" PRIu64,
				    g->length, m->length);
	if ((d->flags & DRAY_OPTION_NO_RECONNECT) && !g->is_pool)
		close_fds(g);
	return 0;
}

/* One that was to be registered again in a new session. */
static void restored(struct dray *d, struct region *g, int status, const char *message, size_t n)
{
	struct dray_event *e;

	/* the session was lost over it: there will be another attempt */
	if (d->broken)
		return;
	d->restoring--;
	d->state_until = dray_now().ns + d->request_ns;
	if (status) {
		g->code = status;
		if (g->state == REGION_HERE) {
			g->state = REGION_BROKEN;
			e = dc_event_add(d, DRAY_EVENT_REGION_LOST, NULL, 0, message, n);
			if (e) {
				e->region = g->handle;
				e->code = status;
			}
		}
	}
	if (!d->restoring)
		dc_session_restored(d);
}

void dc_region_ended(struct dray *d, struct request *r, const char *message, size_t n)
{
	struct region *g = dc_region_find(d, r->region);

	if (!g)
		return;
	if (r->type == DMSG_REGION_REMOVE) {
		dc_region_free(d, g);
		return;
	}
	if (r->internal) {
		restored(d, g, r->status, message, n);
		return;
	}
	if (!r->status && !r->abandoned) {
		g->state = REGION_HERE;
		return;
	}
	r->region = 0;
	/* the agent may have made it all the same */
	if (g->agent && !d->broken)
		unregister(d, g);
	else
		dc_region_free(d, g);
}

static struct request *start_remove(struct dray *d, dray_region region, void *arg)
{
	struct region *g;
	struct request *r;

	if (!dc_requests_admit(d))
		return NULL;
	g = dc_region_get(d, region);
	if (!g)
		return dc_request_refuse(d, DRAY_E_NOT_FOUND, "no such region");
	r = dc_request_start(d, DMSG_REGION_REMOVE, arg);
	if (!r)
		return NULL;
	g->state = REGION_REMOVING;
	r->region = region;
	if (g->borrowed)
		dc_request_end(d, r, 0, NULL, 0);
	else if (d->state == SESSION_CLOSED)
		dc_request_end(d, r, d->lost_code, d->break_text, strlen(d->break_text));
	else if (d->state == SESSION_DOWN || d->state == SESSION_HELLO)
		dc_request_hold(d, r); /* what HELLO shows is the proof */
	else
		dc_request_go(d, r);
	return r;
}

int dray_region_remove_start(struct dray *d, dray_region region, void *arg, uint64_t *ret_id)
{
	return dc_request_told(d, start_remove(d, region, arg), ret_id);
}

int dray_region_remove(struct dray *d, dray_region region)
{
	struct dray_completion c;

	return dc_request_wait(d, start_remove(d, region, NULL), 0, &c);
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
		g->code = d->break_code;
	}
}

void dc_regions_restore(struct dray *d)
{
	uint32_t cursor = 0;
	struct region *g;

	d->restoring = 0;
	while ((g = dray_handles_next(&d->regions, &cursor, NULL))) {
		struct request *r;

		if (g->state != REGION_HERE || g->borrowed)
			continue;
		r = dc_request_new(d, DMSG_REGION_ADD, NULL);
		if (!r) {
			dc_session_break(d, DRAY_E_NO_MEMORY, "no memory", 9);
			return;
		}
		r->internal = true;
		r->region = g->handle;
		dc_request_queue(d, r);
		d->restoring++;
	}
}

int dray_region_agent_handle(struct dray *d, dray_region region, uint64_t *ret)
{
	const struct region *g;
	int error = dc_enter(d);

	if (error)
		return error;
	g = dc_region_get(d, region);
	if (!g || !g->agent)
		return dc_fail(d, DRAY_E_NOT_FOUND, "no such region, or it is not registered now");
	*ret = g->agent;
	return 0;
}

int dray_region_borrow(struct dray *d, uint64_t agent_region, dray_region *ret)
{
	struct region *g;
	int error = dc_enter(d);

	if (error)
		return error;
	if (!agent_region || !dc_session_is_up(d))
		return dc_fail(d, agent_region ? DRAY_E_SESSION_CLOSED : DRAY_E_INVALID,
			       "not connected, or no region");
	g = calloc(1, sizeof(*g));
	if (!g)
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory");
	*g = (struct region){ .agent = agent_region, .state = REGION_HERE, .borrowed = true };
	if (dray_handles_add(&d->regions, g, &g->handle) < 0) {
		g->handle = 0;
		dc_region_free(d, g);
		return dc_fail(d, DRAY_E_NO_MEMORY, "too many regions");
	}
	*ret = g->handle;
	return 0;
}
