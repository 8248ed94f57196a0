/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of stores between agents. This agent lends what its store has to peers that look it up (lend.c), and looks up at them what
 * its own clients ask for in vain (ask.c). Control thread only.
 *
 * What a lookup finds is held, and readable by the peer alone, under one grant that covers just these bytes. The loan ends by the
 * peer's release, after its time, or with the peer: first every worker stops serving the grant, then the objects are free.
 */
#pragma once

#include "agent/control/peer/peer.h"
#include "agent/data/data.h"
#include "agent/store/store.h"
#include "schema/gen/config.h"

struct exchange;
struct store_ask;

struct exchange_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct peers *peers;
	struct store *store;
};

/* Before the workers start. 0, or -ENOMEM with reterr. */
int exchange_new(struct exchange **ret, const struct exchange_deps *deps, struct dray_err *reterr);
/* After the workers have ended, and before the store is freed. NULL is allowed. */
struct exchange *exchange_free(struct exchange *x);

/* For struct peers_upcalls. x NULL: this agent has no store. */
void exchange_lookup(struct exchange *x, dray_handle peer, uint64_t request_id,
		     const struct pmsg_store_lookup *m);
void exchange_release(struct exchange *x, dray_handle peer, uint64_t grant);
/* The peer has leases, or has looked something up since the last call. */
bool exchange_in_use(struct exchange *x, dray_handle peer);
void exchange_peer_gone(struct exchange *x, dray_handle peer);

/*
 * Looks the keys up for a worker, which gets the ask back by COMMAND_STORE_ASKED, and ends it by exchange_ask_end() when it needs
 * nothing of the sources any more.
 */
void exchange_ask(struct exchange *x, struct store_ask *a);
void exchange_ask_end(struct exchange *x, struct store_ask *a);
/* The worker does not need the answer: it gets the ask back at once, unless that is on its way already. */
void exchange_ask_stop(struct exchange *x, struct store_ask *a);
/* It needs nothing more of this source: its lease ends before the ask does. */
void exchange_source_end(struct exchange *x, struct store_ask *a, uint32_t source);

struct exchange_totals {
	uint64_t lent; /* bytes that peers hold now */
};
struct exchange_totals exchange_totals(const struct exchange *x);
