/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registrations and keys of regions, of staging memory and of windows.
 *
 * Keys reach workers and importers as a set. A replaced set lives on until the last work request with one of its keys has
 * ended. Only then may the memory regions of its keys be deregistered.
 *
 * A revocation ends the keys that peers have seen. A device knows nothing of tokens, and the memory regions of a registration
 * serve all regions and tokens in its bytes. So a renewal withdraws the keys of all these regions, waits until the importers
 * have stopped using them (REKEY), deregisters the memory, registers it again, and publishes the new keys. Meanwhile
 * transfers use the next transport.
 *
 * Queue pairs to engines with Mooncake are in another protection domain. When there is one, each region of a client gets a twin: the
 * same memory, registered there without access for others. Its keys go to workers alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/ballast.h"

/* The range of a region that lies in one registration. */
struct part {
	struct dray_list link; /* on registration->parts */
	struct rail_region *region;
	struct registration *registration;
	uint8_t *base;
	uint64_t offset, length; /* in the region */
};

/* A set of keys that workers or work requests may still use. */
struct key_set {
	struct dray_list link; /* on rail_region->sets */
	struct rail_region *region;
	struct dray_job job; /* runs after the last reference */
	unsigned n_devices;
	struct device *devices[];
};

struct rail_region {
	struct dray_list link;
	struct dray_list wait_link;   /* on registration->waiting or rails->unheld while it waits */
	struct dray_list decide_link; /* on rails->to_decide */
	struct rails *rails;
	dray_handle handle; /* 0: staging memory or a window */
	struct dray_map_node by_handle;
	enum region_memory memory;
	enum registration_use use;
	bool store; /* a segment of the store */
	uint64_t length;
	unsigned worker;        /* staging memory: the worker that uses it */
	struct window *window;  /* NULL: not a window */
	struct rail_keys *keys; /* the published ones */
	struct dray_list sets;
	bool removing;
	bool announce;  /* region_registered() is pending */
	bool undecided; /* a device may register it, so it is open whether importers need windows */
	bool renew;     /* it is registered anew after the last use of the former keys */
	struct rail_region *twin; /* NULL: none */
	struct rail_region *twin_of;
	uint32_t rekeys; /* importers that have not answered REKEY */
	void (*done)(void *arg);
	void *arg;
	uint32_t n_parts, n; /* n: parts with a registration */
	struct part parts[];
};

/* A call of rails_region_revoked() that waits for the end of the renewal. */
struct renewal {
	struct dray_list link; /* in rails->renewals */
	struct dray_job job;
	void (*done)(void *arg);
	void *arg;
};

static struct rail_region *region_get(struct rails *r, dray_handle handle)
{
	return dray_map_entry(dray_map_find(&r->regions_by_handle, &handle, sizeof(handle)),
			      struct rail_region, by_handle);
}

static void region_check(struct rail_region *region);

/*
 * How far the registration of the region with the device is: the state of the first part that is not ready. MRS_DROPPING:
 * the part has no memory regions yet. *ret_why: of a failure; may be NULL.
 */
static enum mrs_state state_on(const struct rail_region *region, const struct device *d,
			       const char **ret_why)
{
	for (uint32_t i = 0; i < region->n; i++) {
		const struct mrs *m = registration_mrs(region->parts[i].registration, d);

		if (m && m->state == MRS_READY)
			continue;
		if (m && ret_why)
			*ret_why = m->why;
		return m ? m->state : MRS_DROPPING;
	}
	return MRS_READY;
}

/* A device may still register the region. */
static bool is_pending(struct rails *r, const struct rail_region *region)
{
	if (!r->scan)
		return true;
	for (unsigned i = 0; i < r->n; i++)
		if (r->v[i]->state == RAIL_OPENING)
			return true;
	dray_list_for_each(&r->devices, d, struct device, link)
		if (device_is_open(d) && state_on(region, d, NULL) == MRS_MAKING)
			return true;
	return false;
}

static void set_done(struct dray_job *j)
{
	struct key_set *s = dray_container_of(j, struct key_set, job);
	struct rail_region *region = s->region;

	dray_list_del(&s->link);
	for (unsigned i = 0; i < s->n_devices; i++)
		s->devices[i]->key_sets--;
	for (unsigned i = 0; i < s->n_devices; i++)
		if (s->devices[i]->closing && !s->devices[i]->key_sets)
			device_check(s->devices[i]);
	free(s);
	region_check(region);
}

