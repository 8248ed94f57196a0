/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA plug-in over a runtime and a driver without a GPU. Built only with a CUDA toolkit. */
#include "tests/gpu/plugin_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/loader.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define ILLEGAL_ADDRESS 700
/* For functions that are refused: the driver does not have it. */
#define NO_DEVICE (-1)
#define STREAMS_WRITE_WORDS 122
#define MIB (UINT64_C(1) << 20)

static struct {
	void (*reset)(void);
	void (*version)(int version);
	void (*refuse)(const char *function, int device, int result);
	void (*refuse_after)(unsigned calls);
	void (*attribute)(int attribute, int value);
	void (*hold)(bool hold);
	void (*finish_after)(unsigned looks);
	void (*lose)(int device);
	void (*lose_in)(const char *function, int device);
	int (*count)(const char *what, int device);
} driver;
static const struct gpu_plugin_ops *ops;
static struct gpu_plugin *plugin;
static struct dray_err err;
static uint32_t peers; /* peers of the device that was started last */

/* --- set-up and teardown -------------------------------------------------------------------------- */

/* The path of a file of this program's build. */
static const char *beside(const char *name, char buf[PATH_MAX])
{
	char self[PATH_MAX / 2];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	assert_true(n > 0);
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	snprintf(buf, PATH_MAX, "%s/%s", self, name);
	return buf;
}

static void symbol(void *library, const char *name, void *ret)
{
	void *p = dlsym(library, name);

	assert_non_null(p);
	memcpy(ret, &p, sizeof(p));
}

static int load(void **state)
{
	char path[PATH_MAX];
	void *library;

	if (access(beside("../gpu/dray-cuda-test.so", path), R_OK) < 0)
		return 0;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(library);
	symbol(library, "plugin_driver_reset", &driver.reset);
	symbol(library, "plugin_driver_version", &driver.version);
	symbol(library, "plugin_driver_fail", &driver.refuse);
	symbol(library, "plugin_driver_fail_after", &driver.refuse_after);
	symbol(library, "plugin_driver_attribute", &driver.attribute);
	symbol(library, "plugin_driver_hold", &driver.hold);
	symbol(library, "plugin_driver_finish_after", &driver.finish_after);
	symbol(library, "plugin_driver_lose", &driver.lose);
	symbol(library, "plugin_driver_lose_in", &driver.lose_in);
	symbol(library, "plugin_driver_count", &driver.count);
	assert_int_equal(gpu_load(path, &ops, &err), 0);
	return 0;
}

static int setup(void **state)
{
	if (!ops)
		return 0;
	driver.reset();
	err = DRAY_ERR_NULL;
	return ops->open(&plugin, &err);
}

/* Checks that everything was given back to the driver. */
static int teardown(void **state)
{
	if (!ops)
		return 0;
	ops->close(plugin);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(driver.count("contexts", i), 0);
		assert_int_equal(driver.count("streams", i), 0);
	}
	return 0;
}

#define NEEDS_PLUGIN()          \
	do {                    \
		if (!ops)       \
			skip(); \
	} while (0)

/* --- steps of tests ------------------------------------------------------------------------------- */

static int start(unsigned device)
{
	uint64_t bytes;

	err = DRAY_ERR_NULL;
	return ops->start(plugin, device, &bytes, &peers, &err);
}

static struct gpu_queue *queue(unsigned device)
{
	const struct gpu_queue_spec spec = { .device = device, .share = 100 };
	struct gpu_queue *q;

	assert_int_equal(ops->queue_new(plugin, &spec, &q, &err), 0);
	return q;
}

static int submit(struct gpu_queue *q)
{
	static const struct dray_piece piece = { (void *)0x1000, (void *)0x2000, 64 };

	return ops->submit(q, &(struct gpu_copy){
				      .pieces = &piece, .n = 1, .route = GPU_WITHIN, .bytes = 64 });
}

static void called(void *arg)
{
	++*(unsigned *)arg;
}

/* variant: of the bytes of the handle that the driver ignores. */
static int import_variant(unsigned device, uint8_t number, uint8_t variant, struct gpu_import **ret)
{
	struct gpu_import_spec spec = { .kind = GPU_IMPORT_IPC,
					.device = device,
					.handle = { (uint8_t)device, number, variant },
					.bytes = MIB,
					.write = true };
	uint64_t address, bytes;

	err = DRAY_ERR_NULL;
	return ops->import(plugin, &spec, ret, &address, &bytes, &err);
}

static int import_ipc(unsigned device, uint8_t number, struct gpu_import **ret)
{
	return import_variant(device, number, 0, ret);
}

