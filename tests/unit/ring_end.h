/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's end of a ring, by libdray's own code (client/ring.c), with the memory and the doorbells that an
 * agent would have made. Apart, since both ends have a struct ring.
 */
#ifndef DRAY_TESTS_UNIT_RING_END_H
#define DRAY_TESTS_UNIT_RING_END_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/worker/msg.h"

struct ring_end;

/* Aborts the program where anything cannot be had. ret_memory: for COMMAND_RING_OPEN; the end's. */
struct ring_end *ring_end_new(uint32_t entries, struct ring_memory *ret_memory);
/* The agent's end is closed. */
void ring_end_free(struct ring_end *e);

bool ring_end_room(struct ring_end *e);
/* 64 bytes from `offset` of a region to the same of a remote; seen by the agent once submitted. */
void ring_end_put(struct ring_end *e, uint64_t id, dray_handle local, dray_handle remote,
		  uint64_t offset);
void ring_end_submit(struct ring_end *e);
/* A completion, which must be a good one: true, and its id. */
bool ring_end_take(struct ring_end *e, uint64_t *ret_id);
bool ring_end_pending(const struct ring_end *e);
/* As dc_ring_set_sleeping(). */
bool ring_end_set_sleeping(struct ring_end *e, bool sleeping);
uint32_t ring_end_in_flight(const struct ring_end *e);
/* To wait for completions with epoll. */
int ring_end_completion_fd(const struct ring_end *e);

#endif
