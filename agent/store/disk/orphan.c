/* SPDX-License-Identifier: Apache-2.0 */
/* Removals that nobody waits for: of rows that nothing refers to, and of writes that failed. */
#include <stdlib.h>
#include <string.h>

#include "agent/store/disk/internal.h"

struct orphan {
	struct disk_request request;
	uint8_t key[];
};

static void orphan_done(struct disk_request *r)
{
	free(dray_container_of(r, struct orphan, request));
}

bool orphan_add(struct disk *d, const void *key, uint32_t key_bytes, uint64_t segment,
		const struct disk_object *at)
{
	struct orphan *o = calloc(1, sizeof(*o) + key_bytes);

	if (!o)
		return false;
	if (key_bytes)
		memcpy(o->key, key, key_bytes);
	o->request = (struct disk_request){
		.disk = d,
		.key = o->key,
		.key_bytes = key_bytes,
		.done = orphan_done,
		.removes = true,
		.segment = segment,
		.at = *at,
	};
	/* That of a write makes room and needs none in the index, which has no row of it. */
	dray_list_add_front(&d->removals, &o->request.link);
	return true;
}

void orphan_free_all(struct disk *d)
{
	struct disk_request *r;

	while ((r = dray_list_pop(&d->removals, struct disk_request, link)))
		if (r->done == orphan_done)
			orphan_done(r);
}
