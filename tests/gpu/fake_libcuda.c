/* SPDX-License-Identifier: Apache-2.0 */
#define FAKE_CUDA_API __attribute__((visibility("default")))
#include "tests/gpu/fake_libcuda.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/cuda_driver.h"

#define RANGES_MAX 1024
#define STACK_MAX 16
#define DEVICES 4

#define INVALID_VALUE 1
#define INVALID_CONTEXT 201
#define NOT_SUPPORTED 801

/* An entry of the driver: declared, then defined. */
#define ENTRY(name, ...)                           \
	FAKE_CUDA_API cu_result name(__VA_ARGS__); \
	FAKE_CUDA_API cu_result name(__VA_ARGS__)

struct range {
	enum fake_cuda_kind kind;
	uint64_t base, bytes;
	int device, handle_types;
};

enum number {
	MAPPING,
	IDS,
	JOINED,
	DMABUF,
	PRIMARY,
	FAIL_AT,
	ERROR,
	RETAINED,
	DEPTH,
	PRIMARIES,
	REGISTERED,
	CALLS,
	EXPORTS,
	STREAM,
	ADDRESS,
	VALUE,
	FLAGS,
	WAITS,
	WRITES,
	RDMA,
	RESERVED,
	MAPPED,
	CREATED_FLAGS,
	SYNCHRONIZED,
	NUMBERS
};

static const char *const names[NUMBERS] = {
	[MAPPING] = "mapping",
	[IDS] = "ids",
	[JOINED] = "joined",
	[DMABUF] = "dmabuf",
	[PRIMARY] = "primary",
	[FAIL_AT] = "fail_at",
	[ERROR] = "error",
	[RETAINED] = "retained",
	[DEPTH] = "depth",
	[PRIMARIES] = "primaries",
	[REGISTERED] = "registered",
	[CALLS] = "calls",
	[EXPORTS] = "exports",
	[STREAM] = "stream",
	[ADDRESS] = "address",
	[VALUE] = "value",
	[FLAGS] = "flags",
	[WAITS] = "waits",
	[WRITES] = "writes",
	[RDMA] = "rdma",
	[RESERVED] = "reserved",
	[MAPPED] = "mapped",
	[CREATED_FLAGS] = "created_flags",
	[SYNCHRONIZED] = "synchronized",
};

static int64_t number[NUMBERS];
static struct range ranges[RANGES_MAX];
static unsigned ranges_n;
/* Element 0 is the context that was current before the first push. */
static int stack[STACK_MAX];

/* The only contexts are the devices' primary ones; NULL: none. */
static cu_context context_of(int device)
{
	static char contexts[DEVICES];

	return device < 0 ? NULL : &contexts[device];
}

static int device_of(cu_context context)
{
	return context ? (int)((char *)context - (char *)context_of(0)) : -1;
}

static int current(void)
{
	return stack[number[DEPTH]];
}

void fake_cuda_reset(void)
{
	memset(number, 0, sizeof(number));
	number[MAPPING] = number[DMABUF] = number[IDS] = 1;
	number[ERROR] = 719;
	stack[0] = -1;
	ranges_n = 0;
}

void fake_cuda_range(int kind, uint64_t base, uint64_t bytes, int device, int handle_types)
{
	if (ranges_n == RANGES_MAX || device >= DEVICES)
		abort();
	ranges[ranges_n++] =
		(struct range){ (enum fake_cuda_kind)kind, base, bytes, device, handle_types };
}

static int64_t *find(const char *name)
{
	for (unsigned i = 0; i < NUMBERS; i++)
		if (!strcmp(names[i], name))
			return &number[i];
	abort();
}

void fake_cuda_set(const char *name, int64_t value)
{
	if (!strcmp(name, "current"))
		stack[0] = (int)value - 1;
	else
		*find(name) = value;
}

int64_t fake_cuda_get(const char *name)
{
	return strcmp(name, "current") ? *find(name) : current() + 1;
}

static const struct range *range_at(uint64_t p)
{
	for (unsigned i = 0; i < ranges_n; i++)
		if (p >= ranges[i].base && p - ranges[i].base < ranges[i].bytes)
			return &ranges[i];
	return NULL;
}

/* The range of all adjacent mappings, as in one reservation. */
static struct range joined(const struct range *r)
{
	struct range all = *r;
	const struct range *other;

