/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for engines on machines without GPUs. Its memory is GPU memory for the fake plug-in (fake.h), so that
 * engine and agent share memory as on a GPU. A stream is a thread that carries out the queued steps in order. It has only
 * the functions of driver.h. Memory with IPC handles is in files in $FAKE_GPU_FOLDER.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/driver.h"

#define EXPORTED __attribute__((visibility("default")))
#define DEVICES 2
#define MEMORIES 4096
#define GRANULE (UINT64_C(2) << 20)
#define MEMORY_BYTES (UINT64_C(8) << 30)

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

static struct memory {
	int fd; /* 0: this element is free */
	int device;
	uint64_t bytes;
	void *mapped;  /* NULL: reserved and mapped by the caller */
	char path[60]; /* "": a memfd without a path */
} memories[MEMORIES];
static int current;

static int file_new(struct memory *m)
{
	const char *folder = getenv("FAKE_GPU_FOLDER");

	snprintf(m->path, sizeof(m->path), "%s/fake-gpu-%d-XXXXXX", folder ? folder : "/dev/shm",
		 m->device);
	return mkostemp(m->path, O_CLOEXEC);
}

static void memory_forget(struct memory *m)
{
	if (m->mapped)
		munmap(m->mapped, m->bytes);
	if (m->path[0])
		unlink(m->path);
	if (m->fd > 0)
		close(m->fd);
	*m = (struct memory){ 0 };
}

static struct memory *memory_new(uint64_t bytes, int device, bool named)
{
	struct memory *m = memories;
	char name[32];

	while (m < memories + MEMORIES && m->fd)
		m++;
	if (m == memories + MEMORIES)
		return NULL;
	*m = (struct memory){ .device = device, .bytes = bytes };
	snprintf(name, sizeof(name), "fake-gpu-%d", device);
	m->fd = named ? file_new(m) : memfd_create(name, MFD_CLOEXEC);
	if (m->fd > 0 && !ftruncate(m->fd, (off_t)bytes))
		return m;
	memory_forget(m);
	return NULL;
}

static struct memory *memory_at(cuda_address address)
{
	for (unsigned i = 0; i < MEMORIES; i++)
		if (memories[i].fd && memories[i].mapped &&
		    (cuda_address)(uintptr_t)memories[i].mapped == address)
			return &memories[i];
	return NULL;
}

static void *pointer(cuda_address address)
{
	return (void *)(uintptr_t)address;
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

EXPORTED int cuDeviceGetPCIBusId(char *bdf, int n, int device);
int cuDeviceGetPCIBusId(char *bdf, int n, int device)
{
	snprintf(bdf, (size_t)n, "0000:f%d:00.0", device);
	return 0;
}

EXPORTED int cuDevicePrimaryCtxRetain(void **ret, int device);
int cuDevicePrimaryCtxRetain(void **ret, int device)
{
	static char contexts[DEVICES];

	*ret = &contexts[device];
	return 0;
}

EXPORTED int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context)
{
	void *first;

	cuDevicePrimaryCtxRetain(&first, 0);
	current = (int)((char *)context - (char *)first);
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
	for (unsigned i = 0; i < MEMORIES; i++)
		if (memories[i].fd && memories[i].device == current)
			*left -= memories[i].bytes;
	return 0;
}

EXPORTED int cuMemAlloc_v2(cuda_address *ret, size_t bytes);
int cuMemAlloc_v2(cuda_address *ret, size_t bytes)
{
	struct memory *m = memory_new(bytes, current, true);

	if (!m)
		return OUT_OF_MEMORY;
	m->mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->mapped == MAP_FAILED) {
		m->mapped = NULL;
		memory_forget(m);
		return OUT_OF_MEMORY;
	}
	*ret = (cuda_address)(uintptr_t)m->mapped;
	return 0;
}

EXPORTED int cuMemFree_v2(cuda_address address);
int cuMemFree_v2(cuda_address address)
{
	struct memory *m = memory_at(address);

	if (!m)
		return INVALID_VALUE;
	memory_forget(m);
	return 0;
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
	struct memory *m = memory_at(address);

	if (!m)
		return INVALID_VALUE;
	memset(ret, 0, sizeof(*ret));
	snprintf(ret->bytes, sizeof(ret->bytes), "FAKE%s", m->path);
	return 0;
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
	m = memory_new(bytes, what->location.id, false);
	if (!m)
		return OUT_OF_MEMORY;
	*ret = (cuda_handle)(m - memories) + 1;
	return 0;
}

EXPORTED int cuMemRelease(cuda_handle handle);
int cuMemRelease(cuda_handle handle)
{
	memory_forget(&memories[handle - 1]);
	return 0;
}

EXPORTED int cuMemAddressReserve(cuda_address *ret, size_t bytes, size_t alignment, cuda_address at,
				 unsigned long long flags);
int cuMemAddressReserve(cuda_address *ret, size_t bytes, size_t alignment, cuda_address at,
			unsigned long long flags)
{
	void *p = mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || alignment || flags)
		return INVALID_VALUE;
	*ret = (cuda_address)(uintptr_t)p;
	return 0;
}

EXPORTED int cuMemAddressFree(cuda_address address, size_t bytes);
int cuMemAddressFree(cuda_address address, size_t bytes)
{
	return munmap(pointer(address), bytes) ? INVALID_VALUE : 0;
}

EXPORTED int cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_handle handle,
		      unsigned long long flags);
int cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_handle handle,
	     unsigned long long flags)
{
	void *p = mmap(pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		       memories[handle - 1].fd, (off_t)offset);

	return p == MAP_FAILED || flags ? INVALID_VALUE : 0;
}

EXPORTED int cuMemUnmap(cuda_address address, size_t bytes);
int cuMemUnmap(cuda_address address, size_t bytes)
{
	void *p = mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		       -1, 0);

	return p == MAP_FAILED ? INVALID_VALUE : 0;
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
	int fd = dup(memories[handle - 1].fd);

	memcpy(ret, &fd, sizeof(fd));
	return fd < 0 || type != 1 || flags ? INVALID_VALUE : 0;
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
