/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/gpu_rates.h"

const struct gpu_rates gpu_rates_built_in = {
	.kernel = { [GPU_BUS_WITHIN] = 1100000,
		    [GPU_BUS_NVLINK] = 320000,
		    /* not measured: as over the host's bus */
		    [GPU_BUS_PCIE] = 50000,
		    [GPU_BUS_TO_HOST] = 52000,
		    [GPU_BUS_FROM_HOST] = 51000 },
	.engines = { [GPU_BUS_WITHIN] = { 750, 1500, 3000, 6000, 12000, 24000, 48000, 96000,
					  190000 },
		     [GPU_BUS_NVLINK] = { 7400, 14800, 29600, 59000, 110000, 200000, 320000, 350000,
					  370000 },
		     [GPU_BUS_PCIE] = { 4900, 9800, 22000, 39000, 46000, 49000, 50000, 50000,
					50000 },
		     [GPU_BUS_TO_HOST] = { 4900, 9800, 22000, 39000, 46000, 49000, 52000, 53000,
					   54000 },
		     [GPU_BUS_FROM_HOST] = { 1200, 2400, 4600, 34000, 48000, 51000, 53000, 54000,
					     54500 } },
};

const char *const gpu_bus_names[GPU_BUS_N] = {
	[GPU_BUS_WITHIN] = "within",   [GPU_BUS_NVLINK] = "nvlink",       [GPU_BUS_PCIE] = "pcie",
	[GPU_BUS_TO_HOST] = "to_host", [GPU_BUS_FROM_HOST] = "from_host",
};
