/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/frame.h"

#include <errno.h>

#include "lib/wire.h"

int mooncake_frame_get(const uint8_t p[static MOONCAKE_FRAME_HEAD], struct mooncake_frame *ret)
{
	uint64_t length = dray_le_get64(p);

	/* the length counts the type byte */
	if (!length || length > MOONCAKE_FRAME_MAX || p[8] > MOONCAKE_PROBE)
		return -EPROTO;
	*ret = (struct mooncake_frame){ (enum mooncake_frame_type)p[8], length - 1 };
	return 0;
}

void mooncake_frame_put(uint8_t p[static MOONCAKE_FRAME_HEAD], const struct mooncake_frame *f)
{
	dray_le_put64(p, f->body + 1);
	p[8] = (uint8_t)f->type;
}
