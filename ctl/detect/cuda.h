/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA plug-in says of this place, for detect and doctor. No context is made. */
#ifndef DRAY_CTL_DETECT_CUDA_H
#define DRAY_CTL_DETECT_CUDA_H

#include <limits.h>

#include "gpu/plugin.h"
#include "netdetect/doctor/doctor.h"

struct ctl_cuda {
	bool asked;                    /* the plug-in was looked for */
	char plugin[PATH_MAX];         /* its file; "" where it was not looked for */
	char driver[160];              /* "" unknown */
	char reason[DRAY_ERR_MSG_MAX]; /* why nothing is known; "" */
	unsigned n;
	struct gpu_device_info v[GPU_DEVICES_MAX];
};

/*
 * plugin: of --gpu-plugin, NULL: the usual places. Asks where a GPU of NVIDIA's driver was seen, or a plug-in was
 * named. Blocks, up to seconds.
 */
void ctl_cuda_look(struct ctl_cuda *ret, const char *plugin, const struct nd_scan *scan, bool live);

/* Findings of what it said; nothing where it was not to be asked. False: no memory. */
bool ctl_cuda_check(const struct ctl_cuda *c, const struct nd_source *s, struct nd_findings *f);

#endif