/* Opens an allocation on device 0; the driver's granularity is 2 MiB. */
static int open_vmm_of(uint64_t size, uint64_t bytes, uint64_t allocation, struct gpu_import **ret)
{
	struct gpu_import_spec spec = {
		.kind = GPU_IMPORT_VMM, .bytes = bytes, .allocation = allocation, .write = true
	};
	uint64_t address, there = size;
	int r;

	err = DRAY_ERR_NULL;
	spec.fd = memfd_create("allocation", MFD_CLOEXEC);
	assert_int_equal(ftruncate(spec.fd, (off_t)size), 0);
	r = ops->import(plugin, &spec, ret, &address, &there, &err);
	close(spec.fd);
	assert_int_equal(there, size);
	return r;
}

/* The same of 16 MiB. */
static int open_vmm(uint64_t bytes, uint64_t allocation, struct gpu_import **ret)
{
	return open_vmm_of(16 * MIB, bytes, allocation, ret);
}

/* --- notifications of a queue --------------------------------------------------------------------- */

static void notifies_once(void **state)
{
	unsigned first = 0, second = 0;
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	q = queue(0);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	assert_int_equal(ops->notify(q, called, &first), 0);
	assert_int_equal(ops->check(q), 0);
	assert_int_equal(first, 0);
	driver.hold(false);
	assert_int_equal(first, 1);
	assert_int_equal(*q->done, 1);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	assert_int_equal(ops->notify(q, called, &second), 0);
	/* waits for the copy in flight */
	ops->queue_free(q);
	assert_int_equal(first + second, 2);
	ops->stop(plugin, 0);
}

static void notifies_of_a_loss(void **state)
{
	unsigned n[GPU_NOTIFY_MAX] = { 0 }, late = 0;
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	q = queue(0);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	for (unsigned i = 0; i < GPU_NOTIFY_MAX; i++)
		assert_int_equal(ops->notify(q, called, &n[i]), 0);
	assert_int_equal(ops->notify(q, called, &late), -EAGAIN);
	driver.lose(0);
	assert_int_equal(ops->check(q), -EIO);
	for (unsigned i = 0; i < GPU_NOTIFY_MAX; i++)
		assert_int_equal(n[i], 1);
	assert_int_equal(ops->notify(q, called, &late), -EIO);
	assert_int_equal(submit(q), -EIO);
	/* the driver also calls these callbacks when the context ends */
	assert_int_equal(driver.count("waiting", 0), GPU_NOTIFY_MAX);
	ops->queue_free(q);
	ops->stop(plugin, 0);
	for (unsigned i = 0; i < GPU_NOTIFY_MAX; i++)
		assert_int_equal(n[i], 1);
	assert_int_equal(late, 0);
}

static void notifies_when_the_queue_is_freed(void **state)
{
	struct gpu_queue *q;
	unsigned n = 0;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	q = queue(0);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	assert_int_equal(ops->notify(q, called, &n), 0);
	driver.lose(0);
	ops->queue_free(q);
	assert_int_equal(n, 1);
	ops->stop(plugin, 0);
	assert_int_equal(n, 1);
}

/* --- drivers ---------------------------------------------------------------------------------------- */

/* What to do about a driver that is missing, too old, or lacks a function. */
static void refuses_drivers(void **state)
{
	struct gpu_plugin *other;

	NEEDS_PLUGIN();
	driver.version(0);
	assert_int_equal(ops->open(&other, &err), -ENOENT);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "install the driver"));
	driver.version(11040);
	err = DRAY_ERR_NULL;
	assert_int_equal(ops->open(&other, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "for CUDA 11.4"));
	assert_non_null(strstr(err.msg, "install a newer driver"));
	assert_null(strstr(err.msg, "toolkit"));
	/* A plug-in of CUDA 12 works over this driver. */
	if (!strstr(err.msg, "one for CUDA 12.0")) {
		driver.version(12040);
		err = DRAY_ERR_NULL;
		assert_int_equal(ops->open(&other, &err), -ENOENT);
		assert_non_null(strstr(err.msg, "toolkit of CUDA 12.8 or 12.9"));
	}
	driver.reset();
	driver.refuse("cuMemMap", NO_DEVICE, 0);
	err = DRAY_ERR_NULL;
	assert_int_equal(ops->open(&other, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "no cuMemMap"));
	driver.reset();
}

/* --- copy engines --------------------------------------------------------------------------------- */

