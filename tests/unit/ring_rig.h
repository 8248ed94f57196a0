/* SPDX-License-Identifier: Apache-2.0 */
/* A real worker, with or without a thread, and sessions of it whose clients are libdray's own end of a ring. */
#ifndef DRAY_TESTS_UNIT_RING_RIG_H
#define DRAY_TESTS_UNIT_RING_RIG_H

#include "agent/data/worker/internal.h"
#include "tests/unit/ring_end.h"

#define RING_RIG_SESSIONS 8
#define RING_RIG_BYTES 65536
#define RING_RIG_FROM (1ull << 32 | 1) /* region */
#define RING_RIG_TO (1ull << 32 | 1)   /* remote */

struct ring_rig {
	struct worker *worker;
	unsigned n;
	struct ring_end *ends[RING_RIG_SESSIONS];
	int clients[RING_RIG_SESSIONS]; /* their ends of the data sockets */
	struct session_shared shared[RING_RIG_SESSIONS];
	struct ring_memory rings[RING_RIG_SESSIONS];
	struct quota group, agent;
	struct region_view *regions[2];
	struct remote_view remote;
	uint8_t memory[2][RING_RIG_BYTES]
		__attribute__((aligned(64))); /* of the region, and behind the remote */
	bool threaded;
};

/* 64 bytes from the region to the remote. */
extern const struct dmsg_sqe ring_rig_write64;

/* n sessions with rings of so many entries. Aborts where anything cannot be had. */
void ring_rig_init(struct ring_rig *r, unsigned n, uint32_t entries, int64_t poll_time_ns,
		   bool threaded);
/* Closes the sessions, waits for them to be gone, ends the worker. */
void ring_rig_deinit(struct ring_rig *r);

/* n such writes, for which there is room, published at once. */
void ring_rig_submit(struct ring_rig *r, unsigned i, unsigned n);
/* One that does not start before ring_rig_let_go(). */
void ring_rig_submit_waiting(struct ring_rig *r, unsigned i);
void ring_rig_let_go(struct ring_rig *r);
/* "Agent sleeping" as its client sees it. */
bool ring_rig_announced(struct ring_rig *r, unsigned i);

/* As the worker knows it; without a thread alone. */
struct wsession *ring_rig_session(struct ring_rig *r, unsigned i);

#endif
