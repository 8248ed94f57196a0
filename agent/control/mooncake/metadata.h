/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of the metadata server (mooncake.metadata), in which engines with Mooncake tell each other their segments. Whoever reaches the
 * server can change all of them.
 */
#pragma once

#include "agent/placement/net/http_client.h"
#include "schema/gen/config.h"

/* A segment is useless without the address, so that it is told afterwards, and removed before. */
enum metadata_key {
	METADATA_ADDRESS, /* of the engine's handshake; for TCP its host is that of the data connections */
	METADATA_SEGMENT, /* the descriptor */
	METADATA_KEY_N,
};

/*
 * The request for a key of the segment: a GET, until the caller sets another method. fn and arg are the caller's to set. 0, or -EINVAL
 * with reterr: the name is too long.
 */
int metadata_request(const struct dray_config *cfg, enum metadata_key key, const char *segment,
		     struct http_request *ret, struct dray_err *reterr);

/* What to tell about an answer whose status is none that a metadata server gives then. */
struct dray_err metadata_refusal(const struct dray_config *cfg, const struct http_answer *answer);
