/* SPDX-License-Identifier: Apache-2.0 */
/* Files with a key or a password. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/err.h"

/*
 * Reads up to cap bytes of the file, which the configuration names by `setting`; what: "a key", for messages. Refuses a file that other
 * users may read, that its group may write, or may read unless it belongs to root, or that belongs to neither root nor this user.
 * ret_readers: of a file of root, the group that may read it, or 0. 0, or -errno with reterr.
 */
int secret_file_read(const char *setting, const char *path, const char *what, uint8_t *buf,
		     size_t cap, size_t *ret_n, gid_t *ret_readers, struct dray_err *reterr);
