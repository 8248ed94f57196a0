/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: GPU memory, over a driver that has no GPU (tests/gpu/fake_libcuda.h). */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/fake_libcuda.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNK (20 * MIB)
#define BASE UINT64_C(0x7f1200000000)
#define DEVICE_0 "GPU-000102a0-0405-0607-0809-0a0b0c0d0e0f"
#define DEVICE_1 "GPU-000102a1-0405-0607-0809-0a0b0c0d0e0f"
#define NUMBER_OF(a) (sizeof(a) / sizeof((a)[0]))

static struct {
	void (*reset)(void);
	void (*range)(int kind, uint64_t base, uint64_t bytes, int device, int handle_types);
	void (*set)(const char *name, int64_t value);
	int64_t (*get)(const char *name);
} cuda;

static char why[300];

static void *symbol(void *library, const char *name)
{
	void *p = dlsym(library, name);

	assert_non_null(p);
	return p;
}

/* As an engine does: by whatever path. It stays loaded. */
static int load(void **state)
{
	char path[PATH_MAX + 40];
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
	void *library, *p;
	char *slash;

	assert_true(n > 0);
	path[n] = '\0';
	slash = strrchr(path, '/');
	snprintf(slash, 40, "/../gpu/libcuda.so.1");
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(library);
	p = symbol(library, "fake_cuda_reset");
	memcpy(&cuda.reset, &p, sizeof(p));
	p = symbol(library, "fake_cuda_range");
	memcpy(&cuda.range, &p, sizeof(p));
	p = symbol(library, "fake_cuda_set");
	memcpy(&cuda.set, &p, sizeof(p));
	p = symbol(library, "fake_cuda_get");
	memcpy(&cuda.get, &p, sizeof(p));
	return 0;
}

static int setup(void **state)
{
	cuda.reset();
	why[0] = '\0';
	return client_setup(state);
}

/* Whatever a test did, the driver has back what was taken, and the caller's context is current. */
static int teardown(void **state)
{
	assert_int_equal(cuda.get("retained"), 0);
	assert_int_equal(cuda.get("depth"), 0);
	assert_int_equal(cuda.get("primaries"), 0);
	assert_int_equal(cuda.get("registered"), 0);
	return client_teardown(state);
}

static int describe(uint64_t address, uint64_t length, struct dray_cuda_extents *ret)
{
	struct dray_cuda_range r = { address, length };

	return dray_cuda_describe(&r, 1, NULL, 0, ret, why, sizeof(why));
}

static int describe_as(enum dray_kind kind, uint64_t address, uint64_t length,
		       struct dray_cuda_extents *ret)
{
	struct dray_cuda_range r = { address, length };

	return dray_cuda_describe(&r, 1, &kind, 1, ret, why, sizeof(why));
}

static void tensors_of_one_allocation_share_its_handle(void **state)
{
	struct dray_cuda_range r[] = { { BASE + 1234567, 1000 }, { BASE, 10 * MIB } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_MALLOC, BASE, 10 * MIB, 1, 0);
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, NULL, 0), 0);
	assert_string_equal(e.device, DEVICE_1);
	assert_int_equal(e.extents_n, 2);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_CUDA_IPC);
	assert_int_equal(e.extents[0].offset, 1234567);
	assert_int_equal(e.extents[0].length, 1000);
	assert_int_equal(e.extents[1].offset, 0);
	assert_int_equal(e.extents[1].length, 10 * MIB);
	assert_ptr_equal(e.extents[0].handle, e.extents[1].handle);
	assert_int_equal(memcmp(e.extents[0].handle, &r[1].address, sizeof(uint64_t)), 0);
	assert_int_equal(cuda.get("exports"), 1);
	assert_int_equal(cm_fds_count(), fds);
	dray_cuda_extents_free(&e);
	dray_cuda_extents_free(&e);
}

/* Three mappings side by side, as PyTorch makes them. */
static void chunks(void)
{
	for (unsigned i = 0; i < 3; i++)
		cuda.range(FAKE_CUDA_VMM, BASE + i * CHUNK, CHUNK, 0, 1);
}

