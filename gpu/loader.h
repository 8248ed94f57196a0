/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the GPU plug-in and loads it. Never unloaded: the driver's threads live as long as the process. */
#ifndef DRAY_GPU_LOADER_H
#define DRAY_GPU_LOADER_H

#include "gpu/plugin.h"

#define GPU_PLUGIN_FILE "dray-cuda.so"

/*
 * path: its file; NULL or "": GPU_PLUGIN_FILE beside this program, else in ../lib/dray from there. The table, good for the
 * process's life. -ENOENT: there is no such file; -ELIBBAD: it is not a plug-in for this program; reterr
 * (DRAY_E_UNSUPPORTED) says what to do. Blocks on the file system. One thread at a time.
 */
int gpu_load(const char *path, const struct gpu_plugin_ops **ret, struct dray_err *reterr);

/* Where it would be loaded from: the first that exists, else the first. buf: PATH_MAX bytes. True where it exists. */
bool gpu_plugin_path(const char *path, char *buf);

#endif
