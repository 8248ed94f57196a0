/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that workers answer: start, end and answers. agent.h has the calls. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_TRANSFER_QUERIES_H
#define DRAY_AGENT_CONTROL_TRANSFER_QUERIES_H

#include <stdbool.h>
#include <stdint.h>

struct agent;
struct snapshot;

void transfer_queries_init(struct agent *a);
/* After the workers have ended; calls no callback. */
void transfer_queries_free(struct agent *a);

/* EVENT_SNAPSHOT and EVENT_CANCELLED. */
void transfer_queries_handle_snapshot(struct agent *a, unsigned worker, struct snapshot *s);
void transfer_queries_handle_cancelled(struct agent *a, uint64_t id, bool ended, uint32_t code);

#endif
