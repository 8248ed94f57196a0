/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ceilings: the least that the work of a transfer takes on this machine, without an agent. drayctl bench
 * --ceiling and the tools of tests/bench measure dray beside them. This is what all of them work on: a list of
 * operations, used in a circle, between two memories.
 *
 * Errors: 0 or a negated errno. Everything here blocks.
 */
#ifndef DRAY_CTL_CEILING_COPY_H
#define DRAY_CTL_CEILING_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "client/dray.h"

/* Borrowed. The offsets of an operation count from these two addresses; 0: they are addresses themselves. */
struct ceiling_work {
	const struct dray_op *ops;
	size_t n; /* at least 1 */
	uintptr_t local, remote;
};

static inline void *ceiling_local(const struct ceiling_work *w, const struct dray_op *op)
{
	return (void *)(w->local + op->local);
}

static inline void *ceiling_remote(const struct ceiling_work *w, const struct dray_op *op)
{
	return (void *)(w->remote + op->remote);
}

/*
 * memcpy of `count` operations in order, the first of them ops[*at]; *at is moved on. Returns the bytes. For
 * several threads: a work and a place of its own each.
 */
uint64_t ceiling_copy(const struct ceiling_work *w, enum dray_direction direction, size_t *at,
		      uint64_t count);

#endif
