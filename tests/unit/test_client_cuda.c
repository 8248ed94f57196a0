/* SPDX-License-Identifier: Apache-2.0 */
/* libdray describes device pointers as extents. */
#include <fcntl.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "tests/unit/cuda_rig.h"

#define NUMBER_OF(a) (sizeof(a) / sizeof((a)[0]))

static char why[300];

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
	struct dray_cuda_range r[] = { { CUDA_BASE + 1234567, 1000 },
				       { CUDA_BASE, 10 * CUDA_MIB } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE, 10 * CUDA_MIB, 1, 0);
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, NULL, 0), 0);
	assert_string_equal(e.device, CUDA_DEVICE_1);
	assert_int_equal(e.extents_n, 2);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_CUDA_IPC);
	assert_int_equal(e.extents[0].offset, 1234567);
	assert_int_equal(e.extents[0].length, 1000);
	assert_int_equal(e.extents[1].offset, 0);
	assert_int_equal(e.extents[1].length, 10 * CUDA_MIB);
	assert_ptr_equal(e.extents[0].handle, e.extents[1].handle);
	assert_int_equal(memcmp(e.extents[0].handle, &r[1].address, sizeof(uint64_t)), 0);
	assert_int_equal(cuda.get("exports"), 1);
	assert_int_equal(cm_fds_count(), fds);
	dray_cuda_extents_free(&e);
	dray_cuda_extents_free(&e);
}

static void check_chunks(void)
{
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	assert_int_equal(describe(CUDA_BASE + CUDA_CHUNK - 3, CUDA_CHUNK + 10, &e), 0);
	assert_string_equal(e.device, CUDA_DEVICE_0);
	assert_int_equal(e.extents_n, 3);
	for (unsigned i = 0; i < 3; i++) {
		static const uint64_t offsets[] = { CUDA_CHUNK - 3, 0, 0 },
				      lengths[] = { 3, CUDA_CHUNK, 7 };

		assert_int_equal(e.extents[i].kind, DRAY_KIND_CUDA_VMM);
		assert_int_equal(e.extents[i].offset, offsets[i]);
		assert_int_equal(e.extents[i].length, lengths[i]);
		assert_null(e.extents[i].handle);
		assert_int_equal(e.extents[i].allocation, CUDA_CHUNK);
		assert_true(fcntl(e.extents[i].fd, F_GETFD) & FD_CLOEXEC);
		assert_true(!i || e.extents[i].fd != e.extents[i - 1].fd);
	}
	assert_int_equal(cm_fds_count(), fds + 3);
	dray_cuda_extents_free(&e);
	assert_int_equal(cm_fds_count(), fds);
}

static void expandable_segments_become_several_extents(void **state)
{
	cuda_chunks();
	check_chunks();
	/* the attributes describe the whole reservation */
	cuda.set("joined", 2);
	cuda.set("primary", 1);
	check_chunks();
	/* an older driver does not have them */
	cuda.set("joined", 0);
	cuda.set("mapping", 0);
	check_chunks();
}

static void a_mapping_of_unknown_range_is_refused(void **state)
{
	struct dray_cuda_extents e;

	cuda_chunks();
	cuda.set("joined", 1);
	cuda.set("primary", 1);
	assert_int_equal(describe(CUDA_BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "the bounds of its mapping"));
}

