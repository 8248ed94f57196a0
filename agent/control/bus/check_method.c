/* SPDX-License-Identifier: Apache-2.0 */
/* CheckPeer: the reply goes out when both agents have checked their ways. */
#include "agent/control/bus/internal.h"
#include "agent/control/peer/check.h"
#include "lib/cleanup.h"
#include "schema/gen/dbus_vtable.h"

/* Pending calls of one connection. */
#define CALLS_MAX 2

struct check_call {
	struct pending_reply reply;
	struct peer_check *check;
};

static void fill_steps(struct dictionaries *d)
{
	const struct peer_check_result *r = d->checked;

	for (unsigned i = 0; i < r->n; i++) {
		const struct peer_check_note *n = &r->v[i];
		const struct dray_dbus_check_step record = {
			.back = n->back,
			.step = pmsg_check_step_name(n->step),
			.result = pmsg_check_result_name(n->result),
			.took_ns = n->took_ns,
			.text = n->text,
			.remedy = n->remedy,
		};

		DICTIONARY_KEEP(d, check_step, &record);
	}
}

static void checked(void *arg, const struct peer_check_result *r)
{
	struct check_call *k = arg;
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct dictionaries d = { .agent = k->reply.conn->server->agent, .checked = r };
	int ret = sd_bus_message_new_method_return(k->reply.m, &reply);

	d.reply = reply;
	if (ret >= 0)
		ret = dictionaries_append(&d, fill_steps);
	if (ret >= 0)
		ret = sd_bus_message_append_array(reply, 'y', r->token, r->n_token);
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "s", r->segment);
	if (ret >= 0)
		bus_conn_send(k->reply.conn, reply, d.bytes);
	k->check = peer_check_free(k->check);
	pending_reply_end(&k->reply, ret);
}

static void cancel(struct pending_reply *reply)
{
	peer_check_free(dray_container_of(reply, struct check_call, reply)->check);
}

int dbus_method_check_peer(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "calls of CheckPeer",
						.max = CALLS_MAX,
						.cancel = cancel };
	struct dray_err err = DRAY_ERR_NULL;
	struct bus_conn *c = userdata;
	const char *segment;
	struct check_call *k;
	int ret = bus_check_change(c, sd_bus_message_get_member(m), reterr);

	if (ret >= 0)
		ret = sd_bus_message_read(m, "s", &segment);
	if (ret >= 0)
		ret = bus_conn_check_list(c, m, reterr);
	if (ret)
		return ret;
	k = pending_reply_new(&kind, sizeof(*k), c, m, reterr);
	if (!k)
		return -sd_bus_error_get_errno(reterr);
	if (peer_check_start(&k->check, c->server->agent->peers, segment, false, checked, k, &err) <
	    0) {
		pending_reply_free(&k->reply);
		return sd_bus_error_set(reterr, SD_BUS_ERROR_INVALID_ARGS, err.msg);
	}
	return 1;
}
