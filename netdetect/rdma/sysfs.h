/* SPDX-License-Identifier: Apache-2.0 */
/* What sysfs tells of RDMA devices (Documentation/ABI/stable/sysfs-class-infiniband). */
#ifndef DRAY_NETDETECT_RDMA_SYSFS_H
#define DRAY_NETDETECT_RDMA_SYSFS_H

#include "netdetect/rdma/device.h"

/* Adds the devices of /sys/class/infiniband where netlink gave none. 0 or -ENOMEM. */
int nd_sysfs_devices(const struct nd_source *s, struct nd_devices *d);

/*
 * Fills in what netlink does not carry: where it is on PCI, driver, board, uverbs node; rate and link
 * layer of its ports, and the ports themselves where netlink gave none. 0 or -ENOMEM.
 */
int nd_sysfs_device(const struct nd_source *s, struct nd_device *d);

#endif
