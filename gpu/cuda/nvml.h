/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_GPU_CUDA_NVML_H
#define DRAY_GPU_CUDA_NVML_H

#include <stdint.h>

/*
 * GPU memory in use on a device, by all of its users, as NVML tells it: that needs no context, whose price is what is
 * to be known. 0 where NVML is missing. Blocks.
 */
uint64_t nvml_used(const char *bdf);

#endif