	while (r->kind == FAKE_CUDA_VMM && (other = range_at(all.base - 1))) {
		all.base = other->base;
		all.bytes += other->bytes;
	}
	while (r->kind == FAKE_CUDA_VMM && (other = range_at(all.base + all.bytes)))
		all.bytes += other->bytes;
	return all;
}

/* Counts the call. Returns the error that the call must fail with, or 0. */
static cu_result entered(void)
{
	number[CALLS]++;
	return number[FAIL_AT] && --number[FAIL_AT] == 0 ? (cu_result)number[ERROR] : 0;
}

ENTRY(cuGetErrorName, cu_result error, const char **ret)
{
	static const struct {
		cu_result error;
		const char *name;
	} known[] = {
		{ 2, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ 719, "CUDA_ERROR_LAUNCH_FAILED" },
		{ INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
	};

	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].error == error) {
			*ret = known[i].name;
			return 0;
		}
	return INVALID_VALUE;
}

static cu_result attribute(void *ret, int which, const struct range *r, const struct range *mapping)
{
	unsigned type = r->kind == FAKE_CUDA_HOST ? 1 : CU_MEMORY_DEVICE;
	int flag = which == CU_ATTRIBUTE_IS_MANAGED ? r->kind == FAKE_CUDA_MANAGED :
						      r->kind == FAKE_CUDA_MALLOC;
	size_t bytes = mapping->bytes;
	uint64_t id = (uint64_t)(r - ranges) + 1;
	cu_context context = context_of(r->kind == FAKE_CUDA_VMM ? -1 : r->device);

	switch (which) {
	case CU_ATTRIBUTE_CONTEXT:
		memcpy(ret, &context, sizeof(context));
		return 0;
	case CU_ATTRIBUTE_MEMORY_TYPE:
		memcpy(ret, &type, sizeof(type));
		return 0;
	case CU_ATTRIBUTE_BUFFER_ID:
		memcpy(ret, &id, sizeof(id));
		return number[IDS] ? 0 : INVALID_VALUE;
	case CU_ATTRIBUTE_IS_MANAGED:
	case CU_ATTRIBUTE_IS_LEGACY_IPC_CAPABLE:
		memcpy(ret, &flag, sizeof(flag));
		return 0;
	case CU_ATTRIBUTE_DEVICE_ORDINAL:
		memcpy(ret, &r->device, sizeof(r->device));
		return 0;
	case CU_ATTRIBUTE_MAPPING_SIZE:
		memcpy(ret, &bytes, sizeof(bytes));
		return number[MAPPING] ? 0 : INVALID_VALUE;
	case CU_ATTRIBUTE_MAPPING_BASE:
		memcpy(ret, &mapping->base, sizeof(mapping->base));
		return number[MAPPING] ? 0 : INVALID_VALUE;
	default:
		return INVALID_VALUE;
	}
}

ENTRY(cuPointerGetAttribute, void *ret, int which, cu_pointer p)
{
	const struct range *r = range_at(p);
	struct range mapping;
	cu_result error = entered();

	if (error || !r)
		return error ? error : INVALID_VALUE;
	mapping = number[JOINED] ? joined(r) : *r;
	return attribute(ret, which, r, &mapping);
}

ENTRY(cuDeviceGetAttribute, int *ret, int which, cu_device device)
{
	cu_result error = entered();

	*ret = which == CU_DEVICE_VMM_RDMA_SUPPORTED ?
		       number[RDMA] :
		       which == CU_DEVICE_DMABUF_SUPPORTED && number[DMABUF];
	return error;
}

/* GPU-000102DD-..., where DD is the device. */
ENTRY(cuDeviceGetUuid, struct cu_uuid *ret, cu_device device)
{
	for (unsigned i = 0; i < sizeof(ret->bytes); i++)
		ret->bytes[i] = (uint8_t)i;
	ret->bytes[3] = (uint8_t)(0xa0 + device);
	return entered();
}

ENTRY(cuCtxGetCurrent, cu_context *ret)
{
	*ret = context_of(current());
	return entered();
}

ENTRY(cuCtxGetDevice, cu_device *ret)
{
	*ret = current();
	return current() < 0 ? INVALID_CONTEXT : entered();
}

ENTRY(cuCtxPushCurrent_v2, cu_context context)
{
	cu_result error = entered();

	if (error)
		return error;
	if (number[DEPTH] == STACK_MAX - 1)
		abort();
	stack[++number[DEPTH]] = device_of(context);
	return 0;
}

