/* SPDX-License-Identifier: Apache-2.0 */
/* On which NUMA nodes a region's memory lies, on machines that have several. */
#ifndef DRAY_AGENT_CONTROL_REGION_NODES_H
#define DRAY_AGENT_CONTROL_REGION_NODES_H

#include "agent/model/view.h"

/*
 * Sets the nodes of the view's extents from one page of each, and nodes_known where the machine has several
 * and the kernel tells (sandboxes without get_mempolicy(2) do not). Fills in that page's table entry.
 * Control thread.
 */
void nodes_find(struct region_view *v);

#endif
