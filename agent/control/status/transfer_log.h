/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines about slow (transfer.slow) or all (log.transfers) ended transfers. Control thread only. */
#pragma once

#include "agent/model/message.h"

void report_log(const struct report *r);

/* The numbers whose bits are set, such as "0,2", cut at the end of buf. Returns buf. */
const char *numbers_text(uint64_t set, char *buf, size_t n);
