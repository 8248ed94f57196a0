/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's event loop: edge-triggered epoll, sources embedded in their owners. The callback gets the
 * events of this turn. Because it is edge-triggered, the owner works until EAGAIN or remembers that it has not.
 * A callback may add or remove any source, also its own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop_source;
typedef void (*loop_fn)(struct loop_source *s, uint32_t events);

/* A socket that is closed or failed can be read and written as well: that tells how. */
static inline bool loop_can_read(uint32_t events)
{
	return events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
}

static inline bool loop_can_write(uint32_t events)
{
	return events & (EPOLLOUT | EPOLLHUP | EPOLLERR);
}

static inline bool loop_hung_up(uint32_t events)
{
	return events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
}

struct loop_source {
	int fd; /* not owned */
	loop_fn fn;
};

#define LOOP_BATCH 64

struct loop {
	int epoll_fd;
	struct epoll_event batch[LOOP_BATCH];
	int batch_n, batch_i;
};

int loop_init(struct loop *l);
void loop_deinit(struct loop *l);

/* events: EPOLLIN, EPOLLOUT, EPOLLRDHUP; EPOLLET is added. 0 or -errno. */
int loop_add(struct loop *l, struct loop_source *s, int fd, uint32_t events, loop_fn fn);

/* Before the fd is closed. Harmless if it was never added (fd -1). */
void loop_del(struct loop *l, struct loop_source *s);

/* One turn: waits up to timeout_ns (0: not at all, <0: for ever) and runs callbacks. Returns how many, or -errno. */
int loop_turn(struct loop *l, int64_t timeout_ns);
