/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions: the memory of each region, registered with every open device in the background, and the
 * keys that come of it. Regions that lie in the same bytes with the same access share a registration.
 *
 * Keys reach workers and importers as a set; a set that was replaced lives on until the last work request
 * that uses it has ended. Only then may memory regions that it names go.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/log.h"

/* Writes into memory regions of more than 4 GiB have been seen to lose half of their bandwidth. */
#define SLICE_MAX (3584ull << 20)
#define PAGE 4096ull

/* Of one registration with one device. */
struct mrs {
	struct dray_list link; /* on registration->mrs */
	struct registration *registration;
	struct device *device;
	enum { MRS_MAKING, MRS_READY, MRS_FAILED, MRS_DROPPING } state;
	bool drop; /* as soon as they are made */
	uint32_t n, n_made;
	uint64_t slice;       /* bytes of each but the last */
	char why[REASON_MAX]; /* they failed */
	struct dray_job job;
	struct ibv_mr *v[];
};

/* A piece of memory that regions have. */
struct registration {
	struct dray_list link;
	struct rails *rails;
	uint8_t *base;
	uint64_t length, iova;
	struct region_dmabuf dmabuf; /* fd -1: memory at base; else the region's */
	uint16_t access;
	bool ours; /* workers' staging memory: peers have no access */
	uint32_t refs;
	struct dray_list mrs;
};

struct part {
	struct registration *registration;
	uint64_t offset, length; /* in the region */
	uint64_t skip;           /* of the registration */
};

/* A set of keys that somebody may still use. */
struct key_set {
	struct dray_list link; /* on rail_region->sets */
	struct rail_region *region;
	struct dray_job job; /* its end, told by whoever was last */
	unsigned n_devices;
	struct device *devices[];
};

struct rail_region {
	struct dray_list link;
	struct rails *rails;
	const struct region_view *view;
	dray_handle handle;      /* 0: staging memory or a window, which have views of their own */
	struct region_view *own; /* that one */
	unsigned worker;         /* whose staging memory it is */
	struct window *window;   /* NULL: it is none */
	struct rail_keys *keys;  /* what was published last */
	struct dray_list sets;
	bool removing;
	bool waited_for; /* registered() is owed */
	bool undecided;  /* whether its importers need windows */
	bool renew;      /* registered anew once nobody uses the keys that are out */
	void (*done)(void *arg);
	void *arg;
	uint32_t n;
	struct part parts[];
};

static struct rail_region *region_get(struct rails *r, dray_handle handle)
{
	dray_list_for_each(&r->regions, it, struct rail_region, link)
		if (it->handle == handle)
			return it;
	return NULL;
}

/* --- why it fails -------------------------------------------------------------------------------------- */

static uint64_t status_kib(const char *key)
{
	FILE *f = fopen("/proc/self/status", "re");
	size_t n = strlen(key);
	uint64_t v = 0;
	char line[128];

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, key, n) && line[n] == ':')
			v = strtoull(line + n + 1, NULL, 10);
	fclose(f);
	return v;
}

static void explain(const struct registration *g, const struct device *d, int error, char *buf)
{
	struct rlimit l;

	if (error == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &l) == 0 && l.rlim_cur != RLIM_INFINITY)
		snprintf(buf, REASON_MAX,
			 "%" PRIu64 " KiB asked for with %" PRIu64
			 " KiB pinned and a limit of %llu KiB: raise the memlock limit "
			 "(LimitMEMLOCK=infinity) or give CAP_IPC_LOCK",
			 g->length >> 10, status_kib("VmPin") + status_kib("VmLck"),
			 (unsigned long long)l.rlim_cur >> 10);
	else if (error == -EFAULT && !(g->access & DMSG_ACCESS_WRITE))
		snprintf(
			buf, REASON_MAX,
			"it is mapped for reading only, which this kernel does not register; add the "
			"region with write access");
	else if (g->dmabuf.fd >= 0 &&
		 (error == -EOPNOTSUPP || error == -EINVAL || error == -EPROTONOSUPPORT))
		snprintf(buf, REASON_MAX, "kernel or device lack DMA-BUF: %s",
			 dray_errno_text(error));
	else if (error == -EPERM || error == -EACCES)
		snprintf(buf, REASON_MAX,
			 "permission is denied by the kernel or a device cgroup: %s",
			 dray_errno_text(error));
	else if (error == -ENOMEM || error == -ENOSPC)
		snprintf(buf, REASON_MAX,
			 "the device has no room (%d memory regions of at most %" PRIu64
			 " bytes): %s",
			 d->attr.max_mr, (uint64_t)d->attr.max_mr_size, dray_errno_text(error));
	else
		snprintf(buf, REASON_MAX, "%s", dray_errno_text(error));
}