static void check_chunks(void)
{
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	assert_int_equal(describe(BASE + CHUNK - 3, CHUNK + 10, &e), 0);
	assert_string_equal(e.device, DEVICE_0);
	assert_int_equal(e.extents_n, 3);
	for (unsigned i = 0; i < 3; i++) {
		static const uint64_t offsets[] = { CHUNK - 3, 0, 0 }, lengths[] = { 3, CHUNK, 7 };

		assert_int_equal(e.extents[i].kind, DRAY_KIND_CUDA_VMM);
		assert_int_equal(e.extents[i].offset, offsets[i]);
		assert_int_equal(e.extents[i].length, lengths[i]);
		assert_null(e.extents[i].handle);
		assert_true(fcntl(e.extents[i].fd, F_GETFD) & FD_CLOEXEC);
		assert_true(!i || e.extents[i].fd != e.extents[i - 1].fd);
	}
	assert_int_equal(cm_fds_count(), fds + 3);
	dray_cuda_extents_free(&e);
	assert_int_equal(cm_fds_count(), fds);
}

static void expandable_segments_become_several_extents(void **state)
{
	chunks();
	check_chunks();
	/* the attributes tell of the whole reservation */
	cuda.set("joined", 2);
	cuda.set("primary", 1);
	check_chunks();
	/* they are not known, in an older driver */
	cuda.set("joined", 0);
	cuda.set("mapping", 0);
	check_chunks();
}

static void a_mapping_without_ends_is_refused(void **state)
{
	struct dray_cuda_extents e;

	chunks();
	cuda.set("joined", 1);
	cuda.set("primary", 1);
	assert_int_equal(describe(BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "from where to where"));
}

