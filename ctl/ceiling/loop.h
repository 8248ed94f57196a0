/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that a copy over TCP takes: this process sends pieces of its memory over loopback, and a child receives them
 * in place, in memory that both share. There are no requests, answers, checks or frames, except for a count before each
 * round and a byte after it. Batch k of the list uses stream k modulo their number. Each stream has a thread on both sides.
 *
 * The child dies with this process. The process must have no other thread when it opens a loop.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "ctl/ceiling/copy.h"

#define CEILING_LOOP_STREAMS_MAX 8u
#define CEILING_LOOP_BATCH_MAX 1024u /* IOV_MAX */

struct ceiling_loop;

struct ceiling_loop_stream {
	struct ceiling_loop *loop;
	int sock;
	int error;
	size_t op;        /* first operation of the next batch */
	uint64_t batches; /* of this round that have not begun */
};

struct ceiling_loop {
	struct ceiling_work work;
	bool local;       /* sends the local memory of the operations, else the remote one */
	unsigned streams; /* 1 to CEILING_LOOP_STREAMS_MAX */
	unsigned batch;   /* operations for each call, 1 to CEILING_LOOP_BATCH_MAX */
	pid_t child;      /* 0: none */
	struct ceiling_loop_stream v[CEILING_LOOP_STREAMS_MAX];
};

/* Opens a loop of which the first four members are set. */
int ceiling_loop_open(struct ceiling_loop *l);
/* Accepts a loop that is partly open or closed, or all zero. */
void ceiling_loop_close(struct ceiling_loop *l);

/*
 * Sends a round of at least this many operations, with the same number of batches on each stream, and returns when all
 * have arrived. -EPIPE: the child has ended.
 */
int ceiling_loop_send(struct ceiling_loop *l, uint64_t operations, uint64_t *ret_bytes);