/* Short lists take one call; long ones use several streams, and the queue's own waits for the others. */
static void copies_lists_by_engines(void **state)
{
	static struct dray_piece pieces[5000];
	static const uint32_t lengths[] = { 1, 64, 256, 5000 };
	static const int calls[] = { 0, 1, 5, 15 }, joined[] = { 0, 0, 3, 6 };
	const struct gpu_queue_spec spec = { .engines = true, .share = 100 };
	struct gpu_copy copy = { .pieces = pieces, .engine = true, .route = GPU_WITHIN };
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(pieces); i++)
		pieces[i] = (struct dray_piece){ (void *)0x1000, (void *)0x2000, 64 };
	assert_int_equal(start(0), 0);
	assert_int_equal(ops->queue_new(plugin, &spec, &q, &err), 0);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lengths); i++) {
		copy.n = lengths[i];
		copy.bytes = copy.n * 64;
		assert_int_equal(ops->submit(q, &copy), 0);
		assert_int_equal(driver.count("calls", 0), calls[i]);
		assert_int_equal(driver.count("joined", 0), joined[i]);
	}
	assert_int_equal(driver.count("listed", 0), 64 + 256 + 5000);
	assert_int_equal(driver.count("events", 0), 3);
	driver.refuse("cudaMemcpyBatchAsync", 0, ILLEGAL_ADDRESS);
	assert_int_equal(ops->submit(q, &copy), -EIO);
	driver.refuse(NULL, 0, 0);
	ops->queue_free(q);
	assert_int_equal(driver.count("events", 0), 0);
	ops->stop(plugin, 0);
}

/*
 * A call in the middle of a list is refused: the copy ends after the calls before, on whatever stream, and the queue goes on. After a
 * loss the end of the queue waits for them.
 */
static void ends_after_the_rest_of_a_list(void **state)
{
	static struct dray_piece pieces[5000];
	static const struct {
		int result, ret;
	} rows[] = { { INVALID_VALUE, -EINVAL },
		     { OUT_OF_MEMORY, -EINVAL },
		     { ILLEGAL_ADDRESS, -EIO } };
	const struct gpu_queue_spec spec = { .engines = true, .share = 100 };
	const struct gpu_copy copy = {
		.pieces = pieces, .n = 5000, .bytes = 5000 * 64, .engine = true, .route = GPU_WITHIN
	};

	NEEDS_PLUGIN();
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(pieces); i++)
		pieces[i] = (struct dray_piece){ (void *)0x1000, (void *)0x2000, 64 };
	assert_int_equal(start(0), 0);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		int joined = driver.count("joined", 0);
		struct gpu_queue *q;

		assert_int_equal(ops->queue_new(plugin, &spec, &q, &err), 0);
		driver.hold(true);
		driver.refuse("cudaMemcpyBatchAsync", 0, rows[i].result);
		driver.refuse_after(6);
		assert_int_equal(ops->submit(q, &copy), rows[i].ret);
		driver.refuse(NULL, 0, 0);
		assert_int_equal(*q->done, 0);
		if (rows[i].ret == -EINVAL) {
			assert_string_equal(q->refusal,
					    i ? "cudaErrorMemoryAllocation" : "cudaError");
			assert_int_equal(driver.count("joined", 0), joined + 3);
			driver.hold(false);
			assert_int_equal(*q->done, 1);
			assert_int_equal(ops->check(q), 0);
			assert_int_equal(ops->submit(q, &copy), 0);
			assert_int_equal(*q->done, 2);
			joined += 3;
		}
		driver.hold(false);
		ops->queue_free(q);
		assert_int_equal(driver.count("joined", 0), joined + 3);
	}
	ops->stop(plugin, 0);
}

/* The stream writes the number of a copy by engines, or a kernel that copies nothing does. */
static void ends_copies_by_engines(void **state)
{
	static const struct dray_piece piece = { (void *)0x1000, (void *)0x2000, 64 };
	const struct gpu_copy copy = {
		.pieces = &piece, .n = 1, .bytes = 64, .engine = true, .route = GPU_WITHIN
	};

	NEEDS_PLUGIN();
	for (int words = 0; words < 2; words++) {
		struct gpu_queue *q;

		driver.attribute(STREAMS_WRITE_WORDS, words);
		ops->close(plugin);
		assert_int_equal(ops->open(&plugin, &err), 0);
		assert_int_equal(start(0), 0);
		q = queue(0);
		driver.hold(true);
		assert_int_equal(ops->submit(q, &copy), 0);
		assert_int_equal(*q->done, 0);
		driver.hold(false);
		assert_int_equal(*q->done, 1);
		driver.refuse(words ? "cudaLaunchKernelExC" : "cuStreamWriteValue64", 0,
			      ILLEGAL_ADDRESS);
		assert_int_equal(ops->submit(q, &copy), 0);
		driver.refuse(NULL, 0, 0);
		driver.refuse(words ? "cuStreamWriteValue64" : "cudaLaunchKernelExC", 0,
			      ILLEGAL_ADDRESS);
		assert_int_equal(ops->submit(q, &copy), -EIO);
		driver.refuse(NULL, 0, 0);
		ops->queue_free(q);
		ops->stop(plugin, 0);
	}
}