static void what_is_not_exportable_is_refused_in_words(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_DMABUF };
	struct dray_cuda_range r = { BASE, 100 };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_VMM, BASE, CHUNK, 0, 0);
	cuda.range(FAKE_CUDA_VMM, BASE + CHUNK, CHUNK, 0, 8);
	assert_int_equal(describe(BASE, 100, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"));
	assert_non_null(strstr(why, "PYTORCH_CUDA_ALLOC_CONF"));
	assert_int_equal(describe(BASE + CHUNK, 100, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "fabric"));
	assert_non_null(strstr(why, "container"));
	assert_int_equal(describe_as(DRAY_KIND_CUDA_IPC, BASE, 100, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "use kind cuda_vmm"));
	assert_int_equal(cm_fds_count(), fds);

	cuda.set("primary", 1);
	assert_int_equal(dray_cuda_describe(&r, 1, kinds, 2, &e, why, sizeof(why)), 0);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_DMABUF);
	dray_cuda_extents_free(&e);
	cuda.set("dmabuf", 0);
	assert_int_equal(dray_cuda_describe(&r, 1, kinds, 2, &e, why, sizeof(why)),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"));
}

static void other_memory_is_refused_in_words(void **state)
{
	struct dray_cuda_extents e;

	cuda.range(FAKE_CUDA_POOL, BASE, MIB, 0, 0);
	cuda.range(FAKE_CUDA_MANAGED, BASE + 2 * MIB, MIB, 0, 0);
	cuda.range(FAKE_CUDA_HOST, BASE + 4 * MIB, MIB, 0, 0);
	cuda.range(FAKE_CUDA_MALLOC, BASE + 6 * MIB, MIB, 0, 0);
	cuda.range(FAKE_CUDA_VMM, BASE + 8 * MIB, MIB, 0, 1);
	cuda.range(FAKE_CUDA_MALLOC, BASE + 9 * MIB, MIB, 0, 0);
	assert_int_equal(describe(BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "cudaMallocAsync"));
	assert_int_equal(describe(BASE + 2 * MIB, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "managed"));
	assert_int_equal(describe(BASE + 4 * MIB, 10, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(BASE + 5 * MIB, 10, &e), -DRAY_E_INVALID);
	assert_non_null(strstr(why, "0x7f1200500000"));
	/* ranges that go on behind the end of their memory */
	assert_int_equal(describe(BASE + 6 * MIB, MIB + 1, &e), -DRAY_E_INVALID);
	assert_non_null(strstr(why, "ends at 0x7f1200700000"));
	assert_int_equal(describe(BASE + 8 * MIB, MIB + 1, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(BASE + 6 * MIB, 0, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(BASE + 6 * MIB, UINT64_MAX, &e), -DRAY_E_INVALID);
	assert_int_equal(describe_as(DRAY_KIND_MEMFD, BASE + 6 * MIB, 10, &e), -DRAY_E_INVALID);
	assert_int_equal(describe_as(DRAY_KIND_CUDA_VMM, BASE + 6 * MIB, 10, &e),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "use kind cuda_ipc"));
	assert_int_equal(dray_cuda_describe(NULL, 0, NULL, 0, &e, NULL, 0), -DRAY_E_INVALID);
}

static void dmabufs_are_of_whole_pages(void **state)
{
	const uint64_t small = BASE + CHUNK + 512;
	static const enum dray_kind kinds[] = { DRAY_KIND_DMABUF };
	struct dray_cuda_range r[] = { { small + 16, 100 }, { small, 1000 } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	/* an allocation that begins inside of a page */
	cuda.range(FAKE_CUDA_MALLOC, small, 1000, 0, 0);
	assert_int_equal(dray_cuda_describe(r, 2, kinds, 1, &e, why, sizeof(why)), 0);
	assert_int_equal(e.extents_n, 2);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_DMABUF);
	assert_int_equal(e.extents[0].offset, 512 + 16);
	assert_int_equal(e.extents[0].length, 100);
	assert_int_equal(e.extents[1].offset, 512);
	assert_int_equal(e.extents[0].fd, e.extents[1].fd);
	assert_int_equal(cm_fds_count(), fds + 1);
	dray_cuda_extents_free(&e);

	/* one for a range over several mappings */
	cuda.reset();
	chunks();
	cuda.set("current", 1);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, BASE + 5000, 2 * CHUNK, &e), 0);
	assert_int_equal(e.extents_n, 1);
	assert_int_equal(e.extents[0].offset, 5000 - 4096);
	assert_int_equal(e.extents[0].length, 2 * CHUNK);
	dray_cuda_extents_free(&e);
	cuda.set("dmabuf", 0);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_int_equal(cm_fds_count(), fds);
}

static void a_region_is_of_one_device_and_not_partly_dmabuf(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_DMABUF };
	struct dray_cuda_range r[] = { { BASE, 10 }, { BASE + CHUNK, 10 } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_VMM, BASE, CHUNK, 0, 1);
	cuda.range(FAKE_CUDA_VMM, BASE + CHUNK, CHUNK, 1, 1);
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_GPU_DEVICE);
	cuda.reset();
	cuda.range(FAKE_CUDA_VMM, BASE, CHUNK, 0, 1);
	cuda.range(FAKE_CUDA_MALLOC, BASE + CHUNK, CHUNK, 0, 0);
	assert_int_equal(dray_cuda_describe(r, 2, kinds, 2, &e, why, sizeof(why)),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "does not mix"));
	/* of the other two kinds it may be */
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, why, sizeof(why)), 0);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_CUDA_VMM);
	assert_int_equal(e.extents[1].kind, DRAY_KIND_CUDA_IPC);
	dray_cuda_extents_free(&e);
	assert_int_equal(cm_fds_count(), fds);
}

static void more_than_a_region_takes_is_refused(void **state)
{
	struct dray_cuda_extents e;
	static struct dray_cuda_range r[1025];
	int fds = cm_fds_count();

	for (unsigned i = 0; i < 251; i++)
		cuda.range(FAKE_CUDA_VMM, BASE + i * 2 * MIB, 2 * MIB, 0, 1);
	assert_int_equal(describe(BASE, 251 * 2 * MIB, &e), -DRAY_E_FD_LIMIT);
	assert_int_equal(cm_fds_count(), fds);
	assert_int_equal(describe(BASE, 250 * 2 * MIB, &e), 0);
	assert_int_equal(e.extents_n, 250);
	dray_cuda_extents_free(&e);

	for (unsigned i = 0; i < 1025; i++)
		r[i] = (struct dray_cuda_range){ BASE + i, 1 };
	assert_int_equal(dray_cuda_describe(r, 1025, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_cuda_describe(r, 1024, NULL, 0, &e, why, sizeof(why)), 0);
	dray_cuda_extents_free(&e);

	cuda.reset();
	for (unsigned i = 0; i < 257; i++) {
		cuda.range(FAKE_CUDA_MALLOC, BASE + i * 2 * MIB, MIB, 0, 0);
		r[i] = (struct dray_cuda_range){ BASE + i * 2 * MIB, 1 };
	}
	assert_int_equal(dray_cuda_describe(r, 257, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_TOO_LARGE);
	assert_int_equal(cm_fds_count(), fds);
}

static void the_callers_context_stays(void **state)
{
	struct dray_cuda_extents e;

	cuda.range(FAKE_CUDA_MALLOC, BASE, MIB, 1, 0);
	cuda.range(FAKE_CUDA_VMM, BASE + CHUNK, CHUNK, 1, 1);
	for (int current = 0; current <= 2; current++) {
		cuda.set("current", current);
		assert_int_equal(describe(BASE, 10, &e), 0);
		dray_cuda_extents_free(&e);
		assert_int_equal(cuda.get("current"), current);
	}
	/* memory of no context: one of its device that is there already, or the driver's own answer */
	cuda.set("current", 1);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, BASE + CHUNK, 10, &e), 0);
	dray_cuda_extents_free(&e);
	cuda.set("current", 0);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, BASE + CHUNK, 10, &e), -DRAY_E_IO);
	assert_string_equal(why, "cuMemGetHandleForAddressRange: CUDA_ERROR_INVALID_CONTEXT (201)");
	cuda.set("primary", 2);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, BASE + CHUNK, 10, &e), 0);
	dray_cuda_extents_free(&e);
	assert_int_equal(cuda.get("current"), 0);
}

