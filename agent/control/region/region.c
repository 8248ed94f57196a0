/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/region.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/region/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* The longest name of a device in the schema, with its NUL. */
#define DEVICE_BYTES 65

static void region_end(struct region *region, uint32_t code, bool urgent);
static void region_finish(void *of);

static void region_free(struct region *r)
{
	extents_deinit(&r->extents);
	owner_put(r->owner.uid_owner, RESOURCE_POOL_BYTES, r->pool_bytes);
	owner_unref(r->owner.uid_owner);
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
	r->deps = *deps;
	dray_handles_init(&r->regions, (uint32_t)deps->cfg->limits.regions,
			  DMSG_HANDLE_KIND_REGION);
	/* tokens and grants have limits of their own for each session and peer */
	dray_handles_init(&r->tokens, DRAY_HANDLES_MAX, DMSG_HANDLE_KIND_TOKEN);
	dray_handles_init(&r->leases, DRAY_HANDLES_MAX, DMSG_HANDLE_KIND_LEASE);
	dray_handles_init(&r->grants, DRAY_HANDLES_MAX, 0);
	dray_map_init(&r->peers);
	dray_map_init(&r->local_imports);
	dray_map_init(&r->dead_tokens);
	mappings_init(&r->mappings);
	dray_list_init(&r->unended);
	dray_list_init(&r->unended_tokens);
	dray_list_init(&r->gone_peers);
	dray_list_init(&r->orphans);
	e = leases_init(r);
	if (e >= 0)
		e = ends_init(r);
	if (e >= 0)
		e = tokens_init(r);
	if (e < 0)
		return e;
	*ret = dray_take(r);
	return 0;
}

static void tokens_free(struct regions *r, struct dray_handles *tokens)
{
	struct token *t;

	for (uint32_t at = 0; (t = dray_handles_next(tokens, &at, NULL));) {
		dray_list_for_each(&t->local_imports, import, struct local_import, link)
			local_import_free(r, import);
		if (t->lease)
			lease_forget(t);
		free(t);
	}
	dray_handles_deinit(tokens);
}

/* Regions are left only if the agent ends without a drain, after its workers. */
struct regions *regions_free(struct regions *r)
{
	struct region *region;
	struct grant *g;

	if (!r)
		return NULL;
	/* a thread may still use them: one that maps a client's file, or one that waits for a driver */
	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));)
		if (region->mapping) {
			log_warning("region", "a client's file is still being mapped, ignoring");
			return NULL;
		} else if (region->opening && !region->ended &&
			   region_view_of(region)->memory == REGION_GPU) {
			log_warning("region", "GPU memory is still being opened, ignoring");
			return NULL;
		}
	for (uint32_t at = 0; (g = dray_handles_next(&r->grants, &at, NULL));)
		free(g);
	tokens_free(r, &r->tokens);
	tokens_free(r, &r->leases);
	sd_event_source_disable_unref(r->lease_timer);
	turn_work_deinit(&r->ends);
	turn_work_deinit(&r->expiries);
	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));) {
		dray_list_splice(&region->revocations, &region->token_ends);
		dray_list_for_each(&region->revocations, v, struct revocation, link)
			free(v);
		region_free(region);
	}
	dray_map_for_each(&r->peers, p, struct grant_peer, by_handle)
		grant_peer_free(p);
	dray_map_deinit(&r->peers);
	dray_map_deinit(&r->local_imports);
	dray_map_deinit(&r->dead_tokens);
	dray_handles_deinit(&r->regions);
	dray_handles_deinit(&r->grants);
	dray_heap_deinit(&r->expiry);
	dray_heap_deinit(&r->lease_expiry);
	mappings_deinit(&r->mappings);
	free(r);
	return NULL;
}

void region_close_fds(void *of, int *fds, unsigned n)
{
	struct region *region = of;

	owner_count_fds(region->owner.uid_owner, n);
	owner_close_fds(region->owner.uid_owner, fds, n);
}