/* Between device and host shorter lists are spread, too. Small pieces from the host go in rows, apart from large ones. */
static void copies_lists_from_host(void **state)
{
	static struct dray_piece pieces[1300];
	static const struct {
		enum gpu_route route;
		uint32_t small, large, bytes; /* of a small piece */
		int rows, plain, calls, joined;
		bool lists;
	} rows[] = {
		{ GPU_TO_HOST, 31, 0, 16384, 0, 0, 1, 0, false },
		{ GPU_TO_HOST, 32, 0, 16384, 0, 0, 4, 3, false },
		{ GPU_TO_HOST, 64, 64, 16384, 0, 0, 4, 3, false },
		{ GPU_FROM_HOST, 0, 31, 0, 0, 0, 1, 0, false },
		{ GPU_FROM_HOST, 0, 64, 0, 0, 0, 4, 3, false },
		{ GPU_FROM_HOST, 1, 0, 24576, 24576, 0, 0, 0, false },
		{ GPU_FROM_HOST, 1, 0, 24577, 0, 1, 0, 0, false },
		{ GPU_FROM_HOST, 3, 0, 7, 0, 3, 0, 0, false },
		{ GPU_FROM_HOST, 600, 0, 16384, 600 * 16384, 0, 0, 0, false },
		{ GPU_FROM_HOST, 5, 1, 4096, 5 * 4096, 1, 0, 0, false },
		{ GPU_FROM_HOST, 64, 64, 4096, 64 * 4096, 0, 4, 3, false },
		{ GPU_FROM_HOST, 600, 700, 4096, 600 * 4096, 0, 4, 3, false },
		/* many copies in a series: small ones in lists, all on one stream */
		{ GPU_FROM_HOST, 1, 0, 16384, 0, 0, 1, 0, true },
		{ GPU_FROM_HOST, 600, 0, 16384, 0, 0, 2, 0, true },
		{ GPU_FROM_HOST, 600, 600, 16384, 0, 0, 3, 0, true },
		{ GPU_FROM_HOST, 0, 600, 0, 0, 0, 4, 3, true },
		{ GPU_TO_HOST, 600, 0, 16384, 0, 0, 4, 3, true },
	};
	static const char *const counts[] = { "rows", "plain", "calls", "joined" };
	const struct gpu_queue_spec spec = { .engines = true, .share = 100 };
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(ops->queue_new(plugin, &spec, &q, &err), 0);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		const int expected[] = { rows[i].rows, rows[i].plain, rows[i].calls,
					 rows[i].joined };
		struct gpu_copy copy = { .pieces = pieces,
					 .engine = true,
					 .lists = rows[i].lists,
					 .route = rows[i].route };
		int before[DRAY_ARRAY_SIZE(counts)];

		/* by turns as long as there are both */
		for (uint32_t small = rows[i].small, large = rows[i].large; small || large;) {
			bool is_small = small && (copy.n % 2 == 0 || !large);
			uint64_t bytes = is_small ? rows[i].bytes : 65536;

			pieces[copy.n++] =
				(struct dray_piece){ (void *)0x1000, (void *)0x2000, bytes };
			copy.bytes += bytes;
			small -= is_small;
			large -= !is_small;
		}
		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(counts); k++)
			before[k] = driver.count(counts[k], 0);
		assert_int_equal(ops->submit(q, &copy), 0);
		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(counts); k++)
			assert_int_equal(driver.count(counts[k], 0) - before[k], expected[k]);
	}
	driver.refuse("cudaMemcpy2DAsync", 0, ILLEGAL_ADDRESS);
	pieces[0] = (struct dray_piece){ (void *)0x1000, (void *)0x2000, 4096 };
	assert_int_equal(ops->submit(q, &(struct gpu_copy){ .pieces = pieces,
							    .n = 1,
							    .bytes = 4096,
							    .engine = true,
							    .route = GPU_FROM_HOST }),
			 -EIO);
	driver.refuse(NULL, 0, 0);
	ops->queue_free(q);
	ops->stop(plugin, 0);
}

static uint64_t import_at(unsigned device, uint8_t number, struct gpu_import **ret)
{
	const struct gpu_import_spec spec = { .kind = GPU_IMPORT_IPC,
					      .device = device,
					      .handle = { (uint8_t)device, number },
					      .bytes = MIB,
					      .write = true };
	uint64_t address, bytes;

	assert_int_equal(ops->import(plugin, &spec, ret, &address, &bytes, &err), 0);
	return address;
}

