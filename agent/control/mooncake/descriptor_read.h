/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what an engine with Mooncake says about its segment and its address. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "agent/model/mooncake_buffers.h"
#include "lib/addr.h"
#include "lib/err.h"

/* Bytes of a segment's name with its end. */
#define MOONCAKE_NAME_BYTES (DRAY_HOST_BYTES + 8)

struct mooncake_descriptor {
	char name[MOONCAKE_NAME_BYTES]; /* of the segment */
	char host[DRAY_HOST_BYTES]; /* of its data connections, without brackets; the reader leaves it empty */
	unsigned port;              /* of its data connections */
	bool with_status;
	struct mooncake_buffers *buffers; /* allocated */
};

/* JSON of n bytes. 0, or -errno with reterr, a sentence about the engine. */
int mooncake_descriptor_read(const char *text, size_t n, struct mooncake_descriptor *ret,
			     struct dray_err *reterr);
/* The host in the name of the segment. 0, or -errno with reterr. */
int mooncake_name_host(const char *name, char ret[static DRAY_HOST_BYTES], struct dray_err *reterr);
/* The host in what an engine tells of its address to a metadata server. 0, or -errno with reterr. */
int mooncake_address_read(const char *text, size_t n, char ret[static DRAY_HOST_BYTES],
			  struct dray_err *reterr);
