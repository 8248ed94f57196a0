/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of a connection of the control socket. sd-bus closes descriptors that a client sends, which may take as long as
 * the client likes. So sd-bus reads from a pipe, and a thread of the client's owner fills the pipe with the bytes of the
 * socket: the kernel closes descriptors there when their message is read without room for them.
 *
 * Control thread only.
 */
#pragma once

#include "agent/control/owner/owner.h"

struct bus_input;

/*
 * fd: the connection, consumed, also on error. *ret_read: the pipe's end for sd-bus, *ret_write: a duplicate of the socket for its
 * output; the caller closes both. 0 or -errno.
 */
int bus_input_new(struct bus_input **ret, struct owner *o, int fd, int *ret_read, int *ret_write);

/* The socket, which poll(2) may watch. */
int bus_input_fd(const struct bus_input *in);

/* Closes the connection on the owner's thread. NULL is allowed. */
void bus_input_end(struct bus_input *in);