/* Copy engines get addresses of the context in which they copy: with others the driver takes 16 us for each piece. */
static void copies_between_peers_by_engines(void **state)
{
	static struct dray_piece pieces[300];
	const struct gpu_queue_spec spec = { .engines = true, .share = 100 };
	struct gpu_copy copy = { .pieces = pieces, .engine = true, .route = GPU_PEER };
	struct gpu_import *near[2], *far[3];
	uint64_t to, from[3];
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	to = import_at(0, 1, &near[0]);
	assert_int_equal(start(1), 0);
	import_at(0, 2, &near[1]);
	for (uint8_t i = 0; i < 3; i++)
		from[i] = import_at(1, (uint8_t)(9 - i), &far[i]);
	/* one that is gone does not hide the others */
	ops->release(far[1]);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(pieces); i++)
		pieces[i] = (struct dray_piece){ (uint8_t *)(uintptr_t)to + i * 64,
						 (uint8_t *)(uintptr_t)from[i % 2 * 2] + i * 64,
						 64 };
	assert_int_equal(ops->queue_new(plugin, &spec, &q, &err), 0);
	for (unsigned k = 0; k < 4; k++) {
		copy.n = k / 2 ? 300 : 1;
		copy.swapped = k % 2;
		copy.bytes = copy.n * 64;
		assert_int_equal(ops->submit(q, &copy), 0);
	}
	assert_int_equal(driver.count("listed", 0), 600);
	assert_int_equal(driver.count("foreign", 0), 0);
	ops->queue_free(q);
	ops->release(far[0]);
	ops->release(far[2]);
	ops->release(near[0]);
	ops->release(near[1]);
	ops->stop(plugin, 0);
	ops->stop(plugin, 1);
}

/* --- loss while copies are in flight -------------------------------------------------------------- */

/*
 * The call of another user fails, or a call fails without a fault of the device: a copy can stay in
 * flight for any time.
 */
static void does_not_wait_for_a_hanging_copy(void **state)
{
	struct gpu_queue *q, *other;
	int waits;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	q = queue(0);
	other = queue(0);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	waits = driver.count("waits", 0);
	driver.refuse("cudaDeviceFlushGPUDirectRDMAWrites", 0, ILLEGAL_ADDRESS);
	assert_int_equal(ops->flush_rdma(plugin, 0), -EIO);
	assert_int_equal(ops->check(other), -EIO);
	assert_int_equal(ops->check(q), -EIO);
	assert_int_equal(driver.count("waits", 0), waits);
	assert_int_equal(*q->done, 0);
	ops->queue_free(other);
	/* waits for the copy in flight */
	ops->queue_free(q);
	assert_int_equal(driver.count("cut", 0), 0);
	ops->stop(plugin, 0);
}

/* The driver refuses to wait, as after a fault of another device, while a copy continues. */
static void ends_after_copies_in_flight(void **state)
{
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	q = queue(0);
	driver.hold(true);
	assert_int_equal(submit(q), 0);
	driver.refuse("cudaStream", 0, ILLEGAL_ADDRESS);
	driver.finish_after(20);
	ops->queue_free(q);
	assert_int_equal(driver.count("cut", 0), 0);
	ops->stop(plugin, 0);
}

/* --- RDMA ----------------------------------------------------------------------------------------- */

#define WRITES_ORDERING 118
#define FLUSH_OPTIONS 117

/* Sets how the driver answers a flush, and whether RDMA devices may access its memory. */
static void rdma(int ordering, int options, int flush, int dmabuf)
{
	struct gpu_import *i;

	ops->close(plugin);
	driver.attribute(WRITES_ORDERING, ordering);
	driver.attribute(FLUSH_OPTIONS, options);
	assert_int_equal(ops->open(&plugin, &err), 0);
	assert_int_equal(start(0), 0);
	assert_int_equal(import_ipc(0, 1, &i), 0);
	assert_int_equal(ops->flush_rdma(plugin, 0), flush);
	assert_int_equal(ops->export_dmabuf(i, 0, MIB, &err), dmabuf);
	ops->release(i);
	ops->stop(plugin, 0);
}

static void makes_writes_visible(void **state)
{
	NEEDS_PLUGIN();
	rdma(0, 1, 0, 0);
	rdma(100, 0, -EOPNOTSUPP, 0);
	rdma(0, 0, -EOPNOTSUPP, -EOPNOTSUPP);
	assert_int_equal(err.code, DRAY_E_UNSUPPORTED);
}

/* --- host memory ---------------------------------------------------------------------------------- */

/* Host memory that other devices use keeps the context of a stopped device, and each start takes that one. */
static void has_one_context_for_each_device(void **state)
{
	static _Alignas(4096) uint8_t pages[2][4096];

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(1), 0);
	assert_int_equal(ops->pin(plugin, pages[0], sizeof(pages[0]), true, &err), 0);
	for (unsigned i = 0; i < 2; i++) {
		ops->stop(plugin, 0);
		assert_int_equal(driver.count("contexts", 0), 1);
		assert_int_equal(start(0), 0);
		assert_int_equal(driver.count("contexts", 0), 1);
		if (!i)
			assert_int_equal(ops->pin(plugin, pages[1], sizeof(pages[1]), true, &err),
					 0);
	}
	ops->stop(plugin, 0);
	ops->unpin(plugin, pages[0]);
	assert_int_equal(driver.count("contexts", 0), 1);
	ops->unpin(plugin, pages[1]);
	assert_int_equal(driver.count("contexts", 0), 0);
	assert_int_equal(start(0), 0);
	assert_int_equal(ops->pin(plugin, pages[0], sizeof(pages[0]), true, &err), 0);
	ops->stop(plugin, 0);
	ops->stop(plugin, 1);
	assert_int_equal(driver.count("contexts", 0) + driver.count("contexts", 1), 0);
	ops->unpin(plugin, pages[0]);
}

