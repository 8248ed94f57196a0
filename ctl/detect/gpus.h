/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of drayctl detect: PCI, NVIDIA's driver, CUDA. */
#ifndef DRAY_CTL_DETECT_GPUS_H
#define DRAY_CTL_DETECT_GPUS_H

#include "ctl/ctl.h"
#include "ctl/detect/cuda.h"
#include "ctl/render/json.h"

/* Nothing where there are none. 0 or -errno. */
int ctl_detect_gpus_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda);

/* "gpus", "hidden_gpus", "gpu_driver" and "cuda" of schema/ctl/detect.json. */
void ctl_detect_gpus_json(struct ctl_json *j, const struct nd_scan *scan,
			  const struct ctl_cuda *cuda);

#endif
