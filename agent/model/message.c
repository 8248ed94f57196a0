/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/message.h"

#include <stdlib.h>

#include "lib/cleanup.h"

struct packet *packet_new(uint32_t capacity, unsigned n_fds)
{
	struct packet *p = calloc(1, sizeof(*p) + capacity);

	if (!p)
		return NULL;
	p->length = capacity;
	if (n_fds) {
		p->fds = malloc(n_fds * sizeof(int));
		if (!p->fds) {
			free(p);
			return NULL;
		}
		for (unsigned i = 0; i < n_fds; i++)
			p->fds[i] = -1;
		p->n_fds = (uint16_t)n_fds;
	}
	return p;
}

void packet_free(struct packet *p)
{
	if (!p)
		return;
	for (unsigned i = 0; i < p->n_fds; i++)
		dray_close(p->fds[i]);
	free(p->fds);
	free(p);
}

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
