/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of the peer protocol: one whole message. */
#include <stdlib.h>

#include "lib/err.h"
#include "schema/gen/peer.h"
#include "tests/fuzz/schema_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_header h;

	if (pmsg_header_decode(data, size, &h, &err) < 0) {
		if (!err.code)
			abort();
		return 0;
	}
	fuzz_body(VECTOR_PEER, h.type, data + PMSG_HEADER_SIZE, size - PMSG_HEADER_SIZE);
	return 0;
}
