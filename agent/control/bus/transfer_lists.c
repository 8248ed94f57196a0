/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListTransfers and ListEndedTransfers: the reply goes out when every worker has answered. There is one query of each
 * kind at a time. The next query answers all calls that arrive meanwhile, so it sees every transfer that was
 * accepted before they arrived.
 */

#include "agent/control/bus/internal.h"
#include "lib/log.h"
#include "schema/gen/dbus_vtable.h"

/* Pending calls of one connection. */
#define CALLS_MAX 4

static void reply_send(struct pending_reply *call, const struct transfer_list *l,
		       struct snapshot *const *snapshots, unsigned n)
{
	struct dictionaries d = { .agent = l->server->agent,
				  .snapshots = snapshots,
				  .n_snapshots = n };
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	int ret;

	ret = sd_bus_message_new_method_return(call->m, &reply);
	d.reply = reply;
	if (ret >= 0)
		ret = dictionaries_append(&d, l->ended ? fill_ended : fill_transfers);
	if (ret >= 0)
		bus_conn_send(call->conn, reply, d.bytes);
	else
		sd_bus_reply_method_errno(call->m, ret, NULL);
}

static void start(struct transfer_list *l);

static void listed(void *arg, struct snapshot *const *snapshots, unsigned n)
{
	struct transfer_list *l = arg;

	l->busy = false;
	dray_list_for_each(&l->asked, call, struct pending_reply, link) {
		reply_send(call, l, snapshots, n);
		pending_reply_free(call);
	}
	start(l);
}

static void start(struct transfer_list *l)
{
	struct agent *a = l->server->agent;
	int ret;

	if (l->busy || dray_list_empty(&l->waiting))
		return;
	dray_list_splice(&l->asked, &l->waiting);
	ret = agent_list_transfers(a, l->ended, listed, l);
	if (ret >= 0) {
		l->busy = true;
		return;
	}
	dray_list_for_each(&l->asked, call, struct pending_reply, link) {
		sd_bus_reply_method_errno(call->m, ret, NULL);
		pending_reply_free(call);
	}
}

static void list_init(struct transfer_list *l, struct bus_server *server, bool ended)
{
	l->server = server;
	l->ended = ended;
	dray_list_init(&l->asked);
	dray_list_init(&l->waiting);
}

void transfer_lists_init(struct bus_server *server)
{
	list_init(&server->in_flight, server, false);
	list_init(&server->ended, server, true);
}

static int request(struct bus_conn *c, struct transfer_list *l, sd_bus_message *m,
		   sd_bus_error *reterr)
{
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	if (!pending_reply_new(sizeof(struct pending_reply), c, m, &c->n_listings, CALLS_MAX,
			       "lists of transfers", &l->waiting, reterr))
		return -sd_bus_error_get_errno(reterr);
	start(l);
	return 1;
}

int dbus_method_list_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;

	return request(c, &c->server->in_flight, m, reterr);
}

int dbus_method_list_ended_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;

	return request(c, &c->server->ended, m, reterr);
}

void transfer_lists_forget(struct bus_conn *c)
{
	struct bus_server *s = c->server;
	struct dray_list *lists[] = { &s->in_flight.asked, &s->in_flight.waiting, &s->ended.asked,
				      &s->ended.waiting };

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lists); i++)
		dray_list_for_each(lists[i], call, struct pending_reply, link)
			if (call->conn == c)
				pending_reply_free(call);
}

void transfer_lists_stop(struct bus_server *server)
{
	agent_forget_listings(server->agent, &server->in_flight);
	agent_forget_listings(server->agent, &server->ended);
	server->in_flight.busy = server->ended.busy = false;
}
