/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ceiling is the least time that the work of a transfer takes on this machine, without an agent. drayctl bench
 * --ceiling and the tools of tests/bench compare dray with ceilings. All of them work on a list of operations between two
 * memories, which starts again at its end.
 *
 * Functions return 0 or a negated errno, and block.
 */
#ifndef DRAY_CTL_CEILING_COPY_H
#define DRAY_CTL_CEILING_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "client/dray.h"

/* The list is borrowed. The offsets of an operation are relative to these two addresses, which may be 0. */
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
 * Copies `count` operations in order by memcpy, from ops[*at] on, and advances *at. Returns the bytes. Each thread needs
 * its own *at.
 */
uint64_t ceiling_copy(const struct ceiling_work *w, enum dray_direction direction, size_t *at,
		      uint64_t count);

#endif
