/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_silence.h"

#include "agent/data/transfer/object.h"
#include "agent/model/peer_link.h"

#define SILENT_DETAIL "no byte came from the agent within store.peer_timeout"

static int64_t interval_ns(const struct worker *w)
{
	return store_peer_timeout_ns(w->store) / SILENCE_LOOKS;
}

void silence_init(struct silence *q)
{
	dray_list_init(&q->link);
}

void silence_watch(struct silence *q, struct wsession *s, uint64_t request)
{
	q->session = s;
	q->request = request;
	q->received = 0;
	q->quiet = 0;
	q->look_ns = s->worker->core.now_ns + interval_ns(s->worker);
	dray_list_add(&s->worker->watched, &q->link);
}

void silence_end(struct silence *q)
{
	dray_list_del(&q->link);
}

static struct xfer *transfer_of(const struct silence *q)
{
	return xfer_find(&q->session->xs, q->request);
}

/* What has come: by frames, which are counted as they come, and by devices, whose slices are. */
static uint64_t received(const struct xfer *x)
{
	uint64_t frames =
		x->link ? atomic_load_explicit(&x->link->bytes_received, memory_order_relaxed) : 0;

	return frames + x->bytes_done;
}

/* Has the agent been asked for bytes? Not while the session has all its slices in flight elsewhere. */
static bool is_asked(const struct core *c, const struct xfer *x)
{
	return x->slices || x->session->slices[x->class] < c->cfg.slices_per_session;
}

static void look(struct worker *w, struct silence *q)
{
	const struct core *c = &w->core;
	const struct xfer *x = transfer_of(q);
	uint64_t now = x ? received(x) : 0;

	q->look_ns = c->now_ns + interval_ns(w);
	if (x && now == q->received && is_asked(c, x))
		q->quiet++;
	else
		q->quiet = 0;
	q->received = now;
}

static void end_silent(struct core *c, struct xfer *x)
{
	if (xfer_awaits_devices(c, x))
		object_hasten_within(c, x->remote, interval_ns(worker_of(c)));
	xfer_stop(c, x, DRAY_E_TIMEOUT, SILENT_DETAIL, false);
}

int64_t silences_tick(struct worker *w)
{
	struct dray_list due = DRAY_LIST_INIT(due), silent = DRAY_LIST_INIT(silent);
	struct silence *q;

	/* the list is in the order of look_ns, because all have the same interval */
	while ((q = dray_list_first(&w->watched, struct silence, link)) &&
	       q->look_ns <= w->core.now_ns)
		dray_list_move(&due, &q->link);
	while ((q = dray_list_first(&due, struct silence, link))) {
		look(w, q);
		dray_list_move(q->quiet >= SILENCE_LOOKS ? &silent : &w->watched, &q->link);
	}
	/* the end of one may end others, and begin new ones */
	while ((q = dray_list_first(&silent, struct silence, link))) {
		q->quiet = 0;
		dray_list_move(&w->watched, &q->link);
		end_silent(&w->core, transfer_of(q));
	}
	q = dray_list_first(&w->watched, struct silence, link);
	return q ? q->look_ns : INT64_MAX;
}
