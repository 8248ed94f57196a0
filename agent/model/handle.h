/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors for handles that clients send. A table finds no handle of another kind, so the kind is looked at only after a handle
 * was not found.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/err.h"
#include "lib/handle.h"
#include "schema/gen/data.h"

/* Writes "0x... is a remote, not a region" if the handle is of another kind than expected. False: it is not. */
bool handle_kind_differs(dray_handle h, enum dmsg_handle_kind expected, char *buf, size_t size);

/*
 * For a handle that was not found: `invalid` if it is of another kind, else `not_found` with the text "no KIND HANDLE where".
 * Returns -errno.
 */
int handle_refuse(struct dray_err *reterr, dray_handle h, enum dmsg_handle_kind expected,
		  const char *where);
