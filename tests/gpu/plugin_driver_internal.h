/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the plug-in's driver share. */
#ifndef DRAY_TESTS_GPU_PLUGIN_DRIVER_INTERNAL_H
#define DRAY_TESTS_GPU_PLUGIN_DRIVER_INTERNAL_H

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "tests/gpu/plugin_driver.h"

#define PLUGIN_DRIVER_CONTEXTS 8
#define PLUGIN_DRIVER_FAILING 4
#define PLUGIN_DRIVER_GRANULE (UINT64_C(2) << 20)
#define PLUGIN_DRIVER_MEMORY (64 * PLUGIN_DRIVER_GRANULE)

struct CUctx_st {
	int device; /* -1: this place is free */
	bool lost;
};

extern struct plugin_driver {
	CUcontext contexts, current; /* of all; NULL: none */
	int maps;
	unsigned n_failing;
	struct {
		const char *function;
		int device;
		CUresult result;
	} failing[PLUGIN_DRIVER_FAILING];
	const char *losing; /* NULL: nothing */
	int losing_device;
} plugin_driver;

/* First in a function that needs a context: what it fails with. */
CUresult plugin_driver_entered(const char *function);

#define ENTERED()                                                    \
	do {                                                         \
		CUresult entered_ = plugin_driver_entered(__func__); \
		if (entered_ != CUDA_SUCCESS)                        \
			return entered_;                             \
	} while (0)

/* plugin_driver_memory.c: how much IPC memory is open on the device; the context is destroyed */
int plugin_driver_opened(int device);
void plugin_driver_forget(CUcontext c);

#endif
