/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/driver.h"

#include <errno.h>
#include <stddef.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static const struct meaning {
	CUresult result;
	int ret, code;
	const char *advice;
} meanings[] = {
	{ CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM, DRAY_E_NO_MEMORY,
	  "GPU memory or its address space ran out: leave the agent some hundreds of MiB on each GPU" },
	{ CUDA_ERROR_NO_DEVICE, -ENODEV, DRAY_E_UNSUPPORTED,
	  "the driver shows no GPU: give the container one" },
	{ CUDA_ERROR_INVALID_DEVICE, -ENODEV, DRAY_E_GPU_DEVICE,
	  "give the agent's container the same GPUs" },
	{ CUDA_ERROR_INVALID_VALUE, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ CUDA_ERROR_INVALID_HANDLE, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ CUDA_ERROR_MAP_FAILED, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ CUDA_ERROR_ALREADY_MAPPED, -EINVAL, DRAY_E_GPU_HANDLE, NULL },
	{ CUDA_ERROR_NOT_SUPPORTED, -EOPNOTSUPP, DRAY_E_UNSUPPORTED, NULL },
	{ CUDA_ERROR_NOT_PERMITTED, -EPERM, DRAY_E_UNSUPPORTED, NULL },
	{ CUDA_ERROR_OPERATING_SYSTEM, -EINVAL, DRAY_E_UNSUPPORTED,
	  "the kernel refused it: read the kernel log" },
	{ CUDA_ERROR_SYSTEM_NOT_READY, -ENODEV, DRAY_E_UNSUPPORTED,
	  "check that the fabric manager runs" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, -ENODEV, DRAY_E_UNSUPPORTED,
	  "install driver library and kernel module of the same release" },
	{ CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, -EBUSY, DRAY_E_UNSUPPORTED, NULL },
	{ CUDA_ERROR_NO_BINARY_FOR_GPU, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
	  "this build has no code for this GPU: build the plug-in with a newer CUDA toolkit" },
	{ CUDA_ERROR_UNSUPPORTED_PTX_VERSION, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
	  "install a newer driver for this GPU" },
};

bool cuda_is_lost(CUresult r)
{
	static const CUresult lost[] = {
		CUDA_ERROR_DEVICE_UNAVAILABLE,
		CUDA_ERROR_DEINITIALIZED,
		CUDA_ERROR_ECC_UNCORRECTABLE,
		CUDA_ERROR_NVLINK_UNCORRECTABLE,
		CUDA_ERROR_ILLEGAL_ADDRESS,
		CUDA_ERROR_LAUNCH_TIMEOUT,
		CUDA_ERROR_CONTEXT_IS_DESTROYED,
		CUDA_ERROR_ASSERT,
		CUDA_ERROR_HARDWARE_STACK_ERROR,
		CUDA_ERROR_ILLEGAL_INSTRUCTION,
		CUDA_ERROR_MISALIGNED_ADDRESS,
		CUDA_ERROR_INVALID_ADDRESS_SPACE,
		CUDA_ERROR_INVALID_PC,
		CUDA_ERROR_LAUNCH_FAILED,
		CUDA_ERROR_EXTERNAL_DEVICE,
		CUDA_ERROR_MPS_RPC_FAILURE,
		CUDA_ERROR_MPS_CLIENT_TERMINATED,
		CUDA_ERROR_UNKNOWN,
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lost); i++)
		if (r == lost[i])
			return true;
	/* CUDA_ERROR_CONTAINED, which older headers lack */
	return (int)r == 226;
}

int cuda_fail(struct dray_err *reterr, CUresult r, const char *what)
{
	struct meaning m = { r, -EINVAL, DRAY_E_UNSUPPORTED, NULL };
	const char *name = NULL, *text = NULL;

	if (cuda_is_lost(r)) {
		m.ret = -EIO;
		m.code = DRAY_E_GPU_LOST;
	}
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(meanings); i++)
		if (meanings[i].result == r)
			m = meanings[i];
	cuda.error_name(r, &name);
	cuda.error_string(r, &text);
	return dray_err_set(reterr, m.ret, m.code, "%s: %s (%s)%s%s", what,
			    name ? name : "an unknown error", text ? text : "no text",
			    m.advice ? ": " : "", m.advice ? m.advice : "");
}
