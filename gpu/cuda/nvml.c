/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/plugin.h"

#include <dlfcn.h>
#include <string.h>

struct nvml_memory {
	unsigned long long total, free, used;
};

/* ISO C does not allow a cast of dlsym()'s result to a function. */
static void find_symbol(void *library, const char *name, void *ret)
{
	void *address = dlsym(library, name);

	memcpy(ret, &address, sizeof(address));
}

uint64_t cuda_memory_used(const char *bdf)
{
	int (*init)(void), (*shut_down)(void);
	int (*by_bus_id)(const char *bdf, void **ret),
		(*memory_info)(void *device, struct nvml_memory *ret);
	struct nvml_memory memory = { 0 };
	void *device, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return 0;
	find_symbol(library, "nvmlInit_v2", &init);
	find_symbol(library, "nvmlShutdown", &shut_down);
	find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus_id);
	find_symbol(library, "nvmlDeviceGetMemoryInfo", &memory_info);
	if (init && shut_down && by_bus_id && memory_info && init() == 0) {
		if (by_bus_id(bdf, &device) != 0 || memory_info(device, &memory) != 0)
			memory.used = 0;
		shut_down();
	}
	dlclose(library);
	return memory.used;
}
