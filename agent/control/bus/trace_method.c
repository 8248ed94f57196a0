/* SPDX-License-Identifier: Apache-2.0 */
/* TraceStore: the trace belongs to the connection; each call takes what has been recorded since the last one. */
#include "agent/control/bus/internal.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

#define RECORD "tusttuss"
/* Records of a reply, and of these what is taken at a time. */
#define REPLY_MAX 4096u
#define TAKEN_MAX 64u
/* What a record needs in a message, about. */
#define RECORD_BYTES 90

static int append(sd_bus_message *reply, const struct store_traced *r)
{
	return sd_bus_message_append(reply, "(" RECORD ")", (uint64_t)r->ns, r->space,
				     store_operation_name((enum store_operation)r->operation),
				     r->key, r->bytes, r->cost_us,
				     dmsg_store_status_name(r->status),
				     dmsg_store_tier_name(r->tier));
}

/* The number of records, or -errno. */
static int append_all(sd_bus_message *reply, struct store_trace *t)
{
	struct store_traced v[TAKEN_MAX];
	uint32_t sum = 0, n = TAKEN_MAX;
	int ret = sd_bus_message_open_container(reply, 'a', "(" RECORD ")");

	while (ret >= 0 && n == TAKEN_MAX && sum < REPLY_MAX) {
		n = store_trace_take(t, v, TAKEN_MAX);
		sum += n;
		for (uint32_t i = 0; i < n && ret >= 0; i++)
			ret = append(reply, &v[i]);
	}
	if (ret >= 0)
		ret = sd_bus_message_close_container(reply);
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "tb", store_trace_lost(t), n == TAKEN_MAX);
	return ret < 0 ? ret : (int)sum;
}

int dbus_method_trace_store(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct bus_conn *c = userdata;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = bus_conn_check_list(c, m, reterr);
	if (ret)
		return ret;
	if (!c->trace && store_trace_new(&c->trace, c->server->agent->store, &err) < 0)
		return sd_bus_error_set(reterr,
					err.code == DRAY_E_BUSY ? DRAY_DBUS_ERROR_BUSY :
					err.code == DRAY_E_UNSUPPORTED ?
								  SD_BUS_ERROR_NOT_SUPPORTED :
								  SD_BUS_ERROR_NO_MEMORY,
					err.msg);
	ret = sd_bus_message_new_method_return(m, &reply);
	if (ret >= 0)
		ret = append_all(reply, c->trace);
	return ret < 0 ? ret : bus_conn_send(c, reply, (size_t)ret * RECORD_BYTES);
}
