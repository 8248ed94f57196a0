/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations: ranges of memory, registered with every open device in the background. Regions in the same bytes with the
 * same access share a registration.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/control/rails/internal.h"
#include "lib/backoff.h"
#include "lib/file.h"
#include "lib/log.h"

/* Measured: writes into memory regions of more than 4 GiB reach half of the bandwidth. */
#define SLICE_MAX (3584ull << 20)
#define PAGE 4096ull
/* Of memory with a missing page, 30 s at most. A client writes 3 GiB of a new pool in a second. */
#define ATTEMPTS_MAX 12
#define ATTEMPT_PAUSE_NS (20 * DRAY_NS_PER_MS)
#define ATTEMPT_PAUSE_MAX_NS (10 * DRAY_NS_PER_SEC)

/* Memory that the process has pinned, by its status. */
static uint64_t pinned_kib(void)
{
	static const char *const keys[] = { "\nVmPin:", "\nVmLck:" };
	uint64_t sum = 0;
	char text[8192];

	if (dray_file_read(AT_FDCWD, "/proc/self/status", 0, text, sizeof(text)) < 0)
		return 0;
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(keys); i++) {
		const char *at = strstr(text, keys[i]);

		sum += at ? strtoull(at + strlen(keys[i]), NULL, 10) : 0;
	}
	return sum;
}

/* Why a registration failed, and the next step. */
static void explain(const struct registration *g, const struct device *d, int error, char *buf)
{
	struct rlimit l;

	if (error == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &l) == 0 && l.rlim_cur != RLIM_INFINITY)
		snprintf(buf, REASON_MAX,
			 "%" PRIu64 " KiB, added to %" PRIu64
			 " KiB that are pinned, exceed the memlock limit of %llu KiB: raise it "
			 "(LimitMEMLOCK=infinity) or give CAP_IPC_LOCK",
			 g->length >> 10, pinned_kib(), (unsigned long long)l.rlim_cur >> 10);
	else if (error == -EFAULT && !(g->access & DMSG_ACCESS_WRITE))
		snprintf(
			buf, REASON_MAX,
			"this kernel does not register memory that is mapped for reading only; add "
			"the region with write access");
	else if (error == -EFAULT)
		snprintf(buf, REASON_MAX,
			 "it has pages that were never written; write to all of it");
	else if (g->dmabuf.fd >= 0 &&
		 (error == -EOPNOTSUPP || error == -EINVAL || error == -EPROTONOSUPPORT))
		snprintf(buf, REASON_MAX, "the kernel or the device may lack DMA-BUF support: %s",
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

static unsigned verbs_access(const struct registration *g)
{
	bool local = g->use == REGISTRATION_LOCAL || g->use == REGISTRATION_FOR_ENGINES;
	bool only_we_write = local || g->use == REGISTRATION_FOR_READERS;
	unsigned a = 0;

	if (g->access & DMSG_ACCESS_READ && !local)
		a |= IBV_ACCESS_REMOTE_READ;
	if (g->access & DMSG_ACCESS_WRITE)
		a |= IBV_ACCESS_LOCAL_WRITE | (only_we_write ? 0 : IBV_ACCESS_REMOTE_WRITE);
	if (g->rails->cfg->rdma.relaxed_ordering)
		a |= IBV_ACCESS_RELAXED_ORDERING;
	return a;
}

/* A client writes the pages of a pool after the pool was added, so its registration may come too early. */
static bool may_come_too_early(const struct mrs *m)
{
	return m->error == -EFAULT && m->registration->access & DMSG_ACCESS_WRITE &&
	       m->fails + 1 < ATTEMPTS_MAX;
}

/* What cannot be deregistered stays in m->v. */
static void deregister(struct mrs *m)
{
	const struct verbs *v = m->registration->rails->verbs;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < m->n_made; i++)
		if (v->dereg_mr(m->v[i]) != 0)
			m->v[kept++] = m->v[i];
	m->n_made = kept;
}

static void make_run(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);
	const struct registration *g = m->registration;
	const struct device *d = m->device;
	bool mooncake = g->use == REGISTRATION_FOR_GUESTS || g->use == REGISTRATION_FOR_ENGINES;
	struct ibv_pd *pd = mooncake ? d->guest_pd : d->pd;
	int r = pd ? 0 : -ENODEV;

	for (; m->n_made < m->n && r == 0; m->n_made += r == 0) {
		uint64_t at = m->n_made * m->slice;

		if (atomic_load(&d->hurry))
			r = -ECANCELED;
		else
			r = g->rails->verbs->reg_mr(pd, g->base + at, g->dmabuf.fd,
						    g->dmabuf.offset + at,
						    dray_min(m->slice, g->length - at),
						    g->iova + at, verbs_access(g),
						    &m->v[m->n_made]);
	}
	m->error = r;
	if (r == 0)
		return;
	explain(g, d, r, m->why);
	/* the first parts are of no use without the others, and count against the limit of locked memory */
	if (!may_come_too_early(m))
		deregister(m);
}

