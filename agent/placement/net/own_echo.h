/* SPDX-License-Identifier: Apache-2.0 */
/*
 * If nothing listens on a local port, the kernel may choose that port for our end, and the socket is then connected to
 * itself.
 */
#pragma once

#include <stdbool.h>

/* The socket has been connected to itself. Such a connection ends by a reset, so that the port is free for its server. */
bool net_is_own_echo(int fd);
