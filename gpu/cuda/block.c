/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of the plug-in's own. Contexts of peers with access reach it at the same address. */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "schema/gen/errors.h"

struct gpu_block {
	struct gpu_plugin *plugin;
	struct cuda_context *context;
	void *address;
};

void cuda_block_free(struct gpu_block *b)
{
	/* a lost context frees its memory when it is destroyed */
	if (b->address && cuda_context_set(b->context->cu) == cudaSuccess)
		cudaFree(b->address);
	pthread_mutex_lock(&b->plugin->lock);
	cuda_context_unref(b->context);
	pthread_mutex_unlock(&b->plugin->lock);
	free(b);
}

int cuda_block_alloc(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		     uint64_t *ret_address, struct dray_err *reterr)
{
	struct gpu_block *b = calloc(1, sizeof(*b));
	struct cuda_context *c;
	cudaError_t result;
	int r;

	if (!b)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	pthread_mutex_lock(&p->lock);
	r = cuda_enter(p, device, &c, reterr);
	if (r == 0)
		b->context = cuda_context_ref(c);
	pthread_mutex_unlock(&p->lock);
	if (r < 0) {
		free(b);
		return r;
	}
	b->plugin = p;
	result = cudaMalloc(&b->address, bytes);
	if (result == cudaSuccess) {
		*ret = b;
		*ret_address = cuda_address(b->address);
		return 0;
	}
	b->address = NULL;
	cuda_block_free(b);
	if (result == cudaErrorMemoryAllocation)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "the GPU has no %llu free bytes", (unsigned long long)bytes);
	return cuda_fail(reterr, result, "memory on the GPU cannot be allocated");
}

int cuda_block_handle(struct gpu_block *b, uint8_t ret[GPU_HANDLE_BYTES], struct dray_err *reterr)
{
	cudaError_t result = cuda_context_set(b->context->cu);
	cudaIpcMemHandle_t handle;

	if (result == cudaSuccess)
		result = cudaIpcGetMemHandle(&handle, b->address);
	if (result != cudaSuccess)
		return cuda_fail(reterr, result, "memory on the GPU has no handle");
	_Static_assert(sizeof(handle) == GPU_HANDLE_BYTES, "a legacy CUDA IPC handle");
	memcpy(ret, &handle, sizeof(handle));
	return 0;
}