/* Whichever call it is that fails: all is given back, or the answer is right all the same. */
static void any_call_may_fail(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_CUDA_IPC,
						DRAY_KIND_DMABUF };
	const struct dray_cuda_range r[] = { { BASE + 5, CHUNK }, { BASE + 4 * CHUNK, 5 } };
	int fds = cm_fds_count();

	chunks();
	cuda.range(FAKE_CUDA_MALLOC, BASE + 4 * CHUNK, MIB, 0, 0);
	cuda.set("primary", 1);
	for (int i = 0; i < 3; i++)
		for (int64_t at = 1;; at++) {
			struct dray_cuda_extents e;
			size_t n = i == 1 ? 1 : 2;
			int error;
			bool failed;

			cuda.set("fail_at", at);
			error = dray_cuda_describe(i == 1 ? &r[1] : r, n, i < 2 ? NULL : kinds + i,
						   i < 2 ? 0 : 1, &e, why, sizeof(why));
			failed = !cuda.get("fail_at");
			cuda.set("fail_at", 0);
			assert_true(failed || !error);
			if (!error) {
				assert_int_equal(e.extents_n, i == 0 ? 3 : n);
				assert_string_equal(e.device, DEVICE_0);
				dray_cuda_extents_free(&e);
			}
			assert_int_equal(cm_fds_count(), fds);
			assert_int_equal(cuda.get("retained"), 0);
			assert_int_equal(cuda.get("depth"), 0);
			assert_int_equal(cuda.get("primaries"), 0);
			if (!failed)
				break;
		}
}

static void errors_of_the_driver_are_typed(void **state)
{
	static const struct {
		int error, code;
	} table[] = { { 719, DRAY_E_GPU_LOST }, { 2, DRAY_E_NO_MEMORY }, { 801, DRAY_E_IO } };
	struct dray_cuda_extents e;

	cuda.range(FAKE_CUDA_VMM, BASE, CHUNK, 0, 1);
	for (unsigned i = 0; i < NUMBER_OF(table); i++) {
		int64_t calls = cuda.get("calls");

		assert_int_equal(describe(BASE, 10, &e), 0);
		dray_cuda_extents_free(&e);
		calls = cuda.get("calls") - calls;
		/* the last is that for the UUID */
		cuda.set("error", table[i].error);
		cuda.set("fail_at", calls);
		assert_int_equal(describe(BASE, 10, &e), -table[i].code);
		assert_memory_equal(why, "cuDeviceGetUuid: CUDA_ERROR_", 28);
	}
}

/* --- regions and words ----------------------------------------------------------------------- */

static int settled_fds(void)
{
	fake_count(&client_fake, 0);
	return cm_fds_count();
}

