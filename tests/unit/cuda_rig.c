/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/cuda_rig.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cm.h"

struct cuda_rig cuda;

static void *symbol(void *library, const char *name)
{
	void *p = dlsym(library, name);

	assert_non_null(p);
	return p;
}

int cuda_load(void **state)
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

int cuda_setup(void **state)
{
	cuda.reset();
	return client_setup(state);
}

int cuda_teardown(void **state)
{
	assert_int_equal(cuda.get("retained"), 0);
	assert_int_equal(cuda.get("depth"), 0);
	assert_int_equal(cuda.get("primaries"), 0);
	assert_int_equal(cuda.get("registered"), 0);
	return client_teardown(state);
}

void cuda_chunks(void)
{
	for (unsigned i = 0; i < 3; i++)
		cuda.range(FAKE_CUDA_VMM, CUDA_BASE + i * CUDA_CHUNK, CUDA_CHUNK, 0, 1);
}
