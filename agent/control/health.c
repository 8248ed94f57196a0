/* SPDX-License-Identifier: Apache-2.0 */
/* Health: answered once the workers have spoken, or did not in time. */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/internal.h"
#include "agent/health.h"
#include "agent/observe.h"
#include "lib/log.h"

/* Of one connection, waiting for their answer. */
#define CALLS_MAX 4

struct health_call {
	struct dray_list link;
	struct control_conn *conn;
	sd_bus_message *m;
	struct health_check check;
};

static void call_free(struct health_call *call)
{
	health_cancel(&call->check);
	dray_list_del(&call->link);
	call->conn->health_calls--;
	sd_bus_message_unref(call->m);
	free(call);
}

static void answered(struct health_check *check, const struct health_report *report)
{
	struct health_call *call = dray_container_of(check, struct health_call, check);
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct ready ready;
	size_t bytes = 0;
	int ret;

	agent_ready(call->conn->control->agent, &ready);
	ret = sd_bus_message_new_method_return(call->m, &reply);
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "bsb", report->alive, report->reason,
					    ready.ready);
	if (ret >= 0)
		ret = control_records_conditions(&ready, reply, &bytes);
	if (ret >= 0)
		control_conn_send(call->conn, reply, bytes);
	else
		sd_bus_reply_method_errno(call->m, ret, NULL);
	call_free(call);
}

int control_health_ask(struct control_conn *c, sd_bus_message *m, sd_bus_error *reterr)
{
	struct health_call *call;

	if (c->health_calls >= CALLS_MAX)
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
					 "%u calls of Health wait for their answer already; "
					 "take those first",
					 c->health_calls);
	call = calloc(1, sizeof(*call));
	if (!call)
		return -ENOMEM;
	call->conn = c;
	call->m = sd_bus_message_ref(m);
	call->check = HEALTH_CHECK_INIT(call->check, answered);
	c->health_calls++;
	dray_list_add(&c->control->health_calls, &call->link);
	health_ask(c->control->agent->health, &call->check);
	return 1;
}

void control_health_forget(struct control_conn *c)
{
	dray_list_for_each(&c->control->health_calls, call, struct health_call, link) {
		if (call->conn == c)
			call_free(call);
	}
}
