/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by agent.c and asks.c: answers of the workers to what agent.h lets ask. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_TRANSFER_QUERIES_H
#define DRAY_AGENT_CONTROL_TRANSFER_QUERIES_H

#include <stdbool.h>
#include <stdint.h>

struct agent;
struct snapshot;

void asks_init(struct agent *a);
/* The workers have ended; nobody is called any more. */
void asks_free(struct agent *a);

/* EVENT_SNAPSHOT and EVENT_CANCELLED. */
void asks_handle_snapshot(struct agent *a, unsigned worker, struct snapshot *s);
void asks_handle_cancelled(struct agent *a, uint64_t id, bool ended, uint32_t code);

#endif
