/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "agent/model/message.h"

struct snapshot *snapshot_new(void *owner, bool ended, uint32_t cap)
{
	size_t item = ended ? sizeof(struct transfer_record) : sizeof(struct transfer_info);
	struct snapshot *s = calloc(1, sizeof(*s) + cap * item);

	if (!s)
		return NULL;
	s->owner = owner;
	s->cap = cap;
	if (ended)
		s->records = (void *)(s + 1);
	else
		s->transfers = (void *)(s + 1);
	return s;
}
