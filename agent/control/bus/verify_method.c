/* SPDX-License-Identifier: Apache-2.0 */
/* VerifyStore: the verification belongs to the connection, and goes on between the calls, each of which asks how far it is. */
#include <inttypes.h>

#include "agent/control/bus/internal.h"
#include "agent/store/store.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

struct place {
	const char *space, *tenant;
	uint32_t uid;
};

static const char *space_text(const struct place *p)
{
	return *p->space ? p->space : p->tenant;
}

static int error_of(const struct bus_conn *c, const struct dray_err *e, const struct place *p,
		    sd_bus_error *reterr)
{
	switch (e->code) {
	case DRAY_E_NOT_FOUND:
		return bus_no_space(c->server->agent->store, p->space, p->tenant, p->uid, reterr);
	case DRAY_E_BUSY:
		return sd_bus_error_set(reterr, DRAY_DBUS_ERROR_BUSY, e->msg);
	case DRAY_E_UNSUPPORTED:
		return sd_bus_error_set(reterr, SD_BUS_ERROR_NOT_SUPPORTED, e->msg);
	default:
		return sd_bus_error_set(reterr, SD_BUS_ERROR_NO_MEMORY, e->msg);
	}
}

static void end(struct bus_conn *c)
{
	store_verify_free(c->verify);
	c->verify = NULL;
}

/* 0, or < 0 with the error set. */
static int begin(struct bus_conn *c, const struct place *p, uint64_t rate, sd_bus_error *reterr)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (store_verify_new(&c->verify, c->server->agent->store, p->space, p->tenant, p->uid, rate,
			     &err) < 0)
		return error_of(c, &err, p, reterr);
	LOG_CHANGE(c, "VerifyStore begins space=%.60s", space_text(p));
	return 0;
}

int dbus_method_verify_store(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct store_verified f;
	struct place p;
	uint64_t rate = 0;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = sd_bus_message_read(m, "ssut", &p.space, &p.tenant, &p.uid, &rate);
	if (ret < 0)
		return ret;
	if (!rate)
		return sd_bus_error_set(reterr, SD_BUS_ERROR_INVALID_ARGS,
					"rate is 0; give the bytes that may be read in a second");
	if (c->verify && !store_verify_is_of(c->verify, p.space, p.tenant, p.uid))
		end(c);
	ret = c->verify ? 0 : begin(c, &p, rate, reterr);
	if (ret < 0)
		return ret;
	f = store_verify_found(c->verify);
	if (!f.more) {
		LOG_CHANGE(c,
			   "VerifyStore: %" PRIu64 " objects are good, %" PRIu64
			   " damaged, %" PRIu64 " unreadable space=%.60s",
			   f.good.objects, f.damaged.objects, f.unreadable.objects, space_text(&p));
		end(c);
	}
	return sd_bus_reply_method_return(m, "ttttttb", f.good.objects, f.good.bytes,
					  f.damaged.objects, f.damaged.bytes, f.unreadable.objects,
					  f.unreadable.bytes, (int)f.more);
}
