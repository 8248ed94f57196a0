/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/driver.h"

#include <dlfcn.h>
#include <stdio.h>

bool cuda_ok(struct cuda *c, int rc, const char *what, char *why, size_t n)
{
	const char *name = NULL;

	if (!rc)
		return true;
	if (c->error_name(rc, &name) || !name)
		name = "an unknown error";
	snprintf(why, n, "%s: %s", what, name);
	return false;
}

bool cuda_open(struct cuda *c, char *why, size_t n)
{
	static const char *const names[] = {
#define CUDA_NAME(name, symbol, arguments) symbol,
		CUDA_FUNCTIONS(CUDA_NAME)
#undef CUDA_NAME
	};
	void *library, *found[sizeof(names) / sizeof(names[0])];
	unsigned i = 0;

	if (c->devices)
		return true;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(why, n, "%s", dlerror());
		return false;
	}
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		found[i] = dlsym(library, names[i]);
		if (!found[i]) {
			snprintf(why, n, "the driver lacks %s", names[i]);
			return false;
		}
	}
	i = 0;
#define CUDA_FOUND(name, symbol, arguments) c->name = (int(*) arguments)found[i++];
	CUDA_FUNCTIONS(CUDA_FOUND)
#undef CUDA_FOUND
	if (!cuda_ok(c, c->init(0), "cuInit", why, n) ||
	    !cuda_ok(c, c->device_count(&c->devices), "cuDeviceGetCount", why, n))
		return false;
	if (c->devices > CUDA_DEVICES_MAX)
		c->devices = CUDA_DEVICES_MAX;
	if (!c->devices)
		snprintf(why, n, "the driver sees no device");
	return c->devices > 0;
}

bool cuda_use(struct cuda *c, int device, char *why, size_t n)
{
	if (!cuda_open(c, why, n))
		return false;
	if (device < 0 || device >= c->devices) {
		snprintf(why, n, "there is no device %d", device);
		return false;
	}
	if (!c->context[device] && !cuda_ok(c, c->context_retain(&c->context[device], device),
					    "cuDevicePrimaryCtxRetain", why, n))
		return false;
	return cuda_ok(c, c->context_set(c->context[device]), "cuCtxSetCurrent", why, n);
}

bool cuda_uuid(struct cuda *c, int device, char uuid[48], char *why, size_t n)
{
	unsigned char b[16];
	int at;

	if (!cuda_ok(c, c->device_uuid(b, device), "cuDeviceGetUuid", why, n))
		return false;
	at = snprintf(uuid, 48, "GPU-");
	for (unsigned i = 0; i < sizeof(b); i++)
		at += snprintf(uuid + at, 48 - (size_t)at, "%s%02x",
			       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
	return true;
}
