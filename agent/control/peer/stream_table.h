/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data streams that one peer has connected to us: the worker that serves each, and the ids that are used up. An id is
 * valid once for each control connection: a replayed hello, or a hello that arrives after the reset of its stream, must
 * not open the stream again.
 *
 * An id is {worker of the peer:32, counter:32}. The used counters of each such worker are stored as a window of the
 * WINDOW highest; every counter below the window counts as used.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STREAM_WINDOW 256
#define STREAM_WINDOWS_MAX 64
#define STREAM_TABLE_MAX 1024 /* streams of one peer */

struct stream_entry {
	uint64_t id;
	uint64_t reset_request; /* id of the STREAM_RESET to answer */
	unsigned worker;        /* ours */
	bool resetting;
};

struct stream_window {
	uint32_t worker, high;
	uint64_t used[STREAM_WINDOW / 64]; /* bit of a counter: its remainder */
};

struct stream_table {
	struct stream_entry *entries;
	struct stream_window *windows;
	size_t n, n_windows;
};

#define STREAM_TABLE_NULL ((struct stream_table){ 0 })

void stream_table_deinit(struct stream_table *t);

/* Marks the id as used. 0, -EEXIST: it was used already, -ENOSPC: too many workers, or no memory. */
int stream_table_use(struct stream_table *t, uint64_t id);

/* Adds a stream whose id was just marked as used. 0, -ENOSPC, -ENOMEM. */
int stream_table_add(struct stream_table *t, uint64_t id, unsigned worker);

/* NULL if there is none; valid until the table changes. */
struct stream_entry *stream_table_find(struct stream_table *t, uint64_t id);
void stream_table_del(struct stream_table *t, struct stream_entry *e);