static void set_forget(struct key_set *s, struct device *d)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < s->n_devices; i++)
		if (s->devices[i] != d)
			s->devices[kept++] = s->devices[i];
	d->key_sets -= s->n_devices - kept;
	s->n_devices = kept;
}

void rail_regions_device_closed(struct device *d)
{
	dray_list_for_each(&d->rails->regions, region, struct rail_region, link)
		dray_list_for_each(&region->sets, s, struct key_set, link)
			set_forget(s, d);
}

/* Any thread. */
static void set_gone(void *arg)
{
	struct key_set *s = arg;

	dray_jobs_finish(s->region->rails->registrar, &s->job, set_done);
}

/* Appends the keys of the region on the rail, or only counts them: k NULL. Returns their number. */
static uint32_t add_keys(struct rail_keys *k, uint32_t at, const struct rail_region *region,
			 const struct rail *rail)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < region->n; i++) {
		const struct part *p = &region->parts[i];
		const struct registration *g = p->registration;
		const struct mrs *m = registration_mrs(g, rail->device);

		for (uint64_t done = 0, n; m && done < p->length; done += n, count++) {
			uint64_t here = (uint64_t)(p->base - g->base) + done;
			uint32_t slice = (uint32_t)(here / m->slice);

			n = dray_min(p->length - done, (slice + 1) * m->slice - here);
			if (k)
				k->v[at + count] = (struct rail_key){ .rail = rail->number,
								      .key = m->v[slice]->lkey,
								      .base = g->iova + here,
								      .offset = p->offset + done,
								      .length = n,
								      .rkey = m->v[slice]->rkey };
		}
	}
	return count;
}

static bool has_keys(const struct rail *rail, const struct rail_region *region)
{
	return rail->cqs_told && device_is_open(rail->device) &&
	       state_on(region, rail->device, NULL) == MRS_READY;
}

static struct rail_keys *keys_new(struct rail_region *region)
{
	struct rails *r = region->rails;
	struct key_set *s = dray_calloc_sure(1, sizeof(*s) + r->n * sizeof(struct device *));
	struct rail_keys *k;
	uint32_t n = 0, at = 0;

	for (unsigned i = 0; i < r->n; i++)
		if (has_keys(r->v[i], region))
			n += add_keys(NULL, 0, region, r->v[i]);
	k = n ? rail_keys_new(n) : NULL;
	if (!k) {
		free(s);
		return NULL;
	}
	for (unsigned i = 0; i < r->n; i++) {
		struct rail *rail = r->v[i];

		if (!has_keys(rail, region))
			continue;
		at += add_keys(k, at, region, rail);
		rail->device->key_sets++;
		s->devices[s->n_devices++] = rail->device;
	}
	s->region = region;
	dray_list_add(&region->sets, &s->link);
	k->gone = set_gone;
	k->arg = s;
	rail_keys_seal(k, region->length, true);
	return k;
}

/* at: of the first byte, in the records. */
static unsigned keys_write(const struct rail_keys *k, uint64_t offset, uint64_t length, uint64_t at,
			   uint8_t *buf, unsigned max)
{
	unsigned n = 0, whole = 0;

	for (uint32_t i = 0; k && i < k->n; i++) {
		const struct rail_key *p = &k->v[i];
		uint64_t from = dray_max(offset, p->offset);
		uint64_t to = dray_min(offset + length, p->offset + p->length);
		struct pmsg_rail w = { .rail = p->rail,
				       .rkey = p->rkey,
				       .base = p->base + (from - p->offset),
				       .offset = at + (from - offset),
				       .length = to - from };

		/* a rail is left out unless all of its pieces fit */
		if (i && k->v[i - 1].rail != p->rail)
			whole = n;
		if (from >= to)
			continue;
		if (n == max)
			return whole;
		pmsg_rail_put(buf + (size_t)n++ * PMSG_RAIL_SIZE, &w);
	}
	return n;
}

unsigned rail_keys_write(const struct rail_keys *k, uint64_t offset, uint64_t length, uint8_t *buf,
			 unsigned max)
{
	return keys_write(k, offset, length, 0, buf, max);
}

