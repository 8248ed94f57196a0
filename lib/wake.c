/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/wake.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "lib/cleanup.h"

int dray_wake_new(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

int dray_doorbell_new(int *ret_bell, int *ret_watch)
{
	int bell dray_auto_close = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int watch dray_auto_close = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event rung = { .events = EPOLLIN | EPOLLET };

	if (bell < 0 || watch < 0 || epoll_ctl(watch, EPOLL_CTL_ADD, bell, &rung) < 0)
		return -errno;
	*ret_bell = dray_take_fd(bell);
	*ret_watch = dray_take_fd(watch);
	return 0;
}
