/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of stores between agents. This agent lends what its store has to peers that look it up (lend.c), and looks up at them what
 * its own clients ask for in vain (ask.c). For PUTs with replicas it asks one of them to keep copies (replicate.c), and keeps copies
 * for them (keep.c). Control thread only.
 *
 * What a lookup finds is held, and readable by the peer alone, under one grant that covers just these bytes. The loan ends by the
 * peer's release, after its time, or with the peer: first every worker stops serving the grant, then the objects are free. If the
 * peer has keys of their memory, it has released them, or acknowledged a FENCE, or lost its queue pairs before that, too.
 */
#pragma once

#include "agent/control/peer/peer.h"
#include "agent/data/data.h"
#include "agent/store/store.h"
#include "schema/gen/config.h"

struct directory;
struct exchange;
struct rails;
struct store_ask;
struct store_keep;

/* Segments of the store as rails have them (rails/rails.h). */
struct exchange_upcalls {
	void (*segment_added)(struct rails *rails, const struct region_view *view, bool lends);
	void (*segment_removed)(struct rails *rails, dray_handle segment, void (*done)(void *arg),
				void *arg);
	unsigned (*segment_keys)(struct rails *rails, dray_handle peer, dray_handle segment,
				 uint64_t offset, uint64_t length, uint64_t at, uint8_t *buf,
				 unsigned max);
};

struct exchange_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct peers *peers;
	struct store *store;
	const struct exchange_upcalls *up;
	struct rails *const *rails;
	struct directory *directory; /* NULL: there is none */
	/* exchange_named() has others now: their connections are to be kept. NULL: without a directory. */
	void (*named)(void *arg);
	/*
	 * The account of an owner that another agent names, less than TENANT_BYTES, with a reference for the caller. NULL: no memory, or
	 * too many owners. release: the end of the reference.
	 */
	struct owner_account *(*account)(void *arg, const char *tenant, uint32_t uid);
	void (*release)(struct owner_account *a);
	/* The agent that is preferred for PUTs of this owner to a name space that has hints; "": this one. */
	void (*preferred)(void *arg, const char *space, const char *tenant, uint32_t uid, char *ret,
			  size_t n);
	void *arg;
};

/* Agents that the directory has named, and that are not in store.peers. */
#define EXCHANGE_NAMED_MAX 192

/* This agent asks others, by this configuration. */
bool exchange_asks(const struct dray_config *cfg);
/* Before the workers start. 0, or -ENOMEM with reterr. */
int exchange_new(struct exchange **ret, const struct exchange_deps *deps, struct dray_err *reterr);
/* After the workers have ended, and before the store is freed. NULL is allowed. */
struct exchange *exchange_free(struct exchange *x);

/* For struct peers_upcalls. x is not NULL. */
void exchange_lookup(struct exchange *x, dray_handle peer, uint64_t request_id,
		     const struct pmsg_store_lookup *m);
void exchange_keep(struct exchange *x, dray_handle peer, uint64_t request_id,
		   const struct pmsg_store_keep *m);
/* x NULL: this agent has no store. */
void exchange_release(struct exchange *x, dray_handle peer, uint64_t grant);
/* The peer wants summaries; it sends the next part of its own. x is not NULL. */
void exchange_watch(struct exchange *x, dray_handle peer, uint64_t request_id);
void exchange_summary(struct exchange *x, dray_handle peer, uint64_t request_id,
		      const struct pmsg_store_summary *m);
/* The peer has leases, or has looked something up since the last call. */
bool exchange_in_use(struct exchange *x, dray_handle peer);
/* Its connection is down. quiet: none of its queue pairs is left; else exchange_peer_quiet() follows. */
void exchange_peer_gone(struct exchange *x, dray_handle peer, bool quiet);
void exchange_peer_quiet(struct exchange *x, dray_handle peer);
/* The peer has acknowledged the fence of its lease. False: the grant is of no lease. */
bool exchange_fenced(struct exchange *x, dray_handle peer, dray_handle grant);
/* Peers must not use their keys of this segment any more: their leases in it end. */
void exchange_keys_gone(struct exchange *x, dray_handle segment);
/* This agent has leased that from the peer, with keys. */
bool exchange_has(struct exchange *x, dray_handle peer, uint64_t grant);
/* The peer ends this lease: peers_fence_ack() when nothing here reads from it any more. */
void exchange_fence(struct exchange *x, dray_handle peer, uint64_t grant);

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

/* store.put_at has changed. */
void exchange_prefer(struct exchange *x);
/* There are hints for PUTs to the name space, or none any more. */
void exchange_hinted(struct exchange *x, const char *space, bool on);
/* An agent that PUTs can go to. */
struct exchange_store {
	const char *segment; /* valid until the next turn of the loop */
	const char *fault;   /* why it takes no objects now; NULL: it does */
	bool own;            /* this agent */
};
#define EXCHANGE_STORES_MAX 65
/* Those of store.peers, and this agent. Their number. */
unsigned exchange_stores(const struct exchange *x, struct exchange_store ret[EXCHANGE_STORES_MAX]);

/* A worker has done with a keep: its peer gets the answer. */
void exchange_kept(struct exchange *x, struct store_keep *k);

/* The segments of agents that the directory has named. Returns how many; x may be NULL. */
unsigned exchange_named(const struct exchange *x, const char *ret[EXCHANGE_NAMED_MAX]);

struct exchange_totals {
	uint32_t summaries;       /* of other agents, which are whole */
	uint64_t summary_bytes;   /* of these, and of this agent's own */
	uint64_t summary_skipped; /* keys for which an agent was not asked, for each agent */
};
struct exchange_totals exchange_totals(const struct exchange *x);
