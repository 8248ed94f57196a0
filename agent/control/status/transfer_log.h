/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines about transfers that have ended: slow ones (transfer.slow), or all (log.transfers). Control thread only. */
#ifndef DRAY_AGENT_CONTROL_STATUS_TRANSFER_LOG_H
#define DRAY_AGENT_CONTROL_STATUS_TRANSFER_LOG_H

#include "agent/model/message.h"

/* The report is consumed. */
void report_log(struct report *r);

/* "0,2": the numbers of these rails, cut where buf ends. Returns buf. */
const char *report_rails(uint64_t rails, char *buf, size_t n);

#endif
