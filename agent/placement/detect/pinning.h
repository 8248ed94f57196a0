/* SPDX-License-Identifier: Apache-2.0 */
/* The CPUs of workers on machines with several NUMA nodes. */
#ifndef DRAY_AGENT_PLACEMENT_DETECT_PINNING_H
#define DRAY_AGENT_PLACEMENT_DETECT_PINNING_H

#include <sched.h>

#include "netdetect/scan.h"
#include "schema/gen/config.h"

/*
 * The node for worker `index`; -1: any. cpus: the CPUs of the node that are in `allowed`. Workers get the nodes of
 * agent.numa_nodes in turn, else the nodes of RNICs with an active port, else the nodes of GPUs. Nodes without an allowed
 * CPU are skipped. On a machine with one node only agent.numa_nodes counts. Pure.
 */
int pinning_node(const struct nd_scan *scan, const struct dray_config *cfg, unsigned index,
		 const cpu_set_t *allowed, cpu_set_t *cpus);

#endif