/* Existing memory is pinned while a device is started. Memory that the driver refuses hinders no start. */
static void pins_existing_memory_while_started(void **state)
{
	static _Alignas(4096) uint8_t pages[2][4096];
	void *own;

	NEEDS_PLUGIN();
	assert_int_equal(ops->pin(plugin, pages[0], sizeof(pages[0]), true, &err), -EIO);
	assert_int_equal(start(0), 0);
	assert_int_equal(ops->pin(plugin, pages[0], sizeof(pages[0]), true, &err), 0);
	assert_int_equal(ops->pin(plugin, pages[1], sizeof(pages[1]), false, &err), 0);
	ops->stop(plugin, 0);
	driver.refuse("cudaHostRegister", 0, INVALID_VALUE);
	assert_int_equal(start(0), 0);
	ops->unpin(plugin, pages[0]);
	assert_int_equal(ops->pin(plugin, pages[0], sizeof(pages[0]), true, &err), -EINVAL);
	ops->unpin(plugin, pages[1]);
	ops->stop(plugin, 0);
	/* copies need memory of the plug-in's own, so without it no device starts */
	assert_int_equal(ops->host_alloc(plugin, 4096, &own, &err), 0);
	assert_int_equal(start(0), -EINVAL);
	driver.refuse(NULL, 0, 0);
	assert_int_equal(start(0), 0);
	ops->stop(plugin, 0);
	ops->host_free(plugin, own);
}

/* Other processes open the plug-in's own memory by a handle. */
static void hands_out_own_memory(void **state)
{
	uint8_t handle[GPU_HANDLE_BYTES] = { 0 };
	struct gpu_block *b;
	uint64_t address;

	NEEDS_PLUGIN();
	assert_int_equal(start(1), 0);
	assert_int_equal(ops->block_alloc(plugin, 1, MIB, &b, &address, &err), 0);
	assert_int_equal(ops->block_handle(b, handle, &err), 0);
	assert_int_equal(handle[0], 1);
	driver.refuse("cudaIpcGetMemHandle", 1, INVALID_VALUE);
	assert_int_equal(ops->block_handle(b, handle, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "no handle"));
	driver.refuse(NULL, 0, 0);
	ops->block_free(b);
	ops->stop(plugin, 1);
}

/* --- peers ---------------------------------------------------------------------------------------- */

static void opens_for_peers(void **state)
{
	struct gpu_import *i;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 0 | 1 << 2);
	assert_int_equal(import_ipc(0, 1, &i), 0);
	assert_int_equal(driver.count("opened", 0), 1);
	assert_int_equal(driver.count("opened", 1), 1);
	assert_int_equal(start(2), 0);
	assert_int_equal(driver.count("opened", 2), 1);
	/* no import keeps a context that was stopped */
	ops->stop(plugin, 1);
	assert_int_equal(driver.count("contexts", 1), 0);
	assert_int_equal(start(1), 0);
	assert_int_equal(driver.count("opened", 1), 1);
	driver.lose(1);
	ops->stop(plugin, 1);
	assert_int_equal(driver.count("contexts", 1), 0);
	ops->release(i);
	assert_int_equal(driver.count("opened", 0) + driver.count("opened", 2), 0);
	ops->stop(plugin, 0);
	ops->stop(plugin, 2);
}

/*
 * The driver ignores some bytes of a handle, and opens what differs in them at the same address: that is one import, with one place in
 * the tables of peers.
 */
static void opens_an_allocation_once(void **state)
{
	struct gpu_import *first, *variant, *again;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(1), 0);
	assert_int_equal(import_ipc(0, 1, &first), 0);
	assert_int_equal(import_variant(0, 1, 7, &variant), 0);
	assert_int_equal(import_variant(0, 1, 7, &again), 0);
	assert_ptr_equal(variant, first);
	assert_ptr_equal(again, first);
	assert_int_equal(driver.count("opened", 0), 1);
	assert_int_equal(driver.count("opened", 1), 1);
	ops->release(first);
	ops->release(again);
	assert_int_equal(driver.count("opened", 1), 1);
	ops->release(variant);
	assert_int_equal(driver.count("opened", 0) + driver.count("opened", 1), 0);
	ops->stop(plugin, 0);
	ops->stop(plugin, 1);
}

