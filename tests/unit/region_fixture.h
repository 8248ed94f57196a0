/* SPDX-License-Identifier: Apache-2.0 */
/* Regions over a fake pool, with memfds in various states and upcalls that record their calls. */
#pragma once

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/control/region/region.h"
#include "lib/memfd.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/fake_pool.h"
#include "tests/unit/no_devices.h"

#define PAGE 4096ull
#define SESSION 0x100000001ull
#define GROUP 0x100000002ull
#define PEER 0x100000003ull
#define EXTENTS_MAX 64

struct fixture {
	/* set to the fixture itself, for the upcalls */
	struct peers *peers;
	struct sessions *sessions;
	struct rails *rails;
	struct dray_config cfg;
	struct worker_pool pool;
	sd_event *event;
	struct owners *owners;
	struct owner *uid_owner;
	struct regions *regions;
	struct region_owner owner;
	uint32_t tokens;
	unsigned fences, revoked_locals;
	dray_handle fenced[16], revoked_local[16];
	bool last_urgent;
	bool adding; /* the answer to region_add() is still to come */
	int fds;     /* descriptors open at the start */
};

static const uint8_t our_id[16] = { 1, 2, 3 };
static const uint8_t peer_id[16] = { 9, 8, 7 };

static void up_fence(struct peers *peers, dray_handle peer, dray_handle grant, uint32_t code)
{
	struct fixture *f = (struct fixture *)peers;

	assert_int_equal(code, DRAY_E_REVOKED);
	f->fenced[f->fences++] = grant;
}

static void up_revoke_local(struct sessions *sessions, dray_handle remote, uint32_t code,
			    bool urgent)
{
	struct fixture *f = (struct fixture *)sessions;

	assert_int_equal(code, DRAY_E_REVOKED);
	f->last_urgent = urgent;
	f->revoked_local[f->revoked_locals++ % DRAY_ARRAY_SIZE(f->revoked_local)] = remote;
}

static const struct regions_upcalls fixture_up = { .fence = up_fence,
						   .revoke_local = up_revoke_local,
						   NO_DEVICES };

static int fixture_setup_with(void **state, const struct regions_upcalls *up)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct regions_deps deps;

	assert_non_null(f);
	f->cfg.limits.regions = 1000;
	f->cfg.limits.bytes_per_session = 1ll << 40;
	f->cfg.limits.pool_bytes = f->cfg.limits.pool_bytes_per_owner = 1 << 20;
	f->cfg.limits.tokens = f->cfg.limits.leases = f->cfg.limits.lease_ranges = 1 << 20;
	f->cfg.limits.mappings = 1000;
	f->cfg.limits.mapped_bytes = 1ll << 46;
	f->cfg.limits.tokens_per_session = 8;
	f->cfg.limits.grants_per_peer = 8; /* 4 for one owner */
	f->fds = cm_fds_count();
	f->cfg.limits.fds_per_owner = 1000;
	assert_true(sd_event_new(&f->event) >= 0);
	f->cfg.data.tenant = (char[]){ "default" };
	assert_int_equal(owners_new(&f->owners, f->event, &f->cfg), 0);
	f->uid_owner = owner_get(f->owners, "test", 7);
	f->owner = (struct region_owner){ SESSION, GROUP, &f->tokens, NULL, f->uid_owner };
	deps = (struct regions_deps){ .cfg = &f->cfg,
				      .pool = &f->pool,
				      .agent_id = our_id,
				      .incarnation = 5,
				      .up = up,
				      .peers = &f->peers,
				      .sessions = &f->sessions,
				      .rails = &f->rails };
	f->peers = (struct peers *)f;
	f->sessions = (struct sessions *)f;
	assert_int_equal(regions_new(&f->regions, &deps), 0);
	*state = f;
	return 0;
}

static inline int fixture_setup(void **state)
{
	return fixture_setup_with(state, &fixture_up);
}

