/* SPDX-License-Identifier: Apache-2.0 */
/* Health: the reply goes out when every worker has answered, or at the time limit. */

#include "agent/control/bus/internal.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/health.h"
#include "lib/log.h"
#include "schema/gen/dbus_vtable.h"

/* Pending calls of one connection. */
#define CALLS_MAX 4

struct health_call {
	struct pending_reply call;
	struct health_check check;
};

static void call_free(struct health_call *h)
{
	health_cancel(&h->check);
	pending_reply_free(&h->call);
}

static void checked(struct health_check *check, const struct health_report *report)
{
	struct health_call *h = dray_container_of(check, struct health_call, check);
	struct bus_conn *c = h->call.conn;
	struct dictionaries d = { .agent = c->server->agent };
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct ready ready;
	int ret;

	agent_ready(d.agent, &ready);
	ret = sd_bus_message_new_method_return(h->call.m, &reply);
	d.reply = reply;
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "bsb", report->alive, report->reason,
					    ready.ready);
	if (ret >= 0)
		ret = dictionaries_append(&d, fill_conditions);
	if (ret >= 0)
		bus_conn_send(c, reply, d.bytes);
	else
		sd_bus_reply_method_errno(h->call.m, ret, NULL);
	call_free(h);
}

int dbus_method_health(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct health_call *h;
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	h = pending_reply_new(sizeof(*h), c, m, &c->n_healths, CALLS_MAX, "calls of Health",
			      &c->server->health_calls, reterr);
	if (!h)
		return -sd_bus_error_get_errno(reterr);
	h->check = HEALTH_CHECK_INIT(h->check, checked);
	health_ask(c->server->agent->health, &h->check);
	return 1;
}

void health_replies_forget(struct bus_conn *c)
{
	dray_list_for_each(&c->server->health_calls, h, struct health_call, call.link) {
		if (h->call.conn == c)
			call_free(h);
	}
}