/* --- with one device ------------------------------------------------------------------------------------ */

static void publish(struct rail_region *region);
static void region_check(struct rail_region *region);

static unsigned verbs_access(const struct registration *g)
{
	unsigned a = 0;

	if (g->access & DMSG_ACCESS_READ && !g->ours)
		a |= IBV_ACCESS_REMOTE_READ;
	if (g->access & DMSG_ACCESS_WRITE)
		a |= IBV_ACCESS_LOCAL_WRITE | (g->ours ? 0 : IBV_ACCESS_REMOTE_WRITE);
	if (g->rails->cfg->rdma.relaxed_ordering)
		a |= IBV_ACCESS_RELAXED_ORDERING;
	return a;
}

static uint64_t slice_bytes(const struct mrs *m, uint32_t i)
{
	return dray_min(m->slice, m->registration->length - i * m->slice);
}

static void make_run(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);
	const struct registration *g = m->registration;
	const struct verbs *v = g->rails->verbs;
	int r = 0;

	for (; m->n_made < m->n && r == 0; m->n_made += r == 0) {
		uint64_t at = m->n_made * m->slice;

		if (atomic_load(&m->device->hurry))
			r = -ECANCELED;
		else
			r = v->reg_mr(m->device->pd, g->base + at, g->dmabuf.fd,
				      g->dmabuf.offset + at, slice_bytes(m, m->n_made),
				      g->iova + at, verbs_access(g), &m->v[m->n_made]);
	}
	if (r < 0)
		explain(g, m->device, r, m->why);
}

static void drop_run(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);

	/* what cannot be deregistered goes with the context */
	while (m->n_made)
		m->registration->rails->verbs->dereg_mr(m->v[--m->n_made]);
}

static void registration_free(struct registration *g)
{
	dray_list_del(&g->link);
	free(g);
}

static void registration_check(struct registration *g)
{
	if (!g->refs && dray_list_empty(&g->mrs))
		registration_free(g);
}

/* Regions that wait for it to be gone, or that are to be registered anew. */
static void check_regions(struct rails *r)
{
	dray_list_for_each(&r->regions, region, struct rail_region, link)
		region_check(region);
}

static void drop_done(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);
	struct registration *g = m->registration;
	struct rails *r = g->rails;
	struct device *d = m->device;

	dray_list_del(&m->link);
	free(m);
	d->jobs--;
	d->mrs--;
	registration_check(g);
	check_regions(r);
	device_check(d);
}

static void mrs_drop(struct mrs *m)
{
	struct rails *r = m->registration->rails;

	m->drop = true;
	if (m->state == MRS_MAKING || m->state == MRS_DROPPING)
		return;
	if (m->state == MRS_READY) {
		r->n_mrs -= m->n;
		r->mr_bytes -= m->registration->length;
	}
	m->state = MRS_DROPPING;
	m->device->jobs++;
	dray_jobs_add(r->registrar, &m->job, drop_run, drop_done);
}

