/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real worker, with or without a thread, and its sessions. Their clients are libdray's own end of
 * a ring.
 */
#pragma once

#include "agent/data/worker/internal.h"
#include "tests/unit/ring_end.h"

#define RING_RIG_SESSIONS 8
#define RING_RIG_BYTES 65536
#define RING_RIG_FROM (1ull << 32 | 1) /* handle of the region */
#define RING_RIG_TO (1ull << 32 | 1)   /* handle of the remote */

struct ring_rig {
	struct worker *worker;
	unsigned n;
	struct ring_end *ends[RING_RIG_SESSIONS];
	int clients[RING_RIG_SESSIONS]; /* the clients' ends of the data sockets */
	struct session_shared shared[RING_RIG_SESSIONS];
	struct owner_account other; /* of sessions that ring_rig_add() has made */
	struct ring_memory rings[RING_RIG_SESSIONS];
	struct quota group;
	struct region_view *regions[2];
	struct remote_view remote;
	uint8_t memory[2][RING_RIG_BYTES]
		__attribute__((aligned(64))); /* the region's memory, and the remote's */
	bool threaded;
};

/* Writes 64 bytes from the region to the remote. */
extern const struct dmsg_sqe ring_rig_write64;

/* Opens n sessions with rings of this many entries. Aborts on failure. */
void ring_rig_init(struct ring_rig *r, unsigned n, uint32_t entries, int64_t poll_time_ns,
		   bool threaded);
/* Opens another session, of another owner. Returns its number. */
unsigned ring_rig_add(struct ring_rig *r, uint32_t entries);
/* Closes the sessions, waits until the worker has dropped them, and ends the worker. */
void ring_rig_deinit(struct ring_rig *r);

/* Submits n such writes at once; the ring needs room. */
void ring_rig_submit(struct ring_rig *r, unsigned i, unsigned n);
/* Submits a write that waits until ring_rig_let_go(). */
void ring_rig_submit_waiting(struct ring_rig *r, unsigned i);
void ring_rig_let_go(struct ring_rig *r);
/* The word agent_sleeping, as the client sees it. */
bool ring_rig_announced(struct ring_rig *r, unsigned i);

/* The worker's struct of a session; only without a thread. */
struct wsession *ring_rig_session(struct ring_rig *r, unsigned i);
