/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the plug-in's fake driver. */
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "tests/gpu/plugin_driver.h"

#define PLUGIN_DRIVER_CONTEXTS 8
#define PLUGIN_DRIVER_FAILING 4
#define PLUGIN_DRIVER_GRANULE (UINT64_C(2) << 20)
#define PLUGIN_DRIVER_MEMORY (64 * PLUGIN_DRIVER_GRANULE)

struct CUctx_st {
	int device; /* -1: this element is free */
	bool lost;
};

extern struct plugin_driver {
	CUcontext contexts, current; /* array of all contexts; the current one, NULL: none */
	int maps;
	unsigned n_failing;
	struct {
		const char *function;
		int device;
		CUresult result;
	} failing[PLUGIN_DRIVER_FAILING];
	const char *losing; /* function of plugin_driver_lose_in(); NULL: none */
	int losing_device;
} plugin_driver;

/* Called first by functions that need a context. Returns the error to fail with, or CUDA_SUCCESS. */
CUresult plugin_driver_entered(const char *function);

#define ENTERED()                                                    \
	do {                                                         \
		CUresult entered_ = plugin_driver_entered(__func__); \
		if (entered_ != CUDA_SUCCESS)                        \
			return entered_;                             \
	} while (0)

/* plugin_driver_memory.c: number of open IPC memories of the device; frees the memory of a destroyed context */
int plugin_driver_opened(int device);
/* The address is of IPC memory that is open in another context than the current one. */
bool plugin_driver_is_foreign(CUdeviceptr address);
void plugin_driver_forget(CUcontext c);
