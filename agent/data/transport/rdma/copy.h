/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owning side of windows: copies between a window of ours, which a peer reads and writes by RDMA, and GPU memory that it was
 * granted. The control thread has checked the form of what is asked for; here it is checked against the grant and
 * carried out, in rounds of as many ranges as one copy takes. Grant and region are held meanwhile. Worker thread only.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_RDMA_COPY_H
#define DRAY_AGENT_DATA_TRANSPORT_RDMA_COPY_H

#include "agent/data/transport/stage/serve_walk.h"
#include "agent/data/transport/stage/stage.h"

struct rdma;
struct window;

struct rdma_copy {
	/* the control thread's */
	struct dray_list link;
	struct window *window;
	uint64_t request;

	dray_handle peer, grant;
	bool scatter; /* into the grant; else gather from it */
	enum dmsg_class class;
	uint8_t *base; /* in the window */
	uint64_t length;
	uint32_t n_segs;
	struct pmsg_seg segs[PMSG_SEGS_MAX];

	/* the worker's */
	struct dray_list worker_link; /* on rdma->copies or rdma->copied */
	struct rdma *rdma;
	struct object *grant_held, *region_held;
	struct serve_walk at;
	struct stage_buffer b; /* of the present round; b.lost: the GPU may go on using the window */
};

/* Begins it; answered by RDMA_COPIED, possibly inside the call. */
void rdma_copy_start(struct rdma *r, struct rdma_copy *copy);
/* Goes on with those whose round is done. */
void rdma_copies_progress(struct rdma *r);
/* The object is being dropped. */
void rdma_copies_drop(struct rdma *r, const struct object *o);

#endif
