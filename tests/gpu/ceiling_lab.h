/* SPDX-License-Identifier: Apache-2.0 */
/* The set-up of ceiling_gpu: the loaded plug-in, GPU memory of this program opened through it, queues. */
#pragma once

#include <stdio.h>

#include "gpu/cuda/driver.h"
#include "gpu/plugin.h"
#include "lib/cleanup.h"

struct lab {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	struct gpu_device_info devices[GPU_DEVICES_MAX];
	unsigned n;
};

/* Prints the error and ends the program. */
_Noreturn void lab_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lab_cuda_check(cudaError_t r, const char *what);
#define LAB_CUDA_OK(call) lab_cuda_check((cudaError_t)(call), #call)
#define LAB_OK(call, err)                                                            \
	do {                                                                         \
		if ((call) < 0)                                                      \
			lab_die("%s: error %d: %s", #call, (err)->code, (err)->msg); \
	} while (0)

/* Makes the primary context of the device current, which is this program's own, besides the plug-in's. */
void lab_client(unsigned device);

/* Starts at most two devices. False: there is no usable GPU, and the reason was printed. */
bool lab_open(struct lab *l, const char *plugin);

/* Returns a descriptor of a new VMM allocation on a device; *bytes is rounded up to its size. */
int lab_vmm_new(unsigned device, uint64_t *bytes);

/* Memory of a device, opened through the plug-in; it is never freed. */
uint64_t lab_device_memory(struct lab *l, unsigned device, uint64_t bytes);
void *lab_host_memory(struct lab *l, uint64_t bytes);
struct gpu_queue *lab_queue(struct lab *l, unsigned device, bool latency, unsigned share);

/* Submits a copy; ends the program on failure. */
void lab_submit(struct lab *l, struct gpu_queue *q, const struct gpu_copy *c);
/* Waits until `number` copies of the queue are done. */
void lab_wait(struct lab *l, struct gpu_queue *q, uint64_t number);

uint64_t lab_random(void);
double lab_seconds(void);

/* ceiling_check.c: all checks. ceiling_import.c: checks of imports. Both return the number of failed checks. */
unsigned lab_check(struct lab *l, int exporter, bool quick);
unsigned lab_check_imports(struct lab *l, int exporter);
/* Serves lab_check_imports() from another process: exports and verifies memory until the socket is closed. */
void lab_export(int sock);
