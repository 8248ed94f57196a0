/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the simulated runtime and driver. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tests/gpu/plugin_driver.h"

#define PLUGIN_DRIVER_CONTEXTS 8
#define PLUGIN_DRIVER_FAILING 4
#define PLUGIN_DRIVER_GRANULE (UINT64_C(2) << 20)
#define PLUGIN_DRIVER_MEMORY (2048 * PLUGIN_DRIVER_GRANULE)

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
		cudaError_t result;
		unsigned after; /* calls that succeed before */
	} failing[PLUGIN_DRIVER_FAILING];
	const char *losing; /* function of plugin_driver_lose_in(); NULL: none */
	int losing_device;
} plugin_driver;

/* Called first by functions that need a context. Returns the error to fail with, or cudaSuccess. */
cudaError_t plugin_driver_entered(const char *function);

/* For functions of the runtime, and of the driver. */
#define ENTERED_AS(type)                                               \
	do {                                                           \
		type entered_ = (type)plugin_driver_entered(__func__); \
		if (entered_)                                          \
			return entered_;                               \
	} while (0)
#define ENTERED() ENTERED_AS(cudaError_t)
#define DRIVER_ENTERED() ENTERED_AS(CUresult)

/* plugin_driver_memory.c: functions of the driver, found by name. NULL: it has no such function. */
void *plugin_driver_memory_function(const char *name);

/* plugin_driver_memory.c: number of open IPC memories of the device; frees the memory of a destroyed context */
int plugin_driver_opened(int device);
/* The address is of IPC memory that is open in another context than the current one. */
bool plugin_driver_is_foreign(const void *p);
void plugin_driver_forget(CUcontext c);
