/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfers that read objects of other agents, and the leases of what they read. An RDMA device may go on with a
 * transfer that was stopped: then the places here, and the lease of the bytes there, last until it has finished.
 */
#pragma once

#include "agent/data/worker/internal.h"
#include "agent/data/worker/store_sum.h"

struct store_ask;
struct store_source;

/* Where the bytes of an object go. */
struct landing {
	bool wanted;
	struct store_object *object; /* a place in the store; NULL: the ranges of the client */
	uint64_t bytes;
};

struct reading {
	struct dray_list link;         /* on worker->readings, after its end */
	struct dray_map_node by_grant; /* in worker->lingering, if it lingers */
	/* The store and the source, for its transfer. */
	struct object local, remote;
	struct remote_view view;
	/* What it reads from. */
	struct store_ask *ask;
	uint32_t source;
	/* What has arrived of each object. */
	struct arriving *arriving;
	uint32_t n_arriving;
	bool lingers;
	uint32_t n;
	struct store_object *objects[]; /* whose places devices may still write to */
};

/*
 * NULL: no memory. ask and source: what has the lease. landings: of the n objects that are read from it, in this order; all of them in the
 * store, or none.
 */
struct reading *reading_new(struct worker *w, struct store_ask *ask, uint32_t source,
			    const struct landing *landings, uint32_t n);
/* Its transfer ends now. True: devices may go on with it, so it takes the objects that reading_keep() gives it. */
bool reading_end(struct worker *w, struct reading *r);
void reading_keep(struct reading *r, struct store_object *o);
/* The peer takes this lease back: what devices still read from it ends in time. */
void readings_hasten(struct worker *w, dray_handle peer, uint64_t grant);
/* Without a transfer. */
void reading_free(struct reading *r);

/* Nothing more is read from this source of an ask. Its lease ends now, or when no device reads from it any more. */
void source_done(struct worker *w, struct store_ask *k, uint32_t source);
/* The same for all its sources; frees it. NULL is allowed. */
void ask_end(struct worker *w, struct store_ask *k);
