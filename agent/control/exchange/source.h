/* SPDX-License-Identifier: Apache-2.0 */
/* What lookups have leased at other agents: sources of asks, and how their leases end. */
#pragma once

#include "agent/control/exchange/internal.h"

struct asker;
struct store_ask;
struct store_source;

/* What a lookup has leased: for its ask, and for GETs of other sessions that read it, too. */
struct lease {
	struct lender *lender;
	struct asker *asker;
	uint32_t uses;
};

/* Gives a grant of the peer back. */
void source_release(struct exchange *x, dray_handle peer, uint64_t grant);
/* The peer may fence this source of the ask, which has keys. False: no memory, or the peer has given the same grant twice. */
bool source_borrow(struct exchange *x, struct store_source *s, struct store_ask *a);

/* The exchange ends: the leases of the ask, which the peers are not told. */
void sources_drop(struct exchange *x, struct store_ask *a);
void sources_deinit(struct exchange *x);
