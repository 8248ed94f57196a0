/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer: what a client asks for, and the states and phases that it goes through. */
#ifndef DRAY_AGENT_MODEL_TRANSFER_H
#define DRAY_AGENT_MODEL_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"

/* A transfer as asked for; ops in wire form, in memory that the client may change: read once. */
struct xfer_request {
	uint64_t request_id;
	bool from_ring;
	uint16_t flags; /* DMSG_TRANSFER_FLAG_* */
	uint8_t direction, class;
	uint32_t deadline_ms;
	dray_handle local, remote;
	dray_handle wait_region, set_region;
	uint64_t wait_offset, set_offset;
	uint32_t wait_value, set_value;
	uint64_t notify_tag;
	const uint8_t *notify;
	uint32_t notify_length;
	const uint8_t *ops;
	uint32_t n_ops;
	bool ops_ours; /* they lie in memory that no client can reach */
};

enum xfer_state {
	XFER_WAITING,   /* for its wait word */
	XFER_RUNNING,   /* slices go out */
	XFER_STOPPING,  /* failed or cancelled: slices in flight come home */
	XFER_NOTIFYING, /* all bytes in place, notification under way */
	XFER_STATE_N
};

/* Where a transfer's time goes, in this order; it may end in any. */
enum xfer_phase {
	XFER_PHASE_WAIT,  /* for its wait word */
	XFER_PHASE_QUEUE, /* for its first slice */
	XFER_PHASE_MOVE, /* from there until all bytes are in place, or nothing of it moves any more */
	XFER_PHASE_NOTIFY, /* for the answer to its notification */
	XFER_PHASE_N
};

#endif
