/* SPDX-License-Identifier: Apache-2.0 */
/* Passes each event of a worker to the module that handles it. */
#include "agent/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/exchange/exchange.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/rails/rails.h"
#include "agent/control/status/store_log.h"
#include "agent/control/status/transfer_log.h"
#include "agent/model/mooncake_message.h"
#include "agent/store/store.h"
#include "lib/log.h"
#include "lib/time.h"

/* Events handled, and the time after which no further one is, before the event loop serves other sources. */
#define EVENTS_PER_TURN 512
#define TURN_NS DRAY_NS_PER_MS

/* n: lines about the session and its uid that were dropped before this one. */
static void log_dropped(const char *component, dray_handle session, uint32_t n)
{
	if (n)
		log_warning(component,
			    "%u more lines about this session or its uid session=%" PRIu64, n,
			    session);
}

static void handle_report(struct agent *a, struct report *r)
{
	dray_handle session = r->record.session;
	uint32_t dropped = 0;

	/* all of them: that is configured */
	if (r->all || sessions_may_log(a->sessions, session, &dropped)) {
		report_log(r);
		log_dropped("transfer", session, dropped);
	}
	free(r);
}

static void handle_store_report(struct agent *a, struct store_report *r)
{
	uint32_t dropped = 0;

	if (sessions_may_log(a->sessions, r->session, &dropped)) {
		store_report_log(r);
		log_dropped("store", r->session, dropped);
	}
	free(r);
}

static void agent_mooncake_message(struct agent *a, const struct transport_message *m)
{
	if (m->type == MOONCAKE_CLOSED)
		mooncake_server_message(a->mooncake, m);
	else
		mooncake_client_message(a->mooncake_client, m);
}

static void handle_event(struct agent *a, unsigned worker, struct event *ev)
{
	switch (ev->type) {
	case EVENT_REQUEST:
		sessions_handle_request(a->sessions, ev->session, ev->packet);
		break;
	case EVENT_FDS:
		sessions_handle_fds(a->sessions, ev->session, ev->packet);
		break;
	case EVENT_SESSION_EOF:
		sessions_handle_eof(a->sessions, ev->session, ev->code, ev->packet);
		break;
	case EVENT_SESSION_GONE:
		sessions_handle_gone(a->sessions, ev->session, ev->fd);
		store_sweep(a->store);
		break;
	case EVENT_SESSION_REFUSED:
		sessions_handle_refused(a->sessions, ev->session, ev->code, ev->fd);
		break;
	case EVENT_DROPPED:
		pool_handle_dropped(&a->pool, ev->kind, ev->handle);
		break;
	case EVENT_PEER_USED:
		peers_handle_used(a->peers, ev->session);
		break;
	case EVENT_STREAM_LOST:
		peers_handle_stream_lost(a->peers, ev->session, ev->id);
		break;
	case EVENT_STREAM_CLOSED:
		peers_handle_stream_closed(a->peers, ev->session, ev->id);
		break;
	case EVENT_SENT:
		sessions_handle_sent(a->sessions, ev->session, (enum packet_report)ev->id);
		break;
	case EVENT_NOTIFY:
		sessions_handle_notify(a->sessions, worker, ev->id, ev->handle, ev->tag,
				       ev->packet);
		break;
	case EVENT_SESSION_FAULT:
		sessions_handle_fault(a->sessions, ev->session);
		break;
	case EVENT_SNAPSHOT:
		transfer_queries_handle_snapshot(a, worker, ev->snapshot);
		break;
	case EVENT_CANCELLED:
		transfer_queries_handle_cancelled(a, ev->handle, ev->id != 0, ev->code);
		break;
	case EVENT_STORE_ASK:
		exchange_ask(a->exchange, ev->ask);
		break;
	case EVENT_STORE_ASK_STOP:
		exchange_ask_stop(a->exchange, ev->ask);
		break;
	case EVENT_STORE_ASK_END:
		exchange_ask_end(a->exchange, ev->ask);
		break;
	case EVENT_STORE_SOURCE_END:
		exchange_source_end(a->exchange, ev->ask, (uint32_t)ev->id);
		break;
	case EVENT_STORE_KEPT:
		exchange_kept(a->exchange, ev->keep);
		store_sweep(a->store);
		break;
	case EVENT_REPORT:
		handle_report(a, ev->report);
		break;
	case EVENT_STORE_REPORT:
		handle_store_report(a, ev->store_report);
		break;
	case EVENT_TRANSPORT:
		if (ev->message.transport == DMSG_TRANSPORT_GPU)
			gpus_message(a->gpus, worker, &ev->message);
		else if (ev->message.transport == TRANSPORT_MOONCAKE)
			agent_mooncake_message(a, &ev->message);
		else
			rails_handle_message(a->rails, worker, &ev->message);
		break;
	case EVENT_QUIT:
		break;
	}
}

int agent_pump_events(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct agent *a = arg;
	struct event ev;
	int64_t end = dray_now().ns + TURN_NS;

	for (unsigned i = 0; i < a->pool.n; i++) {
		if (source != a->worker_events[i])
			continue;
		/* the descriptor stays readable until the ring is empty, so the loop calls again for the rest */
		for (unsigned n = 0; n < EVENTS_PER_TURN && dray_now().ns < end &&
				     worker_next_event(a->pool.workers[i], &ev);
		     n++)
			handle_event(a, i, &ev);
	}
	return 0;
}
