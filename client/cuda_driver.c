/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define LIBRARY "libcuda.so.1"

#define REQUIRED(member, symbol, parameters) \
	{ offsetof(struct cuda_driver, member), symbol, false },
#define OPTIONAL(member, symbol, parameters) { offsetof(struct cuda_driver, member), symbol, true },

static const struct entry {
	size_t at;
	const char *symbol;
	bool optional;
} entries[] = { CUDA_FUNCTIONS(REQUIRED, OPTIONAL) };

int dc_cuda_open(struct cuda_driver *ret, struct dray_err *reterr)
{
	struct cuda_driver c = { 0 };

	/* the engine's own, whatever its path; a driver that was loaded here cannot be unloaded */
	c.library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
	if (!c.library)
		c.library = dlopen(LIBRARY, RTLD_NOW | RTLD_NODELETE);
	if (!c.library)
		return dray_err_set(reterr, -1, DRAY_E_UNSUPPORTED,
				    LIBRARY " cannot be loaded: there is no CUDA driver here");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(entries); i++) {
		void *p = dlsym(c.library, entries[i].symbol);

		if (!p && !entries[i].optional) {
			dc_cuda_close(&c);
			return dray_err_set(reterr, -1, DRAY_E_UNSUPPORTED,
					    LIBRARY " lacks %s: the driver is too old",
					    entries[i].symbol);
		}
		memcpy((char *)&c + entries[i].at, &p, sizeof(p));
	}
	*ret = c;
	return 0;
}

void dc_cuda_close(struct cuda_driver *c)
{
	if (c->library)
		dlclose(c->library);
	c->library = NULL;
}

bool dc_cuda_is_loaded(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);

	if (!library)
		return false;
	dlclose(library);
	return true;
}

/* CUresults after which a device, or this process's context on it, is unusable. */
static bool is_lost(cu_result error)
{
	switch (error) {
	case 46:  /* DEVICE_UNAVAILABLE */
	case 214: /* ECC_UNCORRECTABLE */
	case 220: /* NVLINK_UNCORRECTABLE */
	case 226: /* CONTAINED */
	case 700: /* ILLEGAL_ADDRESS */
	case 702: /* LAUNCH_TIMEOUT */
	case 709: /* CONTEXT_IS_DESTROYED */
	case 710: /* ASSERT */
	case 714: /* HARDWARE_STACK_ERROR */
	case 715: /* ILLEGAL_INSTRUCTION */
	case 716: /* MISALIGNED_ADDRESS */
	case 717: /* INVALID_ADDRESS_SPACE */
	case 718: /* INVALID_PC */
	case 719: /* LAUNCH_FAILED */
	case 721: /* TENSOR_MEMORY_LEAK */
		return true;
	default:
		return false;
	}
}

int dc_cuda_check(const struct cuda_driver *c, cu_result error, const char *what,
		  struct dray_err *reterr)
{
	const char *name = NULL;
	int code = is_lost(error)            ? DRAY_E_GPU_LOST :
		   error == CU_OUT_OF_MEMORY ? DRAY_E_NO_MEMORY :
					       DRAY_E_IO;

	if (!error)
		return 0;
	if (c->error_name(error, &name) || !name)
		name = "an unknown error";
	return dray_err_set(reterr, -1, code, "%s: %s (%d)", what, name, error);
}

int dc_cuda_why(const struct dray_err *err, char *why, size_t n)
{
	if (why && n)
		snprintf(why, n, "%s", err->msg);
	return -err->code;
}

/* The primary context of the device, if it is active. */
static cu_context primary(const struct cuda_driver *c, cu_device device)
{
	unsigned flags;
	int active = 0;
	cu_context context;

	if (c->primary_state(device, &flags, &active) || !active ||
	    c->primary_retain(&context, device))
		return NULL;
	return context;
}

void dc_cuda_enter(const struct cuda_driver *c, cu_context context, cu_device device,
		   struct cuda_scope *ret)
{
	cu_context current = NULL;
	cu_device current_device;

	*ret = (struct cuda_scope){ .device = device };
	c->context_current(&current);
	if (!context && current && !c->context_device(&current_device) && current_device == device)
		return;
	if (!context) {
		context = primary(c, device);
		ret->retained = context;
	}
	if (context && context != current)
		ret->pushed = !c->context_push(context);
}

void dc_cuda_leave(const struct cuda_driver *c, const struct cuda_scope *s)
{
	cu_context popped;

	if (s->pushed)
		c->context_pop(&popped);
	if (s->retained)
		c->primary_release(s->device);
}
