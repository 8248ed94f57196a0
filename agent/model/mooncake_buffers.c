/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/mooncake_buffers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"

int mooncake_buffers_new(struct mooncake_buffers **ret, const struct mooncake_buffer *v, uint32_t n,
			 struct dray_err *reterr)
{
	dray_auto_free uint8_t *wire = malloc((size_t)n * DMSG_RANGE_SIZE);
	struct mooncake_buffers *b = malloc(sizeof(*b) + n * sizeof(b->v[0]));
	int r = -ENOMEM;

	if (wire && b) {
		b->refs = 1;
		b->n = n;
		memcpy(b->v, v, n * sizeof(b->v[0]));
		for (uint32_t i = 0; i < n; i++)
			dmsg_range_put(wire + (size_t)i * DMSG_RANGE_SIZE,
				       &(struct dmsg_range){ .offset = v[i].start,
							     .length = v[i].end - v[i].start,
							     .count = 1 });
		r = ranges_new(&b->ranges, wire, n, UINT64_MAX, reterr);
	} else {
		dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for %u buffers", n);
	}
	if (r < 0)
		free(b);
	else
		*ret = b;
	return r;
}

bool mooncake_buffers_same(const struct mooncake_buffers *a, const struct mooncake_buffers *b)
{
	return a->n == b->n && !memcmp(a->v, b->v, a->n * sizeof(a->v[0]));
}

struct mooncake_buffers *mooncake_buffers_ref(struct mooncake_buffers *b)
{
	b->refs++;
	return b;
}

struct mooncake_buffers *mooncake_buffers_unref(struct mooncake_buffers *b)
{
	if (!b || --b->refs)
		return NULL;
	ranges_unref(b->ranges);
	free(b);
	return NULL;
}
