/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for engines on machines without GPUs. Its memory is GPU memory for the fake plug-in (fake.h), so that
 * engine and agent share memory as on a GPU, and its addresses are no memory of the process, which has the bytes elsewhere: a
 * CPU that accesses them crashes, and system calls refuse them. A stream is a thread that carries out the queued steps in
 * order. It has the functions of driver.h, and those that libdray uses. Memory with IPC handles is in files in
 * $FAKE_GPU_FOLDER.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/driver.h"

#define EXPORTED __attribute__((visibility("default")))
#define DEVICES 2
#define MEMORIES 4096
#define GRANULE (UINT64_C(2) << 20)
#define MEMORY_BYTES (UINT64_C(8) << 30)

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

/* An allocation. */
static struct memory {
	int fd;         /* 0: this element is free */
	unsigned users; /* its handles and mappings */
	int device;
	uint64_t bytes;
	uint64_t id;
	char path[60]; /* "": a memfd without a path, of cuMemCreate() */
} memories[MEMORIES];

/* Reserved addresses. */
static struct place {
	cuda_address address;
	uint64_t bytes; /* 0: this element is free */
	char *bytes_at; /* where the process has what is mapped there */
} places[MEMORIES];

/* An allocation at an address. */
static struct mapping {
	cuda_address address;
	uint64_t bytes; /* 0: this element is free */
	struct memory *memory;
} mappings[MEMORIES];