static void drop_run(struct dray_job *j)
{
	deregister(dray_container_of(j, struct mrs, job));
}

static void registration_check(struct registration *g)
{
	if (g->refs || !dray_list_empty(&g->mrs))
		return;
	dray_list_del(&g->link);
	dray_list_splice(&g->rails->unheld, &g->waiting);
	free(g);
}

/* Its memory regions are gone. */
static void mrs_free(struct mrs *m)
{
	struct registration *g = m->registration;

	dray_list_del(&m->link);
	free(m);
	registration_check(g);
}

static void drop_done(struct dray_job *j)
{
	struct mrs *m = dray_container_of(j, struct mrs, job);
	struct guest_range *range = m->registration->range;
	struct rails *r = m->registration->rails;
	struct device *d = m->device;

	d->jobs--;
	d->mrs--;
	if (m->n_made) {
		/* the device may still access the memory, which therefore stays lent */
		m->state = MRS_STUCK;
		log_error(AREA,
			  "%" PRIu64 " bytes cannot be deregistered, closing the device, which "
			  "ends all memory regions device=%s",
			  m->registration->length, d->name);
		device_lost(d, "memory could not be deregistered");
	} else {
		mrs_free(m);
	}
	if (range)
		guest_range_check(range);
	rail_regions_check(r);
	device_check(d);
}

static void mrs_drop(struct mrs *m)
{
	struct rails *r = m->registration->rails;

	m->drop = true;
	if (m->state == MRS_MAKING || m->state == MRS_DROPPING || m->state == MRS_STUCK)
		return;
	if (m->state == MRS_READY) {
		r->n_mrs -= m->n;
		r->mr_bytes -= m->registration->length;
	}
	m->state = MRS_DROPPING;
	device_job(m->device, r->registrar, &m->job, drop_run, drop_done);
}

static bool attempt_again(struct mrs *m)
{
	struct rails *r = m->registration->rails;

	if (!may_come_too_early(m))
		return false;
	m->fails++;
	m->retry_ns =
		rails_now(r) + backoff_pause(m->fails, ATTEMPT_PAUSE_NS, ATTEMPT_PAUSE_MAX_NS);
	r->register_again_ns = dray_min(r->register_again_ns, m->retry_ns);
	rails_timer(r, m->retry_ns);
	return true;
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
	} else if (!m->drop && !attempt_again(m)) {
		r->registration_failures++;
		log_limited(DRAY_LOG_WARNING, AREA,
			    "%" PRIu64
			    " bytes are not registered, using the next transport: %s device=%s",
			    g->length, m->why, m->device->name);
	}
	if (m->drop) {
		mrs_drop(m);
		return;
	}
	if (g->use == REGISTRATION_FOR_GUESTS)
		guests_changed(r);
	rail_regions_publish(r, g);
	rail_regions_decide(r, g);
	device_check(m->device);
}

void registrations_retry(struct rails *r, int64_t now)
{
	int64_t next = INT64_MAX;

	if (r->register_again_ns <= now) {
		dray_list_for_each(&r->registrations, g, struct registration, link)
			dray_list_for_each(&g->mrs, m, struct mrs, link) {
				if (!m->retry_ns || m->state != MRS_FAILED ||
				    !device_is_open(m->device))
					continue;
				if (m->retry_ns > now) {
					next = dray_min(next, m->retry_ns);
					continue;
				}
				m->retry_ns = 0;
				m->state = MRS_MAKING;
				device_job(m->device, r->registrar, &m->job, make_run, make_done);
			}
		r->register_again_ns = next;
	}
	if (r->register_again_ns < INT64_MAX)
		rails_timer(r, r->register_again_ns);
}

struct mrs *registration_mrs(const struct registration *g, const struct device *d)
{
	dray_list_for_each(&g->mrs, m, struct mrs, link)
		if (m->device == d && !m->drop)
			return m;
	return NULL;
}

void registration_make(struct registration *g, struct device *d)
{
	uint64_t slice = SLICE_MAX;
	struct mrs *m;
	uint32_t n;

	if (!device_is_open(d) || registration_mrs(g, d))
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
	device_job(d, g->rails->registrar, &m->job, make_run, make_done);
}

void registrations_device_up(struct device *d)
{
	dray_list_for_each(&d->rails->registrations, g, struct registration, link)
		if (g->refs)
			registration_make(g, d);
}

