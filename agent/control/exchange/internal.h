/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. */
#pragma once

#include "agent/control/directory/directory.h"
#include "agent/control/directory/name.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/exchange/filter.h"
#include "agent/control/peer/timers.h"
#include "lib/addr.h"
#include "lib/map.h"

/* Keys of one message of the peer protocol about the store, and their bytes. */
#define KEYS_MAX 512
#define KEYS_BYTES 60000

struct store_direct;
struct summarizer;

/* What an agent's store has, as it says. */
struct summary {
	dray_handle peer; /* that was asked for it; 0: none was */
	struct filter filter;
	uint64_t generation, got; /* bytes of it that have come */
	bool whole;
};

/* One of store.peers, or an agent of store.directory_agents that the directory has named. */
struct lender {
	struct dray_map_node by_segment;
	char segment[DRAY_ADDR_TEXT_MAX]; /* as the directory writes it; empty: the place is free */
	const char *at;                   /* as the peers know it */
	bool is_named;                    /* it is not in store.peers */
	int64_t named_ns;                 /* when it was named last */
	bool away;                        /* it was late, and has answered nothing since */
	int64_t pause_ns;   /* of the next time that it is late; 0: the last lookup was in time */
	int64_t next_ns;    /* away: a question tests that, not before this time */
	int64_t late_ns;    /* when it was late last */
	uint32_t held;      /* lookups that it has not answered, and its leases */
	int64_t keep_ns;    /* it is not asked to keep copies before this time */
	dray_handle keeper; /* replicate.c: its peer, if that may be asked now; 0: it may not */
	uint64_t keep_seed; /* of its rank for a key */
	struct summary summary;
};

/* The kind of handles of grants and segments, which no other table has. */
#define EXCHANGE_HANDLES DRAY_HANDLE_KIND_MAX

struct exchange {
	struct exchange_deps deps;
	/* memory.c */
	struct dray_handles segments; /* struct segment_region */
	dray_handle whole;            /* names the whole memory of the store */
	/* lend.c */
	struct region_view *region; /* the store's memory, as workers serve it to peers */
	struct dray_handles grants; /* struct loan */
	struct timers expiry;
	struct dray_map borrowers; /* struct borrower by peer */
	uint32_t n_loans;
	/* lenders.c */
	struct lender *lenders;     /* those of store.peers, then the others */
	uint32_t n_lenders;         /* places that are in use, or were */
	struct dray_map by_segment; /* the lenders */
	/* asker.c */
	struct dray_map askers; /* struct asker by its owner */
	uint32_t keeping;       /* lookups of EXISTS, at each agent, of all owners */
	uint32_t keep_lookups;  /* those for copies that are kept, as `lookups` */
	uint32_t lookups;       /* at each agent */
	/* source.c */
	struct dray_map borrowed; /* struct borrowed by its grant, of sources with keys */
	/* answered.c */
	struct dray_list asks; /* that workers have */
	struct dray_map kept;  /* struct store_asked of these: what EXISTS has found */
	struct timers leases;  /* of asks of EXISTS */
	uint32_t n_keeping;    /* asks of EXISTS */
	/* question.c */
	struct dray_list questions; /* that are not answered yet */
	struct dray_list waiting;   /* struct asker whose questions wait */
	struct timers limits;       /* of questions */
	uint32_t n_questions;
	/* lookup.c */
	struct dray_list vain; /* struct lookup without a question */
	/* summaries.c, summarize.c */
	bool summaries;                /* agents are asked for them */
	struct names names;            /* of objects, with summaries */
	struct summarizer *summarizer; /* of this agent's own; NULL: there is none */
	uint64_t n_skipped;            /* keys for which agents were not asked, for each agent */
	/* replicate.c */
	struct dray_list placings;    /* that are not answered yet */
	struct dray_list vain_offers; /* struct offer whose answers nobody needs */
	struct timers placing_limits; /* of placings */
	uint32_t n_placings;
	/* put_at.c */
	uint64_t n_fell_back; /* objects that a preferred agent has not taken, since the last line of the log */
	int64_t fell_back_ns; /* its time; 0: there was none */
	/* keep.c */
	struct dray_handles keeps; /* struct store_keep */
};

