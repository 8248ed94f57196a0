/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many TCP sockets of this network namespace are in use. A socket that begins or ceases to listen changes the numbers, so while
 * they stay, a search for listening sockets finds what the last one found, unless as many sockets opened as closed. Reading
 * them takes two system calls of about a microsecond.
 */
#pragma once

#include <stdbool.h>

struct nd_socket_count {
	bool known; /* false: the other members are 0 */
	unsigned v4, v6;
};

struct nd_socket_counter {
	int fd4, fd6;   /* -1: it could not be opened */
	bool v6_absent; /* the kernel has no IPv6 */
};

/* Opens the kernel's files for the namespace of this process. Without one of them the numbers are unknown. */
void nd_socket_counter_init(struct nd_socket_counter *c);
void nd_socket_counter_deinit(struct nd_socket_counter *c);

/* Any thread; does not block. Unknown if /proc does not show them; a kernel without IPv6 has 0 of it. */
struct nd_socket_count nd_socket_count_read(const struct nd_socket_counter *c);

/* False if one of them is unknown. */
static inline bool nd_socket_count_equal(const struct nd_socket_count *a,
					 const struct nd_socket_count *b)
{
	return a->known && b->known && a->v4 == b->v4 && a->v6 == b->v6;
}
