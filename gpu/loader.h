/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads the GPU plug-in. It is never unloaded: the driver's threads live as long as the process. */
#pragma once

#include "gpu/plugin.h"

#define GPU_PLUGIN_FILE "dray-cuda.so"

/*
 * path: the file; NULL or "": GPU_PLUGIN_FILE in the folder of this program, then in ../lib/dray. *ret is valid until the
 * process ends. -ENOENT: no such file; -ELIBBAD: no plug-in of this release; reterr (DRAY_E_UNSUPPORTED) names the
 * next step. Blocks on the file system. One thread at a time.
 */
int gpu_load(const char *path, const struct gpu_plugin_ops **ret, struct dray_err *reterr);

/* The file that gpu_load() takes: the first that exists, otherwise the first. buf: PATH_MAX bytes. True if it exists. */
bool gpu_plugin_path(const char *path, char *buf);