/* memory.c. Before lend_init(). 0 or -ENOMEM. */
int memory_regions_init(struct exchange *x);
void memory_regions_deinit(struct exchange *x);
/* A part of the store's memory, in one segment. */
struct memory_part {
	dray_handle segment;
	uint64_t from, to; /* in store_region() */
};
/* Writes the keys of these parts for the peer, as records of pmsg_rail. Returns their number. */
unsigned memory_keys(const struct exchange *x, dray_handle peer, const struct memory_part *parts,
		     uint32_t n, uint8_t *buf, unsigned max);

/* lenders.c. 0 or -ENOMEM. */
int lenders_init(struct exchange *x);
void lenders_deinit(struct exchange *x);
/* The number of lenders at most, with lender_from(). */
uint32_t lenders_max(const struct exchange *x);
/* Stands for all peers for which copies are kept, which need not be lenders: nothing else is asked of it. */
struct lender *lender_from(const struct exchange *x);
/*
 * The lender that the directory means by this address, which comes from outside: it is only connected to, and asked, if the configuration
 * allows it. NULL: it does not, or there are too many.
 */
struct lender *lender_at(struct exchange *x, const char *segment);
/* The agent of store.peers that a client names, as it stands there or by another of its addresses. NULL: there is none. */
struct lender *lender_called(struct exchange *x, const char *segment);
/* The agents that workers may ask by frames find; none if the control thread has to ask. */
void lenders_direct(const struct exchange *x, struct store_direct *ret);
/* What the answer to a lookup, or its lack, says of the agent. test: the lookup only was a test whether it is in time again. */
void lender_judge(struct lender *d, int64_t sent_ns, bool test, uint32_t code);
/* It was late, and is not asked to keep objects for a while. */
bool lender_is_late(const struct lender *d);

/* lend.c. 0 or -ENOMEM. */
int lend_init(struct exchange *x);
void lend_deinit(struct exchange *x);

/* keep.c. Workers have ended. */
void keeps_init(struct exchange *x);
void keeps_deinit(struct exchange *x);

/* replicate.c. 0 or -errno. */
int replicate_init(struct exchange *x);
void replicate_deinit(struct exchange *x);
/* Has copies of the objects, or the objects alone, kept by other agents; answered_add() follows, possibly inside the call. */
void replicate(struct exchange *x, struct store_ask *a);
/* Its worker does not wait any longer. */
void replicate_stop(struct store_ask *a);

/*
 * put_at.c. Where the objects of an ask with `at` go. True: they stay here. False: to the agent; NULL: it is none of store.peers.
 */
bool put_at_find(struct exchange *x, const struct store_ask *a, struct lender **ret);
/* It has its answers, from that agent: those that a preferred agent has not taken are logged. */
void put_at_ended(struct exchange *x, const struct store_ask *a, const struct lender *d);
/* Of objects that go to this agent alone: why it cannot be asked now, and what its answer means. code: it has refused, or has not answered. */
enum dmsg_store_status put_at_why_not(const struct exchange *x, const struct lender *d);
enum dmsg_store_status put_at_status(uint32_t answer, uint32_t code);

/* ask.c. 0 or -errno. */
int ask_init(struct exchange *x);
void ask_deinit(struct exchange *x);

/* summaries.c, after lenders_init(). 0 or -errno. */
int summaries_init(struct exchange *x);
void summaries_deinit(struct exchange *x);
/* The agent at this peer is to send its summary, unless it does already. */
void summary_want(struct exchange *x, struct lender *d, dray_handle peer);
/*
 * For each key that is asked for: a bit for each lender, which may have it. free() frees it. NULL: all may have all keys, or there is no
 * memory.
 */
uint64_t *summaries_maybe(struct exchange *x, const struct store_ask *a);
void summaries_peer_gone(struct exchange *x, dray_handle peer);

/* summarize.c. 0 or -errno. */
int summarizer_new(struct exchange *x);
/* NULL is allowed, here and below. Returns NULL. */
struct summarizer *summarizer_free(struct summarizer *s);
void summarizer_peer_gone(struct summarizer *s, dray_handle peer);
uint64_t summarizer_bytes(const struct summarizer *s);
/* False: no memory. */
bool digest_of(struct names *names, const char *space, struct store_key key,
	       struct filter_digest *ret);
