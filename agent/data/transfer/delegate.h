/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices that another worker of this agent receives. A worker gives slices of a large READ to helpers, which have streams of their own to
 * the same peer. A helper gives each one back exactly once, with the code that it ended with. Until then the slice names no transfer, and
 * the helper looks at nothing else of the worker's.
 *
 * The worker may recall a slice at any time. From then on the helper touches none of the slice's memory here, whatever still comes for
 * it, and the transfer does not wait for the slice. Therefore a helper holds the slice while it uses that memory, for one system call,
 * one copy or one checksum, and a recall waits for that.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/data/transfer/core.h"

/* Control thread, before the workers start. 0 or -errno. */
int delegates_new(struct delegates **ret, unsigned n_workers);
/* counters: the worker's; borrowed. */
void delegates_join(struct delegates *d, unsigned worker, const struct data_counters *counters);
/* After all workers have ended. Returns NULL. */
struct delegates *delegates_free(struct delegates *d);

/* The worker has no transfers of its own sessions, and was asked for none lately. */
bool delegate_is_free(const struct core *c, unsigned worker);
/* Bytes of the slices that the worker has of all others. */
uint64_t delegate_bytes(const struct core *c, unsigned worker);

/* Gives a slice of a READ to a helper, which receives it into host memory: its places, or its staging buffer. */
void delegate_give(struct core *c, unsigned helper, struct slice *s);
/* The helper has not looked at the slice yet. */
bool delegate_is_waiting(const struct slice *s);
/* The helper has not looked at the slice, and does not any more: the caller may send it. False: it has. */
bool delegate_take_back(struct slice *s);
/* The slice's memory is not touched any more. Waits while the helper holds the slice, which comes back all the same. */
void delegate_recall(struct slice *s);
/* A slice that has come back. It names its transfer again, or none if it was recalled. NULL: there is none. */
struct slice *delegate_returned(struct core *c);

/* What a helper says of a slice that it has not received, and that another stream is to ask for. */
#define DELEGATE_AGAIN UINT32_MAX

/* The helper: a slice that was given to it, with an id of this worker. NULL: there is none. */
struct slice *delegate_take(struct core *c);
/* True until delegate_release(): the helper may use the slice's memory. */
bool delegate_hold(struct slice *s);
void delegate_release(struct slice *s);
/* code 0: all bytes are in place. */
void delegate_return(struct core *c, struct slice *s, uint32_t code, const char *detail);

/* The slice is at a helper. */
static inline bool slice_is_delegated(const struct slice *s)
{
	/* relaxed: a slice that only this worker has is not given meanwhile */
	return atomic_load_explicit(&s->delegated.state, memory_order_relaxed) != DELEGATED_NOT;
}

/* Slices wait for this worker, given or returned. A worker that looks before it sleeps misses none: others wake it for those that come later. */
bool delegates_wait(const struct core *c);
