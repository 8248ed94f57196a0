/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/message.h"

#include <stdlib.h>

#include "lib/cleanup.h"

struct packet *packet_new(uint32_t capacity, unsigned n_fds)
{
	size_t fds_at = (capacity + sizeof(int) - 1) / sizeof(int) * sizeof(int);
	struct packet *p = calloc(1, sizeof(*p) + fds_at + n_fds * sizeof(int));

	if (!p)
		return NULL;
	p->length = capacity;
	p->n_fds = (uint16_t)n_fds;
	p->fds = (void *)(p->data + fds_at);
	for (unsigned i = 0; i < n_fds; i++)
		p->fds[i] = -1;
	return p;
}

struct packet *packet_new_error(uint64_t request_id, uint32_t code, const char *message)
{
	const uint32_t room = DMSG_HEADER_SIZE + DMSG_ERROR_BODY_MAX;
	struct dmsg_error m = { code, { message, (uint32_t)strlen(message) } };
	struct packet *p = packet_new(room, 0);
	int n = p ? dmsg_error_encode(p->data, room, request_id, &m) : -1;

	if (n > 0)
		p->length = (uint32_t)n;
	else
		packet_free(dray_take(p));
	return p;
}

void packet_free(struct packet *p)
{
	for (unsigned i = 0; p && i < p->n_fds; i++)
		dray_close(p->fds[i]);
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
