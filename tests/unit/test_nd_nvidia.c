/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver without CUDA: the content of its files, device nodes, and the path of libcuda. */
#include "netdetect/gpu/nvidia.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "netdetect/gpu/libcuda.h"
#include "tests/unit/cm.h"

#define ELF64  \
	"\x7f" \
	"ELF\x02\x01\x01 and so on"
#define ELF32  \
	"\x7f" \
	"ELF\x01\x01\x01 and so on"
#define OPEN_580                                                                        \
	"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n" \
	"GCC version:  gcc 13.3.0\n"
#define CLOSED_535 "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb\n"

/* Writes bytes, which can include NUL. */
static void write_bytes(const char *name, const void *bytes, size_t n)
{
	char path[128];
	FILE *f;

	cm_file_write(cm_dir, name, "");
	snprintf(path, sizeof(path), "%s/%s", cm_dir, name);
	f = fopen(path, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void information(void **state)
{
	struct nd_nvidia_gpu g = { .minor = 5 };

	nd_nvidia_parse("Model: \t\t NVIDIA H200 \r\nIRQ:   \t\t 500\n"
			"GPU UUID: \t GPU-01234567-89ab-cdef-0123-456789abcdef\n"
			"Device Minor: \t 3\n",
			&g);
	assert_string_equal(g.name, "NVIDIA H200");
	assert_string_equal(g.uuid, "GPU-01234567-89ab-cdef-0123-456789abcdef");
	assert_int_equal(g.minor, 3);
	/* a GPU that no process has opened yet */
	nd_nvidia_parse("Model: Unknown\nGPU UUID: GPU-????????"
			"-????"
			"-????"
			"-????"
			"-????????????\n",
			&g);
	assert_string_equal(g.uuid, "");
	assert_int_equal(g.minor, -1);
	nd_nvidia_parse("", &g);
	assert_string_equal(g.name, "");
	nd_nvidia_parse("Device Minor: -1\n", &g);
	assert_int_equal(g.minor, -1);
	nd_nvidia_parse("Device Minor: 7x\nModel", &g);
	assert_int_equal(g.minor, -1);
	assert_string_equal(g.name, "");
}

static void scan(struct nd_nvidia *ret)
{
	static struct nd_gpu gpu = { .bdf = "0000:01:00.0", .vendor = 0x10de, .numa = -1 };
	struct nd_source s;

	cm_file_write(cm_dir, "sys/here", "");
	assert_int_equal(nd_source_open(&s, cm_dir), 0);
	assert_int_equal(nd_nvidia_scan(&s, &gpu, 1, ret), 0);
}

static void no_driver(void **state)
{
	struct nd_nvidia n;

	scan(&n);
	assert_false(n.present || n.dma_buf || n.libcuda_loads);
	assert_int_equal(n.n_gpus, 0);
	nd_nvidia_deinit(&n);
}

static void a_container_with_one_of_two_gpus(void **state)
{
	struct nd_nvidia n;

	cm_file_write(cm_dir, "proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
	cm_file_write(cm_dir, "proc/driver/nvidia/version", OPEN_580);
	cm_file_write(cm_dir, "proc/driver/nvidia/gpus/0000:02:00.0/information",
		      "Model: B\nDevice Minor: 1\n");
	cm_file_write(cm_dir, "proc/driver/nvidia/gpus/0000:01:00.0/information",
		      "Model: A\nDevice Minor: 0\n");
	cm_file_write(cm_dir, "proc/driver/nvidia/gpus/0000:03:00.0/power", "");
	cm_file_write(cm_dir, "proc/driver/nvidia/gpus/nonsense/information", "Model: C\n");
	cm_file_write(cm_dir, "dev/nvidia1", "");
	cm_file_write(cm_dir, "dev/nvidiactl", "");
	cm_file_write(cm_dir, "dev/nvidia-caps", "");
	scan(&n);
	assert_true(n.present && n.open_modules && n.dma_buf);
	assert_string_equal(n.version, "580.95.05");
	assert_int_equal(n.n_gpus, 3);
	assert_int_equal(n.nodes, 1);
	assert_string_equal(n.gpus[0].name, "A");
	assert_true(n.gpus[0].in_sysfs && !n.gpus[1].in_sysfs);
	assert_int_equal(n.gpus[0].node_error, ENOENT);
	assert_int_equal(n.gpus[1].node_error, 0);
	assert_int_equal(n.gpus[2].node_error, ENODATA);
	assert_int_equal(n.control_error, 0);
	assert_int_equal(n.uvm_error, ENOENT);
	assert_ptr_equal(nd_nvidia_by_bdf(&n, "0000:02:00.0"), &n.gpus[1]);
	assert_null(nd_nvidia_by_bdf(&n, "0000:09:00.0"));
	nd_nvidia_deinit(&n);
}

static void without_dma_buf(void **state)
{
	struct nd_nvidia n;

	cm_file_write(cm_dir, "proc/sys/kernel/osrelease", "6.8.0\n");
	cm_file_write(cm_dir, "proc/driver/nvidia/version", CLOSED_535);
	scan(&n);
	assert_string_equal(n.version, "535.161.08");
	assert_false(n.dma_buf);
	assert_non_null(strstr(n.dma_buf_reason, "closed kernel modules"));
	nd_nvidia_deinit(&n);
	cm_file_write(cm_dir, "proc/driver/nvidia/version", OPEN_580);
	cm_file_write(cm_dir, "proc/sys/kernel/osrelease", "5.10.0-30-amd64\n");
	scan(&n);
	assert_false(n.dma_buf);
	assert_non_null(strstr(n.dma_buf_reason, "5.12"));
	nd_nvidia_deinit(&n);
	/* device nodes only, as in sandboxes */
	cm_file_write(cm_dir, "proc/driver/nvidia/version", "");
	cm_file_write(cm_dir, "dev/nvidiactl", "");
	scan(&n);
	assert_true(n.present && !n.dma_buf);
	assert_non_null(strstr(n.dma_buf_reason, "not known"));
	nd_nvidia_deinit(&n);
}

static const char *libcuda(bool *ret_loads)
{
	static char path[256];
	struct nd_source s;

	cm_file_write(cm_dir, "sys/here", "");
	assert_int_equal(nd_source_open(&s, cm_dir), 0);
	*ret_loads = nd_libcuda_find(&s, path, sizeof(path));
	return path;
}

static void the_loaders_directories(void **state)
{
	static const char environment[] =
		"A=1\0LD_LIBRARY_PATH=:/none:/usr/local/nvidia/lib64\0B=2";
	bool loads;

	assert_string_equal(libcuda(&loads), "");
	assert_false(loads);
	/* a directory that only LD_LIBRARY_PATH names */
	cm_file_write(cm_dir, "usr/local/nvidia/lib64/libcuda.so.1", ELF64);
	assert_string_equal(libcuda(&loads), "/usr/local/nvidia/lib64/libcuda.so.1");
	assert_false(loads);
	write_bytes("proc/self/environ", environment, sizeof(environment));
	assert_string_equal(libcuda(&loads), "/usr/local/nvidia/lib64/libcuda.so.1");
	assert_true(loads);
	/* neither a library of the other word size nor a missing one is used */
	cm_file_write(cm_dir, "usr/local/nvidia/lib64/libcuda.so.1", ELF32);
	assert_string_equal(libcuda(&loads), "");
	assert_false(loads);
}

static void the_loaders_cache(void **state)
{
	static const char cache[] = "glibc-ld.so.cache1.1\0\1\2libcuda.so.1\0/i386/libcuda.so.1\0"
				    "/gone/libcuda.so.1\0/opt/x/libcuda.so.1\0/libc.so.6";
	bool loads;

	cm_file_write(cm_dir, "i386/libcuda.so.1", ELF32);
	cm_file_write(cm_dir, "opt/x/libcuda.so.1", ELF64);
	write_bytes("etc/ld.so.cache", cache, sizeof(cache));
	assert_string_equal(libcuda(&loads), "/opt/x/libcuda.so.1");
	assert_true(loads);
}

/* Whatever the cache contains, the result is a complete path inside it. */
static void a_cache_of_random_bytes(void **state)
{
	static const char words[][20] = { "/libcuda.so.1", "/", "a", "libcuda.so.1", "" };
	char noise[512];

	srand(7);
	for (unsigned round = 0; round < 2000; round++) {
		size_t n = 0, at = 0, before = 0;
		const char *path;

		while (n + sizeof(words[0]) < sizeof(noise)) {
			const char *word = words[(unsigned)rand() % 5];

			memcpy(noise + n, word, strlen(word) + 1);
			n += strlen(word) + (unsigned)rand() % 2;
		}
		n = (unsigned)rand() % (n + 1);
		while ((path = nd_libcuda_cached(noise, n, &at))) {
			assert_true(path >= noise && path < noise + n && at <= n && at > before);
			assert_int_equal(*path, '/');
			assert_ptr_equal(path + strlen(path) + 1, noise + at);
			before = at;
		}
	}
}

static void kernels(void **state)
{
	assert_true(nd_kernel_at_least("6.8.0-45-generic", 5, 12));
	assert_true(nd_kernel_at_least("5.12", 5, 12));
	assert_false(nd_kernel_at_least("5.9.16", 5, 12));
	assert_true(nd_kernel_at_least("", 5, 12));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(information),
		cm_test_in_dir(no_driver),
		cm_test_in_dir(a_container_with_one_of_two_gpus),
		cm_test_in_dir(without_dma_buf),
		cm_test_in_dir(the_loaders_directories),
		cm_test_in_dir(the_loaders_cache),
		cmocka_unit_test(a_cache_of_random_bytes),
		cmocka_unit_test(kernels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
