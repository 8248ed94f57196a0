/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: calls of the process for the files below a folder, DISK_FAULT_DIR, fail, are slow, or do not return. The file
 * that DISK_FAULT_FILE names has 32-bit words: errno of reading segments, errno of writing, milliseconds of each call, whether
 * calls wait, and how many of them have begun to.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_MS 5

static struct {
	_Atomic int read_error, write_error, delay_ms, hangs, waiting;
} * control;
static const char *folder;

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("DISK_FAULT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	folder = getenv("DISK_FAULT_DIR");
	if (folder && p != MAP_FAILED)
		control = p;
	if (fd >= 0)
		close(fd);
}

/* The file is below the folder; word: and has this in its name. */
static bool concerns(int fd, const char *word)
{
	char link[64], path[4096];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	return !strncmp(path, folder, strlen(folder)) && strstr(path + strlen(folder), word);
}

/* Waits as the words say. 0, or the errno of the call. */
static int trouble(int fd, _Atomic int *error, const char *word)
{
	if (!control || (!*error && !control->delay_ms && !control->hangs) || !concerns(fd, word))
		return 0;
	if (control->delay_ms)
		poll(NULL, 0, control->delay_ms);
	if (control->hangs)
		control->waiting++;
	while (control->hangs)
		poll(NULL, 0, PAUSE_MS);
	return *error;
}

#define READ_TROUBLE(fd) trouble(fd, &control->read_error, "segment-")
#define WRITE_TROUBLE(fd) trouble(fd, &control->write_error, "")

#define CALL(trouble_, ...)                          \
	do {                                         \
		int error_ = control ? trouble_ : 0; \
                                                     \
		if (error_) {                        \
			errno = error_;              \
			return -1;                   \
		}                                    \
		return syscall(__VA_ARGS__);         \
	} while (0)

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	CALL(READ_TROUBLE(fd), SYS_pread64, fd, p, n, at);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
	CALL(READ_TROUBLE(fd), SYS_pread64, fd, p, n, at);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	CALL(WRITE_TROUBLE(fd), SYS_pwrite64, fd, p, n, at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
	CALL(WRITE_TROUBLE(fd), SYS_pwrite64, fd, p, n, at);
}

ssize_t write(int fd, const void *p, size_t n)
{
	CALL(WRITE_TROUBLE(fd), SYS_write, fd, p, n);
}

int fsync(int fd)
{
	CALL(WRITE_TROUBLE(fd), SYS_fsync, fd);
}

int fdatasync(int fd)
{
	CALL(WRITE_TROUBLE(fd), SYS_fdatasync, fd);
}