static int handle_new(struct region *region, struct dray_err *reterr)
{
	struct regions *r = region->regions;
	struct object_view *o = &region->extents.view->o;
	int e = dray_handles_add(&r->regions, region, &region->handle);

	if (e < 0)
		return dray_err_set(reterr, e, e == -ENOSPC ? DRAY_E_QUOTA : DRAY_E_NO_MEMORY,
				    "the agent has %" PRIu32
				    " regions; remove some, or raise limits.regions",
				    r->regions.count);
	o->kind = OBJECT_REGION;
	o->handle = region->handle;
	o->group = region->owner.group;
	o->session = region->owner.session;
	r->bytes += o->length;
	return 0;
}

static void handle_del(struct region *region)
{
	struct regions *r = region->regions;

	dray_handles_del(&r->regions, region->handle);
	r->bytes -= region_view_of(region)->o.length;
}

/* Publishes the region to workers and devices. */
static void region_begin(struct region *region)
{
	struct regions *r = region->regions;
	const struct region_view *v = region_view_of(region);
	int e;

	if (!region->early)
		pool_publish(r->deps.pool, &v->o);
	e = r->deps.up->added(*r->deps.rails, v, region->extents.dmabufs);
	if (r->deps.gpus && v->memory == REGION_HOST)
		gpus_region_added(r->deps.gpus, v);
	/* other memory is of use without RDMA */
	if (e < 0 && v->memory == REGION_RDMA) {
		dray_err_set(&region->refused, e, DRAY_E_NO_MEMORY,
			     "no memory to register a DMA-BUF");
		region_end(region, DRAY_E_NO_MEMORY, true);
	}
}

/* Its memory cannot be used any more, or, if that is still being opened for early use, will never be usable. */
static void region_lose(struct region *region, bool opens, const struct dray_err *why)
{
	region->lost = *why;
	region_end(region, (uint32_t)why->code, why->code == DRAY_E_GPU_LOST);
	if (opens)
		region->added(region->added_arg, why);
}

void region_part_opened(void *of, unsigned device, unsigned part, uint64_t address)
{
	struct region *region = of;

	extents_part_opened(&region->extents, device, part, address);
}

static void handle_opened(void *arg, struct gpu_memory *memory, const struct gpu_part *parts,
			  const struct dray_err *err)
{
	struct region *region = arg;
	void (*added)(void *arg, const struct dray_err *err) = region->added;
	void *added_arg = region->added_arg;

	region->gpu_memory = memory;
	region->opening = false;
	/* it is being removed, and was used early: the removal closes the memory */
	if (region->ending)
		return;
	if (err && region->early) {
		region_lose(region, true, err);
		return;
	}
	if (!err) {
		extents_opened(&region->extents, parts);
		if (region->early)
			pool_opened(region->regions->deps.pool, region->handle);
		region_begin(region);
	} else {
		handle_del(region);
		region_free(region);
	}
	added(added_arg, err);
}

static int open_gpu(struct region *region, const struct region_spec *spec, struct dray_err *reterr)
{
	struct gpu_part *parts dray_auto_free = NULL;
	struct regions *r = region->regions;
	char device[DEVICE_BYTES];
	unsigned n;
	int e;

	if (!r->deps.gpus)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "kind %s: this agent takes no GPU memory; use memfd",
				    dmsg_kind_name(region->kind));
	e = extents_read_gpu(spec, &region->extents, &parts, &n, reterr);
	if (e >= 0)
		e = handle_new(region, reterr);
	if (e < 0)
		return e;
	snprintf(device, sizeof(device), "%.*s", (int)spec->m->device.n, spec->m->device.p);
	e = gpu_open(r->deps.gpus, region->owner.uid_owner, device, parts, n, spec->early,
		     handle_opened, region, reterr);
	if (e < 0) {
		handle_del(region);
		return e;
	}
	region->early = spec->early;
	if (region->early)
		pool_publish(r->deps.pool, &region_view_of(region)->o);
	return 0;
}

