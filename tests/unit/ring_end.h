/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's end of a ring, by libdray's own code (client/ring.c), with the memory and the doorbells that an
 * agent would have made. Apart, since both ends have a struct ring.
 */
#ifndef DRAY_TESTS_UNIT_RING_END_H
#define DRAY_TESTS_UNIT_RING_END_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/model/message.h"

struct ring_end;

/* Aborts the program where anything cannot be had. ret_memory: for COMMAND_RING_OPEN; the end's. */
struct ring_end *ring_end_new(uint32_t entries, struct ring_memory *ret_memory);
/* The agent's end is closed. */
void ring_end_free(struct ring_end *e);

bool ring_end_room(struct ring_end *e);
/* As sqe says, with the next id; seen by the agent once submitted. There is room, if only the client's own rules say no. */
void ring_end_put(struct ring_end *e, const struct dmsg_sqe *sqe);
void ring_end_submit(struct ring_end *e);
/* Takes all completions, which must be good ones of 64 bytes; how many there were. */
unsigned ring_end_reap(struct ring_end *e);
/* Takes the next completion, which must be there, and returns its status. */
uint32_t ring_end_status(struct ring_end *e);
bool ring_end_pending(const struct ring_end *e);
/* As dc_ring_set_sleeping(). */
bool ring_end_set_sleeping(struct ring_end *e, bool sleeping);
uint32_t ring_end_in_flight(const struct ring_end *e);
/* To wait for completions with epoll. */
int ring_end_completion_fd(const struct ring_end *e);

#endif
