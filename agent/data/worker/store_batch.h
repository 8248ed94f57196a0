/* SPDX-License-Identifier: Apache-2.0 */
/* A PUT, GET or EXISTS of a batch of keys: shared by store*.c. */
#pragma once

#include "agent/data/worker/internal.h"

/* Its objects are being written, or held, until it has ended. */
struct batch {
	struct store_call call; /* STORE_PUT, _GET or _EXISTS */
	const struct store_member *member;
	int64_t begin_ns;
	uint32_t n, n_ops;
	bool loads;         /* some objects are read from disk */
	bool mixed;         /* the operations are not in the order of the keys */
	uint32_t last_item; /* with operations */
	struct store_wait wait;
	/* of one that loads, and is not mixed: the keys and bytes up to the first object that is not here */
	uint32_t n_here;
	uint64_t bytes_here;
	int64_t agents_ns; /* when the last object of another agent was here; 0: none was */
	/* of PUT with replicas */
	struct store_ask *replicas; /* what it asks for when its bytes are here; NULL: nothing */
	uint8_t *copies;            /* of each key; NULL: without replicas */
	int64_t copied_ns;          /* when they were here; 0: it has not asked */
	int64_t end_ns;             /* the deadline */
	/*
	 * of PUT: its objects go to another agent (store_forward.c), and the gets hold them meanwhile. prefers: to that which is
	 * preferred, if one is; what it does not take stays here
	 */
	bool forwards, prefers;
	/*
	 * Tells whoever has made the batch its results, and frees it. err: it is refused; NULL: the code says how the copy ended. A dead
	 * session gets no answer.
	 */
	void (*end)(struct wsession *s, struct batch *b, uint32_t code, const struct dray_err *err);
	struct dmsg_store_result *results;
	struct store_get
		*gets; /* whose object is NULL if nothing is copied for this key; NULL: of EXISTS */
	uint8_t ops[]; /* in wire form, then both lists */
};

/* Of a PUT: the object is here. */
static inline bool result_is_stored(const struct dmsg_store_result *r)
{
	return r->status == DMSG_STORE_STATUS_OK || r->status == DMSG_STORE_STATUS_EXISTS;
}

/* Of a PUT: another agent is to have this item, too, or in place of this one. */
static inline bool batch_asks_for(const struct batch *b, uint32_t i)
{
	return b->forwards ? !b->results[i].status : result_is_stored(&b->results[i]);
}

/* An object has been put, and stays here. */
static inline void batch_count_put(struct core *c, uint64_t bytes)
{
	core_count(c->counters, DRAY_METRIC_STORE_PUT_BYTES_TOTAL, bytes);
	core_count(c->counters, DRAY_METRIC_STORE_PUTS_TOTAL, 1);
}

/* The key can be tried again after the time that its result names. */
void batch_busy(struct core *c, struct dmsg_store_result *r);
/* NULL is allowed. */
void batch_free(struct batch *b);
/* `end` of the requests of clients: answers them. */
void batch_answer(struct wsession *s, struct batch *b, uint32_t code, const struct dray_err *err);
/*
 * store_report.c: a line for the log about a batch that has ended. b: of PUT and GET, else NULL. It must not
 * delay the batch: it is dropped if it finds no room.
 */
void batch_report(struct wsession *s, const struct store_call *q, const struct store_member *member,
		  const struct dmsg_store_result *results, uint32_t n, const struct batch *b,
		  uint32_t code);
/* Gives up what the batch holds. done: all its bytes are in place. */
void batch_settle(struct core *c, struct batch *b, bool done);
static inline bool batch_is_late(const struct worker *w, const struct batch *b)
{
	return w->core.now_ns >= b->end_ns;
}

/* The deadline of a transfer that is to end by then. */
uint32_t batch_ms_until(const struct worker *w, int64_t end_ns);
/* The transfer that answers the request and frees the batch. 0, or -EINVAL with err. */
int batch_start(struct wsession *s, struct batch *b, dray_handle region, struct dray_err *err);
/* Finds a key here for item i, whose ranges have so much room. */
void batch_get_one(struct worker *w, struct batch *b, uint32_t i, struct store_member *member,
		   struct store_key key, uint64_t room);
/* Adds the operations between the ranges of an item and its object, whose length is in the result. */
void batch_item_ops(struct batch *b, uint32_t item, const uint8_t *ranges);
/* Writes the operations between the ranges of an item, which have room for `left` bytes, and so many bytes from `at` on. Their number. */
uint32_t item_ops(uint8_t *ops, const uint8_t *ranges, uint64_t at, uint64_t left);
/* The sum of the ranges of an item, which are checked. */
uint64_t item_bytes(const uint8_t *ranges, uint32_t n);

static inline bool batch_puts(const struct batch *b)
{
	return b->call.type == DMSG_STORE_PUT;
}