/* The agent's own memory, which no client can hold up before it gets the descriptor. */
static int make_pool(struct region *region, const struct region_spec *spec, struct dray_err *reterr)
{
	int e = extents_map_pool(&region->regions->mappings, spec, &region->extents,
				 &region->pool_bytes, reterr);

	if (e >= 0)
		e = handle_new(region, reterr);
	if (e < 0)
		return e;
	region->opening = false;
	region_begin(region);
	return 0;
}

/* --- mapping files of a client --- */

struct opening {
	struct owner_job job;
	struct region *region;
	enum region_memory memory;
	uint64_t limit;
	/* copies of the request */
	struct dmsg_region_add m;
	struct region_owner owner;
	struct region_spec spec;
	int *fds;
	/* results */
	struct extents extents;
	int error;
	struct dray_err err;
	uint8_t wire[]; /* extents, then descriptors */
};

static void map_run(struct owner_job *j)
{
	struct opening *o = dray_container_of(j, struct opening, job);

	o->error = extents_map(&o->region->regions->mappings, &o->spec, o->memory, o->limit,
			       &o->extents, &o->err);
}

static void mapped(struct region *region, struct opening *o)
{
	struct object_view head = region_view_of(region)->o;

	extents_deinit(&region->extents);
	region->extents = o->extents;
	o->extents = (struct extents){ .view = NULL };
	region->extents.view->o = head;
	region->opening = o->memory != REGION_HOST;
	if (!region->opening)
		extents_fill(&region->extents);
	region_begin(region);
	if (!region->opening)
		region->added(region->added_arg, NULL);
}

static void map_done(struct owner_job *j)
{
	struct opening *o = dray_container_of(j, struct opening, job);
	struct region *region = o->region;
	void (*added)(void *arg, const struct dray_err *err) = region->added;
	void *added_arg = region->added_arg;

	owner_close_fds(j->owner, o->fds, o->spec.n_fds);
	region->mapping = NULL;
	if (region->done) {
		region_finish(region);
	} else if (o->error >= 0) {
		mapped(region, o);
	} else {
		handle_del(region);
		region_free(region);
		added(added_arg, &o->err);
	}
	extents_deinit(&o->extents);
	free(o);
}

static struct opening *opening_new(struct region *region, const struct region_spec *spec)
{
	size_t wire = (size_t)spec->m->extents.n * DMSG_EXTENT_SIZE;
	size_t fds_at = (wire + sizeof(int) - 1) / sizeof(int) * sizeof(int);
	struct opening *o = calloc(1, sizeof(*o) + fds_at + spec->n_fds * sizeof(int));

	if (!o)
		return NULL;
	o->region = region;
	memcpy(o->wire, spec->m->extents.p, wire);
	o->m = *spec->m;
	o->m.extents.p = o->wire;
	/* of other kinds of memory */
	o->m.name = o->m.device = (struct dray_str){ "", 0 };
	o->m.handles.n = o->m.allocations.n = 0;
	o->owner = region->owner;
	o->fds = (void *)(o->wire + fds_at);
	o->spec = (struct region_spec){
		.owner = &o->owner, .m = &o->m, .fds = o->fds, .n_fds = spec->n_fds
	};
	return o;
}

/* A view with the length alone, until the extents are mapped. */
static int view_head(struct region *region, const struct dmsg_region_add *m,
		     enum region_memory memory, struct dray_err *reterr)
{
	struct region_view *v = region->extents.view = calloc(1, sizeof(*v));

	if (!v)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	v->memory = memory;
	v->o.access = m->access;
	return extents_length(m, &v->o.length, reterr);
}

static int map_files(struct region *region, const struct region_spec *spec,
		     enum region_memory memory, struct dray_err *reterr)
{
	const struct dray_config *cfg = region->regions->deps.cfg;
	struct opening *o;
	int e;

