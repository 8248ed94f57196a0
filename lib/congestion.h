/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The congestion control of TCP within a node. Nothing can be congested there, but an algorithm that paces, such as BBR, sets timers for what it
 * sends, and sends hardly faster than the other end has read before. So connections within the node get an algorithm that does not pace. Others
 * keep that of the administrator. Failures are ignored: only the rate suffers.
 */
#pragma once

#include "lib/addr.h"

/* Before connect() to this address, or of a listener on it: if it is a loopback address. */
void dray_congestion_at(int fd, const struct dray_addr *addr);

/* Of a connection. One that had a pacing algorithm before is still paced, but seldom held up. */
void dray_congestion_connected(int fd);
