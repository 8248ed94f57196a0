/* SPDX-License-Identifier: Apache-2.0 */
/* A request that waits for other agents, from its first lookup to its end. */
#pragma once

#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_silence.h"

struct landing;

/* What is zeroed next, of the ranges of keys with wrong bytes. */
struct clearing {
	uint32_t item, first; /* whose first range it is */
	uint32_t range;
	uint64_t at;   /* in this range */
	uint64_t done; /* bytes of the item */
};
struct reading;

/* Has the ask of a fetch in place of the control thread, until it has the answers. */
struct ask_holder {
	/* The fetch ends: frees its ask. */
	void (*stop)(struct ask_holder *h);
};

struct fetch {
	struct dray_list link;         /* on session->fetches */
	struct dray_map_node of;       /* in session->fetches_of */
	struct dray_map_node numbered; /* in session->fetches_numbered */
	struct dray_list
		asking; /* on worker->asking, while the control thread or `holder` has the ask, and on worker->steps */
	struct wsession *session;
	uint64_t number;  /* of this worker; the ask's */
	uint64_t request; /* the id of the batch, which ends first */
	struct batch *batch;
	struct store_member *member;
	dray_handle region;
	struct store_ask *ask; /* NULL: the control thread or `holder` has it. The control thread: */
	struct store_ask *asked;   /* it is this one */
	struct ask_holder *holder; /* NULL: none */
	bool again;                /* the second lookup */
	uint32_t source;           /* that is read, or is next */
	struct reading *reading;   /* its transfer; NULL: none */
	struct silence silence;    /* of the agent that it reads from */
	struct reading *lingering; /* while its transfer ends, if devices may go on with it */
	struct store_arrivals *arrivals;
	bool keeps;               /* for another agent (store_keep.c); else for a client */
	uint64_t keep_turn;       /* then: bytes here whose checksum it may compute */
	bool straight;            /* bytes that come by frames go to the ranges of the client */
	bool devices;             /* and so do those of sources with keys */
	struct landing *landings; /* by key of the ask, while they are read; and room for as many */
	uint8_t *ops;
	uint32_t n_items, n_ranges;
	const uint8_t *items, *ranges; /* of the request, in wire form */
	uint32_t at_item;              /* ranges_of() goes on there */
	const uint8_t *at_ranges;
	struct dray_list step; /* on worker->steps */
	bool placing;          /* keys of the ask have no place yet: */
	uint32_t placed;       /* from this one on */
	struct clearing clearing;
	uint8_t data[];
};

static inline struct worker *worker_of_fetch(const struct fetch *f)
{
	return f->session->worker;
}

/* NULL: no memory. more: bytes behind it. */
struct fetch *fetch_alloc(struct wsession *s, struct batch *b, struct store_member *member,
			  size_t more);
/* The same for a GET, with its items. */
struct fetch *fetch_new(struct wsession *s, const struct dmsg_store_put *m,
			struct store_member *member, struct batch *b);
/* It is one of its session's. */
void fetch_enter(struct fetch *f);
/* Without the batch. */
void fetch_free(struct fetch *f);
/* The request ends without its bytes. err: why, or NULL if the code says it. */
void fetch_fail(struct fetch *f, uint32_t code, const struct dray_err *err);

/* The control thread gets the ask. */
void fetch_send(struct fetch *f, struct store_ask *k);
/* Counts the fetch as a request of its session that waits, until fetch_free() or an answer. */
void fetch_wait(struct fetch *f, struct store_ask *k);
/* Ends an ask that the fetch does not have, with what it has taken over from an EXISTS. */
void fetch_drop_ask(struct wsession *s, struct store_ask *k);
/* The bytes of a key are not wanted any more. */
void fetch_place_end(struct fetch *f, uint32_t i);

bool fetch_is_late(const struct fetch *f);
