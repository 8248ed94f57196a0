/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners whose clients ask. Each other agent allows this one a number of lookups with their leases. The owners share it: each has half
 * of what the others leave.
 */
#pragma once

#include "agent/config/tenant.h"
#include "agent/control/exchange/internal.h"

struct store_ask;

struct asker {
	struct dray_map_node by_owner;
	struct exchange *x;
	struct {
		char tenant[TENANT_BYTES];
		uint32_t uid;
		/* the peer for which copies are kept, apart from what clients ask; 0: clients */
		dray_handle from;
	} owner;
	struct dray_list link;    /* on x->waiting, while questions wait */
	struct dray_list waiting; /* struct question, the oldest first */
	uint32_t n_waiting;
	uint32_t uses;    /* asks that have not ended, and lookups */
	uint32_t lookups; /* of those that do not wait, at each agent */
	uint32_t keeping; /* of EXISTS, also those that wait */
	uint32_t held[];  /* at each lender, as lender.held */
};

/* The owner of the ask. NULL: no memory. */
struct asker *asker_get(struct exchange *x, const struct store_ask *a);
/* One use less. */
void asker_put(struct exchange *x, struct asker *o);
/* Frees it if it has no uses. */
void asker_check(struct exchange *x, struct asker *o);

/* The owner may send so many more lookups to each agent. One ask is always allowed, however large it is. */
bool asker_may_ask(struct exchange *x, const struct asker *o, uint32_t messages);
/* The sum of which the owner has a share: lookups for clients, or those for copies that are kept. */
uint32_t *asker_lookups(struct exchange *x, const struct asker *o);
/* An EXISTS with so many would leave the owner enough lookups for its GETs. One is always allowed, however large it is. */
bool asker_may_keep(const struct exchange *x, const struct asker *o, uint32_t messages);
/* This agent may be sent so many, although it may not have answered yet what it was asked for questions that have ended. */
bool asker_may_ask_at(const struct exchange *x, const struct asker *o, const struct lender *d,
		      uint32_t messages);

/* A lookup at this agent begins; it ends with the lease of what it has found. */
void asker_hold(struct exchange *x, struct asker *o, struct lender *d);
void asker_unhold(struct exchange *x, struct asker *o, struct lender *d);
