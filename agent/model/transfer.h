/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a transfer, and the states and phases of a transfer. */
#ifndef DRAY_AGENT_MODEL_TRANSFER_H
#define DRAY_AGENT_MODEL_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "schema/gen/data.h"

/* Operations and notification lie in memory that the client can change, so they are read once. */
struct xfer_request {
	struct dmsg_transfer_spec spec;
	uint64_t request_id;
	const uint8_t *ops; /* in wire form */
	const uint8_t *notify;
	uint32_t n_ops, notify_length;
	bool from_ring;
	bool ops_ours; /* no client can change `ops` */
};

enum xfer_state {
	XFER_WAITING,   /* for its wait word */
	XFER_RUNNING,   /* sends slices */
	XFER_STOPPING,  /* failed or cancelled; waits for slices in flight */
	XFER_NOTIFYING, /* all bytes are in place; waits for the answer to its notification */
	XFER_STATE_N
};

/* In this order; a transfer may end in any phase. */
enum xfer_phase {
	XFER_PHASE_WAIT,   /* for its wait word */
	XFER_PHASE_QUEUE,  /* for its first slice */
	XFER_PHASE_MOVE,   /* until all bytes are in place, or no slice is in flight any more */
	XFER_PHASE_NOTIFY, /* for the answer to its notification */
	XFER_PHASE_N
};

#endif
