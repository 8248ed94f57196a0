/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of regions that is pinned for GPUs, on a simulated plug-in: pins that regions share, and when a region's memory is free. */
#include <poll.h>
#include <stdlib.h>

#include "agent/control/gpu/internal.h"
#include "tests/unit/cm.h"

#define PAGE 4096u

static struct {
	struct dray_config cfg;
	struct gpus g;
	unsigned pinned, told, done;
	bool copying; /* a lost device may have copies in flight */
} s;

bool gpu_copies_ended(const struct gpus *g, const struct gpu_device *of)
{
	return !s.copying;
}

void gpus_tell(struct gpus *g, unsigned worker, enum gpu_command type, uint64_t id, void *arg)
{
	s.told += type == GPU_PINNED;
}

static int pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *err)
{
	s.pinned++;
	return 0;
}

static void unpin(struct gpu_plugin *p, void *base)
{
	s.pinned--;
}

static const struct gpu_plugin_ops ops = { .pin = pin, .unpin = unpin };

static int setup(void **state)
{
	memset(&s, 0, sizeof(s));
	s.cfg.gpu.enable = s.cfg.gpu.pin_host = true;
	s.g.cfg = &s.cfg;
	s.g.ops = &ops;
	s.g.n = s.g.n_workers = 1;
	s.g.devices[0].state = DEVICE_READY;
	dray_list_init(&s.g.pins);
	dray_list_init(&s.g.host_regions);
	assert_int_equal(dray_jobs_new(&s.g.pinner, "pinner", 0, NULL), 0);
	pins_begin(&s.g);
	return 0;
}

static int teardown(void **state)
{
	assert_true(dray_jobs_free(s.g.pinner));
	assert_int_equal(s.pinned, 0);
	assert_true(dray_list_empty(&s.g.pins));
	assert_true(dray_list_empty(&s.g.host_regions));
	return 0;
}

/* One extent of n pages. */
static struct region_view *add(uint64_t page, uint64_t n)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(v->extents[0]));

	v->o.handle = page + 1;
	v->o.access = DMSG_ACCESS_ALL;
	v->o.length = n * PAGE;
	v->n_extents = 1;
	v->extents[0] =
		(struct extent_view){ .length = n * PAGE,
				      .base = (uint8_t *)(uintptr_t)((1024 + page) * PAGE) };
	gpus_region_added(&s.g, v);
	return v;
}

static void removed(void *arg)
{
	s.done++;
	free(arg);
}

static void end(struct region_view *v)
{
	gpus_region_removed(&s.g, v->o.handle, removed, v);
}

#define UNTIL(condition)                                                                         \
	while (!(condition)) {                                                                   \
		poll(&(struct pollfd){ .fd = s.g.pinner->done_fd, .events = POLLIN }, 1, 10000); \
		dray_jobs_deliver(s.g.pinner);                                                   \
	}

/* The memory of a region is free when no page of it is pinned any more. */
static void test_shared(void **state)
{
	struct region_view *a = add(0, 8), *b = add(0, 2), *c;

	UNTIL(s.told == 2);
	assert_int_equal(s.pinned, 1);
	/* the other one has these pages, too */
	end(a);
	assert_int_equal(s.done, 1);
	end(b);
	assert_int_equal(s.done, 1);
	/* not pinned, because its pages are being unpinned, which it waits for */
	c = add(1, 2);
	end(c);
	assert_int_equal(s.done, 1);
	UNTIL(s.done == 3);
	assert_int_equal(s.pinned, 0);
}

/* Regions that end together wait for their own pins, or for a lost device. */
static void test_many(void **state)
{
	enum { N = 64 };
	struct region_view *v[N];

	for (unsigned round = 0; round < 2; round++) {
		s.told = s.done = 0;
		for (unsigned i = 0; i < N; i++)
			v[i] = add(4ull * i, 4);
		UNTIL(s.told == N);
		assert_int_equal(s.pinned, N);
		s.copying = round;
		for (unsigned i = 0; i < N; i++)
			end(v[i]);
		assert_int_equal(s.done, 0);
		if (s.copying) {
			assert_int_equal(s.pinned, N);
			s.copying = false;
			pins_drop_held(&s.g);
		}
		UNTIL(s.done == N);
		assert_int_equal(s.pinned, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_shared, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
