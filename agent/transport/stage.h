/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: pinned host memory through which bytes of GPU memory pass that no device can move to where they go. A buffer
 * is filled from GPU memory before it is sent (gather), or received into and then spread (scatter). Worker thread
 * only.
 */
#ifndef DRAY_AGENT_TRANSPORT_STAGE_H
#define DRAY_AGENT_TRANSPORT_STAGE_H

#include "agent/transport/gpu.h"

struct stage;

/* A piece of the pool, for the bytes of one slice or frame. */
struct stage_buffer {
	struct dray_list link;
	uint8_t *base;
	uint64_t bytes; /* its size */
};

/* Who waits for a buffer; ready() runs when one may be had, from the worker's turn, once for each stage_wait(). */
struct stage_waiter {
	struct dray_list link;
	void (*ready)(struct core *c, struct stage_waiter *w);
};

/* At least `bytes`, at most PMSG_FRAME_BYTES_MAX. NULL: none is free (stage_wait()), or there is no staging memory at all. */
struct stage_buffer *stage_get(struct core *c, uint64_t bytes);
void stage_put(struct core *c, struct stage_buffer *b);
bool stage_is_up(const struct core *c);
void stage_wait(struct core *c, struct stage_waiter *w);
void stage_unwait(struct stage_waiter *w);

/*
 * Copies between the buffer, from `at` on, and n ranges of GPU memory on one device, in their order: to_gpu scatters,
 * else it gathers. As gpu_submit() otherwise.
 */
int stage_copy(struct core *c, struct stage_buffer *b, uint64_t at, unsigned device,
	       const struct iovec *ranges, unsigned n, bool to_gpu, enum dmsg_class class,
	       struct gpu_task *t);

#endif
