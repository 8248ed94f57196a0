/* SPDX-License-Identifier: Apache-2.0 */
/* Record of an ended transfer. */
#ifndef DRAY_AGENT_MODEL_RECORD_H
#define DRAY_AGENT_MODEL_RECORD_H

#include "agent/model/transfer.h"
#include "lib/handle.h"

/* Records that a worker keeps. */
#define RECORDS_MAX 1000

struct transfer_record {
	dray_handle session;
	dray_handle peer; /* 0: between sessions of this agent */
	uint64_t request;
	uint64_t rails; /* transport rdma: the rails it used */
	uint64_t bytes, bytes_done;
	uint32_t operations; /* after merging */
	uint32_t slices;     /* sent, including resent ones */
	uint32_t resent;     /* sent again after their stream or queue pair had failed */
	uint32_t code;       /* status */
	uint8_t direction, class, transport, gpu_path;
	int64_t ended_ns;               /* CLOCK_MONOTONIC */
	int64_t phase_ns[XFER_PHASE_N]; /* time spent in each phase */
};

/* From acceptance to end. */
static inline int64_t record_duration(const struct transfer_record *r)
{
	int64_t sum = 0;

	for (unsigned i = 0; i < XFER_PHASE_N; i++)
		sum += r->phase_ns[i];
	return sum;
}

#endif
