/* SPDX-License-Identifier: Apache-2.0 */
/* FindMooncakeObject: the reply goes out when all masters have answered. */
#include <errno.h>

#include "agent/control/bus/internal.h"
#include "agent/placement/segment/object.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

/* Pending calls of one connection. */
#define CALLS_MAX 8

struct object_call {
	struct pending_reply reply;
	struct object_search *search;
	const struct object_place *places;
	size_t n;
};

static void fill_replicas(struct dictionaries *d)
{
	const struct object_call *k = d->arg;

	for (size_t i = 0; i < k->n; i++) {
		const struct dray_dbus_replica record = {
			.segment = k->places[i].replica.segment,
			.address = k->places[i].replica.address,
			.length = k->places[i].replica.length,
			.protocol = k->places[i].replica.protocol,
			.master = k->places[i].master,
		};

		DICTIONARY_KEEP(d, replica, &record);
	}
}

static int reply_error(const struct object_call *k, const struct dray_err *why)
{
	/* out of order: no master is the leader now */
	bool busy = why->code == DRAY_E_BUSY || why->code == DRAY_E_OUT_OF_ORDER;
	const char *name = why->code == DRAY_E_NOT_FOUND ? DRAY_DBUS_ERROR_NOT_FOUND :
			   busy                          ? DRAY_DBUS_ERROR_BUSY :
							   DRAY_DBUS_ERROR_MASTER;
	char text[BUS_TEXT_BYTES];

	return sd_bus_reply_method_errorf(k->reply.m, name, "%s", bus_text(why->msg, text));
}

static void found(void *arg, const struct object_place *v, size_t n, const struct dray_err *why)
{
	struct object_call *k = arg;
	struct dictionaries d = { .agent = k->reply.conn->server->agent,
				  .call = k->reply.m,
				  .arg = k };

	k->search = NULL;
	k->places = v;
	k->n = n;
	pending_reply_end(&k->reply,
			  why ? reply_error(k, why) : list_reply(&d, k->reply.conn, fill_replicas));
}

static void cancel(struct pending_reply *reply)
{
	object_search_free(dray_container_of(reply, struct object_call, reply)->search);
}

int dbus_method_find_mooncake_object(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "calls of FindMooncakeObject",
						.max = CALLS_MAX,
						.cancel = cancel };
	struct dray_err err = DRAY_ERR_NULL;
	struct bus_conn *c = userdata;
	struct object_call *k;
	const char *key;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = sd_bus_message_read(m, "s", &key);
	if (ret >= 0)
		ret = bus_conn_check_list(c, m, reterr);
	if (ret)
		return ret;
	k = pending_reply_new(&kind, sizeof(*k), c, m, reterr);
	if (!k)
		return -sd_bus_error_get_errno(reterr);
	ret = object_search_new(&k->search, c->server->agent->segments, key, found, k, &err);
	if (ret < 0) {
		pending_reply_free(&k->reply);
		return sd_bus_error_set(
			reterr, ret == -EINVAL ? SD_BUS_ERROR_INVALID_ARGS : SD_BUS_ERROR_FAILED,
			err.msg);
	}
	return 1;
}