	if (memory == REGION_RDMA && !cfg->rdma.enable)
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"kind dmabuf is for RDMA devices, which this agent does not use "
			"(rdma.enable is false)");
	e = view_head(region, spec->m, memory, reterr);
	if (e < 0)
		return e;
	o = opening_new(region, spec);
	if (!o)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	e = handle_new(region, reterr);
	if (e < 0) {
		free(o);
		return e;
	}
	o->memory = memory;
	o->limit = (uint64_t)cfg->limits.bytes_per_session;
	for (unsigned i = 0; i < spec->n_fds; i++)
		o->fds[i] = dray_take_fd(spec->fds[i]);
	owner_count_fds(region->owner.uid_owner, spec->n_fds);
	region->mapping = o;
	owner_open_job(region->owner.uid_owner, &o->job, map_run, map_done);
	return 0;
}

void region_registered(struct regions *r, dray_handle handle, bool usable, const char *why)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (!region || !region->opening || region->mapping || region->ending)
		return;
	if (usable) {
		region->opening = false;
		region->added(region->added_arg, NULL);
		return;
	}
	dray_err_set(&region->refused, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
		     "no RDMA device can register this DMA-BUF: %s", why);
	region_end(region, DRAY_E_UNSUPPORTED, true);
}

static int check_request(struct regions *r, const struct dmsg_region_add *m, enum dmsg_kind *ret,
			 enum region_memory *ret_memory, struct dray_err *reterr)
{
	if (r->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and takes no new regions");
	if (!m->access)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "access is neither read nor write; set at least one");
	return extents_check(m, ret, ret_memory, reterr);
}

int region_add(struct regions *r, const struct region_spec *spec, struct region_added *ret,
	       struct dray_err *reterr)
{
	dray_auto(region_free) struct region *region = NULL;
	const struct dray_str *name = &spec->m->name;
	enum dmsg_kind kind = DMSG_KIND_MEMFD;
	enum region_memory memory;
	int e = check_request(r, spec->m, &kind, &memory, reterr);

	if (e < 0)
		return e;
	region = calloc(1, sizeof(*region));
	if (!region)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a region");
	region->regions = r;
	region->owner = *spec->owner;
	owner_ref(region->owner.uid_owner);
	region->kind = kind;
	region->n_extents = spec->m->extents.n;
	region->opening = true;
	region->added = spec->added;
	region->added_arg = spec->arg;
	memcpy(region->name, name->p, dray_min((size_t)name->n, sizeof(region->name) - 1));
	dray_list_init(&region->tokens);
	region->unreached = &region->tokens;
	dray_list_init(&region->revocations);
	dray_list_init(&region->token_ends);
	dray_list_init(&region->unended);
	if (memory == REGION_GPU)
		e = open_gpu(region, spec, reterr);
	else if (kind == DMSG_KIND_POOL)
		e = make_pool(region, spec, reterr);
	else
		e = map_files(region, spec, memory, reterr);
	if (e < 0)
		return e;
	*ret = (struct region_added){
		.region = region->handle,
		.length = region_view_of(region)->o.length,
		.pool_fd = kind == DMSG_KIND_POOL ? region->extents.maps[0]->fd : -1,
		.pending = region->opening,
		.early = region->early,
	};
	region = NULL;
	return 0;
}

/* The memory is released: only the pending reply remains. */
static void region_finish(void *of)
{
	struct region *region = of;
	void (*added)(void *arg, const struct dray_err *err) = region->added;
	void *added_arg = region->added_arg;
	struct dray_err refused = region->refused;
	void (*done)(void *arg) = region->done;
	void *arg = region->arg;

	dray_assert(dray_list_empty(&region->tokens) && dray_list_empty(&region->revocations) &&
		    dray_list_empty(&region->token_ends));
	handle_del(region);
	region_free(region);
	if (done)
		done(arg);
	else
		added(added_arg, &refused);
}

