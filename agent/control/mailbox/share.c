/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mailbox/share.h"

#include <stdlib.h>

#include "lib/assert.h"

void shares_init(struct shares *s)
{
	dray_map_init(&s->by_key);
}

void shares_deinit(struct shares *s)
{
	dray_assert(!s->by_key.n);
	dray_map_deinit(&s->by_key);
}

static struct share *find(const struct shares *s, const struct share_key *key)
{
	return dray_map_entry(dray_map_find(&s->by_key, key, sizeof(*key)), struct share, node);
}

uint64_t share_held(const struct shares *s, struct share_key key)
{
	const struct share *share = find(s, &key);

	return share ? share->held : 0;
}

struct share *share_take(struct shares *s, struct share_key key, uint64_t n)
{
	struct share *share = find(s, &key);

	if (!share) {
		share = calloc(1, sizeof(*share));
		if (!share)
			return NULL;
		share->key = key;
		dray_map_add(&s->by_key, &share->node, &share->key, sizeof(share->key));
	}
	share->held += n;
	return share;
}

void share_put(struct shares *s, struct share *share, uint64_t n)
{
	if (!share)
		return;
	share->held -= n;
	if (share->held)
		return;
	dray_map_del(&s->by_key, &share->node);
	free(share);
}