static void make_done(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);
	struct registration *g = m->registration;
	struct rails *r = g->rails;

	m->device->jobs--;
	m->state = m->n_made == m->n ? MRS_READY : MRS_FAILED;
	if (m->state == MRS_READY) {
		r->n_mrs += m->n;
		r->mr_bytes += g->length;
	} else if (!m->drop) {
		r->registration_failures++;
		log_limited(DRAY_LOG_WARNING, AREA,
			    "%" PRIu64
			    " bytes are not registered, transfers go by the next transport: %s "
			    "device=%s",
			    g->length, m->why, m->device->name);
	}
	if (m->drop) {
		mrs_drop(m);
		return;
	}
	dray_list_for_each(&r->regions, region, struct rail_region, link)
		for (uint32_t i = 0; i < region->n; i++)
			if (region->parts[i].registration == g) {
				publish(region);
				break;
			}
	registrations_settle(r);
	device_check(m->device);
}

static struct mrs *mrs_of(const struct registration *g, const struct device *d)
{
	dray_list_for_each(&g->mrs, m, struct mrs, link)
		if (m->device == d && !m->drop)
			return m;
	return NULL;
}

static void mrs_make(struct registration *g, struct device *d)
{
	uint64_t slice = SLICE_MAX;
	struct mrs *m;
	uint32_t n;

	if (!device_is_open(d) || mrs_of(g, d))
		return;
	if (d->attr.max_mr_size)
		slice = dray_min(slice, d->attr.max_mr_size / PAGE * PAGE);
	n = (uint32_t)((g->length + slice - 1) / slice);
	m = calloc(1, sizeof(*m) + n * sizeof(struct ibv_mr *));
	if (!m)
		return;
	m->registration = g;
	m->device = d;
	m->n = n;
	m->slice = slice;
	dray_list_add(&g->mrs, &m->link);
	d->mrs++;
	d->jobs++;
	dray_jobs_add(g->rails->registrar, &m->job, make_run, make_done);
}

/* --- keys ----------------------------------------------------------------------------------------------- */

static bool uses(const struct rail_region *region, const struct device *d)
{
	for (uint32_t i = 0; i < region->n; i++) {
		const struct mrs *m = mrs_of(region->parts[i].registration, d);

		if (!m || m->state != MRS_READY)
			return false;
	}
	return true;
}

static void set_done(struct dray_job *j)
{
	struct key_set *s = dray_container_of(j, struct key_set, job);
	struct rail_region *region = s->region;

	dray_list_del(&s->link);
	for (unsigned i = 0; i < s->n_devices; i++)
		s->devices[i]->key_sets--;
	for (unsigned i = 0; i < s->n_devices; i++) {
		struct device *d = s->devices[i];

		if (d->closing && !d->key_sets)
			device_check(d);
	}
	free(s);
	region_check(region);
}

/* Any thread. */
static void set_gone(void *arg)
{
	struct key_set *s = arg;

	dray_jobs_finish(s->region->rails->registrar, &s->job, set_done);
}

static uint32_t rail_pieces(const struct rail_region *region, const struct device *d)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < region->n; i++) {
		const struct part *p = &region->parts[i];
		const struct mrs *m = mrs_of(p->registration, d);

		if (m)
			n += (uint32_t)((p->skip + p->length - 1) / m->slice - p->skip / m->slice +
					1);
	}
	return n;
}

static void add_pieces(struct rail_keys *k, uint32_t *at, const struct rail_region *region,
		       const struct rail *rail)
{
	for (uint32_t i = 0; i < region->n; i++) {
		const struct part *p = &region->parts[i];
		const struct registration *g = p->registration;
		const struct mrs *m = mrs_of(g, rail->device);

		for (uint64_t done = 0; m && done < p->length;) {
			uint64_t here = p->skip + done;
			uint32_t slice = (uint32_t)(here / m->slice);
			uint64_t n = dray_min(p->length - done, (slice + 1) * m->slice - here);

			k->v[(*at)++] = (struct rail_key){ .rail = rail->number,
							   .key = m->v[slice]->lkey,
							   .base = g->iova + here,
							   .offset = p->offset + done,
							   .length = n,
							   .rkey = m->v[slice]->rkey };
			done += n;
		}
	}
}

