/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: regions of GPU memory, and wait and set words for GPU streams. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/cm.h"
#include "tests/unit/cuda_rig.h"

static char why[300];

static int settled_fds(void)
{
	fake_count(&client_fake, 0);
	return cm_fds_count();
}

static void check_added(void)
{
	assert_string_equal(client_fake.last_device, CUDA_DEVICE_0);
	assert_int_equal(client_fake.last_add.access, DRAY_READ);
	assert_int_equal(client_fake.last_add.extents.n, 4);
	assert_int_equal(client_fake.last_add_fds, 2);
	assert_int_equal(client_fake.last_add.handles.n, 64);
	assert_int_equal(client_fake.last_extents[0].kind, DMSG_KIND_CUDA_IPC);
	assert_int_equal(client_fake.last_extents[0].fd_index, 0);
	assert_int_equal(client_fake.last_extents[0].offset, 100);
	assert_int_equal(client_fake.last_extents[1].kind, DMSG_KIND_CUDA_VMM);
	assert_int_equal(client_fake.last_extents[1].fd_index, 0);
	assert_int_equal(client_fake.last_extents[1].offset, CUDA_CHUNK - 1);
	assert_int_equal(client_fake.last_extents[2].fd_index, 1);
	assert_int_equal(client_fake.last_extents[2].length, 9);
	assert_int_equal(client_fake.last_extents[3].kind, DMSG_KIND_CUDA_IPC);
	assert_int_equal(client_fake.last_extents[3].fd_index, 0);
	assert_int_equal(client_fake.last_handles[63], 0x5a);
	assert_int_equal(client_fake.last_add.allocations.n, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(dray_le_get64(client_fake.last_allocations + i * 8), CUDA_CHUNK);
}

static void regions_of_gpu_memory_survive_a_restart(void **state)
{
	const struct dray_cuda_range r[] = { { CUDA_BASE + 4 * CUDA_CHUNK + 100, 10 },
					     { CUDA_BASE + CUDA_CHUNK - 1, 10 },
					     { CUDA_BASE + 4 * CUDA_CHUNK, 10 } };
	struct dray_region_spec spec = { .name = "kv", .access = DRAY_READ };
	struct dray *d = client_connect(0);
	int fds = settled_fds();
	dray_region region;

	cuda_chunks();
	cuda.range(FAKE_CUDA_MALLOC, CUDA_BASE + 4 * CUDA_CHUNK, CUDA_MIB, 0, 0);
	assert_int_equal(dray_cuda_region_add(d, &spec, r, 3, NULL, 0, &region), 0);
	check_added();
	assert_int_equal(settled_fds(), fds + 2);

	client_fake.last_add_fds = 0;
	client_fake.last_device[0] = '\0';
	memset(client_fake.last_extents, 0, sizeof(client_fake.last_extents));
	memset(client_fake.last_handles, 0, sizeof(client_fake.last_handles));
	memset(client_fake.last_allocations, 0, sizeof(client_fake.last_allocations));
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

/* Extents of one descriptor: one stated size is enough, and two different sizes are refused. */
static void sizes_of_an_allocation_agree(void **state)
{
	struct dray_extent e[3] = { { .kind = DRAY_KIND_CUDA_VMM, .length = 10 },
				    { .kind = DRAY_KIND_CUDA_VMM, .length = 10, .offset = 10 },
				    { .kind = DRAY_KIND_CUDA_VMM, .length = 10, .offset = 20 } };
	const struct dray_region_spec spec = {
		.access = DRAY_READ, .device = CUDA_DEVICE_0, .extents = e, .extents_n = 3
	};
	struct dray *d = client_connect(0);
	int fds = settled_fds();
	dray_region region;

	e[0].fd = e[1].fd = e[2].fd = memfd_create("allocation", MFD_CLOEXEC);
	assert_true(e[0].fd >= 0);
	e[1].allocation = CUDA_CHUNK;
	assert_int_equal(dray_region_add(d, &spec, &region), 0);
	assert_int_equal(client_fake.last_add.allocations.n, 1);
	assert_int_equal(dray_le_get64(client_fake.last_allocations), CUDA_CHUNK);
	assert_int_equal(dray_region_remove(d, region), 0);
	e[2].allocation = 2 * CUDA_CHUNK;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "extent 2 is in an allocation"));
	close(e[0].fd);
	assert_int_equal(settled_fds(), fds);
	dray_disconnect(d);
}

static void hand_made_extents_are_checked(void **state)
{
	uint8_t handle[DRAY_CUDA_IPC_BYTES] = { 1 };
	struct dray_extent e = { .kind = DRAY_KIND_CUDA_IPC, .length = 10, .handle = handle };
	struct dray_region_spec spec = {
		.access = DRAY_READ, .extents = &e, .extents_n = 1, .device = CUDA_DEVICE_0
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

static void older_agents_get_no_gpu_regions(void **state)
{
	struct dray_cuda_range r = { CUDA_BASE, 10 };
	struct dray_region_spec spec = { .access = DRAY_READ };
	struct dray_memory m;
	struct dray *d;
	dray_region region;

	client_fake.no_gpu = true;
	d = client_connect(0);
	cuda.range(FAKE_CUDA_VMM, CUDA_BASE, CUDA_CHUNK, 0, 1);
	assert_int_equal(dray_cuda_region_add(d, &spec, &r, 1, NULL, 0, &region),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "too old for GPU memory"));
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_ADD), 0);
	client_region(d, &region, &m);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void words_synchronise_streams_and_transfers(void **state)
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
	assert_int_not_equal(word.region.id, 0);
	assert_int_equal(word.offset, 8);
	assert_int_equal(word.value, 7);
	assert_int_equal(dray_cuda_word(w, 3, 7).region.id, 0);

	/* a stream of another device */
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

	dray_cuda_words_free(d, w);
	dray_cuda_words_free(d, NULL);
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_REMOVE), 1);
	assert_int_equal(cuda.get("registered"), 0);
	assert_int_equal(settled_fds(), fds);
	/* after the session has closed */
	assert_int_equal(dray_cuda_words_new(d, 1, &w), 0);
	dray_disconnect(d);
	dray_cuda_words_free(NULL, w);
}

static bool refuse_regions(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			   struct dray_fds *fds)
{
	if (h->type != DMSG_REGION_ADD)
		return false;
	fake_send_error(f, h->request_id, DRAY_E_QUOTA, "too much");
	return true;
}

static void words_release_everything_on_failure(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		CUDA_TEST(regions_of_gpu_memory_survive_a_restart),
		CUDA_TEST(sizes_of_an_allocation_agree),
		CUDA_TEST(hand_made_extents_are_checked),
		CUDA_TEST(older_agents_get_no_gpu_regions),
		CUDA_TEST(words_synchronise_streams_and_transfers),
		CUDA_TEST(words_release_everything_on_failure),
	};

	return cmocka_run_group_tests(tests, cuda_load, NULL);
}
