/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of drayctl detect. */
#pragma once

#include <limits.h>

#include "ctl/ctl.h"
#include "ctl/render/json.h"
#include "gpu/plugin.h"
#include "netdetect/doctor/doctor.h"

/* The report of the CUDA plug-in about this machine. It makes no CUDA context. */
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

/* The options of a scan, which own their lists. */
struct ctl_detect {
	struct nd_source source;
	struct nd_scan_options options;
};

/* Reads the options. 0 or -1; the caller closes in any case. */
int ctl_detect_open(struct ctl_detect *d, struct ctl *c);
void ctl_detect_close(struct ctl_detect *d);

/* Print the whole scan for people, for scripts, and as in schema/ctl/detect.json. 0 or -errno. */
int ctl_detect_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda);
int ctl_detect_plain(struct ctl *c, const struct nd_scan *scan);
int ctl_detect_json(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda);

/* Prints nothing if there are no GPUs. 0 or -errno. */
int ctl_detect_gpus_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda);

/* "gpus", "hidden_gpus", "gpu_driver" and "cuda" of schema/ctl/detect.json. */
void ctl_detect_gpus_json(struct ctl_json *j, const struct nd_scan *scan,
			  const struct ctl_cuda *cuda);

/* Prints one device or port ("mlx5_0", "mlx5_0/1"). 0 or -1. */
int ctl_detect_explain(struct ctl *c, const struct nd_scan *scan, const char *what);

/* Prints changes until SIGINT, SIGTERM, or until the reader closes the output. 0 or -1. */
int ctl_detect_watch(struct ctl *c, const struct ctl_detect *d);
