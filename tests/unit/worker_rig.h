/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real worker with sessions over socket pairs, and regions and remotes that the test publishes.
 */
#pragma once

#include "agent/model/message.h"
#include "agent/data/data.h"

struct wrig {
	struct worker_pool pool;
	struct quota group;
	struct session_shared shared;
	int client;     /* the client's end of the data socket */
	uint8_t *a, *b; /* memory of two regions of `bytes` */
	int fd_a, fd_b; /* its memfds, not sealed */
	uint64_t bytes;
	struct region_view *region_a, *region_b;
	struct remote_view remote_b;
	struct ring_memory ring;
	int doorbell;   /* eventfd: client to agent */
	int completion; /* the client's end of the completion doorbell */
};

#define WRIG_SESSION (1ull << 32 | 1)
#define WRIG_REGION_A (1ull << 32 | 1)
#define WRIG_REGION_B (1ull << 32 | 2)
#define WRIG_REMOTE_B (1ull << 32 | 1)

/* Aborts the program on failure. sq_entries 0: no ring. */
void wrig_init(struct wrig *r, uint32_t sq_entries, uint64_t bytes);
/* The same with further workers; the session belongs to the first. */
void wrig_init_workers(struct wrig *r, unsigned workers, uint32_t sq_entries, uint64_t bytes);
/* Closes the session, waits for its end, and stops the worker. */
void wrig_deinit(struct wrig *r);
/* Waits for the next event of the worker. */
struct event wrig_event(struct wrig *r);
