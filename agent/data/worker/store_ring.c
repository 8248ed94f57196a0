/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the store that come by the ring, and the way of all answers of the store. A message in the arena is copied before anything
 * of it is looked at, and its answer is written over it: the client may change both at any time.
 */
#include <errno.h>
#include <string.h>

#include "agent/data/worker/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/* What each key or lease adds, and the head. */
_Static_assert(DMSG_STORE_PLACE_SIZE <= DMSG_STORE_ANSWER_ROOM &&
		       DMSG_STORE_RESULT_SIZE + 1 <= DMSG_STORE_ANSWER_ROOM &&
		       DMSG_HEADER_SIZE + DMSG_STORE_PUT_REPLY_BODY_MAX -
				       DMSG_STORE_KEYS_MAX * (DMSG_STORE_RESULT_SIZE + 1) <=
			       DMSG_STORE_ANSWER_ROOM,
	       "an answer fits into the room that its request must have");

static void complete(struct wsession *s, const struct store_call *q, uint32_t status,
		     uint64_t bytes)
{
	ring_complete(s,
		      &(struct dmsg_cqe){
			      .user_data = q->request_id,
			      .status = status,
			      .bytes = bytes,
			      .duration_ns = status ? 0 : dray_span(dray_now().ns - q->begin_ns) });
}

void store_answer(struct wsession *s, const struct store_call *q, uint32_t status, const uint8_t *p,
		  int n)
{
	if (s->dead)
		return;
	if (!q->from_ring) {
		wsession_send_bytes(s, p, n);
		return;
	}
	/* only an ERROR may be longer, or not be encoded: its status is enough */
	dray_assert(status || (n > 0 && (uint32_t)n <= q->room));
	if (n < 0 || (uint32_t)n > q->room)
		n = 0;
	if (n && fault_copy(s->memory->arena + q->offset, p, (size_t)n) < 0) {
		xfer_memory_fault(&s->worker->core, s->xs.handle);
		return;
	}
	complete(s, q, status, (uint64_t)n);
}

void store_answer_error(struct wsession *s, const struct store_call *q, const struct dray_err *err)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_ERROR_BODY_MAX];
	struct dmsg_error m = { .code = (uint32_t)err->code,
				.message = { err->msg, (uint32_t)strlen(err->msg) } };

	store_answer(s, q, m.code, buf, dmsg_error_encode(buf, sizeof(buf), q->request_id, &m));
}

void store_answer_packet(struct wsession *s, const struct store_call *q, struct packet *p)
{
	/* the client sees the completion before the message */
	if (q->from_ring && !s->dead)
		complete(s, q, 0, 0);
	wsession_send(s, p);
}

int store_room_check(const struct store_call *q, uint32_t n, struct dray_err *reterr)
{
	uint32_t least = (1 + n) * DMSG_STORE_ANSWER_ROOM;

	return !q->from_ring || q->room >= least ?
		       0 :
		       dray_err_set(
			       reterr, -EINVAL, DRAY_E_INVALID,
			       "the entry has room for %u bytes of answer, and %u keys take %u",
			       q->room, n, least);
}

/* Copies the message to the worker's buffer, and fills in where its answer goes. 0, or -errno with reterr. */
static int message_copy(struct wsession *s, const struct dmsg_sqe_message *e, struct store_call *q,
			struct dray_err *reterr)
{
	const uint8_t *p;

	if (e->length > DMSG_MESSAGE_MAX)
		return dray_err_set(reterr, -EMSGSIZE, DRAY_E_TOO_LARGE,
				    "a message has at most %u bytes", DMSG_MESSAGE_MAX);
	p = arena_at(s, e->offset, dray_max(e->length, e->room));
	if (!p)
		return dray_err_set(reterr, -ERANGE, DRAY_E_RANGE,
				    "the message or its answer at %llu exceed the session's arena",
				    (unsigned long long)e->offset);
	q->room = e->room;
	q->offset = e->offset;
	if (wsession_is_clogged(s))
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "the client does not read its messages");
	if (fault_copy(s->worker->buffer, p, e->length) == 0)
		return 0;
	xfer_memory_fault(&s->worker->core, s->xs.handle);
	return dray_err_set(reterr, -EFAULT, DRAY_E_REGION_FAULT,
			    "the message lies in arena pages that were removed; write it again");
}

/* The copy. 0, or -errno with reterr. */
static int message_check(const struct dmsg_sqe_message *e, const uint8_t *p,
			 struct dmsg_header *ret, struct dray_err *reterr)
{
	if (e->flags != DMSG_ENTRY_FLAG_MESSAGE)
		return dray_err_set(reterr, -EINVAL, DRAY_E_UNSUPPORTED,
				    "an entry with a message has unknown flags 0x%x", e->flags);
	if (dmsg_header_decode(p, e->length, ret, reterr) < 0 ||
	    dmsg_packet_check(ret, e->length, reterr) < 0)
		return -EINVAL;
	if (!ret->request_id || ret->request_id != e->user_data)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the message has request id %llu, and its entry %llu",
				    (unsigned long long)ret->request_id,
				    (unsigned long long)e->user_data);
	return ret->type >= DMSG_STORE_PUT && ret->type <= DMSG_STORE_RELEASE ?
		       0 :
		       dray_err_set(reterr, -EINVAL, DRAY_E_UNSUPPORTED,
				    "only requests to the store come by the ring");
}

void store_entry(struct wsession *s, const uint8_t *entry)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_sqe_message e;
	struct dmsg_header h;
	struct store_call q;

	dmsg_sqe_message_get(entry, &e);
	q = (struct store_call){ .request_id = e.user_data,
				 .from_ring = true,
				 .begin_ns = s->worker->core.now_ns };
	owner_charge(s->xs.owner, MESSAGE_WORK);
	if (message_copy(s, &e, &q, &err) == 0 &&
	    message_check(&e, s->worker->buffer, &h, &err) == 0) {
		q.type = h.type;
		store_request(s, &q, s->worker->buffer + DMSG_HEADER_SIZE, h.length, &err);
	}
	if (err.code)
		store_answer_error(s, &q, &err);
}