unsigned rails_store_keys(struct rails *r, dray_handle peer, dray_handle segment, uint64_t offset,
			  uint64_t length, uint64_t at, uint8_t *buf, unsigned max)
{
	const struct rail_region *region = rail_peer_get(r, peer) ? region_get(r, segment) : NULL;

	return region ? keys_write(region->keys, offset, length, at, buf, max) : 0;
}

bool rail_region_pieces(struct rails *r, dray_handle handle, uint64_t offset, uint64_t length,
			void (*fn)(void *arg, uint8_t *base, uint64_t offset, uint64_t length),
			void *arg)
{
	const struct rail_region *region = region_get(r, handle);

	for (uint32_t i = 0; region && i < region->n; i++) {
		const struct part *p = &region->parts[i];
		uint64_t from = dray_max(offset, p->offset);
		uint64_t to = dray_min(offset + length, p->offset + p->length);

		if (from < to)
			fn(arg, p->base + (from - p->offset), from - offset, to - from);
	}
	return region;
}

static void tell_importer(void *arg, const struct grant_view *g)
{
	struct rail_region *region = arg;
	uint8_t *buf dray_auto_free = malloc((size_t)RAILS_KEYS_MAX * PMSG_RAIL_SIZE);
	struct pmsg_keys m = { .grant = g->o.handle, .rails = { .p = buf } };
	const struct rails_deps *d = &region->rails->deps;

	if (!buf)
		return;
	m.rails.n = rail_keys_write(region->keys, g->offset, g->o.length, buf, RAILS_KEYS_MAX);
	if (m.rails.n)
		grant_expose(d->regions, g->peer, g->o.handle);
	peers_send(d->peers, g->peer, PMSG_KEYS, 0, &(union pmsg_body){ .keys = m });
}

static void want_window(void *arg, const struct grant_view *g)
{
	window_want(arg, g->peer);
}

/* No device has registered the region: its importers need windows, unless a device may still register it. */
static void want_windows(struct rail_region *region)
{
	struct rails *r = region->rails;

	region->undecided = is_pending(r, region);
	if (!region->undecided)
		grants_of_region(r->deps.regions, region->handle, want_window, r);
}

/* Some of these keys are not among the present ones. */
static bool any_gone(const struct rail_keys *keys, const struct rail_keys *now)
{
	for (uint32_t i = 0; i < keys->n; i++) {
		const struct rail_key *k = &keys->v[i],
				      *same = now ? rail_keys_find(now, k->rail, k->base) : NULL;

		if (!same || same->rkey != k->rkey)
			return true;
	}
	return false;
}

/* Peers do not learn new keys of the store's memory: each lookup has those of its time. */
static void publish_store(struct rail_region *region, const struct rail_keys *former)
{
	const struct rails_deps *d = &region->rails->deps;

	pool_keys(d->pool, OBJECT_REGION, region->handle, region->keys);
	if (former && !region->removing && d->store_keys_gone && any_gone(former, region->keys))
		d->store_keys_gone(d->arg, region->handle);
}

/* Transfers wait until a device has registered the memory, or none will. */
static void publish_twin(struct rail_region *twin)
{
	struct rails *r = twin->rails;
	struct rail_keys *keys = twin->keys ? rail_keys_ref(twin->keys) : NULL;

	twin->undecided = !keys && !twin->removing && is_pending(r, twin);
	if (!keys && !twin->removing && !twin->undecided)
		keys = rail_keys_new(0);
	for (unsigned i = 0; i < r->deps.pool->n; i++)
		rails_tell(r, i, RDMA_ENGINE_KEYS, 0, twin->handle,
			   keys ? rail_keys_ref(keys) : NULL);
	rail_keys_unref(keys);
}

