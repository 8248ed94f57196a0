/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: pinned host memory for bytes of GPU memory that no device can move to their destination
 * directly. A buffer is filled from GPU memory before it is sent (gather), or received into and then copied
 * to GPU memory (scatter). Worker thread only. Nothing blocks except an urgent stage_stop().
 *
 * The pool is cut into buffers of one size, stage_unit(), so it does not fragment. One half is for this
 * agent's transfers, which keep buffers until a peer has answered; the other half is for requests of peers.
 * So two agents whose transfers to each other fill their halves still serve each other. In each half bulk
 * leaves some buffers to latency, and each peer, which may stall with the buffers it has, leaves some to
 * others.
 */
#pragma once

#include "agent/data/gpu_queue/gpu_queue.h"

/* Ranges of GPU memory for one buffer. */
#define STAGE_RANGES_MAX SLICE_SEGS_MAX

struct stage;

enum stage_use {
	STAGE_OWN,  /* for this agent's transfers: may wait for a peer */
	STAGE_PEER, /* for requests of peers: must not wait for a transfer of this agent */
	STAGE_USE_N
};

/* Buffers of one peer for one use. Starts as zeros. */
struct stage_account {
	uint32_t held[2]; /* by class */
};

struct stage_buffer {
	struct dray_list link; /* the holder's */
	void *holder;          /* the holder's */
	uint8_t *base;         /* stage_unit() bytes */
	/* the places of its bytes in GPU memory; set by the holder, not changed while it is busy */
	struct iovec ranges[STAGE_RANGES_MAX];
	uint32_t n_ranges;
	uint64_t bytes; /* in all ranges, at most stage_unit(); set by the holder */
	bool busy;      /* a copy is in flight, done() has not run */
	bool lost;      /* stage.c's: not reused until the copies of its device have ended */
	bool engines;   /* copy engines made the last copy; else a kernel */
	uint32_t code;  /* of the last copy */

	/* stage.c's */
	struct dray_list copy_link;
	struct gpu_task task;
	void (*done)(struct core *c, struct stage_buffer *b);
	struct stage_account *account;
	uint8_t use, class, device;
	bool to_gpu;
};

/* A channel, path or stream that waits for a buffer. */
struct stage_waiter {
	struct dray_list link;
	/*
	 * A buffer may be free, unless another waiter took it. Runs inside stage_put() or stage_device_ended(), once for
	 * each stage_wait(), and only notes the event.
	 */
	void (*ready)(struct core *c, struct stage_waiter *w);
};

/* Size of the buffers, at least n_min of them, that this many bytes are cut into; 0: too few bytes. */
uint64_t stage_cut(const struct core *c, uint64_t bytes, uint64_t n_min);
/* Makes the pool. */
void stage_up(struct core *c, const struct gpu_staging *staging);
/* No copy is in flight, or its end is not read any more. */
void stage_deinit(struct core *c);
/* The region is GPU memory that this worker can copy through staging memory now. */
bool stage_reaches(const struct core *c, const struct region_view *r);
/* Bytes of a buffer, at most a slice; 0: no staging memory. */
uint64_t stage_unit(const struct core *c);

/*
 * A buffer. NULL: none is free for this use, the account has its share (stage_wait() waits for either), or
 * there is no staging memory. account: charged until the buffer is given back, borrowed; NULL: none.
 */
struct stage_buffer *stage_get(struct core *c, enum stage_use use, enum dmsg_class class,
			       struct stage_account *account);
/*
 * Charges the buffer to another account, regardless of that account's share: its slice moves to another
 * transport.
 */
void stage_charge(struct stage_buffer *b, struct stage_account *account);
/* The device was lost while it copied and may still access the buffer. stage_copy() notes this itself. */
void stage_lose(struct stage_buffer *b, unsigned device);
/* No copy of the device is in flight any more: it accesses no buffer. */
void stage_device_ended(struct core *c, unsigned device);
/*
 * Makes a buffer of other pinned memory, for stage_copy() and stage_stop() only. One copy may have up to
 * PMSG_FRAME_BYTES_MAX.
 */
void stage_buffer_init(struct stage_buffer *b, uint8_t *base, enum dmsg_class class);
/* Gives back a buffer that is not busy. */
void stage_put(struct core *c, struct stage_buffer *b);
/* Does nothing if it already waits. The pool exists. The waiter leaves the list by dray_list_del(). */
void stage_wait(struct core *c, struct stage_waiter *w, enum stage_use use, enum dmsg_class class);

/*
 * Copies between the buffer and its ranges on one device: to_gpu scatters, otherwise gathers. done() runs
 * exactly once, never inside the call, with b->code 0, GPU_LOST if the device is lost or not up, or INTERNAL if the driver
 * refused the copy. done() only notes the end: it ends no transfer and calls no stage_stop().
 */
void stage_copy(struct core *c, struct stage_buffer *b, unsigned device, bool to_gpu,
		void (*done)(struct core *c, struct stage_buffer *b));

/*
 * The copy of a busy buffer was stopped. If no byte of it has moved, done() runs within the call with CANCELLED; else it ends as after
 * gpu_task_stop(). urgent: when this returns, done() has run and no byte moves any more.
 */
void stage_stop(struct core *c, struct stage_buffer *b, bool urgent);

/* Submits copies that the queues had no room for: once a turn, after transport gpu's progress(). */
void stage_progress(struct core *c);
/* stage_progress() has work now. */
bool stage_wants(const struct core *c);