static bool names(const struct rail *rail, const struct rail_region *region)
{
	return rail->cqs_told && device_is_open(rail->device) && uses(region, rail->device);
}

static struct rail_keys *keys_new(struct rail_region *region)
{
	struct rails *r = region->rails;
	struct key_set *s = calloc(1, sizeof(*s) + r->n * sizeof(struct device *));
	struct rail_keys *k;
	uint32_t n = 0, at = 0;

	dray_assert(s);
	for (unsigned i = 0; i < r->n; i++)
		if (names(r->v[i], region))
			n += rail_pieces(region, r->v[i]->device);
	k = n ? rail_keys_new(n) : NULL;
	if (!k) {
		free(s);
		return NULL;
	}
	for (unsigned i = 0; i < r->n; i++) {
		struct rail *rail = r->v[i];

		if (!names(rail, region))
			continue;
		add_pieces(k, &at, region, rail);
		rail->device->key_sets++;
		s->devices[s->n_devices++] = rail->device;
	}
	s->region = region;
	dray_list_add(&region->sets, &s->link);
	k->gone = set_gone;
	k->arg = s;
	rail_keys_seal(k, region->view->o.length, true);
	return k;
}

static void tell_importer(void *arg, dray_handle peer, dray_handle grant, uint64_t offset,
			  uint64_t length)
{
	struct rail_region *region = arg;
	struct rails *r = region->rails;
	uint8_t *buf = malloc((size_t)RAILS_KEYS_MAX * PMSG_RAIL_SIZE);
	struct dray_vec v = { .p = buf };

	if (!buf)
		return;
	v.n = registration_wire(region->keys, offset, length, buf, RAILS_KEYS_MAX);
	peers_send_keys(r->deps.peers, peer, grant, &v);
	free(buf);
}

static void tell_worker(const struct rail_region *region)
{
	struct rail_keys *k = region->keys ? rail_keys_ref(region->keys) : NULL;

	worker_post(region->rails->deps.pool->workers[region->worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_RDMA,
						    .type = RDMA_STAGING,
						    .arg = k } });
}

static void want_window(void *arg, dray_handle peer, dray_handle grant, uint64_t offset,
			uint64_t length)
{
	(void)grant;
	(void)offset;
	(void)length;
	window_want(arg, peer);
}

static bool is_pending(struct rails *r, const struct rail_region *region);

/* No device knows it: whoever was granted of it needs a window, unless one may yet take it. */
static void want_windows(struct rail_region *region)
{
	struct rails *r = region->rails;

	region->undecided = is_pending(r, region);
	if (!region->undecided)
		grants_of_region(r->deps.regions, region->handle, want_window, r);
}

/* Workers and importers learn of the keys there are now. */
static void publish(struct rail_region *region)
{
	struct rails *r = region->rails;
	struct rail_keys *former = region->keys;

	region->keys = region->removing || region->renew ? NULL : keys_new(region);
	region->undecided = false;
	if (!region->keys && !region->removing && region->view->memory == REGION_GPU)
		want_windows(region);
	if (!region->keys && !former)
		return;
	if (region->window)
		window_published(region->window, region->keys);
	else if (region->own)
		tell_worker(region);
	else
		pool_keys(r->deps.pool, OBJECT_REGION, region->handle, region->keys);
	rail_keys_unref(former);
	if (!region->removing && !region->own)
		grants_of_region(r->deps.regions, region->handle, tell_importer, region);
}

void registrations_publish(struct rails *r)
{
	dray_list_for_each(&r->regions, region, struct rail_region, link)
		publish(region);
}

void registrations_device_up(struct device *d)
{
	dray_list_for_each(&d->rails->registrations, g, struct registration, link)
		if (g->refs)
			mrs_make(g, d);
}

void registrations_device_down(struct device *d)
{
	struct rails *r = d->rails;

	if (d->key_sets)
		registrations_publish(r);
	if (d->key_sets || d->qps)
		return;
	dray_list_for_each(&r->registrations, g, struct registration, link)
		dray_list_for_each(&g->mrs, m, struct mrs, link)
			if (m->device == d)
				mrs_drop(m);
}

