/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/changed.h"

#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/hash.h"
#include "lib/random.h"

/* Of a filter: 128 KiB. Each key sets two. */
#define BITS (1u << 20)

/* Of the name space. The last one is of all that have none of their own. */
static unsigned index_of(const struct changed_keys *c, uint64_t space)
{
	unsigned i = 0;

	while (i < CHANGED_SPACES && c->of[i].used && c->of[i].space != space)
		i++;
	return i;
}

/* The places of the two bits. */
static void places(const struct changed_keys *c, uint64_t space, const void *key, size_t n,
		   uint32_t ret[2])
{
	uint64_t h = dray_hash(c->seed ^ space, key, n);

	ret[0] = (uint32_t)h % BITS;
	ret[1] = (uint32_t)(h >> 32) % BITS;
}

void changed_add(struct changed_keys *c, uint64_t space, const void *key, size_t n)
{
	struct changed_filter *f = &c->of[index_of(c, space)];
	uint32_t at[2];

	if (!c->seed)
		c->seed = dray_random() | 1;
	if (!f->used)
		*f = (struct changed_filter){
			.space = space,
			.used = true,
			.bits = calloc(BITS / 8, 1),
		};
	if (!f->bits)
		return;
	places(c, space, key, n, at);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(at); i++)
		f->bits[at[i] / 8] |= (uint8_t)(1 << at[i] % 8);
}

bool changed_has(const struct changed_keys *c, uint64_t space, const void *key, size_t n)
{
	const struct changed_filter *f = &c->of[index_of(c, space)];
	uint32_t at[2];

	if (!f->used || !f->bits)
		return f->used;
	places(c, space, key, n, at);
	return f->bits[at[0] / 8] >> at[0] % 8 & f->bits[at[1] / 8] >> at[1] % 8 & 1;
}

void changed_forget(struct changed_keys *c)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(c->of); i++)
		free(c->of[i].bits);
	*c = (struct changed_keys){ .seed = 0 };
}
