/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on the transfers in flight of a session, a group, an owner and the agent. Shared by workers and the control thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/model/budget.h"
#include "lib/err.h"
#include "lib/handle.h"

struct quota {
	_Atomic uint32_t transfers;
	uint32_t transfers_max;
};

/*
 * What the clients of one owner use. Descriptors that they have passed count from their receipt until they are closed: workers
 * count what they receive; at the limit they stop reading, and the control thread tells them when to go on.
 */
struct owner_account {
	struct budget_account budget;
	_Atomic uint32_t fds;
	uint32_t fds_max;
	_Atomic bool waiting; /* a reader has stopped at the limit */
	/* bytes of objects that are read from disk, and that other agents hold, and of segments that clients keep; under the lock of the store */
	uint64_t store_loading, store_lent, store_kept;
	/* likewise: bytes of objects that are to be written to disk, and its progress in reading from there and in writing, in bytes */
	uint64_t store_writing, store_read, store_written;
};

void account_init(struct owner_account *a, uint32_t fds_max);

/* True: the limit is reached, and the reader stops until the control thread finds account_may_resume(). */
bool account_stops(struct owner_account *a);

/* After account_sub_fds(): readers wait, and may go on. */
bool account_may_resume(struct owner_account *a);

/* Sequentially consistent, as is account_stops(): either the reader sees the room, or the control thread the reader. */
static inline void account_add_fds(struct owner_account *a, unsigned n)
{
	atomic_fetch_add(&a->fds, n);
}

static inline void account_sub_fds(struct owner_account *a, unsigned n)
{
	atomic_fetch_sub(&a->fds, n);
}

/* The control thread creates it, and frees it after EVENT_SESSION_GONE. */
struct session_shared {
	dray_handle session, group;
	struct quota own;
	struct quota *group_quota;
	struct owner_account *account;  /* of its owner */
	uint32_t ops_max;               /* operations in flight */
	uint32_t requests_max;          /* requests other than transfers */
	_Atomic uint32_t notifications; /* queued for the session; its worker sends them */
	/* statistics; only the worker of the session writes them */
	_Atomic uint64_t transfers_ended, bytes_moved;
};

/* Counts one more transfer at all limits. 0, or -EBUSY with reterr; then no limit has counted it. */
int quotas_take(struct session_shared *s, struct dray_err *reterr);
void quotas_put(struct session_shared *s);

/* 0 if each limit has room for one more transfer now, else -EBUSY with reterr. */
int quotas_check(const struct session_shared *s, struct dray_err *reterr);

/* There is one writer, so a load and a store are enough; readers must only never see a torn value. */
static inline void shared_count(_Atomic uint64_t *v, uint64_t n)
{
	atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
			      memory_order_relaxed);
}