ENTRY(cuCtxPopCurrent_v2, cu_context *ret)
{
	if (!number[DEPTH])
		return INVALID_CONTEXT;
	*ret = context_of(stack[number[DEPTH]--]);
	return 0;
}

ENTRY(cuDevicePrimaryCtxGetState, cu_device device, unsigned *ret_flags, int *ret_active)
{
	*ret_flags = 0;
	*ret_active = (number[PRIMARY] >> device) & 1;
	return entered();
}

ENTRY(cuDevicePrimaryCtxRetain, cu_context *ret, cu_device device)
{
	cu_result error = entered();

	if (error)
		return error;
	number[PRIMARIES]++;
	*ret = context_of(device);
	return 0;
}

ENTRY(cuDevicePrimaryCtxRelease_v2, cu_device device)
{
	number[PRIMARIES]--;
	return 0;
}

ENTRY(cuCtxSynchronize, void)
{
	number[SYNCHRONIZED]++;
	return entered();
}

/* --- memory that is allocated here: a range of kind VMM with host memory behind it --- */

#define GRANULE (UINT64_C(2) << 20)

/* The allocation that was created and has no mapping yet. */
static struct {
	size_t bytes;
	struct cu_allocation_prop prop;
} created;

static void *host(cu_pointer p)
{
	return (void *)(uintptr_t)p;
}

ENTRY(cuMemGetAllocationGranularity, size_t *ret, const struct cu_allocation_prop *prop, int which)
{
	*ret = GRANULE;
	return which == CU_GRANULARITY_MINIMUM && prop->type == CU_ALLOCATION_PINNED ?
		       entered() :
		       INVALID_VALUE;
}

ENTRY(cuMemCreate, cu_allocation *ret, size_t bytes, const struct cu_allocation_prop *prop,
      unsigned long long flags)
{
	cu_result error = entered();

	if (error)
		return error;
	if (flags || !bytes || bytes % GRANULE)
		return INVALID_VALUE;
	created.bytes = bytes;
	created.prop = *prop;
	number[CREATED_FLAGS] = prop->flags[CU_ALLOCATION_FLAG_RDMA];
	number[RETAINED]++;
	*ret = 1;
	return 0;
}

ENTRY(cuMemAddressReserve, cu_pointer *ret, size_t bytes, size_t alignment, cu_pointer at,
      unsigned long long flags)
{
	cu_result error = entered();
	void *p;

	if (error || alignment || at || flags)
		return error ? error : INVALID_VALUE;
	p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	number[RESERVED]++;
	*ret = (uintptr_t)p;
	return 0;
}

ENTRY(cuMemAddressFree, cu_pointer p, size_t bytes)
{
	number[RESERVED]--;
	return munmap(host(p), bytes) ? INVALID_VALUE : 0;
}

ENTRY(cuMemMap, cu_pointer p, size_t bytes, size_t offset, cu_allocation allocation,
      unsigned long long flags)
{
	cu_result error = entered();

	if (error || offset || flags || allocation != 1 || bytes != created.bytes)
		return error ? error : INVALID_VALUE;
	number[MAPPED]++;
	fake_cuda_range(FAKE_CUDA_VMM, p, bytes, created.prop.location, created.prop.handle_types);
	return 0;
}

ENTRY(cuMemSetAccess, cu_pointer p, size_t bytes, const struct cu_access *access, size_t n)
{
	cu_result error = entered();

	if (error || n != 1 || access->flags != CU_ACCESS_READ_WRITE)
		return error ? error : INVALID_VALUE;
	return mprotect(host(p), bytes, PROT_READ | PROT_WRITE) ? INVALID_VALUE : 0;
}

ENTRY(cuMemUnmap, cu_pointer p, size_t bytes)
{
	for (unsigned i = 0; i < ranges_n; i++)
		if (ranges[i].base == p && ranges[i].bytes == bytes) {
			ranges[i] = ranges[--ranges_n];
			number[MAPPED]--;
			return 0;
		}
	return INVALID_VALUE;
}

ENTRY(cuMemGetAddressRange_v2, cu_pointer *ret_base, size_t *ret_bytes, cu_pointer p)
{
	const struct range *r = range_at(p);
	struct range all;
	cu_result error = entered();

	if (error || !r || current() < 0)
		return error ? error : r ? INVALID_CONTEXT : INVALID_VALUE;
	all = number[JOINED] == 1 ? joined(r) : *r;
	*ret_base = all.base;
	*ret_bytes = all.bytes;
	return 0;
}

