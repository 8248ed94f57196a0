/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TRANSFER_CANCEL: of a transfer, and of a PUT, GET or EXISTS that asks other agents (store_pending.c). It may still lie in its
 * session's ring. Then the cancellation waits there as a mark: it takes effect when the entry is taken, and ends with not_found when
 * all entries that were submitted before it are taken.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/worker/internal.h"

struct cancel {
	struct dray_list link;
	struct dray_map_node of; /* in session->cancels_of */
	uint64_t request;        /* that it cancels */
	uint64_t id;             /* its own */
	uint32_t tail;           /* of the ring when it came */
};

static void mark(struct wsession *s, struct xfer *x, uint64_t id)
{
	x->cancel_request = id;
	xfer_stop_request(&s->worker->core, x, DRAY_E_CANCELLED, NULL);
}

static int not_found(uint64_t request, struct dray_err *reterr)
{
	return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND, "no transfer %llu is in flight",
			    (unsigned long long)request);
}

static struct cancel *find(const struct wsession *s, uint64_t request)
{
	return dray_map_entry(dray_map_find(&s->cancels_of, &request, sizeof(request)),
			      struct cancel, of);
}

static void cancel_free(struct wsession *s, struct cancel *c)
{
	dray_list_del(&c->link);
	dray_map_del(&s->cancels_of, &c->of);
	s->n_cancels--;
	free(c);
}

static int wait_for_entry(struct wsession *s, uint64_t request, uint64_t id, uint32_t tail,
			  struct dray_err *reterr)
{
	struct cancel *c;

	if (s->n_cancels >= s->xs.shared->requests_max)
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "%u cancellations wait for entries of the ring "
				    "(limits.requests_per_session)",
				    s->n_cancels);
	c = malloc(sizeof(*c));
	if (!c)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory to cancel transfer %llu",
				    (unsigned long long)request);
	if (request_take_id(s, id, reterr) < 0) {
		free(c);
		return -EEXIST;
	}
	*c = (struct cancel){ .request = request, .id = id, .tail = tail };
	dray_list_add(&s->cancels, &c->link);
	dray_map_add(&s->cancels_of, &c->of, &c->request, sizeof(c->request));
	s->n_cancels++;
	return 0;
}

void cancel_request(struct wsession *s, const struct dmsg_header *h, const uint8_t *body,
		    struct dray_err *err)
{
	struct dmsg_transfer_cancel m;
	struct xfer *x;
	uint32_t tail;

	if (dmsg_transfer_cancel_decode(body, h->length, &m, err) < 0)
		return;
	x = xfer_find(&s->xs, m.request);
	if (x ? x->cancel_request != 0 : find(s, m.request) != NULL) {
		dray_err_set(err, -EEXIST, DRAY_E_EXISTS,
			     "transfer %llu is being cancelled already",
			     (unsigned long long)m.request);
		return;
	}
	if (!x && fetch_asks(s, m.request)) {
		if (request_take_id(s, h->request_id, err) < 0)
			return;
		fetch_cancel(s, m.request);
		if (!s->dead)
			wsession_cancelled(s, h->request_id);
	} else if (!x && ring_unread(s, &tail))
		wait_for_entry(s, m.request, h->request_id, tail, err);
	else if (!x)
		not_found(m.request, err);
	else if (request_take_id(s, h->request_id, err) == 0)
		mark(s, x, h->request_id);
}

static void answer_not_found(struct wsession *s, struct cancel *c)
{
	struct dray_err err = DRAY_ERR_NULL;

	not_found(c->request, &err);
	idset_del(&s->ids, c->id);
	wsession_reply_error(s, c->id, &err);
	cancel_free(s, c);
}

void cancels_taken(struct wsession *s, uint64_t request)
{
	struct cancel *c = find(s, request);
	struct xfer *x = c ? xfer_find(&s->xs, request) : NULL;
	uint64_t id = c ? c->id : 0;

	if (x && !x->cancel_request) {
		cancel_free(s, c);
		mark(s, x, id);
	} else if (c && !x && fetch_asks(s, request)) {
		cancel_free(s, c);
		fetch_cancel(s, request);
		if (!s->dead)
			wsession_cancelled(s, id);
	}
	while ((c = dray_list_first(&s->cancels, struct cancel, link)) &&
	       (int32_t)(s->ring->sq_head - c->tail) >= 0)
		answer_not_found(s, c);
}

void cancels_deinit(struct wsession *s)
{
	dray_list_for_each(&s->cancels, c, struct cancel, link)
		cancel_free(s, c);
	dray_map_deinit(&s->cancels_of);
}
