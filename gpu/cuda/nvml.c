/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/nvml.h"

#include <dlfcn.h>
#include <string.h>

struct nvml_memory {
	unsigned long long total, free, used;
};

/* A function's address out of dlsym()'s, which ISO C does not let be cast. */
static void symbol(void *library, const char *name, void *ret)
{
	void *address = dlsym(library, name);

	memcpy(ret, &address, sizeof(address));
}

uint64_t nvml_used(const char *bdf)
{
	int (*init)(void), (*shut_down)(void);
	int (*by_bus_id)(const char *bdf, void **ret),
		(*memory_info)(void *device, struct nvml_memory *ret);
	struct nvml_memory memory = { 0 };
	void *device, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return 0;
	symbol(library, "nvmlInit_v2", &init);
	symbol(library, "nvmlShutdown", &shut_down);
	symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus_id);
	symbol(library, "nvmlDeviceGetMemoryInfo", &memory_info);
	if (init && shut_down && by_bus_id && memory_info && init() == 0) {
		if (by_bus_id(bdf, &device) != 0 || memory_info(device, &memory) != 0)
			memory.used = 0;
		shut_down();
	}
	dlclose(library);
	return memory.used;
}
