/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListTransfers: the workers are asked, and the answer goes out when the last has spoken. One listing at a
 * time, however many ask: calls that come meanwhile are answered together by the next one, which sees
 * everything that was accepted before they were made.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/internal.h"
#include "lib/log.h"

/* Of one connection, waiting for their answer. */
#define CALLS_MAX 4

struct call {
	struct dray_list link;
	struct control_conn *conn;
	sd_bus_message *m;
};

static void call_free(struct call *call)
{
	dray_list_del(&call->link);
	call->conn->calls--;
	sd_bus_message_unref(call->m);
	free(call);
}

static void call_answer(struct call *call, struct snapshot *const *snapshots, unsigned n)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	size_t bytes = 0;
	int ret;

	ret = sd_bus_message_new_method_return(call->m, &reply);
	if (ret >= 0)
		ret = control_records_transfers(snapshots, n, reply, &bytes);
	if (ret >= 0)
		control_conn_send(call->conn, reply, bytes);
	else
		sd_bus_reply_method_errno(call->m, ret, NULL);
}

static void start(struct control *c);

static void listed(void *arg, struct snapshot *const *snapshots, unsigned n)
{
	struct control *c = arg;

	c->listing = false;
	dray_list_for_each(&c->asked, call, struct call, link) {
		call_answer(call, snapshots, n);
		call_free(call);
	}
	start(c);
}

static void start(struct control *c)
{
	int ret;

	if (c->listing || dray_list_empty(&c->waiting))
		return;
	dray_list_splice(&c->asked, &c->waiting);
	ret = agent_list_transfers(c->agent, listed, c);
	if (ret >= 0) {
		c->listing = true;
		return;
	}
	dray_list_for_each(&c->asked, call, struct call, link) {
		sd_bus_reply_method_errno(call->m, ret, NULL);
		call_free(call);
	}
}

int control_listing_ask(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr)
{
	struct call *call;

	if (c->calls >= CALLS_MAX)
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
					 "%u calls of ListTransfers wait for their answer already; "
					 "take those first",
					 c->calls);
	call = calloc(1, sizeof(*call));
	if (!call)
		return -ENOMEM;
	call->conn = c;
	call->m = sd_bus_message_ref(m);
	c->calls++;
	dray_list_add(&c->control->waiting, &call->link);
	start(c->control);
	return 1;
}

static void forget_in(struct dray_list *calls, struct control_conn *c)
{
	dray_list_for_each(calls, call, struct call, link) {
		if (call->conn == c)
			call_free(call);
	}
}

void control_listing_forget(struct control_conn *c)
{
	forget_in(&c->control->asked, c);
	forget_in(&c->control->waiting, c);
}

void control_listing_stop(struct control *control)
{
	agent_forget_listings(control->agent, control);
	control->listing = false;
}
