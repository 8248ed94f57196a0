/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets: how much of each resource the clients of one owner use, and all clients together. Any thread counts; the counts
 * publish no other memory.
 *
 * An owner without a limit of its own may have at most half of what the others leave of the agent's limit. So one owner
 * alone gets half of it, the next one a quarter, and something is left for each further owner (dynamic thresholds).
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/config.h"

/* Name, and the keys limits.KEY and limits.KEY_per_owner. */
#define RESOURCES(X)                            \
	X(SESSIONS, sessions)                   \
	X(RING_BYTES, ring_bytes)               \
	X(REGIONS, regions)                     \
	X(MAPPINGS, mappings)                   \
	X(MAPPED_BYTES, mapped_bytes)           \
	X(POOL_BYTES, pool_bytes)               \
	X(TOKENS, tokens)                       \
	X(LEASES, leases)                       \
	X(LEASE_RANGES, lease_ranges)           \
	X(REMOTES, remotes)                     \
	X(ENGINE_BUFFERS, engine_buffers)       \
	X(TRANSFERS, transfers)                 \
	X(WAITING_TRANSFERS, waiting_transfers) \
	X(OPS, ops)                             \
	X(NOTIFICATIONS, notifications)         \
	X(MAILBOXES, mailboxes)                 \
	X(HINTS, hints)                         \
	X(STORE_BYTES, store_bytes)             \
	X(STORE_DISK_BYTES, store_disk_bytes)   \
	X(STORE_OBJECTS, store_objects)         \
	X(STORE_HELD_BYTES, store_held_bytes)   \
	X(STORE_HOLDS, store_holds)

enum resource {
#define RESOURCE_ENUM(name, key) RESOURCE_##name,
	RESOURCES(RESOURCE_ENUM)
#undef RESOURCE_ENUM
		RESOURCE_N
};

/* Of the agent. */
struct budget {
	_Atomic uint64_t used, max;
	_Atomic uint64_t owner_max; /* 0: derived from max */
	_Atomic uint64_t refused;   /* requests, since the start */
};

struct budgets {
	struct budget of[RESOURCE_N];
};

/* Of one owner. */
struct budget_account {
	struct budgets *all;
	const char *tenant; /* for messages, as uid is */
	uint32_t uid;
	struct {
		_Atomic uint64_t used, refused;
	} of[RESOURCE_N];
};

/* Takes the limits of the configuration, also again after a reload. Control thread. */
void budgets_configure(struct budgets *b, const struct dray_config *cfg);

void budget_account_init(struct budget_account *a, struct budgets *all, const char *tenant,
			 uint32_t uid);

/* Counts n more. 0, or -errno with reterr that names the limit and what to do; then nothing is counted. */
int budget_take(struct budget_account *a, enum resource r, uint64_t n, struct dray_err *reterr);
/* The same for a caller that can make room: false is not counted as a refusal. */
bool budget_try(struct budget_account *a, enum resource r, uint64_t n);
/* The same for what the owner had before: half of what the others leave is no limit. */
bool budget_restore(struct budget_account *a, enum resource r, uint64_t n);
/* 0 if there is room for n more now, else -errno with reterr. */
int budget_check(struct budget_account *a, enum resource r, uint64_t n, struct dray_err *reterr);
/* The same text and counts for a caller that counts the resource itself: own of all are in use. */
int budget_refuse(struct budget_account *a, enum resource r, uint64_t own, uint64_t all, uint64_t n,
		  struct dray_err *reterr);
void budget_put(struct budget_account *a, enum resource r, uint64_t n);

/* What an owner may use if the others use that much. own_max: of the configuration; 0: derived. */
static inline uint64_t budget_share(uint64_t max, uint64_t others, uint64_t own_max)
{
	uint64_t left = max > others ? max - others : 0;

	if (own_max)
		return own_max < left ? own_max : left;
	return left / 2 + left % 2;
}

/* What the owner uses. */
uint64_t budget_used(const struct budget_account *a, enum resource r);
/* What it may use now, with what it uses. */
uint64_t budget_limit(const struct budget_account *a, enum resource r);
/* What it may use while the others use nothing: more than that never fits. */
uint64_t budget_most(const struct budget_account *a, enum resource r);
/* Of budget_limit(), what it does not use; negative: it uses more. */
int64_t budget_left(const struct budget_account *a, enum resource r);

/* "sessions" and so on: the last part of the key. */
const char *resource_name(enum resource r);
