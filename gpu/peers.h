/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs reach each other directly. Pure. */
#pragma once

#include <stddef.h>

#include "gpu/plugin.h"

enum gpu_link {
	GPU_LINK_NONE, /* through host memory */
	GPU_LINK_SELF,
	GPU_LINK_PCIE,
	GPU_LINK_NVLINK,
};

/* The link from device `index`, described by d, to device `to`. */
enum gpu_link gpu_link_of(const struct gpu_device_info *d, unsigned index, unsigned to);
/* "none", "self", "pcie", "nvlink" */
const char *gpu_link_name(enum gpu_link l);

#define GPU_PEERS_BYTES 192

/* The devices that this one reaches: "NVLink 0-2,4; PCIe 5", "none". Returns buf. */
const char *gpu_peers_text(const struct gpu_device_info *d, unsigned index,
			   char buf[GPU_PEERS_BYTES]);
