/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs in sysfs, of any vendor. */
#pragma once

#include "netdetect/source/source.h"

#define ND_VENDOR_NVIDIA 0x10de

struct nd_gpu {
	char bdf[16];
	uint16_t vendor, device;
	uint32_t class; /* 24 bits */
	char driver[32];
	int numa; /* -1 unknown */
};

/* By bdf; the caller frees *ret. 0 or -ENOMEM. Blocks on sysfs. */
int nd_gpus_scan(const struct nd_source *s, struct nd_gpu **ret, size_t *ret_n);
