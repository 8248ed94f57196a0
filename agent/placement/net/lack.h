/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that say that this process or host has no descriptors or no memory: they tell nothing of the other end. */
#pragma once

#include "lib/err.h"
#include "lib/fds.h"
#include "schema/gen/errors.h"

static inline bool net_is_lack(int code)
{
	return code == DRAY_E_NO_FDS || code == DRAY_E_NO_MEMORY;
}

/* error: -errno of a call that made or used a socket. */
static inline int net_error_code(int error)
{
	if (dray_lacks_fds(error))
		return DRAY_E_NO_FDS;
	return dray_is_own_lack(error) ? DRAY_E_NO_MEMORY : DRAY_E_PEER_UNREACHABLE;
}
