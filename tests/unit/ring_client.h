/* SPDX-License-Identifier: Apache-2.0 */
/* A session with a ring on a worker that others may share, and the client's side of that ring. */
#ifndef DRAY_TESTS_UNIT_RING_CLIENT_H
#define DRAY_TESTS_UNIT_RING_CLIENT_H

#include "agent/worker/msg.h"
#include "agent/worker/worker.h"

#define RING_CLIENT_GROUP 7

struct ring_client {
	struct worker *worker;
	struct quota group, agent;
	struct session_shared shared;
	struct ring_memory ring;
	int data, completion;
	uint32_t sq_tail, cq_head;
	uint64_t submitted, completed, bells;
	uint32_t last_status;
};

/* Gives the worker the commands that make session n (of a group that may use what the test published). Aborts on failure. */
void ring_client_open(struct ring_client *c, struct worker *w, uint32_t n, uint32_t entries);
/* The worker has said that the session is gone, or is gone itself. */
void ring_client_release(struct ring_client *c);
/* n submissions as e says, user data in turn; the tail is published once. The caller knows that there is room. */
void ring_client_submit(struct ring_client *c, const struct dmsg_sqe *e, unsigned n);
/* Rings the doorbell if the agent asks for it. True if it did. */
bool ring_client_bell(struct ring_client *c);
/* Takes completions; how many there were. */
unsigned ring_client_reap(struct ring_client *c);
_Atomic uint32_t *ring_client_word(struct ring_client *c, uint32_t offset);

#endif