static void memory_that_cannot_be_exported_is_refused_with_a_reason(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_DMABUF };
	struct dray_cuda_range r = { CUDA_BASE, 100 };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_VMM, CUDA_BASE, CUDA_CHUNK, 0, 0);
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE + CUDA_CHUNK, CUDA_CHUNK, 0, 8);
	assert_int_equal(describe(CUDA_BASE, 100, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1"));
	assert_non_null(strstr(why, "PYTORCH_CUDA_ALLOC_CONF"));
	assert_int_equal(describe(CUDA_BASE + CUDA_CHUNK, 100, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "fabric"));
	assert_non_null(strstr(why, "container"));
	assert_int_equal(describe_as(DRAY_KIND_CUDA_IPC, CUDA_BASE, 100, &e), -DRAY_E_UNSUPPORTED);
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

static void other_memory_is_refused_with_a_reason(void **state)
{
	struct dray_cuda_extents e;

	cuda.range(FAKE_CUDA_POOL, CUDA_BASE, CUDA_MIB, 0, 0);
	cuda.range(FAKE_CUDA_MANAGED, CUDA_BASE + 2 * CUDA_MIB, CUDA_MIB, 0, 0);
	cuda.range(FAKE_CUDA_HOST, CUDA_BASE + 4 * CUDA_MIB, CUDA_MIB, 0, 0);
	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + 6 * CUDA_MIB, CUDA_MIB, 0, 0);
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE + 8 * CUDA_MIB, CUDA_MIB, 0, 1);
	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + 9 * CUDA_MIB, CUDA_MIB, 0, 0);
	assert_int_equal(describe(CUDA_BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "cudaMallocAsync"));
	assert_int_equal(describe(CUDA_BASE + 2 * CUDA_MIB, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "managed"));
	assert_int_equal(describe(CUDA_BASE + 4 * CUDA_MIB, 10, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(CUDA_BASE + 5 * CUDA_MIB, 10, &e), -DRAY_E_INVALID);
	assert_non_null(strstr(why, "0x7f1200500000"));
	/* ranges that end beyond their memory */
	assert_int_equal(describe(CUDA_BASE + 6 * CUDA_MIB, CUDA_MIB + 1, &e), -DRAY_E_INVALID);
	assert_non_null(strstr(why, "ends at 0x7f1200700000"));
	assert_int_equal(describe(CUDA_BASE + 8 * CUDA_MIB, CUDA_MIB + 1, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(CUDA_BASE + 6 * CUDA_MIB, 0, &e), -DRAY_E_INVALID);
	assert_int_equal(describe(CUDA_BASE + 6 * CUDA_MIB, UINT64_MAX, &e), -DRAY_E_INVALID);
	assert_int_equal(describe_as(DRAY_KIND_MEMFD, CUDA_BASE + 6 * CUDA_MIB, 10, &e),
			 -DRAY_E_INVALID);
	assert_int_equal(describe_as(DRAY_KIND_CUDA_VMM, CUDA_BASE + 6 * CUDA_MIB, 10, &e),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "use kind cuda_ipc"));
	assert_int_equal(dray_cuda_describe(NULL, 0, NULL, 0, &e, NULL, 0), -DRAY_E_INVALID);
}

static void dmabufs_cover_whole_pages(void **state)
{
	const uint64_t small = CUDA_BASE + CUDA_CHUNK + 512;
	static const enum dray_kind kinds[] = { DRAY_KIND_DMABUF };
	struct dray_cuda_range r[] = { { small + 16, 100 }, { small, 1000 } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	/* an allocation that does not begin at a page */
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

	/* one DMA-BUF for a range over several mappings */
	cuda.reset();
	cuda_chunks();
	cuda.set("current", 1);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, CUDA_BASE + 5000, 2 * CUDA_CHUNK, &e), 0);
	assert_int_equal(e.extents_n, 1);
	assert_int_equal(e.extents[0].offset, 5000 - 4096);
	assert_int_equal(e.extents[0].length, 2 * CUDA_CHUNK);
	dray_cuda_extents_free(&e);
	cuda.set("dmabuf", 0);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, CUDA_BASE, 10, &e), -DRAY_E_UNSUPPORTED);
	assert_int_equal(cm_fds_count(), fds);
}

static void a_region_has_one_device_and_does_not_mix_dmabuf(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_DMABUF };
	struct dray_cuda_range r[] = { { CUDA_BASE, 10 }, { CUDA_BASE + CUDA_CHUNK, 10 } };
	struct dray_cuda_extents e;
	int fds = cm_fds_count();

	cuda.range(FAKE_CUDA_VMM, CUDA_BASE, CUDA_CHUNK, 0, 1);
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE + CUDA_CHUNK, CUDA_CHUNK, 1, 1);
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_GPU_DEVICE);
	cuda.reset();
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE, CUDA_CHUNK, 0, 1);
	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + CUDA_CHUNK, CUDA_CHUNK, 0, 0);
	assert_int_equal(dray_cuda_describe(r, 2, kinds, 2, &e, why, sizeof(why)),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(why, "does not mix"));
	/* a mix of the other two kinds is allowed */
	assert_int_equal(dray_cuda_describe(r, 2, NULL, 0, &e, why, sizeof(why)), 0);
	assert_int_equal(e.extents[0].kind, DRAY_KIND_CUDA_VMM);
	assert_int_equal(e.extents[1].kind, DRAY_KIND_CUDA_IPC);
	dray_cuda_extents_free(&e);
	assert_int_equal(cm_fds_count(), fds);
}