/* Memory that cannot be opened for a starting device: the device starts without that peer. */
static void starts_without_a_peer(void **state)
{
	struct gpu_import *first, *second, *own;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(2), 0);
	assert_int_equal(import_ipc(0, 1, &first), 0);
	driver.refuse("cudaIpcOpenMemHandle", 1, OUT_OF_MEMORY);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 2);
	assert_non_null(strstr(err.msg, "cudaErrorMemoryAllocation"));
	driver.refuse(NULL, 0, 0);
	/* the two devices do not access each other until one starts anew */
	assert_int_equal(import_ipc(0, 2, &second), 0);
	assert_int_equal(driver.count("opened", 1), 0);
	assert_int_equal(import_ipc(1, 3, &own), 0);
	assert_int_equal(driver.count("opened", 0), 2);
	assert_int_equal(driver.count("opened", 2), 3);
	ops->release(own);
	ops->stop(plugin, 1);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 0 | 1 << 2);
	assert_int_equal(err.code, 0);
	assert_int_equal(driver.count("opened", 1), 2);
	ops->release(first);
	ops->release(second);
	for (unsigned i = 0; i < 3; i++)
		ops->stop(plugin, i);
}

static void starts_where_access_is_refused(void **state)
{
	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	driver.refuse("cuCtxEnablePeerAccess", 0, OUT_OF_MEMORY);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 2);
	ops->stop(plugin, 0);
	ops->stop(plugin, 1);
}

/* A lost peer reports its own loss; other devices are not affected. */
static void a_lost_peer_affects_no_other_device(void **state)
{
	struct gpu_import *i, *k;
	struct gpu_queue *q;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(1), 0);
	q = queue(1);
	driver.lose(1);
	assert_int_equal(import_ipc(0, 1, &i), 0);
	assert_int_equal(ops->check(q), -EIO);
	assert_int_equal(import_ipc(1, 2, &k), -EIO);
	assert_int_equal(start(2), 0);
	assert_int_equal(driver.count("opened", 2), 1);
	ops->queue_free(q);
	ops->stop(plugin, 1);
	driver.refuse("cudaIpcOpenMemHandle", 1, ILLEGAL_ADDRESS);
	assert_int_equal(start(1), -EIO);
	assert_int_equal(err.code, DRAY_E_GPU_LOST);
	assert_int_equal(driver.count("contexts", 1), 0);
	ops->release(i);
	ops->stop(plugin, 0);
	ops->stop(plugin, 2);
}

/* A peer that is left out is no reason for a failure; the message has the real reason. */
static void reports_why_a_device_does_not_start(void **state)
{
	struct gpu_import *i;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(2), 0);
	assert_int_equal(import_ipc(2, 1, &i), 0);
	driver.refuse("cuCtxEnablePeerAccess", 0, OUT_OF_MEMORY);
	driver.refuse("cudaIpcOpenMemHandle", 1, ILLEGAL_ADDRESS);
	assert_int_equal(start(1), -EIO);
	assert_int_equal(err.code, DRAY_E_GPU_LOST);
	driver.refuse(NULL, 0, 0);
	driver.refuse("cuCtxEnablePeerAccess", 0, OUT_OF_MEMORY);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 2);
	assert_int_equal(err.code, DRAY_E_NO_MEMORY);
	ops->release(i);
	for (unsigned k = 0; k < 3; k++)
		ops->stop(plugin, k);
}

/* A device starts without a lost peer and without its memory. */
static void starts_beside_a_lost_peer(void **state)
{
	struct gpu_import *i;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(import_ipc(0, 1, &i), 0);
	driver.lose(0);
	assert_int_equal(ops->flush_rdma(plugin, 0), -EIO);
	driver.refuse("cudaIpcOpenMemHandle", 1, ILLEGAL_ADDRESS);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 2);
	assert_int_equal(err.code, DRAY_E_GPU_LOST);
	ops->stop(plugin, 1);
	/* the memory of a device can outlive its context */
	ops->stop(plugin, 0);
	assert_int_equal(start(1), 0);
	assert_int_equal(peers, 1 << 2);
	ops->release(i);
	ops->stop(plugin, 1);
}

/* A fault of the owner, while its peers get access. */
static void a_fault_belongs_to_its_own_device(void **state)
{
	struct gpu_import *i;

	NEEDS_PLUGIN();
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(start(k), 0);
	driver.lose_in("cuMemSetAccess", 0);
	assert_int_equal(open_vmm(16 * MIB, 16 * MIB, &i), 0);
	assert_int_equal(ops->flush_rdma(plugin, 0), -EIO);
	assert_int_equal(ops->flush_rdma(plugin, 1), 0);
	assert_int_equal(ops->flush_rdma(plugin, 2), 0);
	ops->release(i);
	for (unsigned k = 0; k < 3; k++)
		ops->stop(plugin, k);
}

