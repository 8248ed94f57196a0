/* SPDX-License-Identifier: Apache-2.0 */
/* Which RNICs each GPU should use. */
#ifndef DRAY_NETDETECT_CHOOSE_RNIC_H
#define DRAY_NETDETECT_CHOOSE_RNIC_H

#include "netdetect/topology/topology.h"

/* Pairs each GPU with each device into t->pairs, in the order topology.h names. 0 or -ENOMEM. */
int nd_affinity_make(const struct nd_source *s, const struct nd_devices *devices, unsigned k,
		     struct nd_topology *t);

#endif
