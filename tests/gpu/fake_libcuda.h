/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU: the functions that libdray and dray.cuda use, over memory that a test defines by
 * fake_cuda_range(). A test loads it by path; after that, loading libcuda.so.1 by name gives it, too. For one thread.
 */
#pragma once

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

/* Resets everything: no memory, no context, settings with the values below. */
FAKE_CUDA_API void fake_cuda_reset(void);

/* Defines memory at base. handle_types: for VMM, the allowed export handles; 1 descriptor, 8 fabric. */
FAKE_CUDA_API void fake_cuda_range(int kind, uint64_t base, uint64_t bytes, int device,
				   int handle_types);

/*
 * Settings and their values after a reset: "mapping" 1 (the mapping attributes are known), "joined" 0 (1: they and the
 * address range cover all adjacent mappings; 2: only the attributes do), "dmabuf" 1, "current" 0 (1 + the device whose
 * context is current; 0: none), "primary" 0 (bits: devices whose primary context is active), "fail_at" 0 (the number of
 * the next call that fails with "error", 719), "rdma" 0 (1: virtual memory can be made reachable for RDMA devices).
 */
FAKE_CUDA_API void fake_cuda_set(const char *name, int64_t value);

/*
 * Returns a setting or a counter: "retained" (allocations held), "depth" (contexts pushed), "primaries" (held),
 * "registered" (host ranges), "reserved" (address ranges), "mapped" (allocations that have an address), "created_flags" (1:
 * the last allocation asked to be reachable for RDMA devices), "synchronized" (contexts), "calls", "exports", "waits", "writes"; of the last write or wait of a stream "stream",
 * "address", "value", "flags".
 */
FAKE_CUDA_API int64_t fake_cuda_get(const char *name);
