/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ceiling is the least time that the work of a transfer takes on this machine, without an agent. drayctl bench
 * --ceiling and the tools of tests/bench compare dray with ceilings. All of them work on a list of operations between two
 * memories, which starts again at its end.
 *
 * Functions return 0 or a negated errno, and block.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
static inline uint64_t ceiling_copy(const struct ceiling_work *w, enum dray_direction direction,
				    size_t *at, uint64_t count)
{
	uint64_t bytes = 0;
	size_t i = *at;

	for (; count; count--) {
		const struct dray_op *op = &w->ops[i];

		if (direction == DRAY_DIRECTION_READ)
			memcpy(ceiling_local(w, op), ceiling_remote(w, op), op->length);
		else
			memcpy(ceiling_remote(w, op), ceiling_local(w, op), op->length);
		bytes += op->length;
		i = i + 1 == w->n ? 0 : i + 1;
	}
	*at = i;
	return bytes;
}
