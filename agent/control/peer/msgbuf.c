/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/msgbuf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "schema/gen/errors.h"

/* An empty buffer larger than this is freed. */
#define KEEP_BYTES 4096

void msgbuf_deinit(struct msgbuf *b)
{
	free(b->p);
	*b = MSGBUF_NULL;
}

uint8_t *msgbuf_room(struct msgbuf *b, size_t n, size_t *ret_room)
{
	size_t size = msgbuf_size(b), cap;
	uint8_t *p;

	/* it moves no more than three times the bytes that were taken */
	if (b->cap - b->end < n && b->start && b->start >= b->cap / 4) {
		memmove(b->p, b->p + b->start, size);
		b->start = 0;
		b->end = size;
	}
	if (b->cap - b->end < n) {
		for (cap = b->cap ? b->cap : KEEP_BYTES; cap - b->end < n; cap *= 2)
			;
		p = realloc(b->p, cap);
		if (!p)
			return NULL;
		b->p = p;
		b->cap = cap;
	}
	*ret_room = b->cap - b->end;
	return b->p + b->end;
}

void msgbuf_added(struct msgbuf *b, size_t n)
{
	dray_assert(n <= b->cap - b->end);
	b->end += n;
}

int msgbuf_append(struct msgbuf *b, const void *p, size_t n)
{
	size_t room;
	uint8_t *to = msgbuf_room(b, n, &room);

	if (!to)
		return -ENOMEM;
	memcpy(to, p, n);
	msgbuf_added(b, n);
	return 0;
}

void msgbuf_taken(struct msgbuf *b, size_t n)
{
	dray_assert(n <= msgbuf_size(b));
	b->start += n;
	if (b->start == b->end) {
		b->start = b->end = 0;
		if (b->cap > KEEP_BYTES)
			msgbuf_deinit(b);
	}
}

int msgbuf_next(struct msgbuf *b, size_t max, struct pmsg_header *ret_header,
		const uint8_t **ret_body, size_t *ret_need, struct dray_err *reterr)
{
	size_t size = msgbuf_size(b);
	int r;

	if (size < PMSG_HEADER_SIZE) {
		*ret_need = PMSG_HEADER_SIZE - size;
		return 0;
	}
	r = pmsg_header_decode(b->p + b->start, size, ret_header, reterr);
	if (r < 0)
		return r;
	if (ret_header->length > max - PMSG_HEADER_SIZE)
		return dray_err_set(reterr, -EPROTO, DRAY_E_TOO_LARGE,
				    "a message of %u bytes; the limit is %zu", ret_header->length,
				    max - PMSG_HEADER_SIZE);
	if (size < PMSG_HEADER_SIZE + ret_header->length) {
		*ret_need = PMSG_HEADER_SIZE + ret_header->length - size;
		return 0;
	}
	*ret_body = b->p + b->start + PMSG_HEADER_SIZE;
	return 1;
}
