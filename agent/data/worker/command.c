/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the control thread, and upcalls of the data plane. */
#include <stdlib.h>

#include "agent/data/gpu_queue/gpu_queue.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transport/rdma/rdma.h"
#include "agent/data/worker/internal.h"
#include "agent/model/peer_link.h"
#include "lib/assert.h"
#include "lib/cleanup.h"

#define COMMANDS_PER_TURN 256

static void up_notify(struct core *c, struct xfer *x)
{
	worker_event(worker_of(c), &(struct event){ .type = EVENT_NOTIFY,
						    .session = x->session->handle,
						    .handle = x->remote->handle,
						    .id = x->handle,
						    .tag = x->notify_tag,
						    .packet = dray_take(x->notify) });
}

static void up_event(struct core *c, const struct event *ev)
{
	worker_event(worker_of(c), ev);
}

/* One transport has ended its work for the peer. */
static void up_peer_gone(struct core *c, dray_handle peer)
{
	worker_event(worker_of(c),
		     &(struct event){ .type = EVENT_DROPPED, .kind = OBJECT_PEER, .handle = peer });
}

/* Stops the transfer if the command concerns its peer (session), or all requests (session 0). */
static void stop_matching(struct core *c, struct xfer *x, void *arg)
{
	const struct command *cmd = arg;
	const struct remote_view *r = object_remote(x->remote);

	if (!cmd->session)
		xfer_stop_request(c, x, cmd->code, NULL);
	else if (!r->is_local && r->peer == cmd->session)
		xfer_stop(c, x, cmd->code, NULL, false);
}

static struct transfer_info info_of(struct core *c, const struct xfer *x)
{
	struct transfer_info info = { .state = (uint8_t)x->state,
				      .left_ns = x->deadline.key - c->now_ns };

	xfer_describe(&info.record, c, x, c->now_ns);
	info.record.transport = (uint8_t)(x->state == XFER_WAITING ?
						  DMSG_TRANSPORT_NONE :
						  c->transports[x->transport_index]->id);
	info.record.gpu_path = x->gpu_path;
	info.record.gpu_way = x->gpu_way;
	info.record.slices = x->slices;
	return info;
}

static void take_info(struct core *c, struct xfer *x, void *arg)
{
	struct snapshot *s = arg;

	s->bytes_left += x->bytes - x->bytes_done;
	if (s->n < s->cap)
		s->transfers[s->n++] = info_of(c, x);
}

static void snapshot_take(struct worker *w, struct snapshot *s)
{
	const struct xfer *due = xfers_first_due(&w->core);

	/* a check of health, which comes as often as clients like, looks at no other transfer */
	if (due)
		s->first_due = info_of(&w->core, due);
	s->in_flight = xfers_count(&w->core);
	if (s->records) {
		s->n = xfers_records(&w->core, s->records, s->cap);
	} else if (s->cap) {
		xfers_each(&w->core, take_info, s);
		s->asking = dray_list_length(&w->begins) + dray_list_length(&w->asking);
	}
	worker_event(w, &(struct event){ .type = EVENT_SNAPSHOT, .snapshot = s });
}

static void send_packet(struct worker *w, const struct command *cmd)
{
	struct wsession *s = wsession_get(w, cmd->session);

	if (!s) {
		packet_free(cmd->packet);
		return;
	}
	if (cmd->id && idset_del(&s->ids, cmd->id))
		s->requests--;
	wsession_send(s, cmd->packet);
}

static void cancel_answer(struct worker *w, uint64_t call, bool ended, uint32_t code)
{
	worker_event(w,
		     &(struct event){
			     .type = EVENT_CANCELLED, .handle = call, .id = ended, .code = code });
}

static void cancel(struct worker *w, const struct command *cmd)
{
	struct wsession *s = wsession_get(w, cmd->session);
	struct xfer *x = s ? xfer_find(&s->xs, cmd->id) : NULL;

	if (!x && s && fetch_asks(s, cmd->id)) {
		fetch_cancel(s, cmd->id);
		cancel_answer(w, cmd->handle, true, DRAY_E_CANCELLED);
		return;
	}
	if (!x || x->operator_waits) {
		cancel_answer(w, cmd->handle, false, x ? DRAY_E_BUSY : DRAY_E_NOT_FOUND);
		return;
	}
	x->operator_waits = cmd->handle;
	xfer_stop_request(&w->core, x, DRAY_E_CANCELLED, "cancelled by an operator");
}

static void up_xfer_ended(struct core *c, struct xfer *x)
{
	if (x->operator_waits)
		cancel_answer(worker_of(c), x->operator_waits, true, x->code);
	wsession_xfer_ended(c, x);
}

static void up_xfer_refused(struct core *c, struct xfer *x, const struct dray_err *err)
{
	wsession_xfer_refused(x, err);
}

/* A report must not delay transfers: it is dropped if it finds no room. */
static void up_xfer_report(struct core *c, const struct transfer_record *r, bool slow)
{
	struct worker *w = worker_of(c);
	struct report *report = worker_has_room(w) ? malloc(sizeof(*report)) : NULL;

	if (!report) {
		core_count(c->counters, DRAY_METRIC_REPORTS_DROPPED_TOTAL, 1);
		return;
	}
	*report = (struct report){ *r, slow, c->cfg.report_all };
	worker_event(w, &(struct event){ .type = EVENT_REPORT, .report = report });
}

