/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a model of GPU copies while nothing else uses it. agent/control/gpu measures it; workers choose ways by it. */
#pragma once

#include <stdint.h>

#include "gpu/plugin.h"

/* What bytes pass through. */
enum gpu_bus {
	GPU_BUS_WITHIN, /* one GPU's memory */
	GPU_BUS_NVLINK, /* between two GPUs */
	GPU_BUS_PCIE,   /* likewise */
	GPU_BUS_TO_HOST,
	GPU_BUS_FROM_HOST,
	GPU_BUS_N
};

/* Sizes of pieces in lists for copy engines: 4 KiB << i. */
#define GPU_RATE_SIZES 9u
#define GPU_RATE_SIZE_MIN 4096u

/* In bytes a microsecond, never 0. */
struct gpu_rates {
	uint32_t kernel[GPU_BUS_N];
	uint32_t engines[GPU_BUS_N][GPU_RATE_SIZES];
};

/* What an idle H200 does. Others differ, but the ratios between the ways less. */
extern const struct gpu_rates gpu_rates_built_in;

/* within, nvlink, pcie, to_host, from_host. */
extern const char *const gpu_bus_names[GPU_BUS_N];