/* The memory is released before the reply. */
static void memory_released(void *of)
{
	struct region *region = of;

	extents_release(&region->extents);
	region->gpu_memory = NULL;
	region->ended = true;
	if (region->done || region->refused.code)
		region_finish(region);
}

/* RDMA devices have released the region; GPUs release it next. */
static void handle_deregistered(void *of)
{
	struct region *region = of;
	struct gpus *gpus = region->regions->deps.gpus;

	if (region->early && region->opening)
		gpu_open_cancel(gpus, region, memory_released);
	else if (region->gpu_memory)
		gpu_close(region->gpu_memory, memory_released, region);
	else if (gpus && region_view_of(region)->memory == REGION_HOST)
		gpus_region_removed(gpus, region->handle, memory_released, region);
	else
		memory_released(region);
}

/* A peer that has not acknowledged its fence may still reach the region by an RDMA device. */
static bool exposed(const struct region *region)
{
	dray_list_for_each(&region->tokens, t, struct token, link)
		dray_list_for_each(&t->grants, g, struct grant, token_link)
			if (g->exposed && !g->fenced)
				return true;
	return false;
}

/*
 * An urgent end waits only until the workers have dropped the grants (serving), not for the acknowledgements of peers
 * without RDMA access.
 */
static void leave(struct region *region)
{
	if (region->urgent && !region->serving && !exposed(region))
		region_abandon_tokens(region);
	if (!dray_list_empty(&region->tokens) || !dray_list_empty(&region->revocations) ||
	    !dray_list_empty(&region->token_ends))
		return;
	region->leaving = true;
	region->regions->deps.up->removed(*region->regions->deps.rails, region->handle,
					  handle_deregistered, region);
}

void region_check(struct region *region)
{
	if (region->ended && region->done && !region->barriers)
		region_finish(region);
	else if (region->ending && region->dropped && !region->barriers && !region->leaving)
		leave(region);
}

static void handle_dropped(void *arg)
{
	struct region *region = arg;

	region->dropped = true;
	region_check(region);
}

void region_tokens_ended(struct region *region)
{
	pool_drop(region->regions->deps.pool, OBJECT_REGION, region->handle, region->end_code,
		  region->urgent, handle_dropped, region);
}

/* Ends all use of the region; transfers end with `code`. */
static void region_end(struct region *region, uint32_t code, bool urgent)
{
	region->ending = true;
	region->urgent = urgent;
	region->end_code = code;
	region_end_tokens(region);
}

static struct region *region_get(struct regions *r, dray_handle handle)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	return region && region_is_live(region) ? region : NULL;
}

void *region_early(struct regions *r, dray_handle handle, dray_handle group)
{
	const struct region *region = dray_handles_get(&r->regions, handle);

	return region && region->early && region->opening && !region->ending &&
			       region_view_of(region)->o.group == group ?
		       region->added_arg :
		       NULL;
}

bool region_is_gpu(struct regions *r, dray_handle handle)
{
	const struct region *region = region_get(r, handle);

	return region && region->gpu_memory;
}

bool region_flush_rdma(struct regions *r, dray_handle handle)
{
	const struct region *region = region_get(r, handle);

	return !region || !region->gpu_memory ||
	       gpus_flush_rdma(r->deps.gpus, region_view_of(region)->gpu);
}

static void handle_barrier(void *arg)
{
	struct region *region = arg;

	region->barriers--;
	region_check(region);
}

/* Makes an end under way urgent: a second, urgent drop of an object also makes the first one urgent. */
static void make_urgent(struct region *region, uint32_t code)
{
	struct regions *r = region->regions;

	if (!region->ending || region->urgent || region->leaving)
		return;
	region->urgent = true;
	dray_list_for_each(&region->tokens, t, struct token, link)
		dray_list_for_each(&t->grants, g, struct grant, token_link)
			if (g->ending && !g->dropped)
				pool_drop(r->deps.pool, OBJECT_GRANT, g->view.o.handle,
					  region_rights_code(region), true, NULL, NULL);
	/* what is still to be dropped is dropped urgently */
	if (!dray_list_empty(&region->unended)) {
		region->end_code = code;
		return;
	}
	region->barriers++;
	pool_drop(r->deps.pool, OBJECT_REGION, region->handle, code, true, handle_barrier, region);
}