unsigned registration_wire(const struct rail_keys *k, uint64_t offset, uint64_t length,
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
				       .offset = from - offset,
				       .length = to - from };

		/* a rail whose pieces do not all fit is left out */
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

unsigned rails_grant_keys(struct rails *r, dray_handle handle, uint64_t offset, uint64_t length,
			  uint8_t *buf, unsigned max)
{
	struct rail_region *region = region_get(r, handle);

	return registration_wire(region ? region->keys : NULL, offset, length, buf, max);
}

void rails_grant_staged(struct rails *r, dray_handle peer, dray_handle handle)
{
	struct rail_region *region = region_get(r, handle);

	if (region && is_pending(r, region))
		region->undecided = true;
	else
		window_want(r, peer);
}

struct rail_keys *registration_read(const struct dray_vec *rails, uint64_t length)
{
	struct rail_keys *k = rails->n ? rail_keys_new(rails->n) : NULL;

	for (uint32_t i = 0; k && i < rails->n; i++) {
		struct pmsg_rail w;

		pmsg_rail_get(rails->p + (size_t)i * PMSG_RAIL_SIZE, &w);
		k->v[i] = (struct rail_key){ w.rail, w.rkey, w.base, w.offset, w.length, 0 };
	}
	if (k)
		rail_keys_seal(k, length, false);
	return k;
}

void rails_peer_keys(struct rails *r, dray_handle peer, uint64_t grant, uint64_t length,
		     const struct dray_vec *rails)
{
	r->deps.remote_keys(r->deps.arg, peer, grant, registration_read(rails, length));
}

/* --- regions --------------------------------------------------------------------------------------------- */

static struct registration *registration_get(struct rails *r, uint8_t *base, uint64_t length,
					     uint16_t access, const struct region_dmabuf *dmabuf,
					     bool ours)
{
	struct registration *g;

	dray_list_for_each(&r->registrations, it, struct registration, link)
		if (it->refs && !dmabuf && it->dmabuf.fd < 0 && it->access == access &&
		    it->ours == ours && base >= it->base &&
		    base + length <= it->base + it->length) {
			it->refs++;
			return it;
		}
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->rails = r;
	g->base = base;
	g->iova = (uintptr_t)base;
	g->length = length;
	g->access = access;
	g->ours = ours;
	g->dmabuf = dmabuf ? *dmabuf : (struct region_dmabuf){ -1, 0 };
	g->refs = 1;
	dray_list_init(&g->mrs);
	dray_list_add(&r->registrations, &g->link);
	return g;
}

static void parts_make(struct rail_region *region)
{
	struct rails *r = region->rails;

	for (uint32_t i = 0; i < region->n; i++)
		dray_list_for_each(&r->devices, d, struct device, link)
			mrs_make(region->parts[i].registration, d);
}

static void parts_release(struct rail_region *region)
{
	for (uint32_t i = 0; i < region->n; i++) {
		struct registration *g = region->parts[i].registration;

		if (--g->refs)
			continue;
		dray_list_for_each(&g->mrs, m, struct mrs, link)
			mrs_drop(m);
		registration_check(g);
	}
	region->n = 0;
}

/* Those of its registrations that it alone has are dropped, to be made anew. */
static bool renewing(struct rail_region *region)
{
	bool busy = false;

	for (uint32_t i = 0; i < region->n; i++) {
		struct registration *g = region->parts[i].registration;

		if (g->refs > 1)
			continue;
		dray_list_for_each(&g->mrs, m, struct mrs, link) {
			mrs_drop(m);
			busy = true;
		}
	}
	return busy;
}

static void region_free(struct rail_region *region)
{
	dray_list_del(&region->link);
	free(region->own);
	free(region);
}