static void more_extents_than_a_region_has_are_refused(void **state)
{
	struct dray_cuda_extents e;
	static struct dray_cuda_range r[1025];
	int fds = cm_fds_count();

	for (unsigned i = 0; i < 251; i++)
		cuda.range(FAKE_CUDA_VMM, CUDA_BASE + i * 2 * CUDA_MIB, 2 * CUDA_MIB, 0, 1);
	assert_int_equal(describe(CUDA_BASE, 251 * 2 * CUDA_MIB, &e), -DRAY_E_FD_LIMIT);
	assert_int_equal(cm_fds_count(), fds);
	assert_int_equal(describe(CUDA_BASE, 250 * 2 * CUDA_MIB, &e), 0);
	assert_int_equal(e.extents_n, 250);
	dray_cuda_extents_free(&e);

	for (unsigned i = 0; i < 1025; i++)
		r[i] = (struct dray_cuda_range){ CUDA_BASE + i, 1 };
	assert_int_equal(dray_cuda_describe(r, 1025, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_cuda_describe(r, 1024, NULL, 0, &e, why, sizeof(why)), 0);
	dray_cuda_extents_free(&e);

	cuda.reset();
	for (unsigned i = 0; i < 257; i++) {
		cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + i * 2 * CUDA_MIB, CUDA_MIB, 0, 0);
		r[i] = (struct dray_cuda_range){ CUDA_BASE + i * 2 * CUDA_MIB, 1 };
	}
	assert_int_equal(dray_cuda_describe(r, 257, NULL, 0, &e, why, sizeof(why)),
			 -DRAY_E_TOO_LARGE);
	assert_int_equal(cm_fds_count(), fds);
}

static void the_callers_context_stays_current(void **state)
{
	struct dray_cuda_extents e;

	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE, CUDA_MIB, 1, 0);
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE + CUDA_CHUNK, CUDA_CHUNK, 1, 1);
	for (int current = 0; current <= 2; current++) {
		cuda.set("current", current);
		assert_int_equal(describe(CUDA_BASE, 10, &e), 0);
		dray_cuda_extents_free(&e);
		assert_int_equal(cuda.get("current"), current);
	}
	/*
	 * memory without a context: the library uses an existing context of its device, or reports
	 * the driver's error
	 */
	cuda.set("current", 1);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, CUDA_BASE + CUDA_CHUNK, 10, &e), 0);
	dray_cuda_extents_free(&e);
	cuda.set("current", 0);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, CUDA_BASE + CUDA_CHUNK, 10, &e), -DRAY_E_IO);
	assert_string_equal(why, "cuMemGetHandleForAddressRange: CUDA_ERROR_INVALID_CONTEXT (201)");
	cuda.set("primary", 2);
	assert_int_equal(describe_as(DRAY_KIND_DMABUF, CUDA_BASE + CUDA_CHUNK, 10, &e), 0);
	dray_cuda_extents_free(&e);
	assert_int_equal(cuda.get("current"), 0);
}

/*
 * Any call to the driver can fail: then everything is given back, or the result is right
 * nevertheless.
 */
static void any_call_can_fail(void **state)
{
	static const enum dray_kind kinds[] = { DRAY_KIND_CUDA_VMM, DRAY_KIND_CUDA_IPC,
						DRAY_KIND_DMABUF };
	const struct dray_cuda_range r[] = { { CUDA_BASE + 5, CUDA_CHUNK },
					     { CUDA_BASE + 4 * CUDA_CHUNK, 5 } };
	int fds = cm_fds_count();

	cuda_chunks();
	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + 4 * CUDA_CHUNK, CUDA_MIB, 0, 0);
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
				assert_string_equal(e.device, CUDA_DEVICE_0);
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

	cuda.range(FAKE_CUDA_VMM, CUDA_BASE, CUDA_CHUNK, 0, 1);
	for (unsigned i = 0; i < NUMBER_OF(table); i++) {
		int64_t calls = cuda.get("calls");

		assert_int_equal(describe(CUDA_BASE, 10, &e), 0);
		dray_cuda_extents_free(&e);
		calls = cuda.get("calls") - calls;
		/* the last call asks for the UUID */
		cuda.set("error", table[i].error);
		cuda.set("fail_at", calls);
		assert_int_equal(describe(CUDA_BASE, 10, &e), -table[i].code);
		assert_memory_equal(why, "cuDeviceGetUuid: CUDA_ERROR_", 28);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CUDA_TEST(tensors_of_one_allocation_share_its_handle),
		CUDA_TEST(expandable_segments_become_several_extents),
		CUDA_TEST(a_mapping_of_unknown_range_is_refused),
		CUDA_TEST(memory_that_cannot_be_exported_is_refused_with_a_reason),
		CUDA_TEST(other_memory_is_refused_with_a_reason),
		CUDA_TEST(dmabufs_cover_whole_pages),
		CUDA_TEST(a_region_has_one_device_and_does_not_mix_dmabuf),
		CUDA_TEST(more_extents_than_a_region_has_are_refused),
		CUDA_TEST(the_callers_context_stays_current),
		CUDA_TEST(any_call_can_fail),
		CUDA_TEST(errors_of_the_driver_are_typed),
	};

	return cmocka_run_group_tests(tests, cuda_load, NULL);
}
