/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/driver.h"

#include <errno.h>
#include <stddef.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static const struct meaning {
	cudaError_t result;
	int ret, code;
	const char *advice;
} meanings[] = {
	{ cudaErrorMemoryAllocation, -ENOMEM, DRAY_E_NO_MEMORY,
	  "GPU memory or its address space ran out: leave the agent some hundreds of MiB on each GPU" },
	{ cudaErrorNoDevice, -ENODEV, DRAY_E_UNSUPPORTED,
	  "the driver shows no GPU: give the container one" },
	{ cudaErrorInvalidDevice, -ENODEV, DRAY_E_GPU_DEVICE,
	  "give the agent's container the same GPUs" },
	{ cudaErrorInvalidValue, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ cudaErrorInvalidResourceHandle, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ cudaErrorMapBufferObjectFailed, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ cudaErrorAlreadyMapped, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ cudaErrorNotSupported, -EOPNOTSUPP, DRAY_E_UNSUPPORTED, NULL },
	{ cudaErrorNotPermitted, -EPERM, DRAY_E_UNSUPPORTED, NULL },
	{ cudaErrorOperatingSystem, -EINVAL, DRAY_E_UNSUPPORTED,
	  "the kernel refused it: read the kernel log" },
	{ cudaErrorSystemNotReady, -ENODEV, DRAY_E_UNSUPPORTED,
	  "check that the fabric manager runs" },
	{ cudaErrorSystemDriverMismatch, -ENODEV, DRAY_E_UNSUPPORTED,
	  "install driver library and kernel module of the same release" },
	{ cudaErrorHostMemoryAlreadyRegistered, -EBUSY, DRAY_E_UNSUPPORTED, NULL },
	{ cudaErrorNoKernelImageForDevice, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
	  "this build has no code for this GPU: build the plug-in with a newer CUDA toolkit" },
	{ cudaErrorInsufficientDriver, -ENOENT, DRAY_E_UNSUPPORTED, "install a newer driver" },
	{ cudaErrorCompatNotSupportedOnDevice, -ENOENT, DRAY_E_UNSUPPORTED,
	  "install a newer driver" },
	{ cudaErrorStubLibrary, -ENOENT, DRAY_E_UNSUPPORTED,
	  "libcuda.so.1 is the toolkit's stub: install the driver" },
	{ cudaErrorUnsupportedPtxVersion, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
	  "install a newer driver for this GPU" },
};

bool cuda_is_lost(cudaError_t r)
{
	static const cudaError_t lost[] = {
		cudaErrorDevicesUnavailable,
		cudaErrorCudartUnloading,
		cudaErrorECCUncorrectable,
		cudaErrorNvlinkUncorrectable,
		cudaErrorIllegalAddress,
		cudaErrorLaunchTimeout,
		cudaErrorContextIsDestroyed,
		cudaErrorAssert,
		cudaErrorHardwareStackError,
		cudaErrorIllegalInstruction,
		cudaErrorMisalignedAddress,
		cudaErrorInvalidAddressSpace,
		cudaErrorInvalidPc,
		cudaErrorLaunchFailure,
		cudaErrorExternalDevice,
		cudaErrorContained,
		cudaErrorMpsRpcFailure,
		cudaErrorMpsClientTerminated,
		cudaErrorUnknown,
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lost); i++)
		if (r == lost[i])
			return true;
	return false;
}

int cuda_fail(struct dray_err *reterr, cudaError_t r, const char *what)
{
	struct meaning m = { r, -EINVAL, DRAY_E_UNSUPPORTED, NULL };

	if (cuda_is_lost(r)) {
		m.ret = -EIO;
		m.code = DRAY_E_GPU_LOST;
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(meanings); i++)
		if (meanings[i].result == r)
			m = meanings[i];
	return dray_err_set(reterr, m.ret, m.code, "%s: %s (%s)%s%s", what, cudaGetErrorName(r),
			    cudaGetErrorString(r), m.advice ? ": " : "", m.advice ? m.advice : "");
}
