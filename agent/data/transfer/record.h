/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the last transfers of one worker. Worker thread only; nothing is allocated after the start. */
#ifndef DRAY_AGENT_DATA_TRANSFER_RECORD_H
#define DRAY_AGENT_DATA_TRANSFER_RECORD_H

#include "agent/data/transfer/core.h"
#include "agent/model/record.h"

/* The transfer enters that phase now. */
void xfer_enter(struct xfer *x, enum xfer_phase phase, int64_t now_ns);

struct records {
	uint64_t n; /* since the start; v holds the last RECORDS_MAX */
	struct transfer_record v[RECORDS_MAX];
};

/* Describes the transfer, which ends now. */
void record_make(struct transfer_record *ret, const struct core *c, const struct xfer *x,
		 int64_t now_ns);
void records_add(struct records *r, const struct transfer_record *record);

/* Copies the newest records, at most max, in order of their end. Returns how many. */
uint32_t records_copy(const struct records *r, struct transfer_record *to, uint32_t max);

#endif
