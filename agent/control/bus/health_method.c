/* SPDX-License-Identifier: Apache-2.0 */
/* Health: answered once the workers have spoken, or did not in time. */

#include "agent/control/bus/internal.h"
#include "agent/control/status/health.h"
#include "agent/control/status/gather.h"
#include "lib/log.h"

/* Of one connection, waiting for their answer. */
#define CALLS_MAX 4

struct health_call {
	struct control_call call;
	struct health_check check;
};

static void call_free(struct health_call *h)
{
	health_cancel(&h->check);
	control_call_free(&h->call);
}

static void answered(struct health_check *check, const struct health_report *report)
{
	struct health_call *h = dray_container_of(check, struct health_call, check);
	struct control_conn *c = h->call.conn;
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct ready ready;
	size_t bytes = 0;
	int ret;

	agent_ready(c->control->agent, &ready);
	ret = sd_bus_message_new_method_return(h->call.m, &reply);
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "bsb", report->alive, report->reason,
					    ready.ready);
	if (ret >= 0)
		ret = control_records_conditions(&ready, reply, &bytes);
	if (ret >= 0)
		control_conn_send(c, reply, bytes);
	else
		sd_bus_reply_method_errno(h->call.m, ret, NULL);
	call_free(h);
}

int control_health_ask(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr)
{
	struct health_call *h = control_call_new(sizeof(*h), c, m, &c->n_healths, CALLS_MAX,
						 "calls of Health", &c->control->health_calls,
						 reterr);

	if (!h)
		return -sd_bus_error_get_errno(reterr);
	h->check = HEALTH_CHECK_INIT(h->check, answered);
	health_ask(c->control->agent->health, &h->check);
	return 1;
}

void control_health_forget(struct control_conn *c)
{
	dray_list_for_each(&c->control->health_calls, h, struct health_call, call.link) {
		if (h->call.conn == c)
			call_free(h);
	}
}
