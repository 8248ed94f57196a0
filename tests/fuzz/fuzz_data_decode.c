/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of the data protocol: one whole message; and of the token in it. */
#include <stdlib.h>
#include <string.h>

#include "agent/control/region/region.h"

#include "lib/err.h"
#include "schema/gen/data.h"
#include "tests/fuzz/schema_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void token(const uint8_t *body, size_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	char segment[PMSG_TOKEN_SEGMENT_MAX + 1];
	struct dmsg_remote_import m;
	struct pmsg_token t;

	if (dmsg_remote_import_decode(body, n, &m, &err) < 0)
		return;
	if (token_parse(m.token.p, m.token.n, &t, segment, &err) < 0 ?
		    !err.code :
		    strlen(segment) > PMSG_TOKEN_SEGMENT_MAX)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;

	if (dmsg_header_decode(data, size, &h, &err) < 0) {
		if (!err.code)
			abort();
		return 0;
	}
	/* a packet of a socket must have the length that its header says; a body of any length is decoded below */
	if (dmsg_packet_check(&h, size, &err) < 0 && !err.code)
		abort();
	if (dmsg_header_id(data, size) != h.request_id)
		abort();
	if (h.type == DMSG_REMOTE_IMPORT)
		token(data + DMSG_HEADER_SIZE, size - DMSG_HEADER_SIZE);
	fuzz_body(VECTOR_DATA, h.type, data + DMSG_HEADER_SIZE, size - DMSG_HEADER_SIZE);
	return 0;
}