/* The owner gets an error, and other peers keep their access. */
static void refuses_memory_that_a_peer_cannot_open(void **state)
{
	struct gpu_import *i;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(start(1), 0);
	driver.refuse("cudaIpcOpenMemHandle", 1, OUT_OF_MEMORY);
	assert_int_equal(import_ipc(0, 1, &i), -ENOMEM);
	assert_int_equal(err.code, DRAY_E_NO_MEMORY);
	assert_int_equal(driver.count("opened", 0), 0);
	ops->stop(plugin, 0);
	ops->stop(plugin, 1);
}

/* --- sizes of VMM allocations --------------------------------------------------------------------- */

static int import_vmm(uint64_t bytes, uint64_t allocation)
{
	struct gpu_import *i;
	int r = open_vmm(bytes, allocation, &i);

	if (r == 0)
		ops->release(i);
	return r;
}

static void maps_whole_allocations(void **state)
{
	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(import_vmm(3 * MIB, 0), 0);
	assert_int_equal(driver.count("maps", 0), 7);
	assert_int_equal(import_vmm(3 * MIB, 16 * MIB), 0);
	assert_int_equal(driver.count("maps", 0), 8);
	/* no size above the stated one is tried */
	assert_int_equal(import_vmm(3 * MIB, 14 * MIB), -EINVAL);
	assert_int_equal(err.code, DRAY_E_GPU_HANDLE);
	assert_int_equal(import_vmm(3 * MIB, 18 * MIB), -EINVAL);
	assert_int_equal(driver.count("maps", 0), 10);
	assert_int_equal(import_vmm(3 * MIB, 15 * MIB), -EINVAL);
	assert_int_equal(import_vmm(3 * MIB, UINT64_MAX), -EINVAL);
	assert_int_equal(err.code, DRAY_E_GPU_HANDLE);
	assert_int_equal(driver.count("maps", 0), 10);
	assert_int_equal(import_vmm(17 * MIB, 17 * MIB), -EINVAL);
	assert_int_equal(err.code, DRAY_E_GPU_HANDLE);
	/* no size up to that of the device is it */
	assert_int_equal(import_vmm(4095 * MIB, 0), -EINVAL);
	assert_int_equal(err.code, DRAY_E_REGION_TOO_SMALL);
	ops->stop(plugin, 0);
}

/* A client that does not tell the size of its allocation holds up others for a bounded time. */
static void limits_the_search_for_a_size(void **state)
{
	struct gpu_import *i;
	int before;

	NEEDS_PLUGIN();
	assert_int_equal(start(0), 0);
	assert_int_equal(open_vmm_of(1024 * MIB, MIB, 0, &i), 0);
	ops->release(i);
	before = driver.count("maps", 0);
	assert_int_equal(open_vmm_of(2048 * MIB, MIB, 0, &i), -EINVAL);
	assert_int_equal(driver.count("maps", 0), before + 512);
	assert_int_equal(err.code, DRAY_E_GPU_HANDLE);
	assert_non_null(strstr(err.msg, "send its size"));
	assert_int_equal(open_vmm_of(2048 * MIB, MIB, 2048 * MIB, &i), 0);
	ops->release(i);
	ops->stop(plugin, 0);
}

#define PLUGIN_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PLUGIN_TEST(notifies_once),
		PLUGIN_TEST(notifies_of_a_loss),
		PLUGIN_TEST(notifies_when_the_queue_is_freed),
		PLUGIN_TEST(copies_lists_by_engines),
		PLUGIN_TEST(ends_copies_by_engines),
		PLUGIN_TEST(ends_after_the_rest_of_a_list),
		PLUGIN_TEST(refuses_drivers),
		PLUGIN_TEST(copies_lists_from_host),
		PLUGIN_TEST(copies_between_peers_by_engines),
		PLUGIN_TEST(does_not_wait_for_a_hanging_copy),
		PLUGIN_TEST(ends_after_copies_in_flight),
		PLUGIN_TEST(makes_writes_visible),
		PLUGIN_TEST(maps_whole_allocations),
		PLUGIN_TEST(limits_the_search_for_a_size),
		PLUGIN_TEST(has_one_context_for_each_device),
		PLUGIN_TEST(pins_existing_memory_while_started),
		PLUGIN_TEST(hands_out_own_memory),
		PLUGIN_TEST(opens_for_peers),
		PLUGIN_TEST(opens_an_allocation_once),
		PLUGIN_TEST(starts_without_a_peer),
		PLUGIN_TEST(starts_where_access_is_refused),
		PLUGIN_TEST(a_lost_peer_affects_no_other_device),
		PLUGIN_TEST(starts_beside_a_lost_peer),
		PLUGIN_TEST(reports_why_a_device_does_not_start),
		PLUGIN_TEST(a_fault_belongs_to_its_own_device),
		PLUGIN_TEST(refuses_memory_that_a_peer_cannot_open),
	};

	return cmocka_run_group_tests(tests, load, NULL);
}
