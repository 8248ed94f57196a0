/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the description that an engine with Mooncake gives of its segment. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "agent/model/mooncake_buffers.h"
#include "lib/addr.h"
#include "lib/err.h"

struct mooncake_descriptor {
	char host[DRAY_HOST_BYTES]; /* of its data connections, without brackets */
	unsigned port;
	bool with_status;
	struct mooncake_buffers *buffers; /* allocated */
};

/* JSON of n bytes. 0, or -errno with reterr, a sentence about the engine. */
int mooncake_descriptor_read(const char *text, size_t n, struct mooncake_descriptor *ret,
			     struct dray_err *reterr);
