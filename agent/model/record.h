/* SPDX-License-Identifier: Apache-2.0 */
/* What became of the last transfers of one worker. Worker thread only; nothing is allocated after the start. */
#ifndef DRAY_AGENT_MODEL_RECORD_H
#define DRAY_AGENT_MODEL_RECORD_H

#include "agent/data/transfer/core.h"

#define RECORDS_MAX 1000

struct transfer_record {
	dray_handle session;
	dray_handle peer; /* 0: between sessions of this agent */
	uint64_t request;
	uint64_t rails; /* transport rdma: those it used */
	uint64_t bytes, bytes_done;
	uint32_t operations; /* after merging */
	uint32_t slices;     /* handed out, and */
	uint32_t resent;     /* of these, those sent before on a stream or queue pair that died */
	uint32_t code;       /* how it ended */
	uint8_t direction, class, transport, gpu_path;
	int64_t ended_ns;               /* CLOCK_MONOTONIC */
	int64_t phase_ns[XFER_PHASE_N]; /* spent in each */
};

struct records {
	uint64_t n; /* ever; the last RECORDS_MAX of them are there */
	struct transfer_record v[RECORDS_MAX];
};

/* Fills *ret with what the transfer, which ends now, was. */
void record_make(struct transfer_record *ret, const struct core *c, const struct xfer *x,
		 int64_t now_ns);
void records_add(struct records *r, const struct transfer_record *record);

/* Copies the newest, oldest of them first, at most max. Returns how many. */
uint32_t records_copy(const struct records *r, struct transfer_record *to, uint32_t max);

/* From its acceptance to its end. */
int64_t record_duration(const struct transfer_record *r);

#endif
