/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of windows: copies between a window of ours, which a peer reads and writes by RDMA, and GPU memory that it was
 * granted. The control thread has checked the form of what is asked for; here it is checked against the grant and
 * carried out, in rounds of as many ranges as one copy takes. Grant and region are held meanwhile. Worker thread only.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_RDMA_COPY_H
#define DRAY_AGENT_DATA_TRANSPORT_RDMA_COPY_H

#include "agent/data/transfer/object.h"
#include "agent/model/rdma_message.h"

struct rdma;

/* Begins it; answered by RDMA_COPIED, possibly inside the call. */
void rdma_copy_start(struct rdma *r, struct rdma_copy *copy);
/* Goes on with those whose round is done. */
void rdma_copies_progress(struct rdma *r);
/* The object is being dropped. */
void rdma_copies_drop(struct rdma *r, const struct object *o);

#endif
