/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of clients. The worker that received them carries out transfers and their cancellation (cancel.c); every other request goes
 * to the control thread. A refused request is answered and the session goes on; a message with an invalid header
 * ends the session.
 */
#include <errno.h>
#include <string.h>

#include "agent/data/worker/internal.h"

int request_take_id(struct wsession *s, uint64_t id, struct dray_err *reterr)
{
	int ret = idset_add(&s->ids, id);

	if (ret == -ENOMEM)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "no memory for request %llu",
				    (unsigned long long)id);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_DUPLICATE_ID, "request id %llu is in use",
				    (unsigned long long)id);
	return 0;
}

void request_start(struct wsession *s, const struct xfer_request *r, struct dray_err *err)
{
	/* the id is added first, because the transfer may end inside xfer_start() */
	if (request_take_id(s, r->request_id, err) < 0)
		return;
	if (xfer_start(&s->worker->core, &s->xs, r, err) < 0)
		idset_del(&s->ids, r->request_id);
	else if (s->xs.read)
		wsession_go_on(s);
}

static void transfer(struct wsession *s, const struct dmsg_header *h, const uint8_t *body,
		     struct dray_err *err)
{
	struct xfer_request r;
	struct dmsg_transfer m;

	if (dmsg_transfer_decode(body, h->length, &m, err) < 0)
		return;
	if (s->worker->draining) {
		dray_err_set(err, -ESHUTDOWN, DRAY_E_DRAINING,
			     "the agent is draining and takes no new transfers");
		return;
	}
	r = (struct xfer_request){
		.spec = m.spec,
		.request_id = h->request_id,
		.ops = m.ops.p,
		.n_ops = m.ops.n,
		.notify = m.notify.p,
		.notify_length = m.notify.n,
	};
	if (m.flags & DMSG_TRANSFER_FLAG_ARENA) {
		if (m.ops.n) {
			dray_err_set(
				err, -EINVAL, DRAY_E_INVALID,
				"the operations are both inline and in the arena; send one of the two");
			return;
		}
		r.n_ops = m.arena_ops;
		if (r.n_ops > DMSG_OPS_MAX) {
			dray_err_set(err, -EINVAL, DRAY_E_TOO_LARGE,
				     "%u operations; 1 to %u are allowed", r.n_ops, DMSG_OPS_MAX);
			return;
		}
		r.ops = arena_at(s, m.arena_offset, (uint64_t)r.n_ops * DMSG_OP_SIZE);
		if (!r.ops) {
			dray_err_set(err, -ERANGE, DRAY_E_RANGE,
				     "%u operations at %llu exceed the session's arena", r.n_ops,
				     (unsigned long long)m.arena_offset);
			return;
		}
	}
	request_start(s, &r, err);
}

/* Passes the message and its descriptors to the control thread, which answers with COMMAND_SEND. */
static void forward(struct wsession *s, const struct dmsg_header *h, const uint8_t *p, size_t n,
		    bool fds_lost, struct dray_err *err)
{
	struct worker *w = s->worker;
	struct packet *packet;

	if (s->requests >= s->xs.shared->requests_max) {
		dray_err_set(err, -EBUSY, DRAY_E_BUSY,
			     "%u requests are pending (limits.requests_per_session)", s->requests);
		return;
	}
	packet = packet_new((uint32_t)n, w->fds.n);
	if (!packet || idset_add(&s->ids, h->request_id) < 0) {
		bool memory = !packet || !idset_has(&s->ids, h->request_id);

		packet_free(packet);
		dray_err_set(err, -EINVAL, memory ? DRAY_E_NO_MEMORY : DRAY_E_DUPLICATE_ID,
			     memory ? "no memory for request %llu" : "request id %llu is in use",
			     (unsigned long long)h->request_id);
		return;
	}
	memcpy(packet->data, p, n);
	for (unsigned i = 0; i < w->fds.n; i++)
		packet->fds[i] = w->fds.fd[i];
	w->fds.n = 0;
	packet->fds_lost = fds_lost;
	s->requests++;
	worker_event(w, &(struct event){
				.type = EVENT_REQUEST, .session = s->xs.handle, .packet = packet });
}

void request_handle(struct wsession *s, const uint8_t *p, size_t n, bool truncated, bool fds_lost)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;

	if (dmsg_header_decode(p, n, &h, &err) < 0) {
		/* the error carries the request id if the header could be read that far */
		if (n >= DMSG_HEADER_SIZE &&
		    (err.code == DRAY_E_UNSUPPORTED || err.code == DRAY_E_TOO_LARGE))
			wsession_reply_error(s, dray_le_get64(p + DMSG_HEADER_SIZE - 8), &err);
		else
			wsession_break(s, &err);
		return;
	}
	if (!h.request_id) {
		dray_err_set(&err, -EPROTO, DRAY_E_INVALID,
			     "request id 0 is reserved for events; use another");
		wsession_break(s, &err);
		return;
	}
	if (truncated) {
		dray_err_set(&err, -EMSGSIZE, DRAY_E_TOO_LARGE, "a message has at most %u bytes",
			     DMSG_MESSAGE_MAX);
	} else if (dmsg_packet_check(&h, n, &err) < 0) {
		/* the check has set the error */
	} else if (h.type == DMSG_TRANSFER || h.type == DMSG_TRANSFER_CANCEL) {
		const uint8_t *body = p + DMSG_HEADER_SIZE;

		if (s->worker->fds.n || fds_lost)
			dray_err_set(&err, -EINVAL, DRAY_E_FD_COUNT,
				     "a transfer takes no descriptors");
		else if (h.type == DMSG_TRANSFER)
			transfer(s, &h, body, &err);
		else
			cancel_request(s, &h, body, &err);
	} else if (h.type >= DMSG_STORE_PUT && h.type <= DMSG_STORE_RELEASE) {
		if (s->worker->fds.n || fds_lost)
			dray_err_set(&err, -EINVAL, DRAY_E_FD_COUNT,
				     "a request to the store takes no descriptors");
		else
			store_request(s,
				      &(struct store_call){ .request_id = h.request_id,
							    .type = h.type },
				      p + DMSG_HEADER_SIZE, h.length, &err);
	} else {
		forward(s, &h, p, n, fds_lost, &err);
	}
	if (err.code)
		wsession_reply_error(s, h.request_id, &err);
}
