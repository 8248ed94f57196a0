/* SPDX-License-Identifier: Apache-2.0 */
/* On which CPUs workers run, on machines with several NUMA nodes. */
#ifndef DRAY_AGENT_PLACEMENT_DETECT_PINNING_H
#define DRAY_AGENT_PLACEMENT_DETECT_PINNING_H

#include <sched.h>

#include "netdetect/scan.h"
#include "schema/gen/config.h"

/*
 * The node for worker `index`, -1: anywhere. cpus: those of the node that are in `allowed`. Workers take
 * in turn the nodes that agent.numa_nodes names, or else those of RNICs with an active port, or else those
 * of GPUs; a node without an allowed CPU is passed over, and a machine of one node needs none of this.
 * Pure.
 */
int pinning_node(const struct nd_scan *scan, const struct dray_config *cfg, unsigned index,
		 const cpu_set_t *allowed, cpu_set_t *cpus);

#endif