static void publish(struct rail_region *region)
{
	struct rails *r = region->rails;
	struct rail_keys *former = region->keys;

	region->keys = region->removing || region->renew ? NULL : keys_new(region);
	region->undecided = false;
	if (region->twin_of) {
		publish_twin(region);
		rail_keys_unref(former);
		return;
	}
	if (!region->keys && !region->removing && !region->renew && region->memory == REGION_GPU)
		want_windows(region);
	if (!region->keys && !former)
		return;
	if (region->store)
		publish_store(region, former);
	else if (region->window)
		window_published(region->window, region->keys);
	else if (!region->handle)
		rails_tell(r, region->worker, RDMA_STAGING, 0, 0,
			   region->keys ? rail_keys_ref(region->keys) : NULL);
	else
		pool_keys(r->deps.pool, OBJECT_REGION, region->handle, region->keys);
	rail_keys_unref(former);
	if (!region->removing && !region->renew && region->handle && !region->store)
		grants_of_region(r->deps.regions, region->handle, tell_importer, region);
}

/* Of the region's parts in one registration only one is. */
static bool is_first(const struct part *p)
{
	const struct part *first = p->region->parts;

	while (first->registration != p->registration)
		first++;
	return p == first;
}

void rail_regions_publish(struct rails *r, const struct registration *g)
{
	if (!g) {
		dray_list_for_each(&r->regions, region, struct rail_region, link)
			publish(region);
		return;
	}
	dray_list_for_each(&g->parts, p, struct part, link)
		if (is_first(p))
			publish(p->region);
}

unsigned rails_grant_keys(struct rails *r, dray_handle peer, dray_handle grant, uint8_t *buf,
			  unsigned max)
{
	const struct grant_view *g = grant_find(r->deps.regions, peer, grant);
	struct rail_region *region = g ? region_get(r, g->region) : NULL;
	unsigned n = region ? rail_keys_write(region->keys, g->offset, g->o.length, buf, max) : 0;

	if (!g || n || !region_is_gpu(r->deps.regions, g->region))
		return n;
	if (region && is_pending(r, region))
		region->undecided = true;
	else
		window_want(r, peer);
	return 0;
}

static void parts_make(struct rail_region *region)
{
	for (uint32_t i = 0; i < region->n; i++)
		dray_list_for_each(&region->rails->devices, d, struct device, link)
			registration_make(region->parts[i].registration, d);
}

static void parts_release(struct rail_region *region)
{
	while (region->n) {
		struct part *p = &region->parts[--region->n];

		dray_list_del(&p->link);
		registration_unref(p->registration);
	}
}

/*
 * By which a device still has some of the region's memory, perhaps one that every region has released. Of several the one that ends
 * last. NULL: none.
 */
static struct registration *held_by(const struct rail_region *region)
{
	dray_list_for_each(&region->rails->registrations, g, struct registration, link) {
		if (g->refs)
			break;
		for (uint32_t i = 0; i < region->n_parts; i++) {
			const struct part *p = &region->parts[i];

			if (p->base < g->base + g->length && g->base < p->base + p->length)
				return g;
		}
	}
	return NULL;
}

/* Workers, work requests or importers may still use keys of the region. */
static bool is_in_use(const struct rail_region *region)
{
	return !dray_list_empty(&region->sets) || region->rekeys;
}

/* The region shares memory regions with one that is being renewed. */
static bool shares_renewal(const struct rail_region *region)
{
	/* usually there is none, and a registration may have thousands of parts */
	if (dray_list_empty(&region->rails->renewals))
		return false;
	for (uint32_t i = 0; i < region->n; i++)
		dray_list_for_each(&region->parts[i].registration->parts, p, struct part, link)
			if (p->region != region && p->region->renew)
				return true;
	return false;
}

static bool renewal_waits(struct rails *r)
{
	dray_list_for_each(&r->regions, x, struct rail_region, link)
		if (is_in_use(x) && (x->removing ? shares_renewal(x) : x->renew))
			return true;
	return false;
}

static void renewal_done(struct dray_job *j)
{
	struct renewal *v = dray_container_of(j, struct renewal, job);

	v->done(v->arg);
	free(v);
}

/* Continues the renewals, all together. */
static void renewals_step(struct rails *r)
{
	struct renewal *v;
	bool any = false;

	if (dray_list_empty(&r->renewals) || renewal_waits(r))
		return;
	dray_list_for_each(&r->regions, x, struct rail_region, link)
		for (uint32_t i = 0; x->renew && i < x->n; i++)
			any |= registration_drop(x->parts[i].registration);
	if (any)
		return;
	while ((v = dray_list_pop(&r->renewals, struct renewal, link)))
		dray_jobs_finish(r->registrar, &v->job, renewal_done);
	dray_list_for_each(&r->regions, x, struct rail_region, link) {
		if (!x->renew)
			continue;
		x->renew = false;
		if (!x->removing)
			parts_make(x);
	}
}

