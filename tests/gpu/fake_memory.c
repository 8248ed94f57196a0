/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake plug-in: imported, allocated and pinned ranges, and the location of their bytes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/gpu/fake_internal.h"

#define HANDLE_MAGIC "FAKE"
#define NAME "fake-gpu-"
#define HOLD_LOOK_NS 1000000
#define PAGE 4096u
/* Of addresses for imports. */
#define ARENA_BYTES (UINT64_C(1) << 38)

struct range {
	uintptr_t base;
	uint64_t bytes;
	uint8_t *bytes_at;
	unsigned device;
	bool write, ended;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges;
static unsigned n_ranges, ranges_max;

int fake_range_add(uintptr_t base, uint64_t bytes, uint8_t *bytes_at, unsigned device, bool write)
{
	pthread_rwlock_wrlock(&lock);
	if (n_ranges == ranges_max) {
		struct range *grown = realloc(ranges, (ranges_max + 64) * sizeof(*grown));

		if (!grown) {
			pthread_rwlock_unlock(&lock);
			return -ENOMEM;
		}
		ranges = grown;
		ranges_max += 64;
	}
	ranges[n_ranges++] = (struct range){ base, bytes, bytes_at, device, write, false };
	pthread_rwlock_unlock(&lock);
	return 0;
}

void fake_range_del(uintptr_t base)
{
	unsigned i = 0;

	pthread_rwlock_wrlock(&lock);
	while (i < n_ranges && ranges[i].base != base)
		i++;
	dray_assert(i < n_ranges);
	ranges[i] = ranges[--n_ranges];
	if (!n_ranges) {
		free(ranges);
		ranges = NULL;
		ranges_max = 0;
	}
	pthread_rwlock_unlock(&lock);
}

void fake_pins_end(void)
{
	pthread_rwlock_wrlock(&lock);
	for (unsigned i = 0; i < n_ranges; i++)
		ranges[i].ended |= ranges[i].device == FAKE_PIN;
	pthread_rwlock_unlock(&lock);
}

uint8_t *fake_range_find(unsigned device, uint64_t address, uint64_t bytes, bool write)
{
	uint8_t *found = NULL;

	pthread_rwlock_rdlock(&lock);
	for (unsigned i = 0; i < n_ranges && !found; i++) {
		const struct range *r = &ranges[i];

		if (!r->ended && address - r->base < r->bytes &&
		    bytes <= r->bytes - (address - r->base) && (r->write || !write) &&
		    (r->device >= FAKE_PIN || fake_reaches(device, r->device)))
			found = r->bytes_at + (address - r->base);
	}
	pthread_rwlock_unlock(&lock);
	return found;
}

/* --- imports ------------------------------------------------------------------------------------- */

struct gpu_import {
	uint8_t *reserved, *bytes_at;
	uint64_t bytes;
	int fd;
};

static int open_handle(const struct gpu_import_spec *spec, struct dray_err *reterr)
{
	char path[GPU_HANDLE_BYTES + 1] = "";
	int fd;

	if (spec->kind == GPU_IMPORT_VMM) {
		fd = fcntl(spec->fd, F_DUPFD_CLOEXEC, 3);
		snprintf(path, sizeof(path), "descriptor %d", spec->fd);
	} else if (memcmp(spec->handle, HANDLE_MAGIC, strlen(HANDLE_MAGIC)) != 0) {
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "this is not a handle of the fake plug-in");
	} else {
		memcpy(path, spec->handle + strlen(HANDLE_MAGIC),
		       GPU_HANDLE_BYTES - strlen(HANDLE_MAGIC));
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	return fd >= 0 ? fd :
			 dray_err_set(reterr, -errno, DRAY_E_GPU_HANDLE, "cannot open %s: %s", path,
				      dray_errno_text(errno));
}

static int check_device(int fd, unsigned device, struct dray_err *reterr)
{
	char link[64], name[PATH_MAX];
	const char *at;
	unsigned long on;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, name, sizeof(name) - 1);
	name[n > 0 ? n : 0] = '\0';
	at = strstr(name, NAME);
	if (!at)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE, "%s is no GPU memory",
				    name);
	on = strtoul(at + strlen(NAME), NULL, 10);
	if (on != device)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_DEVICE,
				    "the memory is on device %lu, not on %u", on, device);
	return 0;
}

static uint8_t *arena, *below;
static unsigned n_reserved;

/*
 * Addresses for an import, which end where those of the one before begin, as a driver places the memory that it opens: so a list of
 * handles in the reverse order makes extents that are neighbours. They are never accessible.
 */
