/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/bus/internal.h"

void *pending_reply_new(size_t bytes, struct bus_conn *c, sd_bus_message *m, unsigned *count,
			unsigned max, const char *what, struct dray_list *list,
			sd_bus_error *reterr)
{
	struct pending_reply *reply;

	if (*count >= max) {
		sd_bus_error_setf(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
				  "%u %s are pending already; wait for their replies first", *count,
				  what);
		return NULL;
	}
	reply = calloc(1, bytes);
	if (!reply) {
		sd_bus_error_set_errno(reterr, -ENOMEM);
		return NULL;
	}
	reply->conn = c;
	reply->m = sd_bus_message_ref(m);
	reply->count = count;
	++*count;
	dray_list_add(list, &reply->link);
	return reply;
}

struct pending_reply *pending_reply_free(struct pending_reply *reply)
{
	dray_list_del(&reply->link);
	--*reply->count;
	sd_bus_message_unref(reply->m);
	free(reply);
	return NULL;
}