const struct core_upcalls worker_upcalls = {
	.xfer_ended = up_xfer_ended,
	.xfer_refused = up_xfer_refused,
	.xfer_report = up_xfer_report,
	.notify = up_notify,
	.event = up_event,
	.peer_gone = up_peer_gone,
	.release_buffers = slice_release_buffers,
	.flush_rdma = gpu_flush_rdma,
	.find = find_answered,
};

static void run_command(struct worker *w, struct command *cmd)
{
	struct core *c = &w->core;
	struct wsession *s;

	switch (cmd->type) {
	case COMMAND_SESSION_ADD:
		wsession_add(w, cmd->fd, cmd->shared);
		break;
	case COMMAND_SESSION_CLOSE:
		wsession_close(w, cmd->session, cmd->code);
		break;
	case COMMAND_SESSION_READ:
		s = wsession_get(w, cmd->session);
		if (s)
			wsession_go_on(s);
		break;
	case COMMAND_SEND:
		send_packet(w, cmd);
		break;
	case COMMAND_RING_OPEN:
		s = wsession_get(w, cmd->session);
		if (s && ring_open(s, cmd->ring) < 0)
			wsession_die(s, DRAY_E_NO_MEMORY);
		break;
	case COMMAND_PUBLISH:
		object_publish(c, cmd->view);
		transports_each(c, i, publish)
			c->transports[i]->publish(c, c->transport_state[i], cmd->view);
		break;
	case COMMAND_OPENED:
		object_set_open(c, cmd->handle);
		xfers_opened(c, cmd->handle);
		break;
	case COMMAND_KEYS:
		object_set_keys(c, cmd->kind, cmd->handle, cmd->keys);
		break;
	case COMMAND_DROP:
		/* an object that is gone was answered for by the first drop */
		if (!cmd->again || object_find(c, cmd->kind, cmd->handle))
			object_drop(c, cmd->kind, cmd->handle, cmd->code, cmd->mode);
		break;
	case COMMAND_PEER_UP:
		directs_forget(w);
		transports_each(c, i, peer_up)
			c->transports[i]->peer_up(c, c->transport_state[i], cmd->link);
		break;
	case COMMAND_PEER_DOWN:
		directs_forget(w);
		xfers_each(c, stop_matching, cmd);
		transports_each(c, i, peer_down)
			c->transports[i]->peer_down(c, c->transport_state[i], cmd->session,
						    cmd->code);
		break;
	case COMMAND_STREAM_ADOPT:
	case COMMAND_STREAM_RESET:
	case COMMAND_STREAM_DEAD:
		transports_each(c, i, stream)
			c->transports[i]->stream(c, c->transport_state[i], cmd);
		break;
	case COMMAND_TRANSPORT:
		transports_each(c, i, message)
			if (c->transports[i]->id == cmd->message.transport)
				c->transports[i]->message(c, c->transport_state[i], &cmd->message);
		break;
	case COMMAND_NOTIFIED:
		xfer_notified(c, cmd->id, cmd->code);
		break;
	case COMMAND_CANCEL:
		cancel(w, cmd);
		break;
	case COMMAND_SNAPSHOT:
		snapshot_take(w, cmd->snapshot);
		break;
	case COMMAND_CONFIG:
		c->cfg = *cmd->config;
		dray_linger_limit(&w->linger, c->cfg.poll_time_ns, c->cfg.poll_time_ns);
		free(cmd->config);
		break;
	case COMMAND_DRAIN:
		w->draining = true;
		break;
	case COMMAND_RESUME:
		w->draining = false;
		break;
	case COMMAND_STORE_ASKED:
		fetch_asked(w, cmd->session, cmd->ask);
		break;
	case COMMAND_STORE_LAPSED:
		held_lapsed(w, cmd->session, cmd->number);
		break;
	case COMMAND_STORE_FENCED:
		fetch_fenced(w, cmd->session, cmd->number, cmd->handle, cmd->id);
		break;
	case COMMAND_STORE_KEEP:
		keep_begin(w, cmd->keep);
		break;
	case COMMAND_STOP_TRANSFERS:
		xfers_each(c, stop_matching, cmd);
		if (!cmd->session) {
			store_begins_stop(w, cmd->code);
			fetches_stop(w, cmd->code);
		}
		break;
	case COMMAND_QUIT:
		keeps_close(w);
		w->quit = true;
		break;
	}
}

bool worker_run_commands(struct worker *w)
{
	struct command cmd;
	unsigned n = 0;

	while (n < COMMANDS_PER_TURN && dray_spsc_pop(&w->commands, &cmd)) {
		run_command(w, &cmd);
		n++;
	}
	/* acquire-release: the control thread that is woken sees the free room */
	if (n && atomic_exchange_explicit(&w->want_room, false, memory_order_acq_rel))
		w->event_pending = true;
	return n > 0;
}
