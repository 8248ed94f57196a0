/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: reading the GID table of an RDMA device fails, and registering memory takes longer, as on a busy machine. The file
 * that VERBS_FAULT_FILE names has 32-bit words: errno of the former, or 0; the minor number of the uverbs device whose registrations
 * are slow, and how many milliseconds longer each of them takes.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct {
	_Atomic int gid_table_error, slow_minor, slow_ms;
} * control;

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("VERBS_FAULT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p != MAP_FAILED)
		control = p;
	if (fd >= 0)
		close(fd);
}

static bool is_registration(const struct ib_uverbs_ioctl_hdr *h)
{
	if (h->method_id != UVERBS_METHOD_INVOKE_WRITE)
		return false;
	for (unsigned i = 0; i < h->num_attrs; i++)
		if (h->attrs[i].attr_id == UVERBS_ATTR_WRITE_CMD)
			return h->attrs[i].data == IB_USER_VERBS_CMD_REG_MR;
	return false;
}

static bool is_slow(int fd)
{
	struct stat st;

	return control->slow_ms && !fstat(fd, &st) && (int)minor(st.st_rdev) == control->slow_minor;
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
	if (request == RDMA_VERBS_IOCTL && control && header->object_id == UVERBS_OBJECT_DEVICE) {
		if (control->gid_table_error &&
		    header->method_id == UVERBS_METHOD_QUERY_GID_TABLE) {
			errno = control->gid_table_error;
			return -1;
		}
		if (is_registration(header) && is_slow(fd))
			poll(NULL, 0, control->slow_ms);
	}
	return (int)syscall(SYS_ioctl, fd, request, arg);
}
