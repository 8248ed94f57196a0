/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/driver.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

struct cuda_driver cuda_driver;

static const struct symbol {
	const char *name;
	unsigned version;
	size_t offset;
} symbols[] = { { "cuCtxCreate", 3020, offsetof(struct cuda_driver, context_create) },
#define CUDA_SYMBOL(member, function, version) \
	{ #function, version, offsetof(struct cuda_driver, member) },
		CUDA_DRIVER(CUDA_SYMBOL)
#undef CUDA_SYMBOL
};

/* A runtime works over drivers of its own major version and later ones. */
static int version_check(int version, struct dray_err *reterr)
{
	if (!version)
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_UNSUPPORTED,
			"the NVIDIA driver's library libcuda.so.1 cannot be loaded: install the driver, or "
			"give the container GPUs with the capability compute");
	if (version / 1000 < CUDART_VERSION / 1000)
		return dray_err_set(
			reterr, -ENOENT, DRAY_E_UNSUPPORTED,
			"the NVIDIA driver is for CUDA %d.%d, and this plug-in needs one for CUDA %d.0: "
			"install a newer driver%s",
			version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
			version >= 12000 && CUDART_VERSION >= 13000 ?
				", or build the plug-in with a toolkit of CUDA 12.8 or 12.9" :
				"");
	return 0;
}

int cuda_driver_load(int *ret_version, struct dray_err *reterr)
{
	cudaError_t e = cudaDriverGetVersion(ret_version);
	int r;

	if (e != cudaSuccess)
		return cuda_fail(reterr, e, "the CUDA runtime does not work");
	r = version_check(*ret_version, reterr);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(symbols); i++) {
		enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
		void *address = NULL;

		e = cudaGetDriverEntryPointByVersion(symbols[i].name, &address, symbols[i].version,
						     cudaEnableDefault, &found);
		if (e != cudaSuccess)
			return cuda_fail(reterr, e, "the CUDA driver cannot be initialized");
		if (found != cudaDriverEntryPointSuccess || !address)
			return dray_err_set(reterr, -ENOENT, DRAY_E_UNSUPPORTED,
					    "the NVIDIA driver has no %s: install a newer driver",
					    symbols[i].name);
		memcpy((char *)&cuda_driver + symbols[i].offset, &address, sizeof(address));
	}
	return 0;
}
