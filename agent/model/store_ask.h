/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of a GET or EXISTS that this agent's store does not have, and what the stores of other agents have of them. A worker makes it,
 * the control thread fills it in and gives it back, and frees it when the worker has said that it is done.
 */
#pragma once

#include <string.h>

#include "agent/model/view.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "schema/gen/data.h"

struct asker;
struct borrowed;
struct channel;
struct held_key;
struct question;
struct lease;
struct placing;
struct rail_keys;

/* What one lookup found: memory of another agent, leased for this; or the bytes themselves. */
struct store_source {
	uint8_t *bytes; /* free() frees it; NULL: they are to be read */
	/* the worker's: the bytes come by it now, in the order of their keys; NULL: they do not */
	struct channel *trailing;
	struct remote_view view;
	struct rail_keys *keys; /* one reference; NULL: no rail reaches all that it has */
	struct lease *lease; /* the control thread's; NULL: it is given back, or another ask has it */
	struct borrowed *borrowed; /* likewise; NULL: the other agent does not fence it */
	int64_t end_ns;            /* of the lease; past: the other agent has fenced it */
	/* the worker's: objects are to be read from it; it has ended that; keys that it holds for the session (store_held.c) */
	bool wanted, over;
	uint32_t held;
	uint32_t lingers; /* the worker's: devices may still read from it (store_reading.c) */
};

/* The agents that are asked for objects, if workers may ask all of them themselves; n 0: they may not. */
#define STORE_DIRECT_MAX 4
struct store_direct {
	uint32_t n;
	bool trails; /* bytes of an object may follow an answer */
	dray_handle peers[STORE_DIRECT_MAX];
};

struct store_asked {
	const uint8_t *key;
	uint32_t n_key;
	uint32_t item;                 /* of the batch */
	enum dmsg_store_status status; /* not_found before the answer. ok: */
	uint32_t source, crc, cost_us;
	uint64_t offset, length; /* in the source, or in its bytes */
	dray_handle avoid; /* the agent whose bytes did not come, or that has not kept it; 0: none */
	dray_handle silent;    /* the same, if nothing at all came from it; 0: something did */
	bool slow;             /* they did not come in time, so that it may have them still */
	struct held_key *held; /* the worker's: an EXISTS has found it, and leased its source */
	/* the control thread's, of an EXISTS that has found it */
	struct store_ask *of;
	struct dray_map_node by_key;
};

/* Adds its key to others in wire form. Returns where the next one begins. */
static inline uint32_t store_asked_put(const struct store_asked *k, uint8_t *buf, uint32_t at)
{
	buf[at++] = (uint8_t)k->n_key;
	memcpy(buf + at, k->key, k->n_key);
	return at + k->n_key;
}

struct store_ask {
	struct dray_list link;     /* the control thread's */
	struct asker *asker;       /* likewise */
	struct question *question; /* likewise; NULL: it is answered */
	uint32_t lookups, keeping; /* likewise: messages to each agent, and of EXISTS */
	dray_handle session;
	uint64_t number; /* the worker's */
	int64_t end_ns;  /* the deadline of the GET */
	bool late;       /* it has passed */
	bool again;      /* other agents had these keys a moment ago */
	/*
	 * The keys are those of a PUT, of whose objects another agent is to keep copies: status ok says that it does. Those that are
	 * not_tried are not to be copied. No sources are found.
	 */
	bool replicates;
	/*
	 * They go to this agent alone, behind the keys; "": to that which is preferred. The status of a key is that of store_status
	 * then; not_found and not_tried: its agent has not answered in time. NULL: they are copies.
	 */
	const char *at;
	bool here;               /* with the answer: that is this agent */
	struct placing *placing; /* the control thread's, meanwhile */
	dray_handle
		from; /* the only peer that is asked, for which this agent keeps copies; 0: all are */
	unsigned worker;
	char space[DMSG_STORE_SPACE_MAX + 1];
	const char *
		tenant; /* of the session's owner; only until the lookups are sent, or the copies placed */
	uint32_t uid;
	struct store_source *sources;
	uint32_t n_sources;
	uint32_t lease_ms;          /* of EXISTS, which keeps the sources; 0: of GET */
	struct dray_heap_node over; /* the control thread's: when these leases end */
	struct store_direct direct; /* with the answer: for the next questions */
	bool sent;                  /* the worker's: the control thread has it, or has had it */
	bool ended;             /* likewise: it ends with the last of its sources that lingers */
	uint32_t lingers;       /* likewise: such uses of its sources */
	uint32_t n, n_asked;    /* these are asked for; an EXISTS has found the others */
	struct store_asked v[]; /* then the bytes of the keys */
};

/* With its sources, whose leases have ended. NULL is allowed. */
void store_ask_free(struct store_ask *k);
/* The source with this lease. False: there is none. */
bool ask_find_source(const struct store_ask *k, dray_handle peer, uint64_t grant,
		     uint32_t *ret_source);
