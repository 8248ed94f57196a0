/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_AGENT_STATE_QUARANTINE_H
#define DRAY_AGENT_STATE_QUARANTINE_H

#include <stddef.h>

#include "lib/err.h"

#define QUARANTINE_NAME_BYTES 96

/*
 * Renames dir/name, and the files that sqlite3 keeps beside it, to name.SORT-TIME, and removes all but the three
 * youngest of that sort. sort: "corrupt", or "newer-3", whose sort is "newer". Blocks. 0 with the new name, or -errno
 * with reterr and all files where they were.
 */
int quarantine_file(const char *dir, const char *name, const char *sort,
		    char ret_name[QUARANTINE_NAME_BYTES], struct dray_err *reterr);

#endif