void registrations_device_down(struct device *d)
{
	struct rails *r = d->rails;

	/* once: no set is made any more with keys of a device that is being closed */
	if (d->key_sets && !d->withdrawn) {
		d->withdrawn = true;
		rail_regions_publish(r, NULL);
	}
	/* work requests of a stuck queue pair keep their keys until the device is closed */
	if (d->qps || (d->key_sets && dray_list_empty(&d->stuck)))
		return;
	dray_list_for_each(&r->registrations, g, struct registration, link)
		dray_list_for_each(&g->mrs, m, struct mrs, link)
			if (m->device == d)
				mrs_drop(m);
}

void registrations_device_closed(struct device *d)
{
	struct rails *r = d->rails;

	dray_list_for_each(&r->registrations, g, struct registration, link) {
		g->refs++; /* it stays until the end of the walk over its memory regions */
		dray_list_for_each(&g->mrs, m, struct mrs, link)
			if (m->device == d)
				mrs_free(m);
		g->refs--;
		registration_check(g);
	}
	guest_ranges_check(r);
	rail_regions_check(r);
}

/* like: its fields. NULL: no memory. */
static struct registration *registration_new(struct rails *r, const struct registration *like)
{
	struct registration *g = malloc(sizeof(*g));

	if (!g)
		return NULL;
	*g = *like;
	g->rails = r;
	g->refs = 1;
	dray_list_init(&g->mrs);
	dray_list_init(&g->parts);
	dray_list_init(&g->waiting);
	dray_list_init(&g->link);
	dray_list_add(&r->registrations, &g->link);
	return g;
}

/* The least n with bytes <= 2^n. */
static unsigned level_of(uint64_t bytes)
{
	return bytes > 1 ? 64 - (unsigned)__builtin_clzll(bytes - 1) : 0;
}

/*
 * A registration of level n has a place in steps of 2^n bytes. So one that contains some bytes begins in the same step as these or in the
 * one before, on their level or above.
 */
static struct registration *find_shared(struct rails *r, const uint8_t *base, uint64_t length,
					uint16_t access, enum registration_use use)
{
	uint64_t levels = r->shared_levels >> level_of(length) << level_of(length);

	for (; levels; levels &= levels - 1) {
		struct registration_place at = { .level = (uint32_t)__builtin_ctzll(levels),
						 .access = access,
						 .use = (uint16_t)use };

		for (unsigned before = 0; before < 2; before++) {
			at.index = ((uintptr_t)base >> at.level) - before;
			dray_map_for_each_of(&r->shared, &at, sizeof(at), g, struct registration,
					     by_place)
				if (base >= g->base && base + length <= g->base + g->length)
					return g;
		}
	}
	return NULL;
}

static void share(struct registration *g)
{
	struct rails *r = g->rails;

	g->place = (struct registration_place){ .level = level_of(g->length),
						.access = g->access,
						.use = (uint16_t)g->use };
	g->place.index = (uintptr_t)g->base >> g->place.level;
	r->shared_levels |= 1ull << g->place.level;
	dray_map_add(&r->shared, &g->by_place, &g->place, sizeof(g->place));
}

struct registration *registration_get(struct rails *r, uint8_t *base, uint64_t length,
				      uint16_t access, const struct region_dmabuf *dmabuf,
				      enum registration_use use)
{
	struct registration *g = dmabuf ? NULL : find_shared(r, base, length, access, use);

	if (g) {
		g->refs++;
		return g;
	}
	g = registration_new(r,
			     &(struct registration){
				     .base = base,
				     .length = length,
				     .iova = (uintptr_t)base,
				     .dmabuf = dmabuf ? *dmabuf : (struct region_dmabuf){ -1, 0 },
				     .access = access,
				     .use = use,
			     });
	if (g && !dmabuf)
		share(g);
	return g;
}

struct registration *registration_for_guests(struct guest_range *range, struct rails *r,
					     uint8_t *base, uint64_t length, uint16_t access,
					     uint64_t iova)
{
	return registration_new(r, &(struct registration){ .base = base,
							   .length = length,
							   .iova = iova,
							   .dmabuf = { -1, 0 },
							   .access = access,
							   .use = REGISTRATION_FOR_GUESTS,
							   .range = range });
}

void registration_unref(struct registration *g)
{
	if (--g->refs)
		return;
	dray_map_del(&g->rails->shared, &g->by_place);
	/* in front are those that regions may have to wait for, the last one first */
	dray_list_del(&g->link);
	dray_list_add_front(&g->rails->registrations, &g->link);
	registration_drop(g);
	registration_check(g);
}

bool registration_drop(struct registration *g)
{
	bool any = false;

	dray_list_for_each(&g->mrs, m, struct mrs, link) {
		mrs_drop(m);
		any = true;
	}
	return any;
}

void registrations_free(struct rails *r)
{
	dray_list_for_each(&r->registrations, g, struct registration, link) {
		dray_list_for_each(&g->mrs, m, struct mrs, link) {
			drop_run(&m->job);
			free(m);
		}
		free(g);
	}
}
