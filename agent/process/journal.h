/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to the journal with their fields (sd_journal_sendv(3)). */
#pragma once

#include "lib/log.h"

/*
 * A dray_log_journal. Fields: MESSAGE, PRIORITY, DRAY_AREA, and DRAY_KEY for each key=value word. False where this
 * process does not reach the journal's socket, as in a container whose stderr leads to the journal.
 */
bool journal_send(int priority, const char *area, const char *line, size_t n,
		  const struct dray_log_field *fields, unsigned n_fields);
