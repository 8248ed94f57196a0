/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/mooncake/exports.h"

#include <stdlib.h>
#include <string.h>

#include "lib/ballast.h"
#include "lib/cleanup.h"

#define CAP_MIN 16u

void mooncake_exports_deinit(struct mooncake_exports *e)
{
	free(e->v);
	*e = (struct mooncake_exports){ .v = NULL };
}

/* Index of the first buffer above the address. */
static uint32_t above(const struct mooncake_exports *e, uint64_t address)
{
	uint32_t low = 0, high = e->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (e->v[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void mooncake_exports_add(struct mooncake_exports *e, const struct grant_view *grant)
{
	uint32_t at = above(e, grant->mooncake);

	if (e->n == e->cap) {
		uint32_t cap = dray_max(2 * e->cap, CAP_MIN);

		e->v = dray_array_grow_sure(e->v, e->n, cap, sizeof(*e->v));
		e->cap = cap;
	}
	memmove(&e->v[at + 1], &e->v[at], (e->n++ - at) * sizeof(*e->v));
	e->v[at] = (struct mooncake_export){ grant->mooncake, grant->o.length, grant->o.handle };
}

void mooncake_exports_del(struct mooncake_exports *e, const struct grant_view *grant)
{
	uint32_t at = above(e, grant->mooncake);

	/* another buffer may have the address already */
	if (!at || e->v[at - 1].grant != grant->o.handle)
		return;
	memmove(&e->v[at - 1], &e->v[at], (e->n-- - at) * sizeof(*e->v));
}

const struct mooncake_export *mooncake_exports_find(const struct mooncake_exports *e,
						    uint64_t address, uint64_t length)
{
	uint32_t at = above(e, address);
	const struct mooncake_export *x = at ? &e->v[at - 1] : NULL;
	uint64_t into = x ? address - x->address : 0;

	return x && into < x->length && length <= x->length - into ? x : NULL;
}
