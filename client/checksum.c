/* SPDX-License-Identifier: Apache-2.0 */
#include "client/dray.h"
#include "lib/crc32c.h"

uint32_t dray_checksum(uint32_t before, const void *data, size_t length)
{
	return dray_crc32c(before, data, length);
}
