/* SPDX-License-Identifier: Apache-2.0 */
/* Which RNICs each GPU should use. */
#pragma once

#include "netdetect/rdma/device.h"
#include "netdetect/topology/topology.h"

/*
 * Pairs each GPU of t with each device in t->pairs, in the order that topology.h states. k: devices preferred for each
 * GPU; 0: all. A device without an active port that has a usable GID is preferred only if no other is left. 0 or
 * -ENOMEM. Blocks on sysfs.
 */
int nd_affinity_make(const struct nd_source *s, const struct nd_devices *devices, unsigned k,
		     struct nd_topology *t);
