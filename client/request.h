/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request from its start to its completion. Its id on the wire is a generation handle, so an
 * answer with an unknown or old id is recognised. A request is on one list at a time:
 *
 *   queued    waits for the session, or for room in the socket (all but transfers)
 *   sent      the agent owes an answer
 *   held      the session was lost; proof decides its status (see proof.h)
 *   callbacks ended, its callback is still to be run
 *   done      ended, its completion is still to be taken
 *   none      ended, and a blocking function takes it
 *   lent      its completion was taken and said unconfirmed; on no list (see proof.h)
 *   free      unused memory
 *
 * Internal requests are started by the library itself and end without a completion.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/dray.h"
#include "lib/handle.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "schema/gen/data.h"

#define REQUESTS_MAX (1U << 20)
#define REQUESTS_QUEUED_MAX 4096

/*
 * Requests other than transfers in flight: well below the default of limits.requests_per_session.
 * An agent that allows fewer answers busy, and the limit is lowered.
 */
#define REQUESTS_CONTROL_MAX 64

/* The rate of copies of the store before the first one. */
#define COPY_NS_A_MIB 100000

enum request_state { REQUEST_QUEUED, REQUEST_SENT, REQUEST_HELD, REQUEST_ENDED, REQUEST_LENT };

struct request {
	struct dray_list link;
	uint64_t id;
	uint16_t type; /* DMSG_* of the request */
	enum request_state state;
	bool internal;
	bool on_ring;        /* its completion comes by the ring */
	bool needs_store_at; /* a PUT at another agent: not sent to agents without that feature */
	bool abandoned;      /* its caller timed out: its result is undone when it ends */
	bool waited;         /* a blocking function of the library takes it */
	bool unconfirmed;    /* it ended without an answer, and waits for proof */
	void *arg;
	void (*done)(struct dray *d, const struct dray_completion *c);

	/* how it ended */
	int status;
	uint32_t transport;
	uint64_t bytes, duration_ns;
	char *message; /* NULL: the text of the code */

	/* proof.c */
	struct dray_heap_node
		deadline;    /* of a transfer that was sent; of what lends memory and is held */
	struct agent *agent; /* whose answer or death is waited for */

	/* split.c */
	struct split *split;   /* of the whole; owned */
	struct request *whole; /* of a part */

	/* transfers, and requests to the store on the ring */
	uint64_t epoch; /* session whose arena and ring it uses */
	uint64_t arena_offset;
	uint32_t arena_bytes; /* 0: none */
	uint32_t ring_index;  /* of the entry of a request to the store */

	/* others */
	dray_region region;
	dray_remote remote;
	dray_lease lease;
	uint32_t expiry_ms; /* of a lease: to be sent, or answered */
	uint64_t number;    /* token id; tag; request id of the transfer to cancel; mailbox */
	uint32_t tries;     /* of cancelling */
	void *data;         /* notify: payload; import, post and placement: the encoded message */
	uint32_t length;
	struct dmsg_region_export what;
	uint64_t copy_bytes, copy_took_ns; /* of PUT and GET */
	void *answer; /* of placement.c and store.c; of an export: struct dray_token */
};

struct requests {
	struct dray_handles table;
	struct dray_list queued, sent, held, callbacks, done, free;
	uint32_t queued_n, done_n, in_flight_n, free_n;
	uint32_t control_n, control_max; /* requests in flight other than transfers */
	uint32_t store_n; /* of these, to the store and not on the ring: a worker answers them at once, so that spinning pays */
	uint32_t awaited_n;      /* requests in flight for which the socket is to be read */
	uint32_t copies_n;       /* PUTs and GETs in flight */
	uint64_t copies_bytes;   /* of these */
	int64_t copies_since_ns; /* when the last one ended, or the first one of these was sent */
	uint64_t copy_ns_a_mib;  /* the rate of the last ones */
};

void dc_requests_init(struct requests *q);
void dc_requests_deinit(struct requests *q);

#define NO_REGION ((dray_region){ 0 })
#define NO_REMOTE ((dray_remote){ 0 })

/* A request in state QUEUED that is on no list. NULL: no memory, or too many requests. */
struct request *dc_request_new(struct dray *d, uint16_t type, void *arg);

/* Frees a request that has ended or was never sent, whatever list it is on. */
void dc_request_free(struct dray *d, struct request *r);

/*
 * Starts and queues a request of the library's own; `number` is as in struct request. NULL: no
 * memory.
 */
struct request *dc_request_internal(struct dray *d, uint16_t type, dray_region region,
				    dray_remote remote, uint64_t number);

/*
 * For the public functions. As dc_request_new(), but refuses while too many requests wait. NULL with
 * the thread's error set.
 */
struct request *dc_request_start(struct dray *d, uint16_t type, void *arg);

/* Frees a request that was started, and sets the handle's error. Returns the negated code. */
#define dc_request_refuse(d, r, ...) ((void)dc_request_free(d, r), dc_fail(d, __VA_ARGS__))

/*
 * Sends or queues r; if the session is closed for good, r ends at once. Returns 0 with the id of r
 * in *ret_id, which may be NULL.
 */
int dc_request_go(struct dray *d, struct request *r, uint64_t *ret_id);

/* As dc_request_go(), with a copy of n bytes that r needs when it is sent. Or a negated code. */
int dc_request_go_with(struct dray *d, struct request *r, const void *data, size_t n,
		       uint64_t *ret_id);

/* The result of a function that starts r. */
static inline int dc_request_started(const struct request *r, uint64_t *ret_id)
{
	if (ret_id)
		*ret_id = r->id;
	return 0;
}

/* The message of r is in the socket, or its entry in the ring. */
void dc_request_sent(struct dray *d, struct request *r);

/* True if the agent may answer r, which may be NULL. */
bool dc_request_is_open(const struct dray *d, const struct request *r);

/* The agent answered busy: r is sent again first. False if no other such request is in flight. */
bool dc_request_again(struct dray *d, struct request *r);

/* The agent has never seen r, which was sent: it is queued again, behind this node of the queue. */
void dc_request_take_back(struct dray *d, struct request *r, struct dray_list *after);

/* Moves r to the list of held requests. For proof.c. */
void dc_request_hold(struct dray *d, struct request *r);

/*
 * Ends r with a status (0 or negative) and a text, which may be empty. An internal or abandoned
 * request is freed, and the result of an abandoned one undone.
 */
void dc_request_end(struct dray *d, struct request *r, int status, struct dray_str text);

/* r, whose completion was taken, is lent. It is on no list then. For proof.c. */
void dc_request_lend(struct dray *d, struct request *r);

/* Ends r for the caller alone: what it uses stays in use. For proof.c. */
void dc_request_end_unconfirmed(struct dray *d, struct request *r);

#define NO_TEXT ((struct dray_str){ 0 })
struct dray_str dc_text(const char *s);

/* send.c: sends queued requests until the socket is full, if the session allows them. */
void dc_requests_flush(struct dray *d);

/* Runs pending callbacks, unless called from one. */
void dc_requests_call_back(struct dray *d);

/*
 * Result of a public function that blocks. `error` is the result of starting the request *id, and
 * returned if it is not 0. Waits for the handle's request_ms and extra_ms more, and returns the
 * status; *ret (may be NULL) has the completion. On timeout a request that was not sent is
 * cancelled, and one that was sent is abandoned.
 */
int dc_request_wait(struct dray *d, int error, const uint64_t *id, unsigned int extra_ms,
		    struct dray_completion *ret);
