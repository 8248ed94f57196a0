/* SPDX-License-Identifier: Apache-2.0 */
/* A PUT or GET of a batch of keys: shared by store.c and store_fetch.c. */
#pragma once

#include "agent/data/worker/internal.h"

/* Units of work (transfer/owner.h) for a key. */
#define KEY_WORK 64

/* Its objects are being written, or held, until it has ended. */
struct batch {
	uint64_t request_id;
	const struct store_member *member;
	int64_t begin_ns;
	bool put;
	uint32_t n, n_ops;
	bool loads; /* some objects are read from disk, or verified */
	struct store_wait wait;
	struct dmsg_store_result *results;
	struct store_get *gets; /* whose object is NULL if nothing is copied for this key */
	uint8_t ops[];          /* in wire form, then both lists */
};

/* Answers the request. */
void batch_reply(struct wsession *s, const struct batch *b, uint32_t code);
/*
 * store_report.c: a line for the log about a batch that has ended. type: of its message. b: of PUT and GET, else NULL. It must not
 * delay the batch: it is dropped if it finds no room.
 */
void batch_report(struct wsession *s, uint16_t type, uint64_t request_id,
		  const struct store_member *member, const struct dmsg_store_result *results,
		  uint32_t n, const struct batch *b, uint32_t code);
/* Gives up what the batch holds. done: all its bytes are in place. */
void batch_settle(struct core *c, struct batch *b, bool done);
/* The transfer that answers the request and frees the batch. 0, or -EINVAL with err. */
int batch_start(struct wsession *s, struct batch *b, dray_handle region, uint32_t deadline_ms,
		struct dray_err *err);
/* Finds a key here for item i, whose ranges have so much room. */
void batch_get_one(struct worker *w, struct batch *b, uint32_t i, struct store_member *member,
		   struct store_key key, uint64_t room);
/* Adds the operations between the ranges of an item and its object. */
void batch_item_ops(struct batch *b, const uint8_t *ranges, const struct store_object *o);
/* The sum of the ranges of an item, which are checked. */
uint64_t item_bytes(const uint8_t *ranges, uint32_t n);

/*
 * store_fetch.c: asks other agents for the keys that a GET did not find here. True: it has taken the batch, and the answer follows.
 * False: there is nothing to ask, or err is set.
 */
bool fetch_begin(struct wsession *s, const struct dmsg_header *h, const struct dmsg_store_put *m,
		 struct store_member *member, const struct store_key *keys, struct batch *b,
		 struct dray_err *err);
