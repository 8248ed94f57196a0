/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: reading the GID table of an RDMA device fails. The file that GID_TABLE_FAULT_FILE names has a 32-bit word: errno
 * of that, or 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int *word;

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("GID_TABLE_FAULT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p != MAP_FAILED)
		word = p;
	if (fd >= 0)
		close(fd);
}

int ioctl(int fd, unsigned long request, ...)
{
	const struct ib_uverbs_ioctl_hdr *header;
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	header = arg;
	if (request == RDMA_VERBS_IOCTL && word && *word &&
	    header->object_id == UVERBS_OBJECT_DEVICE &&
	    header->method_id == UVERBS_METHOD_QUERY_GID_TABLE) {
		errno = *word;
		return -1;
	}
	return (int)syscall(SYS_ioctl, fd, request, arg);
}
