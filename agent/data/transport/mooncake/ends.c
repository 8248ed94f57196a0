/* SPDX-License-Identifier: Apache-2.0 */
/* What ends slices on a stream: their answers, a stop, a fault of their memory, the loss of the connection. */
#include <sys/socket.h>

#include "agent/data/transport/mooncake/stream.h"

/* How long a transfer that stops waits for the answers to its WRITEs, which would prove that the engine is done with them. */
#define STOP_GRACE_NS (40 * DRAY_NS_PER_MS)
#define LOST_DETAIL "the connection to Mooncake's engine broke; what was in flight may be in place"

void mooncake_stream_finish(struct mooncake_stream *s, const struct mooncake_work *w,
			    struct slice *slice)
{
	struct core *c = mooncake_stream_core(s);

	if (w->again && slice_wanted(slice)) {
		dray_list_add(&s->ch->ch.retry, &slice->link);
		mooncake_pull_later(s->ch);
	} else if (w->again || !slice_wanted(slice)) {
		xfer_slice_done(c, slice, slice->xfer->code, NULL);
	} else if (slice->staged && slice->xfer->direction == DMSG_DIRECTION_READ) {
		stage_channel_scatter(c, slice);
	} else {
		xfer_slice_done(c, slice, 0, NULL);
	}
}

/*
 * The call that is being sent will not be complete: sends the end of the stream, so that the engine gives it up. The calls before it
 * are still answered, those behind it go over another stream.
 */
static void tear(struct mooncake_stream *s)
{
	mooncake_calls_tear(&s->calls, &s->ch->ch.retry);
	shutdown(s->fd, SHUT_WR);
	s->ch->n_open--;
	s->ch->n_streams--;
	s->state = MOONCAKE_ENDING;
	mooncake_stream_settle(s);
	if (s->calls.head == s->calls.tail)
		mooncake_stream_end(s, false);
	mooncake_pull_later(s->ch);
}

void mooncake_stream_detach(struct mooncake_stream *s, struct mooncake_work *w,
			    struct dray_list *over)
{
	bool torn;

	dray_list_add(over, &w->slice->link);
	torn = mooncake_calls_detach(&s->calls, w);
	mooncake_stream_settle(s);
	if (torn)
		tear(s);
}

void mooncake_stream_stop(struct mooncake_stream *s, const struct xfer *x, bool urgent,
			  struct dray_list *over)
{
	struct core *c = mooncake_stream_core(s);

	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->calls.works[i];

		if (!w->slice || (x && w->slice->xfer != x))
			continue;
		if (urgent || w->slice->xfer->direction == DMSG_DIRECTION_READ ||
		    !mooncake_calls_has_begun(&s->calls, w)) {
			mooncake_stream_detach(s, w, over);
			continue;
		}
		mooncake_calls_skip(&s->calls, w);
		w->again = true;
		if (!w->limit_ns)
			w->limit_ns = c->now_ns + STOP_GRACE_NS;
		mooncake_timer(mooncake_of(s->ch), w->limit_ns);
		mooncake_stream_settle(s);
	}
	mooncake_pull_later(s->ch);
}

static void slices_end(struct core *c, struct dray_list *slices, uint32_t code, const char *detail)
{
	struct slice *s;

	while ((s = dray_list_pop(slices, struct slice, link)))
		xfer_slice_done(c, s, code, detail);
}

void mooncake_stream_fault(struct mooncake_stream *s, const struct mooncake_call *call)
{
	struct mooncake_work *w = &s->calls.works[call->work];
	struct dray_list over = DRAY_LIST_INIT(over);
	struct core *c = mooncake_stream_core(s);

	xfer_memory_fault(c, w->slice->xfer->local->view->session);
	mooncake_stream_detach(s, w, &over);
	slices_end(c, &over, DRAY_E_REGION_FAULT, XFER_FAULT_DETAIL);
}

void mooncake_stream_lose(struct mooncake_stream *s, bool answered, uint32_t code,
			  const char *detail)
{
	struct dray_list over = DRAY_LIST_INIT(over), lost = DRAY_LIST_INIT(lost),
			 failed = DRAY_LIST_INIT(failed);
	struct mooncake_channel *ch = s->ch;
	struct core *c = mooncake_stream_core(s);

	core_count(c->counters, DRAY_METRIC_MOONCAKE_STREAMS_LOST_TOTAL, 1);
	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &s->calls.works[i];
		struct slice *slice = w->slice;
		bool write = slice && slice->xfer->direction == DMSG_DIRECTION_WRITE;
		bool begun = slice && mooncake_calls_has_begun(&s->calls, w);

		if (!slice)
			continue;
		w->slice = NULL;
		slice->retried |= begun;
		if (!slice_wanted(slice)) {
			dray_list_add(&over, &slice->link);
		} else if (w->code || (begun && code && !(write && !answered))) {
			slice->end_code = w->code ? w->code : code;
			dray_list_add(&failed, &slice->link);
		} else if (write && begun && !answered) {
			dray_list_add(&lost, &slice->link);
		} else {
			dray_list_add(&ch->ch.retry, &slice->link);
		}
	}
	mooncake_stream_end(s, true);
	mooncake_pull_later(ch);
	if (!s->useful)
		mooncake_channel_failed(ch, 0);
	xfer_slices_end(c, &over, 0);
	slices_end(c, &lost, DRAY_E_PEER_LOST, LOST_DETAIL);
	while (!dray_list_empty(&failed)) {
		struct slice *slice = dray_list_pop(&failed, struct slice, link);

		xfer_slice_done(c, slice, slice->end_code, detail);
	}
}
