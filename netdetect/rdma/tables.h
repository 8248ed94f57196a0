/* SPDX-License-Identifier: Apache-2.0 */
/* GID and P_Key tables of a device's ports. */
#ifndef DRAY_NETDETECT_RDMA_TABLES_H
#define DRAY_NETDETECT_RDMA_TABLES_H

#include "netdetect/rdma/device.h"

/*
 * Fills gids (not ranked), pkeys, active_mtu and max_mtu of all ports, and open_error: by libibverbs
 * where the uverbs node opens, each GID proved by an address handle to itself; by sysfs where it does
 * not. 0 or -ENOMEM; what cannot be read stays empty.
 */
int nd_port_tables(const struct nd_source *s, const struct nd_links *links, struct nd_device *d);

#endif