ENTRY(cuIpcGetMemHandle, struct cu_ipc_handle *ret, cu_pointer base)
{
	const struct range *r = range_at(base);
	cu_result error = entered();

	if (error || current() < 0)
		return error ? error : INVALID_CONTEXT;
	if (!r || r->kind != FAKE_CUDA_MALLOC || r->base != base)
		return INVALID_VALUE;
	memset(ret, 0x5a, sizeof(*ret));
	memcpy(ret->bytes, &base, sizeof(base));
	number[EXPORTS]++;
	return 0;
}

/* The handle of an allocation is the address of its mapping. */
ENTRY(cuMemRetainAllocationHandle, cu_allocation *ret, void *p)
{
	const struct range *r = range_at((uintptr_t)p);
	cu_result error = entered();

	if (error)
		return error;
	if (!r || r->kind != FAKE_CUDA_VMM)
		return INVALID_VALUE;
	*ret = r->base;
	number[RETAINED]++;
	return 0;
}

ENTRY(cuMemRelease, cu_allocation allocation)
{
	number[RETAINED]--;
	return 0;
}

ENTRY(cuMemGetAllocationPropertiesFromHandle, struct cu_allocation_prop *ret,
      cu_allocation allocation)
{
	const struct range *r = range_at(allocation);
	cu_result error = entered();

	if (error)
		return error;
	if (!r)
		return INVALID_VALUE;
	*ret = (struct cu_allocation_prop){ .type = 1,
					    .handle_types = r->handle_types,
					    .location_type = 1,
					    .location = r->device };
	return 0;
}

/* Makes an inheritable descriptor, because the driver does not promise close-on-exec. */
static cu_result export(void *ret)
{
	int fd = memfd_create("fake GPU memory", 0);

	if (fd < 0)
		abort();
	memcpy(ret, &fd, sizeof(fd));
	number[EXPORTS]++;
	return 0;
}

ENTRY(cuMemExportToShareableHandle, void *ret, cu_allocation allocation, int handle_type,
      unsigned long long flags)
{
	const struct range *r = range_at(allocation);
	cu_result error = entered();

	if (error)
		return error;
	if (!r || flags || !(handle_type & r->handle_types))
		return INVALID_VALUE;
	return export(ret);
}

ENTRY(cuMemGetHandleForAddressRange, void *ret, cu_pointer p, size_t bytes, int handle_type,
      unsigned long long flags)
{
	cu_result error = entered();

	if (error || current() < 0)
		return error ? error : INVALID_CONTEXT;
	if (p % 4096 || bytes % 4096 || !bytes || handle_type != CU_RANGE_DMABUF || flags)
		return INVALID_VALUE;
	return number[DMABUF] ? export(ret) : NOT_SUPPORTED;
}

ENTRY(cuMemHostRegister_v2, void *p, size_t bytes, unsigned flags)
{
	cu_result error = entered();

	if (error || current() < 0)
		return error ? error : INVALID_CONTEXT;
	number[REGISTERED]++;
	return 0;
}

ENTRY(cuMemHostUnregister, void *p)
{
	number[REGISTERED]--;
	return 0;
}

/* GPUs use another address for host memory, so that a mix-up is detected. */
ENTRY(cuMemHostGetDevicePointer_v2, cu_pointer *ret, void *p, unsigned flags)
{
	*ret = (uintptr_t)p ^ (UINT64_C(1) << 60);
	return entered();
}

/* A stream is the address of its device's number. */
ENTRY(cuStreamGetCtx, cu_stream stream, cu_context *ret)
{
	*ret = context_of(*(const int *)stream);
	return entered();
}

static cu_result stream_op(enum number count, cu_stream stream, cu_pointer p, uint32_t value,
			   unsigned flags)
{
	cu_result error = entered();

	if (error || current() < 0 || (stream && current() != *(const int *)stream))
		return error ? error : INVALID_CONTEXT;
	number[count]++;
	number[STREAM] = (intptr_t)stream;
	number[ADDRESS] = (int64_t)p;
	number[VALUE] = value;
	number[FLAGS] = flags;
	return 0;
}

ENTRY(cuStreamWriteValue32_v2, cu_stream stream, cu_pointer p, uint32_t value, unsigned flags)
{
	return stream_op(WRITES, stream, p, value, flags);
}

ENTRY(cuStreamWaitValue32_v2, cu_stream stream, cu_pointer p, uint32_t value, unsigned flags)
{
	return stream_op(WAITS, stream, p, value, flags);
}