/* Continues the removal or renewal of a region when a key set or a registration may have ended. May free the region. */
static void region_check(struct rail_region *region)
{
	struct rails *r = region->rails;
	void (*done)(void *arg) = region->done;
	struct registration *held;
	void *arg = region->arg;

	if (is_in_use(region) || (region->removing && region->twin))
		return;
	if (!region->removing) {
		renewals_step(r);
		return;
	}
	parts_release(region);
	renewals_step(r);
	held = held_by(region);
	if (held) {
		dray_list_move(&held->waiting, &region->wait_link);
		return;
	}
	dray_list_del(&region->wait_link);
	dray_list_del(&region->decide_link);
	dray_list_del(&region->link);
	dray_map_del(&r->regions_by_handle, &region->by_handle);
	free(region);
	done(arg);
}

void rail_regions_check(struct rails *r)
{
	struct rail_region *region;

	renewals_step(r);
	while ((region = dray_list_pop(&r->unheld, struct rail_region, wait_link)))
		region_check(region);
}

static bool is_registrable(const struct region_view *view, const struct region_dmabuf *dmabufs)
{
	for (uint32_t i = 0; view->memory != REGION_HOST && i < view->n_extents; i++)
		if (!dmabufs || dmabufs[i].fd < 0)
			return false;
	return true;
}

static void twin_make(struct rail_region *region);
static void decide_later(struct rail_region *region);
static void decide_start(struct rails *r);

/* like: initial values. dmabufs: of each extent, or NULL. Returns NULL without memory. */
static struct rail_region *add(struct rails *r, const struct rail_region *like,
			       const struct extent_view *v, uint32_t n, uint16_t access,
			       const struct region_dmabuf *dmabufs)
{
	struct rail_region *region = calloc(1, sizeof(*region) + n * sizeof(region->parts[0]));

	if (!region)
		return NULL;
	*region = *like;
	region->rails = r;
	dray_list_init(&region->sets);
	dray_list_init(&region->wait_link);
	dray_list_init(&region->decide_link);
	for (uint32_t i = 0; i < n; i++) {
		struct registration *g = registration_get(r, v[i].base, v[i].length, access,
							  dmabufs ? &dmabufs[i] : NULL,
							  region->use);

		if (!g) {
			parts_release(region);
			free(region);
			return NULL;
		}
		region->parts[i] = (struct part){
			.region = region,
			.registration = g,
			.base = v[i].base,
			.offset = v[i].start,
			.length = v[i].length,
		};
		dray_list_add(&g->parts, &region->parts[i].link);
		region->n++;
	}
	region->n_parts = n;
	region->announce = region->memory == REGION_RDMA && !region->twin_of;
	region->renew = shares_renewal(region);
	dray_list_add(&r->regions, &region->link);
	if (region->handle && !region->twin_of)
		dray_map_add(&r->regions_by_handle, &region->by_handle, &region->handle,
			     sizeof(region->handle));
	if (!region->renew)
		parts_make(region);
	publish(region);
	if (region->announce) {
		decide_later(region);
		decide_start(r);
	}
	if (r->engines && !region->twin_of)
		twin_make(region);
	return region;
}

/* Without memory for it, transfers to engines wait until their deadline. A region without registrations has a twin without them. */
static void twin_make(struct rail_region *region)
{
	struct extent_view *v dray_auto_free = calloc(region->n + 1, sizeof(*v));
	struct region_dmabuf *dmabufs dray_auto_free = calloc(region->n + 1, sizeof(*dmabufs));
	const struct rail_region like = { .handle = region->handle,
					  .memory = region->memory,
					  .use = REGISTRATION_FOR_ENGINES,
					  .length = region->length,
					  .twin_of = region };

	if (!v || !dmabufs || !region->handle || region->store || region->removing)
		return;
	for (uint32_t i = 0; i < region->n; i++) {
		const struct part *p = &region->parts[i];

		v[i] = (struct extent_view){ .start = p->offset,
					     .length = p->length,
					     .base = p->base };
		dmabufs[i] = p->registration->dmabuf;
	}
	region->twin = add(region->rails, &like, v, region->n,
			   region->n ? region->parts[0].registration->access : 0,
			   region->n && dmabufs[0].fd >= 0 ? dmabufs : NULL);
}

