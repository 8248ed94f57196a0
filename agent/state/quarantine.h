/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_AGENT_STATE_QUARANTINE_H
#define DRAY_AGENT_STATE_QUARANTINE_H

#include <stddef.h>

#include "lib/err.h"

#define QUARANTINE_NAME_BYTES 96

/*
 * Renames dir/name, and what sqlite3 keeps beside it, to name.SORT-TIME, and removes all but the three youngest of
 * that sort. sort: "corrupt", "newer-3"; what stands before a dash in it is the sort. Blocks. 0 with the new name,
 * or -errno with reterr: then all is where it was.
 */
int quarantine_file(const char *dir, const char *name, const char *sort,
		    char ret_name[QUARANTINE_NAME_BYTES], struct dray_err *reterr);

#endif