static bool leaving(const struct rails *r, const struct region_view *view)
{
	/* memory that a device still has, also for a registration that others have let go of */
	dray_list_for_each(&r->registrations, g, struct registration, link) {
		if (g->refs)
			continue;
		for (uint32_t i = 0; i < view->n_extents; i++) {
			const struct extent_view *e = &view->extents[i];

			if (e->base < g->base + g->length && g->base < e->base + e->length)
				return true;
		}
	}
	return false;
}

static void region_check(struct rail_region *region)
{
	void (*done)(void *arg) = region->done;
	void *arg = region->arg;

	if (!dray_list_empty(&region->sets))
		return;
	if (region->renew && !region->removing) {
		if (renewing(region))
			return;
		region->renew = false;
		parts_make(region);
		return;
	}
	if (!region->removing)
		return;
	parts_release(region);
	if (leaving(region->rails, region->view))
		return;
	region_free(region);
	done(arg);
}

static bool registrable(const struct region_view *view, const struct region_dmabuf *dmabufs)
{
	for (uint32_t i = 0; view->memory != REGION_HOST && i < view->n_extents; i++)
		if (!dmabufs || dmabufs[i].fd < 0)
			return false;
	return true;
}

/* own: the view, where it is memory of ours. NULL: no memory. */
static struct rail_region *add(struct rails *r, const struct region_view *view,
			       const struct region_dmabuf *dmabufs, struct region_view *own,
			       unsigned worker, struct window *window)
{
	struct rail_region *region =
		calloc(1, sizeof(*region) + view->n_extents * sizeof(region->parts[0]));

	if (!region) {
		free(own);
		return NULL;
	}
	region->own = own;
	region->worker = worker;
	region->window = window;
	region->rails = r;
	region->view = view;
	region->handle = view->o.handle;
	dray_list_init(&region->sets);
	for (uint32_t i = 0; i < view->n_extents; i++) {
		const struct extent_view *e = &view->extents[i];
		struct registration *g = registration_get(r, e->base, e->length, view->o.access,
							  dmabufs ? &dmabufs[i] : NULL,
							  own && !window);

		if (!g) {
			parts_release(region);
			free(own);
			free(region);
			return NULL;
		}
		region->parts[region->n++] = (struct part){
			.registration = g,
			.offset = e->start,
			.length = e->length,
			.skip = (uint64_t)(e->base - g->base),
		};
	}
	region->waited_for = view->memory == REGION_RDMA;
	dray_list_add(&r->regions, &region->link);
	parts_make(region);
	publish(region);
	if (region->waited_for)
		registrations_settle(r);
	return region;
}

void rails_region_add(struct rails *r, const struct region_view *view,
		      const struct region_dmabuf *dmabufs)
{
	if (r->cfg->rdma.enable && registrable(view, dmabufs))
		add(r, view, dmabufs, NULL, 0, NULL);
}

static struct rail_region *add_own(struct rails *r, void *base, uint64_t bytes, unsigned worker,
				   struct window *window)
{
	struct region_view *view = calloc(1, sizeof(*view) + sizeof(view->extents[0]));

	if (!view)
		return NULL;
	view->o = (struct object_view){ .kind = OBJECT_REGION,
					.length = bytes,
					.access = DMSG_ACCESS_ALL };
	view->memory = REGION_HOST;
	view->n_extents = 1;
	view->extents[0] = (struct extent_view){ 0, bytes, base, -1 };
	return add(r, view, NULL, view, worker, window);
}

void rails_staging_add(struct rails *r, unsigned worker, void *base, uint64_t bytes)
{
	if (r->cfg->rdma.enable)
		add_own(r, base, bytes, worker, NULL);
}

struct rail_region *registration_window(struct window *w, struct rails *r, void *base,
					uint64_t bytes)
{
	return add_own(r, base, bytes, 0, w);
}

void registration_remove(struct rail_region *region, void (*done)(void *arg), void *arg)
{
	region->removing = true;
	region->done = done;
	region->arg = arg;
	publish(region);
	region_check(region);
}

void rails_region_remove(struct rails *r, dray_handle handle, void (*done)(void *arg), void *arg)
{
	struct rail_region *region = region_get(r, handle);

	if (!region) {
		done(arg);
		return;
	}
	registration_remove(region, done, arg);
}