void rail_regions_for_engines(struct rails *r)
{
	if (r->engines)
		return;
	r->engines = true;
	dray_list_for_each(&r->regions, region, struct rail_region, link)
		if (!region->twin_of)
			twin_make(region);
}

int rails_region_add(struct rails *r, const struct region_view *view,
		     const struct region_dmabuf *dmabufs)
{
	const struct rail_region like = { .handle = view->o.handle,
					  .memory = view->memory,
					  .length = view->o.length };
	const struct rail_region *region = NULL;

	if (!r->cfg->rdma.enable)
		return 0;
	if (is_registrable(view, dmabufs))
		region = add(r, &like, view->extents, view->n_extents, view->o.access, dmabufs);
	else if (engines_wanted(r))
		/* without registrations: transfers to engines must learn that no keys will come */
		region = add(r, &like, NULL, 0, 0, NULL);
	else
		return 0;
	return region ? 0 : -ENOMEM;
}

void rails_store_add(struct rails *r, const struct region_view *view, bool lends)
{
	const struct rail_region like = { .handle = view->o.handle,
					  .memory = REGION_HOST,
					  .use = lends ? REGISTRATION_FOR_READERS :
							 REGISTRATION_LOCAL,
					  .store = true,
					  .length = view->o.length };

	if (r->cfg->rdma.enable)
		add(r, &like, view->extents, view->n_extents, view->o.access, NULL);
}

struct rail_region *rail_region_own(struct rails *r, void *base, uint64_t bytes, unsigned worker,
				    struct window *window)
{
	const struct rail_region like = { .memory = REGION_HOST,
					  .use = window ? REGISTRATION_FOR_PEERS :
							  REGISTRATION_LOCAL,
					  .length = bytes,
					  .worker = worker,
					  .window = window };

	return add(r, &like, &(struct extent_view){ .base = base, .length = bytes }, 1,
		   DMSG_ACCESS_ALL, NULL);
}

void rails_staging_add(struct rails *r, unsigned worker, void *base, uint64_t bytes)
{
	if (r->cfg->rdma.enable)
		rail_region_own(r, base, bytes, worker, NULL);
}

static void twin_gone(void *arg)
{
	struct rail_region *region = arg;

	region->twin = NULL;
	region_check(region);
}

void rail_region_remove(struct rail_region *region, void (*done)(void *arg), void *arg)
{
	region->removing = true;
	region->done = done;
	region->arg = arg;
	publish(region);
	if (region->twin)
		rail_region_remove(region->twin, twin_gone, region);
	else
		region_check(region);
}

void rails_region_remove(struct rails *r, dray_handle handle, void (*done)(void *arg), void *arg)
{
	struct rail_region *region = region_get(r, handle);

	if (region)
		rail_region_remove(region, done, arg);
	else
		done(arg);
}

static void handle_rekeyed(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct rail_region *region = arg;

	/* on any error the peer is lost, and its queue pairs end */
	region->rekeys--;
	region_check(region);
}

static void rekey_importer(void *arg, const struct grant_view *g)
{
	struct rail_region *region = arg;
	const struct rails_deps *d = &region->rails->deps;
	union pmsg_body m = { .rekey = { g->o.handle } };

	if (peers_request(d->peers, g->peer, PMSG_REKEY, &m, handle_rekeyed, region) == 0)
		region->rekeys++;
}

/* Withdraws the keys of the region, and of the regions that share its registrations. */
static void renew(struct rail_region *region)
{
	struct rails *r = region->rails;

	region->renew = true;
	publish(region);
	if (region->handle)
		grants_with_keys(r->deps.regions, region->handle, rekey_importer, region);
	for (uint32_t i = 0; i < region->n; i++)
		dray_list_for_each(&region->parts[i].registration->parts, p, struct part, link)
			if (!p->region->renew && !p->region->removing)
				renew(p->region);
}

