/* SPDX-License-Identifier: Apache-2.0 */
/* FindStoreObjects and WarmStore: they look at all objects of a name space, in turns, and then reply. */
#include <inttypes.h>

#include "agent/control/bus/internal.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

/* Pending calls of one connection. */
#define CALLS_MAX 4
#define LIST_MAX 1000u
/* Objects of one call of WarmStore: beginning to read them holds up workers for some hundred microseconds. */
#define WARM_MAX 256u
/* Between the turns of a search, for workers that wait for the store. */
#define PAUSE_US 20
/* A byte of a key as text: \xNN. */
#define ESCAPE 4

struct store_call {
	struct pending_reply reply;
	struct store_search *search;
	sd_event_source *turn;
	bool warms;
	uint64_t bytes;
};

static void cancel(struct pending_reply *reply)
{
	struct store_call *k = dray_container_of(reply, struct store_call, reply);

	sd_event_source_disable_unref(k->turn);
	store_search_free(k->search);
}

static const char *key_text(const struct store_found *f, char *ret, size_t n)
{
	size_t at = 0;

	for (unsigned i = 0; i < f->key_n && at + ESCAPE < n; i++) {
		uint8_t byte = f->key[i];

		if (byte > ' ' && byte < 0x7f && byte != '\\')
			ret[at++] = (char)byte;
		else
			at += (size_t)snprintf(ret + at, n - at, "\\x%02x", byte);
	}
	ret[at] = '\0';
	return ret;
}

/* In microseconds a MiB. */
static uint64_t worth_of(const struct store_found *f)
{
	double v = f->worth * (1 << 20);

	return v < (double)UINT64_MAX ? (uint64_t)v : UINT64_MAX;
}

static void fill_objects(struct dictionaries *d)
{
	const struct store_call *k = d->arg;
	char text[DMSG_STORE_KEY_MAX * ESCAPE + ESCAPE + 1];
	uint32_t n;
	const struct store_found *v = store_search_found(k->search, &n);

	for (uint32_t i = 0; i < n; i++) {
		const struct dray_dbus_store_object record = {
			.key = key_text(&v[i], text, sizeof(text)),
			.bytes = v[i].bytes,
			.cost_ns = v[i].cost_us * 1000,
			.uses = v[i].uses,
			.worth = worth_of(&v[i]),
			.memory = v[i].in_memory,
			.disk = v[i].on_disk,
			.held = v[i].held,
		};

		DICTIONARY_KEEP(d, store_object, &record);
	}
}

static int reply_objects(struct store_call *k)
{
	struct dictionaries d = { .agent = k->reply.conn->server->agent,
				  .call = k->reply.m,
				  .arg = k };

	return list_reply(&d, k->reply.conn, fill_objects);
}

static int reply_warmed(struct store_call *k)
{
	struct store_loaded l = store_search_load(k->search, k->bytes);

	if (l.objects)
		LOG_CHANGE(k->reply.conn,
			   "WarmStore: %u objects with %" PRIu64 " bytes are read from disk",
			   l.objects, l.bytes);
	return sd_bus_reply_method_return(k->reply.m, "utbb", l.objects, l.bytes, (int)l.full,
					  (int)(!l.full && (l.waits || l.more)));
}

static int on_turn(sd_event_source *source, uint64_t usec, void *arg)
{
	struct store_call *k = arg;
	int ret;

	if (store_search_turn(k->search)) {
		ret = sd_event_source_set_time_relative(source, PAUSE_US);
		return ret < 0 ? ret : sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	}
	ret = k->warms ? reply_warmed(k) : reply_objects(k);
	cancel(&k->reply);
	pending_reply_end(&k->reply, ret);
	return 0;
}

static int call_begin(struct bus_conn *c, sd_bus_message *m, const struct store_call *call,
		      const char *space, const char *tenant, uint32_t uid, uint32_t most,
		      sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "searches of the store",
						.max = CALLS_MAX,
						.cancel = cancel };
	struct dray_err err = DRAY_ERR_NULL;
	struct store_call *k = pending_reply_new(&kind, sizeof(*k), c, m, reterr);
	int ret;

	if (!k)
		return -sd_bus_error_get_errno(reterr);
	k->warms = call->warms;
	k->bytes = call->bytes;
	k->search = store_search_new(c->server->agent->store, space, tenant, uid, most, call->warms,
				     &err);
	if (!k->search) {
		pending_reply_free(&k->reply);
		return err.code == DRAY_E_NOT_FOUND ?
			       bus_no_space(c->server->agent->store, space, tenant, uid, reterr) :
			       sd_bus_error_set(reterr, SD_BUS_ERROR_NO_MEMORY, err.msg);
	}
	ret = sd_event_add_time_relative(c->server->agent->event, &k->turn, CLOCK_MONOTONIC, 0, 1,
					 on_turn, k);
	if (ret < 0) {
		cancel(&k->reply);
		pending_reply_free(&k->reply);
	}
	return ret < 0 ? ret : 1;
}

int dbus_method_find_store_objects(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	const char *space, *tenant;
	struct bus_conn *c = userdata;
	uint32_t uid = 0, most = 0;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = sd_bus_message_read(m, "ssuu", &space, &tenant, &uid, &most);
	if (ret < 0)
		return ret;
	if (!most || most > LIST_MAX)
		return sd_bus_error_setf(reterr, SD_BUS_ERROR_INVALID_ARGS,
					 "most is %u; allowed are 1 to %u", most, LIST_MAX);
	ret = bus_conn_check_list(c, m, reterr);
	return ret ? ret :
		     call_begin(c, m, &(struct store_call){ .warms = false }, space, tenant, uid,
				most, reterr);
}

int dbus_method_warm_store(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct store_call call = { .warms = true };
	const char *space, *tenant;
	struct bus_conn *c = userdata;
	uint32_t uid = 0;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = sd_bus_message_read(m, "ssut", &space, &tenant, &uid, &call.bytes);
	return ret < 0 ? ret : call_begin(c, m, &call, space, tenant, uid, WARM_MAX, reterr);
}
