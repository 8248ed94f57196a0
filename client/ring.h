/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the shared submission and completion rings. The agent can write to that
 * memory at any time. So the state is kept in private copies, each index is checked when it is
 * read, and a completion is copied before it is used.
 *
 * Wake-ups: a producer stores its tail, then loads the consumer's sleeping word. A consumer stores
 * its sleeping word, then loads the producer's tail once more before it sleeps. All four are
 * sequentially consistent (the agent has a fence after its tail), so at least one side sees the
 * other's store, and no wake-up is lost. tests/model/doorbell.pml is a model of this protocol for a
 * model checker; it says what each part is for. tests/model/run_ring proves that each memory order
 * below is needed, and that none is missing.
 */
#pragma once

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
	uint32_t sq_head; /* the agent's, when last read */
	uint32_t cq_head;
	uint32_t in_flight; /* submitted, and not completed */
	int doorbell_fd;    /* owned */
	int completion_fd;  /* to watch (lib/wake.h); owned */
};

#define RING_NULL ((struct ring){ .doorbell_fd = -1, .completion_fd = -1 })

/*
 * True if a descriptor of the agent can be mapped without a risk of SIGBUS: it has these bytes (at
 * least 1) and is sealed against shrinking.
 */
bool dc_shared_memory_ok(int fd, uint64_t bytes);

/*
 * Checks and maps the ring that the agent sent. Consumes the three descriptors, also on failure. 0;
 * -EPROTO or another -errno with reterr.
 */
int dc_ring_open(struct ring *r, const struct dmsg_ring_open_reply *m, uint32_t sq_entries,
		 int memory_fd, int doorbell_fd, int completion_fd, struct dray_err *reterr);
void dc_ring_close(struct ring *r);

/* 1 if there is room for a submission and for its completion, 0, or -EPROTO (a bad index). */
int dc_ring_room(struct ring *r, struct dray_err *reterr);

/* The index behind the last entry that the agent has taken. */
uint32_t dc_ring_taken(const struct ring *r);

/* Writes an entry, after dc_ring_room() returned 1. The agent sees it after dc_ring_submit(). */
void dc_ring_put(struct ring *r, const struct dmsg_sqe *e);

/* The same with a request to the store. */
void dc_ring_put_message(struct ring *r, const struct dmsg_sqe_message *e);

/* Publishes the new entries, and wakes the agent if it sleeps. */
void dc_ring_submit(struct ring *r);

/* Takes a completion: 1, 0, or -EPROTO. */
int dc_ring_take(struct ring *r, struct dmsg_cqe *ret, struct dray_err *reterr);

/* True if there may be a completion. Takes one load; dc_ring_take() orders what is read after it. */
static inline bool dc_ring_pending(const struct ring *r)
{
	return r->base && DRAY_LE32(__atomic_load_n(
				  (const uint32_t *)(const void *)(r->base + DMSG_RING_CQ_TAIL),
				  __ATOMIC_RELAXED)) != r->cq_head;
}

/* Tells the agent whether to ring for completions. Returns whether one is there already. */
bool dc_ring_set_sleeping(struct ring *r, bool sleeping);
