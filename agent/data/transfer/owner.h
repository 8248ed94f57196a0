/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owners of a worker's sessions. What a worker does for clients is counted in units of about 2 ns, the time for reading one
 * operation, whether it is accepted or refused. The sessions of an owner share TURN_WORK units in each turn of the worker. What
 * they cost beyond that, because a piece of work is not divided, is a debt to the next turns.
 */
#pragma once

#include "agent/data/transfer/core.h"
#include "lib/cleanup.h"

#define TURN_WORK 4096
/* Units for taking an entry of a ring, and for receiving a message, without the operations in them. */
#define ENTRY_WORK 64
#define MESSAGE_WORK 256
/* Units for a key of a request to the store, and for an object that it evicts. */
#define KEY_WORK 64
#define EVICTION_WORK 128

struct xfer_owner {
	struct dray_list link;               /* on core->owners */
	const struct owner_account *account; /* identifies it */
	uint32_t sessions;
	int64_t left;            /* units of this turn; below 0: a debt */
	struct dray_list ready;  /* the worker's: sessions with input */
	struct dray_list polled; /* the worker's: rings that are polled in every turn */
	bool rings_first;        /* in the next turn rings come before sockets */
	/* wait.h: sessions with transfers that wait for a word */
	struct dray_list waiting;
	uint32_t n_waiting_sessions;
	uint32_t n_waiting; /* transfers */
	uint32_t to_look;   /* words that are left to look at before the next pause */
	int64_t look_ns;    /* not before; 0: in every turn */
	int64_t changed_ns; /* when the last transfer began to wait, or a word was found set */
};

/* The session gets its owner, a new one if it is the first. 0 or -ENOMEM. */
int owner_join(struct core *c, struct xfer_session *s);
/* The owner ends with its last session. */
void owner_leave(struct xfer_session *s);

static inline void owner_begin_turn(struct xfer_owner *o)
{
	o->left = dray_min(o->left + TURN_WORK, (int64_t)TURN_WORK);
}

static inline void owner_charge(struct xfer_owner *o, uint64_t units)
{
	o->left -= (int64_t)units;
}

/* False: its sessions wait for the next turn. */
static inline bool owner_may_work(const struct xfer_owner *o)
{
	return o->left > 0;
}
