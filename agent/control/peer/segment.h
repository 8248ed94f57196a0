/* SPDX-License-Identifier: Apache-2.0 */
/* The segment that this agent advertises: configured, or found from listeners and addresses. */
#ifndef DRAY_AGENT_CONTROL_PEER_SEGMENT_H
#define DRAY_AGENT_CONTROL_PEER_SEGMENT_H

#include "lib/err.h"
#include "netdetect/net/link.h"

struct peers;

/* Once the listeners are open. Asks the kernel for addresses where it has to. 0 or -EINVAL with reterr. */
int segment_set(struct peers *p, struct dray_err *reterr);

/* Addresses have changed: finds it again, unless it is configured; says so where it is another. */
void segment_follow(struct peers *p, const struct nd_links *links);

#endif
