/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: one allocation or mapping of the process fails, the one at which a counter in a file reaches 0. The file,
 * which NO_MEMORY_FILE names, has two 32-bit words: the counter, and how many calls in a row fail then.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	_Atomic int left, row;
} * control;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("NO_MEMORY_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	long p = fd < 0 ? -1 :
			  syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p > 0)
		control = (void *)p;
	if (fd >= 0)
		close(fd);
}

static bool fails(void)
{
	int left;

	if (!control || atomic_load(&control->left) <= -atomic_load(&control->row))
		return false;
	left = atomic_fetch_sub(&control->left, 1);
	if (left > 1 || left <= 1 - atomic_load(&control->row))
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return fails() ? NULL : __libc_realloc(p, n);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
	return fails() ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t offset)
{
	return mmap(at, n, prot, flags, fd, offset);
}