/* PUT and GET of a client. It is answered now or later, unless err is set. */
void batch_request(struct wsession *s, const struct store_call *call, const uint8_t *body,
		   uint32_t length, const union dmsg_body *m, struct dray_err *err);

/* Both requests have the same fields. */
struct batch_request {
	const struct store_call *call;
	const struct dmsg_store_put *m;
	struct store_member *member;
	struct worker *worker;
	uint32_t item, range; /* the next ones */
};

/* Looks at the next keys, which are in the scratch. False: there are more, for the next turns. */
bool items_begin(struct wsession *s, struct batch_request *q, struct batch *b);
/* All keys have been looked at. Consumes the batch. */
void batch_begun(struct wsession *s, const struct batch_request *q, struct batch *begun,
		 struct dray_err *err);
/* store_begin.c: the rest of its keys is looked at later. Consumes the batch. */
void begin_later(struct wsession *s, const struct batch_request *q, const uint8_t *body,
		 uint32_t length, struct batch *b, struct dray_err *err);

/*
 * store_fetch.c: asks other agents for the keys that a GET did not find here. True: it has taken the batch, and the answer follows.
 * False: there is nothing to ask, or err is set.
 */
bool fetch_begin(struct wsession *s, const struct store_call *q, const struct dmsg_store_put *m,
		 struct store_member *member, const struct store_key *keys, struct batch *b,
		 struct dray_err *err);
/* The same for an EXISTS with its results so far. What is found is leased so long, and held for the session. */
bool fetch_exists(struct wsession *s, const struct store_call *q, uint32_t lease_ms,
		  struct store_member *member, const struct store_key *keys,
		  const struct dmsg_store_result *results, uint32_t n, struct dray_err *err);

/* The same for keys that this agent is to keep copies of (store_keep.c): it takes the batch, or returns false. */
struct store_keep;
bool fetch_keep(struct wsession *s, const struct store_keep *k, struct store_member *member,
		const struct store_key *keys, struct batch *b);

/* store_replicas.c: PUTs of which another agent is to keep copies. */
struct fetch;
struct store_ask;
/* Before the bytes of the PUT are copied: what it may ask for then. NULL: nothing. */
struct store_ask *replicas_ask(struct wsession *s, const struct batch *b,
			       const struct store_key *keys, struct dray_str at);
/* The bytes are here. True: the batch has asked for its copies, and ends when that is answered. */
bool replicas_begin(struct wsession *s, struct batch *b);
/* It is answered; k NULL, and code: it has ended before. Consumes the ask. */
void replicas_told(struct fetch *f, struct store_ask *k, uint32_t code);

/* store_forward.c: PUTs whose objects go to another agent. 0: the request may, or does not want to; -errno with reterr. */
int forward_check(const struct store_member *member, bool lends, const struct dmsg_store_put *m,
		  struct dray_err *reterr);
bool forward_wanted(const struct dmsg_store_put *m);
/* Nobody was asked: the code that ends the batch. */
uint32_t forward_unasked(const struct wsession *s, const struct batch *b);
/*
 * Its objects have gone where the answers say, or nowhere. k NULL: there are no answers. Returns the code that ends the batch, which is
 * code if some are not known.
 */
uint32_t forward_end(struct core *c, struct batch *b, const struct store_ask *k, uint32_t code);

/* store_held.c: keys that an EXISTS of this session has found at other agents, and leased. */
struct held_key;
/* Keeps what the ask has found, and writes the results of its keys: what there is no room for is busy. Consumes the ask. */
void held_add(struct wsession *s, struct store_ask *k, struct dmsg_store_result *results);
/* NULL: it has none whose lease lasts so long. */
struct held_key *held_find(struct wsession *s, const char *space, struct store_key key,
			   int64_t least_ns);
/* The next held_find() does not find it; its lease goes on until held_end(). */
void held_take(struct held_key *k);
/* The ask of a GET that has taken it has it as its key i. */
void held_taken(struct held_key *k, struct store_ask *by, uint32_t i);
void held_end(struct held_key *k);
/* Where it is. */
const struct store_asked *held_asked(const struct held_key *k);
const struct store_source *held_source(const struct held_key *k);
/* Ends those of these keys that are ok, or UNPINs those that are not found. */
void helds_got(struct wsession *s, const char *space, const struct store_key *keys,
	       const struct dmsg_store_result *results, uint32_t n);
void helds_unpin(struct wsession *s, const char *space, const struct store_key *keys,
		 struct dmsg_store_result *results, uint32_t n);
/* What has its lease, and which of the sources there it is. */
struct store_ask *held_lease(const struct held_key *k, uint32_t *ret_source);
/* The peer ends a lease of the ask of this number: ends its keys. */
void helds_fenced(struct wsession *s, uint64_t number, dray_handle peer, uint64_t grant);
/* store_fetch.c: likewise for a key that a GET has taken. */
void fetch_held_fenced(struct wsession *s, struct store_ask *k, uint32_t i);