static uint64_t last_id;
static __thread int current;
/* Protects the tables above: streams look addresses up. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The agent may run as another user. */
static int file_new(struct memory *m)
{
	const char *folder = getenv("FAKE_GPU_FOLDER");
	int fd;

	snprintf(m->path, sizeof(m->path), "%s/fake-gpu-%d-XXXXXX", folder ? folder : "/dev/shm",
		 m->device);
	fd = mkostemp(m->path, O_CLOEXEC);
	if (fd >= 0 && fchmod(fd, 0666)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void memory_drop(struct memory *m)
{
	if (--m->users)
		return;
	if (m->path[0])
		unlink(m->path);
	if (m->fd > 0)
		close(m->fd);
	*m = (struct memory){ 0 };
}

/* With one user. */
static struct memory *memory_new(uint64_t bytes, int device, bool named)
{
	struct memory *m = memories;
	char name[32];

	while (m < memories + MEMORIES && m->fd)
		m++;
	if (m == memories + MEMORIES)
		return NULL;
	*m = (struct memory){ .users = 1, .device = device, .bytes = bytes, .id = ++last_id };
	snprintf(name, sizeof(name), "fake-gpu-%d", device);
	m->fd = named ? file_new(m) : memfd_create(name, MFD_CLOEXEC);
	if (m->fd > 0 && !ftruncate(m->fd, (off_t)bytes))
		return m;
	memory_drop(m);
	return NULL;
}

static struct memory *memory_of(cuda_handle handle)
{
	return handle && handle <= MEMORIES && memories[handle - 1].fd ? &memories[handle - 1] :
									 NULL;
}

static void *plain(cuda_address address)
{
	return (void *)(uintptr_t)address;
}

static void *reserve(cuda_address at, uint64_t bytes)
{
	return mmap(plain(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static struct place *place_of(cuda_address address)
{
	for (struct place *p = places; p < places + MEMORIES; p++)
		if (p->bytes && address - p->address < p->bytes)
			return p;
	return NULL;
}

static struct mapping *mapping_of(cuda_address address)
{
	for (struct mapping *m = mappings; m < mappings + MEMORIES; m++)
		if (m->bytes && address - m->address < m->bytes)
			return m;
	return NULL;
}

static void place_free(struct place *p)
{
	munmap(plain(p->address), p->bytes);
	munmap(p->bytes_at, p->bytes);
	*p = (struct place){ 0 };
}

static struct place *place_new(cuda_address at, uint64_t bytes)
{
	struct place *p = places;
	void *address, *bytes_at;

	while (p < places + MEMORIES && p->bytes)
		p++;
	if (p == places + MEMORIES || !bytes)
		return NULL;
	address = reserve(at, bytes);
	if (address == MAP_FAILED)
		return NULL;
	bytes_at = reserve(0, bytes);
	if (bytes_at == MAP_FAILED) {
		munmap(address, bytes);
		return NULL;
	}
	*p = (struct place){ (cuda_address)(uintptr_t)address, bytes, bytes_at };
	return p;
}

/* Where the process has the byte at an address, of a GPU or of the host. */
static void *pointer(cuda_address address)
{
	const struct place *p;
	void *found = plain(address);

	pthread_mutex_lock(&lock);
	p = place_of(address);
	if (p)
		found = p->bytes_at + (address - p->address);
	pthread_mutex_unlock(&lock);
	return found;
}

static bool mapping_new(cuda_address address, uint64_t bytes, uint64_t offset,
			struct memory *memory)
{
	struct mapping *m = mappings;
	const struct place *p = place_of(address);

	while (m < mappings + MEMORIES && m->bytes)
		m++;
	if (m == mappings + MEMORIES || !p || address - p->address + bytes > p->bytes)
		return false;
	if (mmap(p->bytes_at + (address - p->address), bytes, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED, memory->fd, (off_t)offset) == MAP_FAILED)
		return false;
	memory->users++;
	*m = (struct mapping){ address, bytes, memory };
	return true;
}

static bool mapping_free(struct mapping *m)
{
	const struct place *p = place_of(m->address);
	void *at = p->bytes_at + (m->address - p->address);
	bool ok = mmap(at, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		  MAP_FAILED;

	memory_drop(m->memory);
	*m = (struct mapping){ 0 };
	return ok;
}

/* --- devices ---------------------------------------------------------------------------------- */

EXPORTED int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
	return (int)flags;
}

EXPORTED int cuGetErrorName(int error, const char **ret);
int cuGetErrorName(int error, const char **ret)
{
	*ret = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
	       error == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" :
					"CUDA_ERROR_INVALID_VALUE";
	return 0;
}

EXPORTED int cuDeviceGetCount(int *ret);
int cuDeviceGetCount(int *ret)
{
	*ret = DEVICES;
	return 0;
}

EXPORTED int cuDeviceGet(int *ret, int device);
int cuDeviceGet(int *ret, int device)
{
	*ret = device;
	return 0;
}

EXPORTED int cuDeviceGetName(char *name, int n, int device);
int cuDeviceGetName(char *name, int n, int device)
{
	snprintf(name, (size_t)n, "simulated %d", device);
	return 0;
}

EXPORTED int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	static const unsigned char first[16] = { [6] = 0x40, [8] = 0x80 };

	memcpy(uuid, first, sizeof(first));
	uuid[15] = (unsigned char)device;
	return 0;
}

/* As libdray asks for it. */
EXPORTED int cuDeviceGetUuid(unsigned char *uuid, int device);
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
	return cuDeviceGetUuid_v2(uuid, device);
}

/* No GPU memory for RDMA. */
EXPORTED int cuDeviceGetAttribute(int *ret, int which, int device);
int cuDeviceGetAttribute(int *ret, int which, int device)
{
	(void)which;
	*ret = 0;
	return device < DEVICES ? 0 : INVALID_VALUE;
}

EXPORTED int cuDeviceGetPCIBusId(char *bdf, int n, int device);
int cuDeviceGetPCIBusId(char *bdf, int n, int device)
{
	snprintf(bdf, (size_t)n, "0000:f%d:00.0", device);
	return 0;
}

static char contexts[DEVICES];

EXPORTED int cuDevicePrimaryCtxRetain(void **ret, int device);
int cuDevicePrimaryCtxRetain(void **ret, int device)
{
	*ret = &contexts[device];
	return 0;
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
	return device < DEVICES ? 0 : INVALID_VALUE;
}

EXPORTED int cuDevicePrimaryCtxGetState(int device, unsigned *ret_flags, int *ret_active);
int cuDevicePrimaryCtxGetState(int device, unsigned *ret_flags, int *ret_active)
{
	*ret_flags = 0;
	*ret_active = 1;
	return device < DEVICES ? 0 : INVALID_VALUE;
}

EXPORTED int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context)
{
	current = (int)((char *)context - contexts);
	return 0;
}

EXPORTED int cuCtxGetCurrent(void **ret);
int cuCtxGetCurrent(void **ret)
{
	*ret = &contexts[current];
	return 0;
}

EXPORTED int cuCtxGetDevice(int *ret);
int cuCtxGetDevice(int *ret)
{
	*ret = current;
	return 0;
}

static __thread int pushed[8];
static __thread unsigned pushed_n;

EXPORTED int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
	if (pushed_n == sizeof(pushed) / sizeof(pushed[0]))
		return INVALID_VALUE;
	pushed[pushed_n++] = current;
	return cuCtxSetCurrent(context);
}

EXPORTED int cuCtxPopCurrent_v2(void **ret);
int cuCtxPopCurrent_v2(void **ret)
{
	if (!pushed_n)
		return INVALID_VALUE;
	cuCtxGetCurrent(ret);
	current = pushed[--pushed_n];
	return 0;
}

EXPORTED int cuCtxSynchronize(void);
int cuCtxSynchronize(void)
{
	return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

EXPORTED int cuMemGetInfo_v2(size_t *left, size_t *all);
int cuMemGetInfo_v2(size_t *left, size_t *all)
{
	*left = *all = MEMORY_BYTES;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < MEMORIES; i++)
		if (memories[i].fd && memories[i].device == current)
			*left -= memories[i].bytes;
	pthread_mutex_unlock(&lock);
	return 0;
}

static cuda_address alloc(size_t bytes)
{
	struct memory *m = memory_new(bytes, current, true);
	struct place *p = m ? place_new(0, bytes) : NULL;
	cuda_address at = p ? p->address : 0;

	if (p && !mapping_new(at, bytes, 0, m)) {
		place_free(p);
		at = 0;
	}
	if (m)
		memory_drop(m); /* the mapping has it */
	return at;
}

EXPORTED int cuMemAlloc_v2(cuda_address *ret, size_t bytes);
int cuMemAlloc_v2(cuda_address *ret, size_t bytes)
{
	pthread_mutex_lock(&lock);
	*ret = alloc(bytes);
	pthread_mutex_unlock(&lock);
	return *ret ? 0 : OUT_OF_MEMORY;
}

EXPORTED int cuMemFree_v2(cuda_address address);
int cuMemFree_v2(cuda_address address)
{
	struct mapping *m;
	bool ok = false;

	pthread_mutex_lock(&lock);
	m = mapping_of(address);
	if (m && m->address == address && m->memory->path[0]) {
		mapping_free(m);
		place_free(place_of(address));
		ok = true;
	}
	pthread_mutex_unlock(&lock);
	return ok ? 0 : INVALID_VALUE;
}

enum {
	ATTRIBUTE_CONTEXT = 1,
	ATTRIBUTE_MEMORY_TYPE,
	ATTRIBUTE_BUFFER_ID = 7,
	ATTRIBUTE_IS_MANAGED,
	ATTRIBUTE_DEVICE_ORDINAL,
	ATTRIBUTE_IS_LEGACY_IPC_CAPABLE,
	ATTRIBUTE_MAPPING_SIZE = 18,
	ATTRIBUTE_MAPPING_BASE,
};

static int attribute(void *ret, int which, const struct mapping *m)
{
	bool legacy = m->memory->path[0];
	void *context = legacy ? &contexts[m->memory->device] : NULL;
	unsigned type = 2; /* of a device */
	int flag = which == ATTRIBUTE_IS_LEGACY_IPC_CAPABLE && legacy;
	size_t bytes = m->bytes;

	switch (which) {
	case ATTRIBUTE_CONTEXT:
		memcpy(ret, &context, sizeof(context));
		return 0;
	case ATTRIBUTE_MEMORY_TYPE:
		memcpy(ret, &type, sizeof(type));
		return 0;
	case ATTRIBUTE_BUFFER_ID:
		memcpy(ret, &m->memory->id, sizeof(m->memory->id));
		return 0;
	case ATTRIBUTE_IS_MANAGED:
	case ATTRIBUTE_IS_LEGACY_IPC_CAPABLE:
		memcpy(ret, &flag, sizeof(flag));
		return 0;
	case ATTRIBUTE_DEVICE_ORDINAL:
		memcpy(ret, &m->memory->device, sizeof(m->memory->device));
		return 0;
	case ATTRIBUTE_MAPPING_SIZE:
		memcpy(ret, &bytes, sizeof(bytes));
		return 0;
	case ATTRIBUTE_MAPPING_BASE:
		memcpy(ret, &m->address, sizeof(m->address));
		return 0;
	default:
		return INVALID_VALUE;
	}
}

EXPORTED int cuPointerGetAttribute(void *ret, int which, cuda_address address);
int cuPointerGetAttribute(void *ret, int which, cuda_address address)
{
	const struct mapping *m;
	int error;

	pthread_mutex_lock(&lock);
	m = mapping_of(address);
	error = m ? attribute(ret, which, m) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return error;
}

EXPORTED int cuMemGetAddressRange_v2(cuda_address *ret_base, size_t *ret_bytes,
				     cuda_address address);
int cuMemGetAddressRange_v2(cuda_address *ret_base, size_t *ret_bytes, cuda_address address)
{
	const struct mapping *m;

	pthread_mutex_lock(&lock);
	m = mapping_of(address);
	if (m) {
		*ret_base = m->address;
		*ret_bytes = m->bytes;
	}
	pthread_mutex_unlock(&lock);
	return m ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemcpyHtoD_v2(cuda_address to, const void *from, size_t bytes);
int cuMemcpyHtoD_v2(cuda_address to, const void *from, size_t bytes)
{
	memcpy(pointer(to), from, bytes);
	return 0;
}

EXPORTED int cuMemcpyDtoH_v2(void *to, cuda_address from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, cuda_address from, size_t bytes)
{
	memcpy(to, pointer(from), bytes);
	return 0;
}

EXPORTED int cuIpcGetMemHandle(struct cuda_ipc *ret, cuda_address address);
int cuIpcGetMemHandle(struct cuda_ipc *ret, cuda_address address)
{
	const struct mapping *m;

	memset(ret, 0, sizeof(*ret));
	pthread_mutex_lock(&lock);
	m = mapping_of(address);
	if (m && m->memory->path[0])
		snprintf(ret->bytes, sizeof(ret->bytes), "FAKE%s", m->memory->path);
	pthread_mutex_unlock(&lock);
	return ret->bytes[0] ? 0 : INVALID_VALUE;
}

/* Any handle; nothing is opened. */
EXPORTED int cuIpcOpenMemHandle_v2(cuda_address *ret, struct cuda_ipc handle, unsigned flags);
int cuIpcOpenMemHandle_v2(cuda_address *ret, struct cuda_ipc handle, unsigned flags)
{
	(void)handle;
	(void)flags;
	*ret = 1;
	return 0;
}

EXPORTED int cuIpcCloseMemHandle(cuda_address address);
int cuIpcCloseMemHandle(cuda_address address)
{
	(void)address;
	return 0;
}

EXPORTED int cuMemGetAllocationGranularity(size_t *ret, const struct cuda_allocation *what,
					   int flags);
int cuMemGetAllocationGranularity(size_t *ret, const struct cuda_allocation *what, int flags)
{
	(void)flags;
	*ret = GRANULE;
	return what->type == 1 ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemCreate(cuda_handle *ret, size_t bytes, const struct cuda_allocation *what,
			 unsigned long long flags);
int cuMemCreate(cuda_handle *ret, size_t bytes, const struct cuda_allocation *what,
		unsigned long long flags)
{
	struct memory *m;

	if (flags || bytes % GRANULE || what->location.type != 1 || what->handle_types != 1)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	m = memory_new(bytes, what->location.id, false);
	pthread_mutex_unlock(&lock);
	if (!m)
		return OUT_OF_MEMORY;
	*ret = (cuda_handle)(m - memories) + 1;
	return 0;
}

EXPORTED int cuMemRetainAllocationHandle(cuda_handle *ret, void *address);
int cuMemRetainAllocationHandle(cuda_handle *ret, void *address)
{
	struct mapping *m;
	bool ok = false;

	pthread_mutex_lock(&lock);
	m = mapping_of((cuda_address)(uintptr_t)address);
	if (m && !m->memory->path[0]) {
		m->memory->users++;
		*ret = (cuda_handle)(m->memory - memories) + 1;
		ok = true;
	}
	pthread_mutex_unlock(&lock);
	return ok ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemRelease(cuda_handle handle);
int cuMemRelease(cuda_handle handle)
{
	struct memory *m;

	pthread_mutex_lock(&lock);
	m = memory_of(handle);
	if (m)
		memory_drop(m);
	pthread_mutex_unlock(&lock);
	return m ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemGetAllocationPropertiesFromHandle(struct cuda_allocation *ret,
						    cuda_handle handle);
int cuMemGetAllocationPropertiesFromHandle(struct cuda_allocation *ret, cuda_handle handle)
{
	const struct memory *m;

	pthread_mutex_lock(&lock);
	m = memory_of(handle);
	if (m)
		*ret = (struct cuda_allocation){ .type = 1,
						 .handle_types = 1,
						 .location = { 1, m->device } };
	pthread_mutex_unlock(&lock);
	return m ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemAddressReserve(cuda_address *ret, size_t bytes, size_t alignment, cuda_address at,
				 unsigned long long flags);
int cuMemAddressReserve(cuda_address *ret, size_t bytes, size_t alignment, cuda_address at,
			unsigned long long flags)
{
	const struct place *p;

	if (alignment || flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	p = place_new(at, bytes);
	if (p)
		*ret = p->address;
	pthread_mutex_unlock(&lock);
	return p ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemAddressFree(cuda_address address, size_t bytes);
int cuMemAddressFree(cuda_address address, size_t bytes)
{
	struct place *p;
	bool ok = false;

	pthread_mutex_lock(&lock);
	p = place_of(address);
	if (p && p->address == address && p->bytes == bytes) {
		place_free(p);
		ok = true;
	}
	pthread_mutex_unlock(&lock);
	return ok ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_handle handle,
		      unsigned long long flags);
int cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_handle handle,
	     unsigned long long flags)
{
	struct memory *m;
	bool ok;

	pthread_mutex_lock(&lock);
	m = memory_of(handle);
	ok = m && !flags && offset + bytes <= m->bytes && mapping_new(address, bytes, offset, m);
	pthread_mutex_unlock(&lock);
	return ok ? 0 : INVALID_VALUE;
}

/* Also of several mappings. */
EXPORTED int cuMemUnmap(cuda_address address, size_t bytes);
int cuMemUnmap(cuda_address address, size_t bytes)
{
	bool ok = true;

	pthread_mutex_lock(&lock);
	for (struct mapping *m = mappings; m < mappings + MEMORIES; m++)
		if (m->bytes && m->address - address < bytes)
			ok = mapping_free(m) && ok;
	pthread_mutex_unlock(&lock);
	return ok ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemSetAccess(cuda_address address, size_t bytes, const struct cuda_access *access,
			    size_t n);
int cuMemSetAccess(cuda_address address, size_t bytes, const struct cuda_access *access, size_t n)
{
	return address && bytes && n == 1 && access->flags == 3 ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemExportToShareableHandle(void *ret, cuda_handle handle, int type,
					  unsigned long long flags);
int cuMemExportToShareableHandle(void *ret, cuda_handle handle, int type, unsigned long long flags)
{
	const struct memory *m;
	int fd;

	pthread_mutex_lock(&lock);
	m = memory_of(handle);
	fd = m && type == 1 && !flags ? dup(m->fd) : -1;
	pthread_mutex_unlock(&lock);
	memcpy(ret, &fd, sizeof(fd));
	return fd < 0 ? INVALID_VALUE : 0;
}

EXPORTED int cuMemGetHandleForAddressRange(void *ret, cuda_address address, size_t bytes, int type,
					   unsigned long long flags);
int cuMemGetHandleForAddressRange(void *ret, cuda_address address, size_t bytes, int type,
				  unsigned long long flags)
{
	(void)ret;
	(void)address;
	(void)bytes;
	(void)type;
	(void)flags;
	return NOT_SUPPORTED;
}

EXPORTED int cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags)
{
	return base && bytes && flags == CUDA_HOST_MAPPED ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemHostUnregister(void *base);
int cuMemHostUnregister(void *base)
{
	return base ? 0 : INVALID_VALUE;
}

EXPORTED int cuMemHostGetDevicePointer_v2(cuda_address *ret, void *base, unsigned flags);
int cuMemHostGetDevicePointer_v2(cuda_address *ret, void *base, unsigned flags)
{
	*ret = (cuda_address)(uintptr_t)base;
	return (int)flags;
}

/* None is told apart from the current context. */
EXPORTED int cuStreamGetCtx(void *stream, void **ret);
int cuStreamGetCtx(void *stream, void **ret)
{
	(void)stream;
	return cuCtxGetCurrent(ret);
}

/* --- streams ---------------------------------------------------------------------------------- */

struct step {
	enum { STEP_COPY, STEP_SET, STEP_WRITE, STEP_WAIT } what;
	cuda_address to, from;
	uint64_t n;
	uint32_t value;
	struct step *next;
};

struct stream {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct step *first, **last;
	bool busy, ended;
};

static void step_do(const struct step *s)
{
	uint32_t *word = pointer(s->to);

	switch (s->what) {
	case STEP_COPY:
		memcpy(pointer(s->to), pointer(s->from), s->n);
		break;
	case STEP_SET:
		for (uint64_t i = 0; i < s->n; i++)
			word[i] = s->value;
		break;
	case STEP_WRITE:
		__atomic_store_n(word, s->value, __ATOMIC_RELEASE);
		break;
	case STEP_WAIT:
		while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - s->value) < 0)
			sched_yield();
		break;
	}
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->ended) {
		struct step *step = s->first;

		if (!step) {
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		s->first = step->next;
		if (!s->first)
			s->last = &s->first;
		s->busy = true;
		pthread_mutex_unlock(&s->lock);
		step_do(step);
		free(step);
		pthread_mutex_lock(&s->lock);
		s->busy = false;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int stream_add(struct stream *s, struct step what)
{
	struct step *step = malloc(sizeof(*step));

	if (!step)
		return OUT_OF_MEMORY;
	*step = what;
	pthread_mutex_lock(&s->lock);
	*s->last = step;
	s->last = &step->next;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

EXPORTED int cuStreamCreate(void **ret, unsigned flags);
int cuStreamCreate(void **ret, unsigned flags)
{
	struct stream *s = calloc(1, sizeof(*s));

	(void)flags;
	if (!s)
		return OUT_OF_MEMORY;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->last = &s->first;
	if (pthread_create(&s->thread, NULL, stream_main, s)) {
		free(s);
		return OUT_OF_MEMORY;
	}
	*ret = s;
	return 0;
}

EXPORTED int cuStreamSynchronize(void *stream);
int cuStreamSynchronize(void *stream)
{
	struct stream *s = stream;

	pthread_mutex_lock(&s->lock);
	while (s->first || s->busy)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

EXPORTED int cuStreamDestroy_v2(void *stream);
int cuStreamDestroy_v2(void *stream)
{
	struct stream *s = stream;

	cuStreamSynchronize(s);
	pthread_mutex_lock(&s->lock);
	s->ended = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return 0;
}

EXPORTED int cuMemcpyDtoDAsync_v2(cuda_address to, cuda_address from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(cuda_address to, cuda_address from, size_t bytes, void *stream)
{
	return stream_add(stream, (struct step){ STEP_COPY, to, from, bytes, 0, NULL });
}

EXPORTED int cuMemsetD32Async(cuda_address to, unsigned value, size_t n, void *stream);
int cuMemsetD32Async(cuda_address to, unsigned value, size_t n, void *stream)
{
	return stream_add(stream, (struct step){ STEP_SET, to, 0, n, value, NULL });
}

EXPORTED int cuStreamWriteValue32_v2(void *stream, cuda_address to, uint32_t value, unsigned flags);
int cuStreamWriteValue32_v2(void *stream, cuda_address to, uint32_t value, unsigned flags)
{
	return flags ? NOT_SUPPORTED :
		       stream_add(stream, (struct step){ STEP_WRITE, to, 0, 0, value, NULL });
}

EXPORTED int cuStreamWaitValue32_v2(void *stream, cuda_address to, uint32_t value, unsigned flags);
int cuStreamWaitValue32_v2(void *stream, cuda_address to, uint32_t value, unsigned flags)
{
	return flags != CUDA_WAIT_GEQ ?
		       NOT_SUPPORTED :
		       stream_add(stream, (struct step){ STEP_WAIT, to, 0, 0, value, NULL });
}
