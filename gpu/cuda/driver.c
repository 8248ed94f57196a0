/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define TEXT_(x) #x
/* expands the macros of cuda.h: cuMemAlloc is cuMemAlloc_v2 */
#define TEXT(x) TEXT_(x)

struct cuda_driver cuda;

static const struct symbol {
	const char *name;
	size_t offset;
	bool optional;
} symbols[] = { { "cuCtxCreate_v2", offsetof(struct cuda_driver, context_create), false },
		{ "cuMemcpyBatchAsync_v2", offsetof(struct cuda_driver, memcpy_batch), true },
#define CUDA_SYMBOL(member, function) \
	{ TEXT(function), offsetof(struct cuda_driver, member), false },
		CUDA_NEEDED(CUDA_SYMBOL)
#undef CUDA_SYMBOL
#define CUDA_SYMBOL(member, function) \
	{ TEXT(function), offsetof(struct cuda_driver, member), true },
			CUDA_OPTIONAL(CUDA_SYMBOL)
#undef CUDA_SYMBOL
};

int cuda_driver_load(struct dray_err *reterr)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_UNSUPPORTED,
			"the NVIDIA driver's library cannot be loaded (%s): install the driver, or give "
			"the container GPUs with the capability compute",
			dlerror());
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(symbols); i++) {
		void *address = dlsym(library, symbols[i].name);

		if (!address && !symbols[i].optional)
			return dray_err_set(
				reterr, -ENOENT, DRAY_E_UNSUPPORTED,
				"the NVIDIA driver has no %s: it is older than CUDA 11.2",
				symbols[i].name);
		memcpy((char *)&cuda + symbols[i].offset, &address, sizeof(address));
	}
	return 0;
}