void region_hurry(struct regions *r, dray_handle handle)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (region)
		make_urgent(region, DRAY_E_SESSION_CLOSED);
}

void regions_gpu_lost(struct regions *r, unsigned device)
{
	struct dray_err why = DRAY_ERR_NULL;
	struct region *region;

	dray_err_set(&why, -EIO, DRAY_E_GPU_LOST,
		     "the GPU of the region is lost; remove the region");
	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));) {
		bool opens = region->early && region->opening &&
			     gpu_opens_on(r->deps.gpus, region, device);

		if (!opens && (!region->gpu_memory || region_view_of(region)->gpu != device))
			continue;
		if (region->ending) {
			make_urgent(region, DRAY_E_GPU_LOST);
			continue;
		}
		region_lose(region, opens, &why);
	}
}

/*
 * done() must not run in this call, so a region that has ended already is removed after another answer of the workers.
 */
int region_remove(struct regions *r, dray_handle handle, dray_handle session, bool urgent,
		  void (*done)(void *arg), void *arg)
{
	struct region *region = dray_handles_get(&r->regions, handle);

	if (!region || region->done || region_view_of(region)->o.session != session)
		return -ENOENT;
	region->done = done;
	region->arg = arg;
	if (region->mapping) {
		/* map_done() goes on */
	} else if (region->opening && !region->early &&
		   region_view_of(region)->memory == REGION_GPU) {
		gpu_open_cancel(r->deps.gpus, region, region_finish);
	} else if (region->ended) {
		region->barriers++;
		pool_drop(r->deps.pool, OBJECT_REGION, handle, DRAY_E_CANCELLED, false,
			  handle_barrier, region);
	} else if (region->ending) {
		if (urgent)
			make_urgent(region, DRAY_E_SESSION_CLOSED);
	} else {
		region_end(region,
			   region->faulted ? DRAY_E_REGION_FAULT :
			   urgent          ? DRAY_E_SESSION_CLOSED :
					     DRAY_E_CANCELLED,
			   urgent);
	}
	return 0;
}

void regions_fault(struct regions *r, dray_handle session)
{
	struct region *region;

	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));)
		region->faulted |= region_view_of(region)->o.session == session;
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

static const char *state_name(const struct region *region)
{
	if (region->done || region->refused.code)
		return "removing";
	if (region->ending)
		return "lost";
	return region->opening ? "opening" : "live";
}

/* Its device is known: the first part is open. */
static bool is_on_gpu(const struct region_view *v)
{
	return v->memory == REGION_GPU && region_view_is_open(v, 0);
}

void regions_each(struct regions *r, void (*fn)(void *arg, const struct dray_dbus_region *region),
		  void *arg)
{
	static const char *const access[] = {
		[DMSG_ACCESS_READ] = "r", [DMSG_ACCESS_WRITE] = "w", [DMSG_ACCESS_ALL] = "rw"
	};
	struct region *region;

	for (uint32_t at = 0; (region = dray_handles_next(&r->regions, &at, NULL));) {
		const struct region_view *v = region_view_of(region);

		fn(arg, &(struct dray_dbus_region){
				.region = region->handle,
				.session = v->o.session,
				.name = region->name,
				.kind = dmsg_kind_name(region->kind),
				.state = state_name(region),
				.access = access[v->o.access & DMSG_ACCESS_ALL],
				.extents = region->n_extents,
				.tokens = region->n_tokens,
				.grants = region->serving,
				.length = v->o.length,
				.device = is_on_gpu(v) ? gpus_uuid(r->deps.gpus, v->gpu) : "",
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
