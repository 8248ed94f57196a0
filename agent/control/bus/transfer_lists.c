/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of transfers: the workers are asked, and the answer goes out when the last has spoken. One listing of a
 * kind at a time, however many ask: calls that come meanwhile are answered together by the next one, which sees
 * everything that was accepted before they were made.
 */

#include "agent/control/bus/internal.h"
#include "lib/log.h"

/* Of one connection, waiting for their answer. */
#define CALLS_MAX 4

static void call_answer(struct control_call *call, const struct control_listing *l,
			struct snapshot *const *snapshots, unsigned n)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct agent *a = l->control->agent;
	size_t bytes = 0;
	int ret;

	ret = sd_bus_message_new_method_return(call->m, &reply);
	if (ret >= 0)
		ret = l->ended ? control_records_ended(a, snapshots, n, reply, &bytes) :
				 control_records_transfers(snapshots, n, reply, &bytes);
	if (ret >= 0)
		control_conn_send(call->conn, reply, bytes);
	else
		sd_bus_reply_method_errno(call->m, ret, NULL);
}

static void start(struct control_listing *l);

static void listed(void *arg, struct snapshot *const *snapshots, unsigned n)
{
	struct control_listing *l = arg;

	l->busy = false;
	dray_list_for_each(&l->asked, call, struct control_call, link) {
		call_answer(call, l, snapshots, n);
		control_call_free(call);
	}
	start(l);
}

static void start(struct control_listing *l)
{
	struct agent *a = l->control->agent;
	int ret;

	if (l->busy || dray_list_empty(&l->waiting))
		return;
	dray_list_splice(&l->asked, &l->waiting);
	ret = l->ended ? agent_list_ended(a, listed, l) : agent_list_transfers(a, listed, l);
	if (ret >= 0) {
		l->busy = true;
		return;
	}
	dray_list_for_each(&l->asked, call, struct control_call, link) {
		sd_bus_reply_method_errno(call->m, ret, NULL);
		control_call_free(call);
	}
}

static void listing_init(struct control_listing *l, struct control *control, bool ended)
{
	l->control = control;
	l->ended = ended;
	dray_list_init(&l->asked);
	dray_list_init(&l->waiting);
}

void control_listing_init(struct control *control)
{
	listing_init(&control->in_flight, control, false);
	listing_init(&control->ended, control, true);
}

int control_listing_ask(struct control_conn *c, bool ended, sd_bus_message *m, sd_bus_error *reterr)
{
	struct control_listing *l = ended ? &c->control->ended : &c->control->in_flight;

	if (!control_call_new(sizeof(struct control_call), c, m, &c->n_listings, CALLS_MAX,
			      "lists of transfers", &l->waiting, reterr))
		return -sd_bus_error_get_errno(reterr);
	start(l);
	return 1;
}

static void forget_in(struct dray_list *calls, struct control_conn *c)
{
	dray_list_for_each(calls, call, struct control_call, link) {
		if (call->conn == c)
			control_call_free(call);
	}
}

void control_listing_forget(struct control_conn *c)
{
	forget_in(&c->control->in_flight.asked, c);
	forget_in(&c->control->in_flight.waiting, c);
	forget_in(&c->control->ended.asked, c);
	forget_in(&c->control->ended.waiting, c);
}

void control_listing_stop(struct control *control)
{
	agent_forget_listings(control->agent, &control->in_flight);
	agent_forget_listings(control->agent, &control->ended);
	control->in_flight.busy = control->ended.busy = false;
}
