/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: pinned host memory through which bytes of GPU memory pass that no device can move to where they go. A buffer
 * is filled from GPU memory before it is sent (gather), or received into and then spread (scatter). Worker thread
 * only; nothing blocks but stage_finish().
 *
 * The pool is cut into buffers of one size, stage_unit(), so that it does not fragment. Half of them are for this
 * agent's transfers, which keep them until a peer has answered, and half for what peers ask for: two agents whose
 * transfers to each other fill their halves still serve each other. Of each half bulk leaves some to latency, and
 * each peer, which may stall with what it has, leaves some to others.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_STAGE_STAGE_H
#define DRAY_AGENT_DATA_TRANSPORT_STAGE_STAGE_H

#include "agent/data/gpu_queue/gpu_queue.h"

/* Ranges of GPU memory behind one buffer. */
#define STAGE_RANGES_MAX SLICE_SEGS_MAX
/* Room for pieces that a queue needs, so that any copy fits once it is idle. */
#define STAGE_PIECES_MAX (STAGE_RANGES_MAX + PMSG_FRAME_BYTES_MAX / GPU_PIECE_MAX)

struct stage;

enum stage_use {
	STAGE_OWN,  /* for this agent's transfers: it may wait for a peer */
	STAGE_PEER, /* for what a peer asks for: it must not wait for a transfer of this agent */
	STAGE_USE_N
};

/* What one peer has of one use. Starts as zeros. */
struct stage_account {
	uint32_t held[2]; /* by class */
};

struct stage_buffer {
	struct dray_list link; /* the holder's */
	void *holder;          /* the holder's */
	uint8_t *base;         /* stage_unit() bytes */
	/* where its bytes, from the first on, belong in GPU memory; the holder's, unchanged while it is busy */
	struct iovec ranges[STAGE_RANGES_MAX];
	uint32_t n_ranges;
	uint64_t bytes; /* in all ranges, at most stage_unit(); the holder's */
	bool busy;      /* a copy is under way, done() has not run */
	bool lost;      /* stage.c's: it goes to nobody else until its device is back */
	uint32_t code;  /* of the last copy */

	/* stage.c's */
	struct dray_list copy_link;
	struct gpu_task task;
	void (*done)(struct core *c, struct stage_buffer *b);
	struct stage_account *account;
	uint8_t use, class, device;
	bool to_gpu;
};

/* Who waits for a buffer. */
struct stage_waiter {
	struct dray_list link;
	/* One may be had, or another waiter was faster. Runs inside stage_put(), once for each stage_wait(): only notes it. */
	void (*ready)(struct core *c, struct stage_waiter *w);
};

/* The pool is there from now on. 0 or -ENOMEM. */
int stage_up(struct core *c, const struct gpu_staging *staging);
/* No copy is under way, or will be looked at. */
void stage_deinit(struct core *c);
bool stage_is_up(const struct core *c);
/* Size of a buffer, bytes; a slice or less. 0: there is none. */
uint64_t stage_unit(const struct core *c);

/*
 * NULL: none is free for this use, or the account has all that it may (stage_wait(), for either); or there is no
 * staging memory at all. account: whose it is, borrowed until the buffer is given back; NULL: nobody's.
 */
struct stage_buffer *stage_get(struct core *c, enum stage_use use, enum dmsg_class class,
			       struct stage_account *account);
/* From now on the buffer is that account's, whatever it may have: its holder goes over from one peer's book to another's. */
void stage_charge(struct stage_buffer *b, struct stage_account *account);
/*
 * A copy of it ended with the loss of the device, which may have been given up while it still used the memory. Who copies
 * by stage_copy() need not say so.
 */
void stage_lose(struct stage_buffer *b, unsigned device);
/* The device was started anew: nothing of before is under way on it. */
void stage_device_up(struct core *c, unsigned device);
/*
 * Memory that is not of the pool, and pinned like it: for stage_copy() and stage_finish() alone. With the ranges' bytes one
 * copy of it may have up to PMSG_FRAME_BYTES_MAX.
 */
void stage_buffer_init(struct stage_buffer *b, uint8_t *base, enum dmsg_class class);
/* It is not busy. */
void stage_put(struct core *c, struct stage_buffer *b);
/* Waits already: nothing. The pool is up. */
void stage_wait(struct core *c, struct stage_waiter *w, enum stage_use use, enum dmsg_class class);
void stage_unwait(struct stage_waiter *w);

/*
 * Copies between the buffer and its ranges on one device: to_gpu scatters, else it gathers. done() runs exactly once,
 * never inside the call, with b->code told: 0, or GPU_LOST where the device is, or is not up. It only notes it: no
 * transfer ends in it, and nothing is finished.
 */
void stage_copy(struct core *c, struct stage_buffer *b, unsigned device, bool to_gpu,
		void (*done)(struct core *c, struct stage_buffer *b));

/*
 * For ends that allow no delay: done() of a busy buffer has run when this returns, and nothing of it moves any more.
 * CANCELLED: nothing had moved. Bounded as gpu_finish() is.
 */
void stage_finish(struct core *c, struct stage_buffer *b);

/* Hands over what the queues had no room for: once a turn, after transport gpu's progress(). */
void stage_progress(struct core *c);
/* It has something to do at once. */
bool stage_wants(const struct core *c);

#endif
