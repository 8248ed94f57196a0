/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the shared submission and completion rings. The agent can write anywhere in
 * that memory at any time: what matters is kept in private copies, indices are checked each time
 * they are read, and a completion is copied before it is looked at.
 *
 * Who sleeps and who rings: each side stores what it has to say (tail), then loads whether the
 * other sleeps; each side that goes to sleep first stores that it does, then loads the other's tail
 * once more. All four are sequentially consistent (the agent has a fence behind its tail), so at least
 * one of the two sees the other and no wake-up is lost. tests/model/doorbell.pml has this protocol, and what each part of it is for, in a
 * form that a model checker reads.
 */
#ifndef DRAY_CLIENT_RING_H
#define DRAY_CLIENT_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/data.h"

struct ring {
	uint8_t *base; /* NULL: no ring */
	uint64_t bytes;
	uint32_t sq_entries, cq_entries;
	uint8_t *sqes, *cqes;
	uint32_t sq_tail; /* next entry to fill; published when submitted */
	uint32_t sq_published;
	uint32_t sq_head; /* the agent's, when it was last looked at */
	uint32_t cq_head;
	uint32_t in_flight; /* submitted, completion not seen */
	int doorbell_fd;    /* owned */
	int completion_fd;  /* to watch (lib/wake.h); owned */
};

#define RING_NULL ((struct ring){ .doorbell_fd = -1, .completion_fd = -1 })

/*
 * Checks and maps what the agent sent. Consumes memory_fd, doorbell_fd and completion_fd, also on
 * failure. 0 or -EPROTO or another -errno with reterr.
 */
int dc_ring_open(struct ring *r, const struct dmsg_ring_open_reply *m, uint32_t sq_entries,
		 int memory_fd, int doorbell_fd, int completion_fd, struct dray_err *reterr);
void dc_ring_close(struct ring *r);

/*
 * Room for one more submission whose completion will find room too: 1, 0, or -EPROTO (the index
 * lies).
 */
int dc_ring_room(struct ring *r, struct dray_err *reterr);

/* Writes an entry; dc_ring_room() has said 1. Seen by the agent after dc_ring_submit(). */
void dc_ring_put(struct ring *r, const struct dmsg_sqe *e);

/* Publishes what was put and wakes the agent where it sleeps. */
void dc_ring_submit(struct ring *r);

/* Takes a completion: 1, 0, or -EPROTO. */
int dc_ring_take(struct ring *r, struct dmsg_cqe *ret, struct dray_err *reterr);

/* A completion may be there; one load. */
static inline bool dc_ring_pending(const struct ring *r)
{
	return r->base && DRAY_LE32(__atomic_load_n(
				  (const uint32_t *)(const void *)(r->base + DMSG_RING_CQ_TAIL),
				  __ATOMIC_ACQUIRE)) != r->cq_head;
}

/*
 * Says whether the agent must ring. After true, look once more before sleeping: returns
 * dc_ring_pending().
 */
bool dc_ring_set_sleeping(struct ring *r, bool sleeping);

#endif