/* Ends everything that the test left and checks that nothing remains. */
static int fixture_teardown(void **state)
{
	struct fixture *f = *state;
	uint64_t regions, bytes, tokens;
	int fds = f->fds;

	fake_answer_all();
	regions_totals(f->regions, &regions, &bytes, &tokens);
	regions_free(f->regions);
	owner_unref(f->uid_owner);
	owners_free(f->owners);
	sd_event_unref(f->event);
	/* before the check, so that a failure is not followed by a report of a leak of the test's own */
	free(f);
	/*
	 * the closer has ended, so its descriptors are closed; the one for userfaultfd stays open
	 */
	if (!regions)
		assert_in_range(cm_fds_count(), fds, fds + 1);
	return 0;
}

enum memfd_flaw { WHOLE = 0, UNSEALED = 1, EMPTY = 2, NO_WRITE = 4, FUTURE_NO_WRITE = 8 };

static inline int make_memfd(uint64_t bytes, unsigned flaws)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int seals = flaws & UNSEALED ? 0 : F_SEAL_SHRINK;
	uint8_t *p;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (!(flaws & EMPTY) && bytes) {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(p, MAP_FAILED);
		memset(p, 0x5a, bytes);
		munmap(p, bytes);
	}
	if (flaws & NO_WRITE)
		seals |= F_SEAL_WRITE;
	if (flaws & FUTURE_NO_WRITE)
		seals |= F_SEAL_FUTURE_WRITE;
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static inline void punch(int fd, uint64_t offset, uint64_t bytes)
{
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
				   (off_t)bytes),
			 0);
}

struct adding {
	struct dmsg_extent e[EXTENTS_MAX];
	uint32_t n;
	uint16_t access, flags;
	const int *fds;
	unsigned n_fds;
};

static struct dray_err last_err;

static inline void add_ended(void *arg, const struct dray_err *err)
{
	struct fixture *f = arg;

	f->adding = false;
	if (err)
		last_err = *err;
}

/* Returns 0 or the error code. */
static inline int add(struct fixture *f, const struct adding *a, dray_handle *ret)
{
	uint8_t wire[EXTENTS_MAX * DMSG_EXTENT_SIZE];
	struct dmsg_region_add m = { .access = a->access,
				     .flags = a->flags,
				     .name = { "test", 4 },
				     .extents = { wire, a->n } };
	int fds[EXTENTS_MAX];
	struct region_spec spec = { .owner = &f->owner,
				    .m = &m,
				    .fds = fds,
				    .n_fds = a->n_fds,
				    .added = add_ended,
				    .arg = f };
	struct region_added added;
	int r;

	for (uint32_t i = 0; i < a->n; i++)
		dmsg_extent_put(wire + i * DMSG_EXTENT_SIZE, &a->e[i]);
	last_err = DRAY_ERR_NULL;
	*ret = 0;
	for (unsigned i = 0; i < a->n_fds; i++)
		fds[i] = fcntl(a->fds[i], F_DUPFD_CLOEXEC, 3);
	owner_count_fds(f->uid_owner, a->n_fds);
	f->adding = true;
	r = region_add(f->regions, &spec, &added, &last_err);
	owner_close_fds(f->uid_owner, fds, a->n_fds);
	if (r < 0) {
		assert_int_not_equal(last_err.code, 0);
	} else {
		*ret = added.region;
		while (added.pending && f->adding)
			assert_true(sd_event_run(f->event, 1000000) >= 0);
	}
	return last_err.code;
}

/* Adds a region with one extent of one memfd. */
static inline int add_one(struct fixture *f, int fd, uint64_t offset, uint64_t length,
			  uint16_t access, dray_handle *ret)
{
	return add(f,
		   &(struct adding){
			   .e = { { .kind = DMSG_KIND_MEMFD, .offset = offset, .length = length } },
			   .n = 1,
			   .access = access,
			   .fds = &fd,
			   .n_fds = 1 },
		   ret);
}

static inline const struct region_view *last_region(void)
{
	return (const struct region_view *)fake_last[OBJECT_REGION];
}

/* Adds a plain region of n pages, for tests of other properties than its memory. */
static inline dray_handle add_plain(struct fixture *f, uint64_t pages)
{
	int fd = make_memfd(pages * PAGE, WHOLE);
	dray_handle h;

	assert_int_equal(add_one(f, fd, 0, pages * PAGE, DMSG_ACCESS_ALL, &h), 0);
	close(fd);
	return h;
}

static inline void count_done(void *arg)
{
	(*(unsigned *)arg)++;
}