static void check_added(void)
{
	assert_string_equal(client_fake.last_device, DEVICE_0);
	assert_int_equal(client_fake.last_add.access, DRAY_READ);
	assert_int_equal(client_fake.last_add.extents.n, 4);
	assert_int_equal(client_fake.last_add_fds, 2);
	assert_int_equal(client_fake.last_add.handles.n, 64);
	assert_int_equal(client_fake.last_extents[0].kind, DMSG_KIND_CUDA_IPC);
	assert_int_equal(client_fake.last_extents[0].fd_index, 0);
	assert_int_equal(client_fake.last_extents[0].offset, 100);
	assert_int_equal(client_fake.last_extents[1].kind, DMSG_KIND_CUDA_VMM);
	assert_int_equal(client_fake.last_extents[1].fd_index, 0);
	assert_int_equal(client_fake.last_extents[1].offset, CHUNK - 1);
	assert_int_equal(client_fake.last_extents[2].fd_index, 1);
	assert_int_equal(client_fake.last_extents[2].length, 9);
	assert_int_equal(client_fake.last_extents[3].kind, DMSG_KIND_CUDA_IPC);
	assert_int_equal(client_fake.last_extents[3].fd_index, 0);
	assert_int_equal(client_fake.last_handles[63], 0x5a);
}

static void regions_of_gpu_memory_survive_a_restart(void **state)
{
	const struct dray_cuda_range r[] = { { BASE + 4 * CHUNK + 100, 10 },
					     { BASE + CHUNK - 1, 10 },
					     { BASE + 4 * CHUNK, 10 } };
	struct dray_region_spec spec = { .name = "kv", .access = DRAY_READ };
	struct dray *d = client_connect(0);
	int fds = settled_fds();
	dray_region region;

	chunks();
	cuda.range(FAKE_CUDA_MALLOC, BASE + 4 * CHUNK, MIB, 0, 0);
	assert_int_equal(dray_cuda_region_add(d, &spec, r, 3, NULL, 0, &region), 0);
	check_added();
	assert_int_equal(settled_fds(), fds + 2);

	client_fake.last_add_fds = 0;
	client_fake.last_device[0] = '\0';
	memset(client_fake.last_extents, 0, sizeof(client_fake.last_extents));
	memset(client_fake.last_handles, 0, sizeof(client_fake.last_handles));
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	check_added();
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(settled_fds(), fds);

	spec.access = 0;
	assert_int_equal(dray_cuda_region_add(d, &spec, r, 3, NULL, 0, &region), -DRAY_E_INVALID);
	spec.access = DRAY_READ;
	cuda.reset();
	assert_int_equal(dray_cuda_region_add(d, &spec, r, 3, NULL, 0, &region), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "no memory of a GPU"));
	assert_int_equal(settled_fds(), fds);
	dray_disconnect(d);
}

static void hand_made_extents_are_checked(void **state)
{
	uint8_t handle[DRAY_CUDA_IPC_BYTES] = { 1 };
	struct dray_extent e = { .kind = DRAY_KIND_CUDA_IPC, .length = 10, .handle = handle };
	struct dray_region_spec spec = {
		.access = DRAY_READ, .extents = &e, .extents_n = 1, .device = DEVICE_0
	};
	struct dray *d = client_connect(0);
	dray_region region;

	assert_int_equal(dray_region_add(d, &spec, &region), 0);
	assert_int_equal(client_fake.last_add_fds, 0);
	assert_int_equal(client_fake.last_handles[0], 1);
	e.handle = NULL;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	e.handle = handle;
	spec.device = NULL;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "device is missing"));
	spec.device = "0123456789012345678901234567890123456789012345678901234567890123456789";
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_TOO_LARGE);
	dray_disconnect(d);
}

