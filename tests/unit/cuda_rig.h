/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray with a fake agent (client_rig.h) and a CUDA driver without a GPU
 * (tests/gpu/fake_libcuda.h).
 */
#pragma once

#include <stdint.h>

#include "tests/gpu/fake_libcuda.h"
#include "tests/unit/client_rig.h"

#define CUDA_MIB (UINT64_C(1) << 20)
#define CUDA_CHUNK (20 * CUDA_MIB)
#define CUDA_BASE UINT64_C(0x7f1200000000)
#define CUDA_DEVICE_0 "GPU-000102a0-0405-0607-0809-0a0b0c0d0e0f"
#define CUDA_DEVICE_1 "GPU-000102a1-0405-0607-0809-0a0b0c0d0e0f"

/* Functions of the fake driver. */
struct cuda_rig {
	void (*reset)(void);
	void (*range)(int kind, uint64_t base, uint64_t bytes, int device, int handle_types);
	void (*set)(const char *name, int64_t value);
	int64_t (*get)(const char *name);
};
extern struct cuda_rig cuda;

/* Setup of a group: loads the driver as an engine does, from any path. It stays loaded. */
int cuda_load(void **state);

/*
 * Setup and teardown of a test. The teardown checks that everything was given back to the driver
 * and that the library left no context pushed.
 */
int cuda_setup(void **state);
int cuda_teardown(void **state);

/* Makes three adjacent mappings from CUDA_BASE on, as PyTorch does. */
void cuda_chunks(void);

#define CUDA_TEST(f) cmocka_unit_test_setup_teardown(f, cuda_setup, cuda_teardown)
