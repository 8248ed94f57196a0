/* SPDX-License-Identifier: Apache-2.0 */
/* The report of the CUDA plug-in about this machine, for detect and doctor. It makes no CUDA context. */
#ifndef DRAY_CTL_DETECT_CUDA_H
#define DRAY_CTL_DETECT_CUDA_H

#include <limits.h>

#include "gpu/plugin.h"
#include "netdetect/doctor/doctor.h"

struct ctl_cuda {
	bool asked;                    /* drayctl tried to load the plug-in */
	char plugin[PATH_MAX];         /* its file, or "" */
	char driver[160];              /* "" if unknown */
	char reason[DRAY_ERR_MSG_MAX]; /* why there is no report, or "" */
	unsigned n;
	struct gpu_device_info v[GPU_DEVICES_MAX];
};

/*
 * plugin: of --gpu-plugin; NULL: the default places. Queries CUDA if a GPU of NVIDIA's driver was found, or a plug-in was
 * named. Blocks, for up to seconds.
 */
void ctl_cuda_look(struct ctl_cuda *ret, const char *plugin, const struct nd_scan *scan, bool live);

/* Adds findings, or nothing if CUDA was not queried. False: out of memory. */
bool ctl_cuda_check(const struct ctl_cuda *c, const struct nd_source *s, struct nd_findings *f);

#endif
