/* SPDX-License-Identifier: Apache-2.0 */
/* Wakes a thread that waits for a descriptor: an eventfd(2), or an eventfd behind an epoll instance. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

/* A descriptor to poll for reading; close-on-exec, owned by the caller. Or -errno. */
int dray_wake_new(void);

/* Wakes the thread that polls the descriptor. Never blocks. Any thread. */
static inline void dray_wake(int fd)
{
	uint64_t one = 1;

	/* a full counter means that the thread has not looked since: it is awake already */
	if (write(fd, &one, sizeof(one)) < 0)
		return;
}

/* Takes back all wake-ups so far, before looking for what they announced. False if there were none. */
static inline bool dray_wake_clear(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof(n)) > 0;
}

/*
 * A doorbell between two processes that do not trust each other: they must not share an eventfd, since either of
 * them could make it blocking and full for the other (the flags belong to all holders of a descriptor, fcntl(2)).
 * *ret_bell is rung by dray_wake() and never cleared. *ret_watch is an epoll instance that watches it: the
 * other process waits with epoll_wait(), or watches it with EPOLLET from an instance of its own. Each ring is
 * an edge; there is nothing to read. Both close-on-exec, owned by the caller. 0 or -errno.
 */
int dray_doorbell_new(int *ret_bell, int *ret_watch);
