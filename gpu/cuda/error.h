/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's results mean here. */
#ifndef DRAY_GPU_CUDA_ERROR_H
#define DRAY_GPU_CUDA_ERROR_H

#include <stdbool.h>

#include "gpu/cuda/driver.h"

/* The context is of no use any more: the device, or something that ran on it, failed. */
bool cuda_is_lost(CUresult r);

/* -errno of a result that is no success, and reterr set: "WHAT: CUDA_ERROR_X (its text)", with advice where there is some. */
int cuda_fail(struct dray_err *reterr, CUresult r, const char *what);

#endif