static bool is_registered(const struct rail_region *region)
{
	for (uint32_t i = 0; i < region->n; i++)
		if (!dray_list_empty(&region->parts[i].registration->mrs))
			return true;
	return false;
}

bool rails_region_revoked(struct rails *r, dray_handle handle, void (*done)(void *arg), void *arg)
{
	struct rail_region *region = region_get(r, handle);
	struct renewal *v;

	if (!region || region->removing || (!region->renew && !is_registered(region)))
		return false;
	v = malloc(sizeof(*v));
	/* the answer to the revocation would be a false promise */
	dray_assert(v);
	*v = (struct renewal){ .done = done, .arg = arg };
	dray_list_init(&v->link);
	dray_list_add(&r->renewals, &v->link);
	if (!region->renew)
		renew(region);
	renewals_step(r);
	return true;
}

const char *rails_region_text(struct rails *r, dray_handle handle, char *buf, size_t size)
{
	struct rail_region *region = region_get(r, handle);
	size_t at = 0;

	*buf = '\0';
	dray_list_for_each(&r->devices, d, struct device, link) {
		const char *text = "pending";
		enum mrs_state state;

		if (!region || !region->n || !device_is_open(d) || at >= size)
			continue;
		state = state_on(region, d, &text);
		if (state != MRS_FAILED)
			text = state == MRS_READY ? "registered" : "pending";
		at += (size_t)snprintf(buf + at, size - at, "%s%s: %s", at ? "; " : "", d->name,
				       text);
	}
	return buf;
}

/* Why no device is open. */
static void explain_no_device(const struct rails *r, char *buf, size_t size)
{
	const struct rail *rail = r->n ? r->v[0] : NULL;

	if (rail)
		snprintf(buf, size, "none is in use; %s port %u: %s", rail->device_name, rail->port,
			 rail->reason);
	else
		snprintf(buf, size, "this agent has none");
}

static bool is_usable(struct rails *r, const struct rail_region *region)
{
	dray_list_for_each(&r->devices, d, struct device, link)
		if (device_is_open(d) && state_on(region, d, NULL) == MRS_READY)
			return true;
	return false;
}

/* A device has registered it, or none will. May free the region. */
static void announce(struct rail_region *region)
{
	struct rails *r = region->rails;
	char why[REASON_MAX + ND_DEVICE_NAME_MAX + 64];

	region->announce = false;
	rails_region_text(r, region->handle, why, sizeof(why));
	if (!*why)
		explain_no_device(r, why, sizeof(why));
	region_registered(r->deps.regions, region->handle, is_usable(r, region), why);
}

/* May free the region. */
static void decide(struct rail_region *region)
{
	if (region->removing || is_pending(region->rails, region))
		return;
	if (region->undecided && region->twin_of)
		publish_twin(region);
	else if (region->undecided)
		want_windows(region);
	if (region->announce)
		announce(region);
}

static void decide_later(struct rail_region *region)
{
	if (region->undecided || region->announce)
		dray_list_move(&region->rails->to_decide, &region->decide_link);
}

/* Each region is taken from the list on its own, because region_registered() may remove others. */
static void decide_done(struct dray_job *j)
{
	struct rails *r = dray_container_of(j, struct rails, decide_job);
	struct rail_region *region;

	r->deciding = false;
	if (r->decide_all)
		dray_list_for_each(&r->regions, it, struct rail_region, link)
			decide_later(it);
	r->decide_all = false;
	while ((region = dray_list_pop(&r->to_decide, struct rail_region, decide_link)))
		decide(region);
}

static void decide_start(struct rails *r)
{
	if (r->deciding)
		return;
	r->deciding = true;
	dray_jobs_finish(r->registrar, &r->decide_job, decide_done);
}

void rail_regions_decide(struct rails *r, const struct registration *g)
{
	if (g)
		dray_list_for_each(&g->parts, p, struct part, link)
			decide_later(p->region);
	else
		r->decide_all = true;
	decide_start(r);
}

void rail_regions_free(struct rails *r)
{
	struct renewal *v;

	while ((v = dray_list_pop(&r->renewals, struct renewal, link)))
		free(v);
	dray_list_for_each(&r->regions, region, struct rail_region, link) {
		dray_list_for_each(&region->sets, s, struct key_set, link)
			free(s);
		free(region->keys);
		free(region);
	}
}