void rails_region_revoked(struct rails *r, dray_handle handle)
{
	struct rail_region *region = region_get(r, handle);

	if (!region || region->removing || !region->keys)
		return;
	region->renew = true;
	publish(region);
	region_check(region);
}

const char *rails_region_text(struct rails *r, dray_handle handle, char *buf, size_t size)
{
	struct rail_region *region = region_get(r, handle);
	size_t at = 0;

	*buf = '\0';
	dray_list_for_each(&r->devices, d, struct device, link) {
		const char *state = "registered";

		for (uint32_t i = 0; region && i < region->n; i++) {
			const struct mrs *m = mrs_of(region->parts[i].registration, d);

			if (!m || m->state == MRS_MAKING)
				state = "pending";
			else if (m->state == MRS_FAILED)
				state = m->why;
		}
		if (!region || !device_is_open(d) || at >= size)
			continue;
		at += (size_t)snprintf(buf + at, size - at, "%s%s: %s", at ? "; " : "", d->name,
				       state);
	}
	return buf;
}

/* --- regions that somebody waits for -------------------------------------------------------------------- */

/* No device is there to wait for: why not. */
static const char *no_device(const struct rails *r, char *buf, size_t size)
{
	const struct rail *rail = r->n ? r->v[0] : NULL;

	if (rail)
		snprintf(buf, size, "none is in use; %s port %u: %s", rail->device_name, rail->port,
			 rail->reason);
	else
		snprintf(buf, size, "this agent has none");
	return buf;
}

static bool is_pending(struct rails *r, const struct rail_region *region)
{
	if (!r->scan)
		return true;
	for (unsigned i = 0; i < r->n; i++)
		if (r->v[i]->state == RAIL_OPENING)
			return true;
	dray_list_for_each(&r->devices, d, struct device, link)
		for (uint32_t i = 0; device_is_open(d) && i < region->n; i++) {
			const struct mrs *m = mrs_of(region->parts[i].registration, d);

			if (m && m->state == MRS_MAKING)
				return true;
		}
	return false;
}

static bool is_usable(struct rails *r, const struct rail_region *region)
{
	dray_list_for_each(&r->devices, d, struct device, link)
		if (device_is_open(d) && uses(region, d))
			return true;
	return false;
}

static struct rail_region *next_settled(struct rails *r)
{
	dray_list_for_each(&r->regions, region, struct rail_region, link)
		if (region->waited_for && !region->removing && !is_pending(r, region))
			return region;
	return NULL;
}

/* Whoever is told may remove regions meanwhile. */
static void settle_done(struct dray_job *j)
{
	struct rails *r = dray_container_of(j, struct rails, settle_job);
	struct rail_region *region;
	char why[REASON_MAX + ND_DEVICE_NAME_MAX + 64];

	r->settling = false;
	dray_list_for_each(&r->regions, it, struct rail_region, link)
		if (it->undecided && !it->removing)
			want_windows(it);
	while ((region = next_settled(r))) {
		region->waited_for = false;
		rails_region_text(r, region->handle, why, sizeof(why));
		if (!*why)
			no_device(r, why, sizeof(why));
		r->deps.registered(r->deps.arg, region->handle, is_usable(r, region), why);
	}
}

void registrations_settle(struct rails *r)
{
	if (r->settling)
		return;
	r->settling = true;
	dray_jobs_finish(r->registrar, &r->settle_job, settle_done);
}

void registrations_free(struct rails *r)
{
	dray_list_for_each(&r->regions, region, struct rail_region, link) {
		dray_list_for_each(&region->sets, s, struct key_set, link)
			free(s);
		free(region->keys);
		free(region->own);
		free(region);
	}
	dray_list_for_each(&r->registrations, g, struct registration, link) {
		dray_list_for_each(&g->mrs, m, struct mrs, link) {
			drop_run(&m->job);
			free(m);
		}
		registration_free(g);
	}
}