static void older_agents_are_not_asked(void **state)
{
	struct dray_cuda_range r = { BASE, 10 };
	struct dray_region_spec spec = { .access = DRAY_READ };
	struct dray_memory m;
	struct dray *d;
	dray_region region;

	client_fake.no_gpu = true;
	d = client_connect(0);
	cuda.range(FAKE_CUDA_VMM, BASE, CHUNK, 0, 1);
	assert_int_equal(dray_cuda_region_add(d, &spec, &r, 1, NULL, 0, &region),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "too old for GPU memory"));
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_ADD), 0);
	client_region(d, &region, &m);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void words_order_streams_and_transfers(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_cuda_words *w = NULL;
	int stream_device = 1;
	struct dray_word word;
	uint64_t address;
	int fds = settled_fds();

	assert_int_equal(dray_cuda_words_new(d, 3, &w), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "no CUDA context"));
	cuda.set("current", 1);
	assert_int_equal(dray_cuda_words_new(d, 0, &w), -DRAY_E_INVALID);
	assert_int_equal(dray_cuda_words_new(d, 3, &w), 0);
	assert_int_equal(cuda.get("registered"), 1);
	assert_int_equal(client_fake.last_extents[0].kind, DMSG_KIND_MEMFD);
	address = (uintptr_t)dray_cuda_words_memory(w) ^ (UINT64_C(1) << 60);
	word = dray_cuda_word(w, 2, 7);
	assert_int_not_equal(word.region, 0);
	assert_int_equal(word.offset, 8);
	assert_int_equal(word.value, 7);
	assert_int_equal(dray_cuda_word(w, 3, 7).region, 0);

	/* the stream of another device */
	assert_int_equal(dray_cuda_stream_write(w, &stream_device, 2, 7, why, sizeof(why)), 0);
	assert_int_equal(cuda.get("writes"), 1);
	assert_int_equal(cuda.get("address"), address + 8);
	assert_int_equal(cuda.get("value"), 7);
	assert_int_equal(cuda.get("flags"), 0);
	assert_int_equal(cuda.get("current"), 1);
	assert_int_equal(dray_cuda_stream_wait(w, NULL, 0, 9, DRAY_CUDA_WAIT_EQ, why, sizeof(why)),
			 0);
	assert_int_equal(cuda.get("waits"), 1);
	assert_int_equal(cuda.get("address"), address);
	assert_int_equal(cuda.get("flags"), 1);
	assert_int_equal(dray_cuda_stream_write(w, NULL, 3, 7, NULL, 0), -DRAY_E_RANGE);
	cuda.set("fail_at", 1);
	assert_int_equal(dray_cuda_stream_wait(w, NULL, 0, 9, DRAY_CUDA_WAIT_GEQ, why, sizeof(why)),
			 -DRAY_E_GPU_LOST);
	assert_string_equal(why, "cuStreamWaitValue32: CUDA_ERROR_LAUNCH_FAILED (719)");

	assert_int_equal(dray_cuda_words_free(d, w), 0);
	assert_int_equal(dray_cuda_words_free(d, NULL), 0);
	assert_int_equal(cuda.get("registered"), 0);
	assert_int_equal(settled_fds(), fds);
	/* after the session */
	assert_int_equal(dray_cuda_words_new(d, 1, &w), 0);
	dray_disconnect(d);
	assert_int_equal(dray_cuda_words_free(NULL, w), 0);
}

static bool refuse_regions(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			   struct dray_fds *fds)
{
	if (h->type != DMSG_REGION_ADD)
		return false;
	fake_send_error(f, h->request_id, DRAY_E_QUOTA, "too much");
	return true;
}

static void words_give_everything_back_on_failure(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_cuda_words *w;
	int fds = settled_fds();

	cuda.set("current", 1);
	for (int64_t at = 1; at <= 3; at++) {
		cuda.set("fail_at", at);
		assert_true(dray_cuda_words_new(d, 1, &w) < 0);
		assert_int_equal(cuda.get("registered"), 0);
		assert_int_equal(settled_fds(), fds);
	}
	cuda.set("fail_at", 0);
	client_fake.hook = refuse_regions;
	assert_int_equal(dray_cuda_words_new(d, 1, &w), -DRAY_E_QUOTA);
	assert_int_equal(cuda.get("registered"), 0);
	assert_int_equal(settled_fds(), fds);
	dray_disconnect(d);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tensors_of_one_allocation_share_its_handle),
		TEST(expandable_segments_become_several_extents),
		TEST(a_mapping_without_ends_is_refused),
		TEST(what_is_not_exportable_is_refused_in_words),
		TEST(other_memory_is_refused_in_words),
		TEST(dmabufs_are_of_whole_pages),
		TEST(a_region_is_of_one_device_and_not_partly_dmabuf),
		TEST(more_than_a_region_takes_is_refused),
		TEST(the_callers_context_stays),
		TEST(any_call_may_fail),
		TEST(errors_of_the_driver_are_typed),
		TEST(regions_of_gpu_memory_survive_a_restart),
		TEST(hand_made_extents_are_checked),
		TEST(older_agents_are_not_asked),
		TEST(words_order_streams_and_transfers),
		TEST(words_give_everything_back_on_failure),
	};

	return cmocka_run_group_tests(tests, load, NULL);
}
