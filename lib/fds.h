/* SPDX-License-Identifier: Apache-2.0 */
/* How many file descriptors a purpose may use, and errors that say that there are none left. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* Clients, peers and files need descriptors, too. */
#define DRAY_FD_SHARE 8u

/* error: -errno. This process or host has no free descriptor. */
static inline bool dray_lacks_fds(int error)
{
	return error == -EMFILE || error == -ENFILE;
}

/* error: -errno of a call that made or used a socket. This process or host lacks something; it says nothing of the other end. */
static inline bool dray_is_own_lack(int error)
{
	return dray_lacks_fds(error) || error == -ENOMEM || error == -ENOBUFS || error == -ENOSPC;
}

/* n, but at most an eighth of what the process may open, and at least 1. */
static inline unsigned dray_fd_share(unsigned n)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur / DRAY_FD_SHARE >= n)
		return n;
	return dray_max((unsigned)(l.rlim_cur / DRAY_FD_SHARE), 1u);
}

/*
 * Call first in main(). A standard stream that the parent has closed becomes /dev/null, in the direction that fails, so that no
 * other file gets its number: output would go there. No O_CLOEXEC, as for all standard streams.
 */
static inline void dray_reserve_standard_fds(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			return;
}
