/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/bus/internal.h"

void *control_call_new(size_t bytes, struct control_conn *c, sd_bus_message *m, unsigned *count,
		       unsigned max, const char *what, struct dray_list *list, sd_bus_error *reterr)
{
	struct control_call *call;

	if (*count >= max) {
		sd_bus_error_setf(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
				  "%u %s wait for their answer already; take those first", *count,
				  what);
		return NULL;
	}
	call = calloc(1, bytes);
	if (!call) {
		sd_bus_error_set_errno(reterr, -ENOMEM);
		return NULL;
	}
	call->conn = c;
	call->m = sd_bus_message_ref(m);
	call->count = count;
	++*count;
	dray_list_add(list, &call->link);
	return call;
}

struct control_call *control_call_free(struct control_call *call)
{
	dray_list_del(&call->link);
	--*call->count;
	sd_bus_message_unref(call->m);
	free(call);
	return NULL;
}
