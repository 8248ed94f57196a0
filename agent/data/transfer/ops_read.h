/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and checks lists of operations in one pass. With thousands of operations, that is most of a transfer's work in the
 * worker. Worker thread only.
 */
#pragma once

#include "agent/data/transfer/core.h"

/* Operations in one call; more would not stay in the cache. */
#define OPS_READ_MAX 1024u

/* The lengths of both sides, and where the previous operation ended. */
struct ops_bounds {
	uint64_t local_length, remote_length;
	uint64_t local_end, remote_end;
};

struct ops_seen {
	uint64_t bytes, longest;
};

/* How many of n operations ops_read() takes. 0: they are too few, or this processor has no AVX2. */
uint32_t ops_read_many(uint32_t n);

/*
 * Copies n operations (as many as ops_read_many() said, at most OPS_READ_MAX) from `wire`, which other threads may write to, to
 * `ops`. Each is read once. 1: no copy is empty, exceeds a side, or continues the previous one; *ret holds their sums. 0:
 * they are copied and must be validated one by one; they may be correct. -EFAULT: the memory is missing.
 */
int ops_read(struct xfer_op *ops, const uint8_t *wire, uint32_t n, const struct ops_bounds *b,
	     struct ops_seen *ret);