static uint8_t *reserve(uint64_t bytes)
{
	uint8_t *p = MAP_FAILED;

	pthread_rwlock_wrlock(&lock);
	if (!arena) {
		arena = mmap(NULL, ARENA_BYTES, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		dray_assert(arena != MAP_FAILED);
		below = arena + ARENA_BYTES;
	}
	bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	if (bytes <= (uint64_t)(below - arena)) {
		p = below -= bytes;
		n_reserved++;
	}
	pthread_rwlock_unlock(&lock);
	return p;
}

/* They are used again when all are returned. */
static void unreserve(void)
{
	pthread_rwlock_wrlock(&lock);
	if (!--n_reserved)
		below = arena + ARENA_BYTES;
	pthread_rwlock_unlock(&lock);
}

static int map_import(struct gpu_import *i, const struct gpu_import_spec *spec,
		      struct dray_err *reterr)
{
	struct stat st;

	if (fstat(i->fd, &st) < 0 || !st.st_size)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE, "the memory is empty");
	i->bytes = (uint64_t)st.st_size;
	if (spec->bytes > i->bytes)
		return dray_err_set(reterr, -EINVAL, DRAY_E_REGION_TOO_SMALL,
				    "the allocation has %llu bytes, not %llu",
				    (unsigned long long)i->bytes, (unsigned long long)spec->bytes);
	if (spec->allocation && spec->allocation != i->bytes)
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "the allocation is not one of %llu bytes",
				    (unsigned long long)spec->allocation);
	i->reserved = reserve(i->bytes);
	if (i->reserved != MAP_FAILED)
		i->bytes_at = mmap(NULL, i->bytes, PROT_READ | (spec->write ? PROT_WRITE : 0),
				   MAP_SHARED, i->fd, 0);
	if (i->reserved == MAP_FAILED || i->bytes_at == MAP_FAILED ||
	    fake_range_add((uintptr_t)i->reserved, i->bytes, i->bytes_at, spec->device,
			   spec->write) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "cannot map the memory: %s",
				    dray_errno_text(errno));
	return 0;
}

static void unmap_import(struct gpu_import *i)
{
	if (i->reserved != MAP_FAILED)
		unreserve();
	if (i->bytes_at != MAP_FAILED)
		munmap(i->bytes_at, i->bytes);
	dray_close(i->fd);
	free(i);
}

static bool holds_import(void)
{
	struct stat st;

	return fake.hold_import && stat(fake.hold_import, &st) == 0 &&
	       atomic_load(&fake_gpu_status()->imports) >= (uint64_t)st.st_size;
}

int fake_import(struct gpu_plugin *p, const struct gpu_import_spec *spec, struct gpu_import **ret,
		uint64_t *ret_address, uint64_t *ret_bytes, struct dray_err *reterr)
{
	struct gpu_import *i;
	int r;

	(void)p;
	dray_assert(fake.devices[spec->device].starts);
	while (holds_import())
		nanosleep(&(struct timespec){ .tv_nsec = HOLD_LOOK_NS }, NULL);
	if (fake_is_lost(spec->device))
		return dray_err_set(reterr, -EIO, DRAY_E_GPU_LOST, "device %u is lost",
				    spec->device);
	if (fake_fails("import"))
		return dray_err_set(reterr, -EINVAL, DRAY_E_GPU_HANDLE,
				    "the handle cannot be opened");
	i = calloc(1, sizeof(*i));
	if (!i)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
	i->reserved = i->bytes_at = MAP_FAILED;
	i->fd = open_handle(spec, reterr);
	r = i->fd < 0 ? i->fd : check_device(i->fd, spec->device, reterr);
	if (r >= 0)
		r = map_import(i, spec, reterr);
	if (r < 0) {
		unmap_import(i);
		return r;
	}
	atomic_fetch_add(&fake_gpu_status()->imports, 1);
	atomic_fetch_add(&fake_gpu_status()->imported, 1);
	*ret = i;
	*ret_address = (uintptr_t)i->reserved;
	*ret_bytes = i->bytes;
	return 0;
}

void fake_release(struct gpu_import *i)
{
	fake_range_del((uintptr_t)i->reserved);
	unmap_import(i);
	atomic_fetch_sub(&fake_gpu_status()->imports, 1);
}

int fake_export_dmabuf(struct gpu_import *i, uint64_t offset, uint64_t bytes,
		       struct dray_err *reterr)
{
	int fd;

	(void)offset;
	(void)bytes;
	if (!fake.dmabuf)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "the fake exports no DMA-BUF");
	fd = fcntl(i->fd, F_DUPFD_CLOEXEC, 3);
	return fd >= 0 ? fd :
			 dray_err_set(reterr, -errno, DRAY_E_NO_FDS, "no descriptor: %s",
				      dray_errno_text(errno));
}

/* --- memory of the plug-in's own ------------------------------------------------------------------ */

struct gpu_block {
	uint8_t *reserved, *bytes_at;
	uint64_t bytes;
	int fd;
	char path[GPU_HANDLE_BYTES - sizeof(HANDLE_MAGIC)]; /* "": no file */
};

