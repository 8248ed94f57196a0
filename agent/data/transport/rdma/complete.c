/* SPDX-License-Identifier: Apache-2.0 */
/* Completions: polling, and waiting for events. */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/transport/rdma/rdma.h"

#define BATCH 32
/* Batches of one turn. */
#define BATCHES 8
/* Acknowledging events takes a lock, so many are acknowledged at once. */
#define UNACKED_MAX 64

void rdma_entry_release(struct core *c, struct rdma_entry *e)
{
	for (unsigned i = 0; i < 2; i++)
		e->keys[i] = rail_keys_unref(e->keys[i]);
	if (e->remote)
		object_release(c, e->remote);
	e->remote = NULL;
	if (e->staged)
		stage_put(c, e->staged);
	e->staged = NULL;
	if (e->window)
		window_put(c, e->window);
	e->window = NULL;
}

static void slice_done(struct rdma_queue *p, struct rdma_entry *e)
{
	struct core *c = p->rdma->c;
	struct slice *s = e->slice;
	bool write = s->xfer->direction == DMSG_DIRECTION_WRITE;
	const struct region_view *local = object_region(s->xfer->local);
	const struct rdma_qp *qp = &p->qp;
	/* between a buffer, which has the bytes now, and memory */
	bool copy = write ? s->window != NULL : s->staged != NULL;

	if (e->cut) {
		xfer_slice_done(c, s, s->xfer->code ? s->xfer->code : DRAY_E_CANCELLED, NULL);
		return;
	}
	core_count(c->counters,
		   write ? DRAY_METRIC_RDMA_SENT_BYTES_TOTAL :
			   DRAY_METRIC_RDMA_RECEIVED_BYTES_TOTAL,
		   s->bytes);
	if (write)
		rdma_count(qp, sent, s->bytes);
	else
		rdma_count(qp, received, s->bytes);
	rdma_count(qp, slices, 1);
	if (!write && !s->staged && local->memory == REGION_GPU)
		s->xfer->rdma_landed = true;
	if (!copy || !slice_wanted(s)) {
		xfer_slice_done(c, s, copy ? s->xfer->code : 0, NULL);
	} else if (write) {
		window_request_copy(p->ch, s);
	} else {
		slice_window_put(c, s);
		stage_channel_scatter(c, s);
	}
}

/* All entries up to the next one that asked for a completion are done. */
static void complete(struct rdma_queue *p, int64_t now_ns)
{
	struct core *c = p->rdma->c;
	bool last = false;

	if (!p->signalled)
		return;
	p->signalled--;
	p->rdma->rails[p->qp.path.rail].signalled--;
	while (!last && p->head != p->tail) {
		struct rdma_entry e = *rdma_entry_at(p, p->head++);

		last = e.signalled;
		p->used -= e.requests;
		p->in_flight -= e.bytes;
		p->rdma->rails[p->qp.path.rail].in_flight -= e.bytes;
		rdma_count(&p->qp, moving_ns, e.requests * dray_span(now_ns - e.posted_ns));
		rdma_entry_release(c, &e);
		if (e.slice)
			slice_done(p, &e);
	}
	if (!p->used)
		p->reading = false;
	if (!p->lost && (p->partial || rdma_channel_has_work(p->ch)))
		rdma_pull_later(p->ch);
}

bool rdma_rail_poll(struct rdma_rail *rail)
{
	struct rdma *r = rail->rdma;
	struct ibv_wc wc[BATCH];
	bool some = false;
	int64_t now_ns;
	int n;

	for (unsigned i = 0; i < BATCHES && rail->signalled; i++) {
		n = ibv_poll_cq(rail->cq->cq, BATCH, wc);
		core_count(r->c->counters, DRAY_METRIC_RDMA_POLLS_TOTAL, 1);
		if (n <= 0)
			break;
		some = true;
		core_count(r->c->counters, DRAY_METRIC_RDMA_COMPLETIONS_TOTAL, (uint64_t)n);
		/* the clock of the turn may be that of the post, too */
		now_ns = dray_now().ns;
		for (int k = 0; k < n; k++) {
			/* A freed queue pair may still have completions here. */
			struct rdma_queue *p = dray_handles_get(&r->queues, wc[k].wr_id);

			if (!p || p->lost)
				continue;
			if (wc[k].status == IBV_WC_SUCCESS)
				complete(p, now_ns);
			else
				rdma_queue_lose(p, wc[k].status);
		}
		if (n < BATCH)
			break;
	}
	return some;
}

static void handle_event(struct loop_source *source, uint32_t events)
{
	struct rdma_rail *rail = dray_container_of(source, struct rdma_rail, source);
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(rail->cq->channel, &cq, &context) == 0)
		rail->unacked++;
	if (rail->unacked >= UNACKED_MAX) {
		ibv_ack_cq_events(rail->cq->cq, rail->unacked);
		rail->unacked = 0;
	}
	rail->armed = false;
}

bool rdma_rail_arm(struct rdma_rail *rail)
{
	if (!rail->signalled)
		return false;
	if (!rail->armed) {
		if (ibv_req_notify_cq(rail->cq->cq, 0))
			return true;
		rail->armed = true;
		core_count(rail->rdma->c->counters, DRAY_METRIC_RDMA_ARMS_TOTAL, 1);
	}
	/* Completions from before the request cause no event. */
	return rdma_rail_poll(rail);
}

int rdma_rail_up(struct rdma *r, uint32_t number, const struct rdma_cq *cq)
{
	struct rdma_rail *rail = &r->rails[number];

	if (!r->list)
		r->list = calloc(1, sizeof(*r->list));
	if (!r->list)
		return -ENOMEM;
	*rail = (struct rdma_rail){ .source.fd = -1, .rdma = r, .cq = cq };
	r->rails_up |= 1ull << number;
	return loop_add(&r->c->loop, &rail->source, cq->channel->fd, EPOLLIN, handle_event);
}

void rdma_rail_down(struct rdma *r, uint32_t number)
{
	struct rdma_rail *rail = &r->rails[number];

	if (!(r->rails_up >> number & 1))
		return;
	loop_del(&r->c->loop, &rail->source);
	if (rail->unacked)
		ibv_ack_cq_events(rail->cq->cq, rail->unacked);
	r->rails_up &= ~(1ull << number);
}
