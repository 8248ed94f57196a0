/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte queues of a control connection: input to be divided into messages, and pending output. They grow as
 * needed and shrink when they are empty, because a connection mostly carries heartbeats.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/peer.h"

struct msgbuf {
	uint8_t *p;
	size_t start, end, cap; /* queued bytes: [start, end) */
};

#define MSGBUF_NULL ((struct msgbuf){ NULL, 0, 0, 0 })

static inline size_t msgbuf_size(const struct msgbuf *b)
{
	return b->end - b->start;
}

void msgbuf_deinit(struct msgbuf *b);

/* Room for at least n bytes after the end, or NULL (no memory). *ret_room: bytes available. */
uint8_t *msgbuf_room(struct msgbuf *b, size_t n, size_t *ret_room);
void msgbuf_added(struct msgbuf *b, size_t n);
/* Appends n bytes. 0 or -ENOMEM. */
int msgbuf_append(struct msgbuf *b, const void *p, size_t n);
void msgbuf_taken(struct msgbuf *b, size_t n);

/*
 * Finds the next whole message. 1: the body lies in the buffer until the next call that changes it. 0: at least
 * *ret_need more bytes are needed. -EPROTO: the input is no message, or one of more than max bytes.
 */
int msgbuf_next(struct msgbuf *b, size_t max, struct pmsg_header *ret_header,
		const uint8_t **ret_body, size_t *ret_need, struct dray_err *reterr);
