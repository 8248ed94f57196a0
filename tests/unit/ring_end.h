/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's end of a ring, by libdray's own code (client/ring.c), with memory and doorbells as an
 * agent makes them. It has files of its own, because both ends have a struct ring.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/model/message.h"

struct ring_end;

/*
 * Aborts the program on failure. ret_memory: the agent's part, for COMMAND_RING_OPEN; it belongs to
 * the returned end.
 */
struct ring_end *ring_end_new(uint32_t entries, struct ring_memory *ret_memory);
/* The agent's end must be closed. */
void ring_end_free(struct ring_end *e);

bool ring_end_room(struct ring_end *e);
/*
 * Fills an entry as sqe says, with the next id; the agent sees it after ring_end_submit(). The ring
 * needs room.
 */
void ring_end_put(struct ring_end *e, const struct dmsg_sqe *sqe);
void ring_end_submit(struct ring_end *e);
/* Takes all completions, which must be ok and of 64 bytes; returns their number. */
unsigned ring_end_reap(struct ring_end *e);
/* Takes the next completion, which must be there, and returns its status. */
uint32_t ring_end_status(struct ring_end *e);
bool ring_end_pending(const struct ring_end *e);
/* Like dc_ring_set_sleeping(). */
bool ring_end_set_sleeping(struct ring_end *e, bool sleeping);
uint32_t ring_end_in_flight(const struct ring_end *e);
/* A descriptor for waiting with epoll. */
int ring_end_completion_fd(const struct ring_end *e);
