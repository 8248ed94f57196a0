/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU: as much of the driver as libdray and dray.cuda ask, over memory that a test makes
 * up by fake_cuda_range(). Tests load it by path; whoever then asks for libcuda.so.1 gets it too. One thread.
 */
#ifndef DRAY_TESTS_GPU_FAKE_LIBCUDA_H
#define DRAY_TESTS_GPU_FAKE_LIBCUDA_H

#include <stdint.h>

enum fake_cuda_kind {
	FAKE_CUDA_MALLOC,  /* cudaMalloc() */
	FAKE_CUDA_VMM,     /* one mapping of one allocation of cuMemCreate() */
	FAKE_CUDA_POOL,    /* cudaMallocAsync() */
	FAKE_CUDA_MANAGED, /* cudaMallocManaged() */
	FAKE_CUDA_HOST     /* cudaMallocHost() */
};

#ifndef FAKE_CUDA_API
#define FAKE_CUDA_API
#endif

/* Forgets everything: no memory, no context, settings as they are listed below. */
FAKE_CUDA_API void fake_cuda_reset(void);

/* Memory at base. handle_types: of VMM, what it may be exported as; 1 a descriptor, 8 fabric. */
FAKE_CUDA_API void fake_cuda_range(int kind, uint64_t base, uint64_t bytes, int device,
				   int handle_types);

/*
 * Settings: "mapping" 1 (the mapping attributes are known), "joined" 0 (1: they and the address range tell of all that
 * is mapped side by side; 2: only the attributes do), "dmabuf" 1, "current" 0 (1 + the device whose context is
 * current; 0: none), "primary" 0 (bits: devices whose primary context is active), "fail_at" 0 (that call from now on
 * fails with "error", 719).
 */
FAKE_CUDA_API void fake_cuda_set(const char *name, int64_t value);

/*
 * Any of these, and what was seen: "retained" (allocations held), "depth" (contexts pushed), "primaries" (held),
 * "registered" (host ranges), "calls", "exports"; of the last write or wait of a stream "stream", "address", "value",
 * "flags", "waits", "writes".
 */
FAKE_CUDA_API int64_t fake_cuda_get(const char *name);

#endif
