/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data streams that one peer has connected to us: which worker serves each, and which ids it has used
 * up. An id serves once for each control connection: a recorded hello that somebody plays again, or
 * one that arrives after its stream was reset, must not bring the stream back to life.
 *
 * An id is {worker of the peer:32, counter:32}. Used counters are kept for each such worker as a
 * window of the WINDOW highest; whatever lies below the window counts as used.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_STREAM_TABLE_H
#define DRAY_AGENT_CONTROL_PEER_STREAM_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define STREAM_WINDOW 256
#define STREAM_WINDOWS_MAX 64
#define STREAM_TABLE_MAX 1024 /* streams of one peer */

struct stream_entry {
	uint64_t id;
	uint64_t reset_request; /* request that waits for its end */
	unsigned worker;        /* ours */
	bool resetting;
};

struct stream_window {
	uint32_t worker, high;
	uint64_t used[STREAM_WINDOW / 64]; /* bit i: high - i */
};

struct stream_table {
	struct stream_entry *entries;
	uint32_t n, cap;
	struct stream_window *windows;
	uint32_t n_windows;
};

#define STREAM_TABLE_NULL ((struct stream_table){ 0 })

void stream_table_deinit(struct stream_table *t);

/* Marks the id as used. 0, -EEXIST: it was, -ENOSPC: too many workers, -ENOMEM. */
int stream_table_use(struct stream_table *t, uint64_t id);

/* Adds a stream whose id has just been used. 0, -ENOSPC, -ENOMEM. */
int stream_table_add(struct stream_table *t, uint64_t id, unsigned worker);

/* NULL if there is none; valid until the table changes. */
struct stream_entry *stream_table_find(struct stream_table *t, uint64_t id);
void stream_table_del(struct stream_table *t, struct stream_entry *e);

#endif
