/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/mooncake/wire.h"

#include <errno.h>
#include <string.h>

#include "lib/wire.h"

#define OPERATION_AT 16 /* the bytes behind it are padding, which senders do not set */
#define OPERATION_WRITE 1
#define WITH_STATUS 0x80
/* "MCTV" in the upper half of a status. */
#define STATUS_MAGIC ((uint64_t)0x4d435456 << 32)

int mooncake_request_get(const uint8_t p[static MOONCAKE_REQUEST_BYTES],
			 struct mooncake_request *ret)
{
	uint8_t operation = p[OPERATION_AT] & (uint8_t)~WITH_STATUS;

	if (operation > OPERATION_WRITE)
		return -EPROTO;
	*ret = (struct mooncake_request){
		.length = dray_le_get64(p),
		.address = dray_le_get64(p + 8),
		.write = operation == OPERATION_WRITE,
		.with_status = p[OPERATION_AT] & WITH_STATUS,
	};
	return 0;
}

void mooncake_request_put(uint8_t p[static MOONCAKE_REQUEST_BYTES],
			  const struct mooncake_request *rq)
{
	memset(p, 0, MOONCAKE_REQUEST_BYTES);
	dray_le_put64(p, rq->length);
	dray_le_put64(p + 8, rq->address);
	p[OPERATION_AT] =
		(uint8_t)((rq->write ? OPERATION_WRITE : 0) | (rq->with_status ? WITH_STATUS : 0));
}

int mooncake_status_get(const uint8_t p[static MOONCAKE_STATUS_BYTES], enum mooncake_status *ret)
{
	uint64_t v = dray_le_get64(p);

	if (v >> 32 != STATUS_MAGIC >> 32)
		return -EPROTO;
	*ret = v == STATUS_MAGIC ? MOONCAKE_STATUS_OK : MOONCAKE_STATUS_REFUSED;
	return 0;
}

void mooncake_status_put(uint8_t p[static MOONCAKE_STATUS_BYTES], enum mooncake_status status)
{
	dray_le_put64(p, STATUS_MAGIC | status);
}
