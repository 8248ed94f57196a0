/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ceiling/copy.h"

#include <string.h>

uint64_t ceiling_copy(const struct ceiling_work *w, enum dray_direction direction, size_t *at,
		      uint64_t count)
{
	uint64_t bytes = 0;
	size_t i = *at;

	for (; count; count--) {
		const struct dray_op *op = &w->ops[i];

		if (direction == DRAY_DIRECTION_READ)
			memcpy(ceiling_local(w, op), ceiling_remote(w, op), op->length);
		else
			memcpy(ceiling_remote(w, op), ceiling_local(w, op), op->length);
		bytes += op->length;
		i = i + 1 == w->n ? 0 : i + 1;
	}
	*at = i;
	return bytes;
}
