/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof that memory is free that was lent to the agent by a transfer, or by a PUT or GET of the store.
 * One that ended without an answer of the agent is not over: the agent, or a device of it, may still
 * read and write the memory. This module owns
 *
 *  - the deadlines of transfers, which the client keeps too, because an agent can be stopped;
 *  - the agents whose sessions were lost, with their pidfds;
 *  - the requests that wait for proof: for a short time as `held`, and after that as `lent`, when they
 *    have ended for the caller with -DRAY_E_UNCONFIRMED.
 *
 * Proof is one of these:
 *  - the agent answers after all;
 *  - its process is dead, which its pidfd tells. The end of the socket proves nothing, because a dying
 *    process closes its sockets before its queue pairs;
 *  - a new session shows the same incarnation, and the agent had closed the old session itself: an
 *    agent does that when nothing of the session is accessed any more;
 *  - of an agent without pidfd (data protocol before 1.3): a new session shows that another process
 *    has taken its place.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/dray.h"
#include "lib/err.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "schema/gen/data.h"

struct request;

/* The process behind a session. */
struct agent {
	struct dray_list link;
	int pidfd; /* -1: none */
	uint64_t incarnation;
	uint8_t id[16];
	int lost_code; /* of the session, negated; 0: it is open */
	char why[DRAY_ERR_MSG_MAX];
	bool closed;   /* the agent ended the session */
	bool dead;     /* proven */
	uint32_t uses; /* by requests and leases */
};

struct proof {
	struct dray_list agents;
	struct agent *agent; /* of the present session, or of the last one; NULL: none yet */
	struct dray_heap deadlines;
	struct dray_list held; /* requests that lend memory, in the order of their time limits */
	uint32_t unconfirmed;  /* of those: have ended so and still wait for proof */
	uint32_t answerable;   /* of those: the present session may answer them */
	int64_t confirm_ns;    /* for an answer after a deadline */
	int64_t loss_ns;       /* for proof after a loss */
};

void dc_proof_init(struct proof *p);
void dc_proof_deinit(struct dray *d);

/*
 * The reply to HELLO. Consumes pidfd, which may be -1. Ends requests of earlier agents about which the
 * reply proves something. 0 or -ENOMEM.
 */
int dc_proof_agent(struct dray *d, const struct dmsg_hello_reply *m, int pidfd);

/* The session was lost. closed: by the agent. */
void dc_proof_lost(struct dray *d, const struct dray_err *why, bool closed);

/* The agent reads or writes memory of the caller from the time when r is sent until it ends. */
bool dc_proof_lends(const struct request *r);

/* A request that lends memory and was sent, or one that asks for proof, waits for proof of the last agent. */
void dc_proof_hold(struct dray *d, struct request *r);

/* A request that asks for proof of an agent that was lost before waits for it. */
void dc_proof_hold_for(struct dray *d, struct request *r, struct agent *a);

/* Sets the deadline of a transfer that is about to be sent. 0 or -ENOMEM. */
int dc_proof_deadline(struct dray *d, struct request *r, unsigned int deadline_ms);

/* The session is closed for good. */
void dc_proof_closed(struct dray *d);

/* The completion of r was taken. False: r can be freed. True: it is unconfirmed, and is kept as lent. */
bool dc_proof_keeps(struct dray *d, struct request *r);

/* What r waited for, if anything, is known: the agent's answer, or that the agent is dead. */
void dc_proof_answered(struct dray *d, struct request *r, int status, struct dray_str text);

/* The agent has removed the region. False if r waits on, for an agent that was lost before. */
bool dc_proof_removed(struct dray *d, struct request *r);

/* r is about to be freed. */
void dc_proof_forget(struct dray *d, struct request *r);

/* True while requests that lend memory, or leases, wait for proof that can come. */
bool dc_proof_may_come(const struct dray *d);

/* A pidfd is readable. */
void dc_proof_check(struct dray *d);
void dc_proof_tick(struct dray *d, int64_t now);
/* INT64_MAX: none. */
int64_t dc_proof_next_tick(const struct dray *d);
