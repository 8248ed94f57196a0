/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of detect, as PCI, NVIDIA's driver and CUDA report them. */
#ifndef DRAY_CTL_DETECT_GPUS_H
#define DRAY_CTL_DETECT_GPUS_H

#include "ctl/ctl.h"
#include "ctl/detect/cuda.h"
#include "ctl/render/json.h"

/* Prints nothing if there are no GPUs. 0 or -errno. */
int ctl_detect_gpus_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda);

/* "gpus", "hidden_gpus", "gpu_driver" and "cuda" of schema/ctl/detect.json. */
void ctl_detect_gpus_json(struct ctl_json *j, const struct nd_scan *scan,
			  const struct ctl_cuda *cuda);

#endif
