/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte queues of a control connection: input that is cut into messages, output that waits for the
 * socket. Both grow to what is needed up to a limit and shrink again, since most of the time a
 * connection carries a heartbeat.
 */
#ifndef DRAY_AGENT_CONTROL_PEER_MSGBUF_H
#define DRAY_AGENT_CONTROL_PEER_MSGBUF_H

#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/peer.h"

struct msgbuf {
	uint8_t *p;
	size_t start, end, cap; /* bytes waiting: [start, end) */
};

#define MSGBUF_NULL ((struct msgbuf){ NULL, 0, 0, 0 })

static inline size_t msgbuf_size(const struct msgbuf *b)
{
	return b->end - b->start;
}

void msgbuf_deinit(struct msgbuf *b);

/* Room for at least n bytes behind the end, or NULL (no memory). *ret_room: how much there is. */
uint8_t *msgbuf_room(struct msgbuf *b, size_t n, size_t *ret_room);
void msgbuf_added(struct msgbuf *b, size_t n);
void msgbuf_taken(struct msgbuf *b, size_t n);

/*
 * The next whole message: 1, and body lies in the buffer until the next call that changes it; 0: more
 * bytes are needed, *ret_need of them at least; -EPROTO: what comes is no message, or one of more than
 * max bytes.
 */
int msgbuf_next(struct msgbuf *b, size_t max, struct pmsg_header *ret_header,
		const uint8_t **ret_body, size_t *ret_need, struct dray_err *reterr);

#endif