static void unmap_block(struct gpu_block *b)
{
	if (b->reserved != MAP_FAILED)
		munmap(b->reserved, b->bytes);
	if (b->bytes_at != MAP_FAILED)
		munmap(b->bytes_at, b->bytes);
	dray_close(b->fd);
	if (*b->path)
		unlink(b->path);
	free(b);
}

/* Of a file, so that other processes can open it by its handle. */
static int block_map(struct gpu_block *b, unsigned device)
{
	const char *folder = getenv("FAKE_GPU_FOLDER");

	b->reserved =
		mmap(NULL, b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	b->bytes_at = MAP_FAILED;
	snprintf(b->path, sizeof(b->path), "%s/" NAME "%u-XXXXXX", folder ? folder : "/dev/shm",
		 device);
	b->fd = mkostemp(b->path, O_CLOEXEC);
	if (b->fd < 0)
		*b->path = '\0';
	if (b->fd < 0 || ftruncate(b->fd, (off_t)b->bytes) < 0)
		return -ENOMEM;
	b->bytes_at = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
	if (b->reserved == MAP_FAILED || b->bytes_at == MAP_FAILED)
		return -ENOMEM;
	return fake_range_add((uintptr_t)b->reserved, b->bytes, b->bytes_at, device, true);
}

static bool is_full(unsigned device, uint64_t bytes)
{
	bool limited = fake.free_of == FAKE_DEVICES_MAX || fake.free_of == device;

	return limited && fake.free_mib && bytes >> 20 > fake.free_mib;
}

int fake_block_alloc(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		     uint64_t *ret_address, struct dray_err *reterr)
{
	struct gpu_block *b = calloc(1, sizeof(*b));

	(void)p;
	dray_assert(fake.devices[device].starts);
	if (!b || fake_fails("block") || is_full(device, bytes)) {
		free(b);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "device %u has no %llu free bytes", device,
				    (unsigned long long)bytes);
	}
	b->bytes = bytes;
	if (block_map(b, device) < 0) {
		unmap_block(b);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "cannot map the memory");
	}
	atomic_fetch_add(&fake_gpu_status()->blocks, 1);
	*ret = b;
	*ret_address = (uintptr_t)b->reserved;
	return 0;
}

void fake_block_free(struct gpu_block *b)
{
	while (fake.hold_free && access(fake.hold_free, F_OK) == 0)
		nanosleep(&(struct timespec){ .tv_nsec = HOLD_LOOK_NS }, NULL);
	fake_range_del((uintptr_t)b->reserved);
	unmap_block(b);
	atomic_fetch_sub(&fake_gpu_status()->blocks, 1);
}

int fake_block_handle(struct gpu_block *b, uint8_t ret[GPU_HANDLE_BYTES], struct dray_err *reterr)
{
	(void)reterr;
	memset(ret, 0, GPU_HANDLE_BYTES);
	memcpy(ret, HANDLE_MAGIC, strlen(HANDLE_MAGIC));
	memcpy(ret + strlen(HANDLE_MAGIC), b->path, strlen(b->path));
	return 0;
}

/* --- host memory --------------------------------------------------------------------------------- */

/* The length is stored before the page that is returned. */
#define HOST_HEAD 4096

int fake_host_alloc(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *reterr)
{
	uint8_t *base = MAP_FAILED;

	(void)p;
	if (!fake_fails("host_alloc"))
		base = mmap(NULL, bytes + HOST_HEAD, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no pinned memory");
	*(uint64_t *)(void *)base = bytes + HOST_HEAD;
	base += HOST_HEAD;
	if (fake_range_add((uintptr_t)base, bytes, base, FAKE_HOST, true) < 0)
		return -ENOMEM;
	atomic_fetch_add(&fake_gpu_status()->host_allocs, 1);
	*ret = base;
	return 0;
}

void fake_host_free(struct gpu_plugin *p, void *base)
{
	uint8_t *head = (uint8_t *)base - HOST_HEAD;

	(void)p;
	fake_range_del((uintptr_t)base);
	munmap(head, *(uint64_t *)(void *)head);
	atomic_fetch_sub(&fake_gpu_status()->host_allocs, 1);
}

int fake_pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *reterr)
{
	(void)p;
	dray_assert((uintptr_t)base % 4096 == 0 && bytes % 4096 == 0);
	if (fake_fails("pin") || !atomic_load(&fake_gpu_status()->started) ||
	    (fake.refuse_pin && access(fake.refuse_pin, F_OK) == 0))
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "the memory cannot be pinned");
	if (fake_range_add((uintptr_t)base, bytes, base, FAKE_PIN, write) < 0)
		return -ENOMEM;
	atomic_fetch_add(&fake_gpu_status()->pins, 1);
	return 0;
}

void fake_unpin(struct gpu_plugin *p, void *base)
{
	(void)p;
	fake_range_del((uintptr_t)base);
	atomic_fetch_sub(&fake_gpu_status()->pins, 1);
}
