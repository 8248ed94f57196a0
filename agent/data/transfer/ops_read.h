/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of operations in wire form, copied and looked at in one pass: thousands of operations a transfer are mostly this.
 * Worker thread only.
 */
#ifndef DRAY_AGENT_DATA_TRANSFER_OPS_READ_H
#define DRAY_AGENT_DATA_TRANSFER_OPS_READ_H

#include "agent/data/transfer/core.h"

/* Operations that are looked at together; more would not stay near. */
#define OPS_READ_MAX 1024u

/* What operations keep to, and where the one before them ended. */
struct ops_bounds {
	uint64_t local_length, remote_length;
	uint64_t local_end, remote_end;
};

struct ops_seen {
	uint64_t bytes, longest;
};

/* How many of n operations ops_read() takes; 0: they are too few, or this processor gains nothing by it. */
uint32_t ops_read_many(uint32_t n);

/*
 * Copies n operations (what ops_read_many() said, at most OPS_READ_MAX) from `wire`, which others may be writing to, to
 * `ops`; each is read once. 1: every copy is not empty, inside of both sides, and does not continue the one before; *ret
 * says what they add up to. 0: they are copied and must be looked at one by one; there need be nothing wrong. -EFAULT:
 * the memory is not there.
 */
int ops_read(struct xfer_op *ops, const uint8_t *wire, uint32_t n, const struct ops_bounds *b,
	     struct ops_seen *ret);

#endif
