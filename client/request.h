/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request from its call to its completion. The request id on the wire is its generation handle,
 * so an answer finds it, or is known to be nobody's, whatever the agent sends. It is on one list at
 * a time:
 *
 *   queued    waits for the session or for room in the socket (all but transfers)
 *   sent      the agent owes an answer
 *   held      the session was lost; what the next HELLO shows decides (see session.c)
 *   callbacks ended, its callback is to be run
 *   done      ended, its completion is to be taken
 *   none      ended, and taken by who waits for it
 *   free      no request
 *
 * Internal requests, which no caller knows of, end without a completion.
 */
#ifndef DRAY_CLIENT_REQUEST_H
#define DRAY_CLIENT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "client/dray.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "schema/gen/data.h"

#define REQUESTS_MAX (1U << 20)
#define REQUESTS_QUEUED_MAX 4096

/*
 * Requests other than transfers that are sent before the first is answered: well under what agents
 * allow a session (limits.requests_per_session). Where one allows less it answers busy, and the
 * limit comes down.
 */
#define REQUESTS_CONTROL_MAX 64

enum request_state { REQUEST_QUEUED, REQUEST_SENT, REQUEST_HELD, REQUEST_ENDED };

struct request {
	struct dray_list link;
	uint64_t id;
	uint16_t type; /* DMSG_* of the request */
	enum request_state state;
	bool internal;
	bool on_ring;   /* a transfer whose answer comes by the completion ring */
	bool abandoned; /* its caller has given up: what it made is unmade when it ends */
	bool waited;    /* somebody waits for it inside the library: nobody else takes it */
	void *arg;
	void (*done)(struct dray *d, const struct dray_completion *c);

	/* how it ended */
	int status;
	uint32_t transport;
	uint64_t bytes, duration_ns;
	char *message; /* NULL: the code's own text */

	/* transfers */
	uint64_t arena_offset;
	uint32_t arena_bytes; /* 0: none */

	/* others */
	dray_region region;
	dray_remote remote;
	uint64_t number; /* token id; tag; request id of the transfer to cancel */
	uint32_t timeout_ms;
	void *data; /* import: token; notify: payload; placement: what is asked */
	uint32_t length;
	struct dmsg_region_export what;
	struct dray_token *token; /* made by an export */
	void *answer;             /* of placement.c */
};

struct requests {
	struct dray_handles table;
	struct dray_list queued, sent, held, callbacks, done, free;
	uint32_t queued_n, done_n, in_flight_n, free_n;
	uint32_t control_n, control_max; /* of those in flight: other than transfers */
};

void dc_requests_init(struct requests *q);
void dc_requests_deinit(struct requests *q);

/* A request in state QUEUED, on no list. NULL: no memory, or too many. */
struct request *dc_request_new(struct dray *d, uint16_t type, void *arg);

/* Drops one, whatever list it is on; for those that ended, and those that never began. */
void dc_request_free(struct dray *d, struct request *r);

/*
 * What follows serves the public functions. Each pair of them shares a function that starts the
 * request; it returns NULL with the handle's error set. The first thing it does is to ask whether a
 * caller may start anything now: not in a forked child, and not while too many wait.
 */
bool dc_requests_admit(struct dray *d);
struct request *dc_request_refuse(struct dray *d, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As dc_request_new(), with the error set. */
struct request *dc_request_start(struct dray *d, uint16_t type, void *arg);

/* Sends it, or queues it; where the session is closed for good it ends at once. Returns r. */
struct request *dc_request_go(struct dray *d, struct request *r);

/* Ends of public functions that do not block: r may be NULL. */
int dc_request_told(const struct dray *d, const struct request *r, uint64_t *ret_id);

/* Puts one that is on no list behind the others that wait to be sent. */
void dc_request_queue(struct dray *d, struct request *r);

/* The agent has it now. */
void dc_request_sent(struct dray *d, struct request *r);

/*
 * The agent was too busy for it: it is the first to be sent again. False: nothing else of that kind
 * is in flight.
 */
bool dc_request_again(struct dray *d, struct request *r);

/* See session.c. */
void dc_request_hold(struct dray *d, struct request *r);

/*
 * It has ended with this status (0 or negative). message (of n bytes) may be NULL. An internal or
 * abandoned one is freed; what an abandoned one made is undone.
 */
void dc_request_end(struct dray *d, struct request *r, int status, const char *message, size_t n);

/* Sends what is queued as far as the socket takes it, if the session is ready. */
void dc_requests_flush(struct dray *d);

/* Runs the callbacks that are due, unless we are inside of one. */
void dc_requests_call_back(struct dray *d);

/* Fills a completion; strings and token go to the handle's own buffers. The request is freed. */
void dc_request_take(struct dray *d, struct request *r, struct dray_completion *ret);

/*
 * Ends of those that block: until r (may be NULL) has ended, or request_ms and extra_ms have
 * passed. Returns the status, and what else there is in *ret. On time-out the request is taken
 * back, if it was not sent yet, or abandoned.
 */
int dc_request_wait(struct dray *d, struct request *r, unsigned int extra_ms,
		    struct dray_completion *ret);

#endif
