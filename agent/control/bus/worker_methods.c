/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListTransfers, ListEndedTransfers and Health: the reply goes out when every worker has answered, and that of Health at
 * the latest at its time limit.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/bus/internal.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/health.h"
#include "agent/control/status/ready.h"
#include "agent/control/status/transfer_log.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus_vtable.h"
#include "schema/gen/errors.h"

/* Pending calls of one connection: of both lists together, and of Health. */
#define CALLS_MAX 4

static const char *state_text(uint8_t state)
{
	static const char *const names[XFER_STATE_N] = {
		[XFER_WAITING] = "waiting",
		[XFER_RUNNING] = "running",
		[XFER_STOPPING] = "stopping",
		[XFER_NOTIFYING] = "notifying",
	};

	return state < XFER_STATE_N ? names[state] : "";
}

/* Fields that the records of live and of ended transfers share. text: an array for the list of rails. */
#define TRANSFER_FIELDS(t, text)                                                                   \
	.session = (t)->session, .request = (t)->request,                                          \
	.direction = dmsg_direction_name((t)->direction), .class = dmsg_class_name((t)->class),    \
	.transport = dmsg_transport_name((t)->transport),                                          \
	.gpu_path = dmsg_gpu_path_name((t)->gpu_path), .gpu_way = dmsg_gpu_way_name((t)->gpu_way), \
	.rails = numbers_text((t)->rails, text, sizeof(text)), .operations = (t)->operations,      \
	.bytes = (t)->bytes, .bytes_done = (t)->bytes_done, .slices = (t)->slices,                 \
	.label = (t)->label

static void transfer_append(struct dictionaries *d, const struct transfer_info *i)
{
	const struct transfer_record *t = &i->record;
	char rails[BUS_TEXT_BYTES];
	const struct dray_dbus_transfer record = {
		TRANSFER_FIELDS(t, rails),
		.state = state_text(i->state),
		.age_ns = dray_span(record_duration(t)),
		.left_ns = dray_span(i->left_ns),
	};

	DICTIONARY_KEEP(d, transfer, &record);
}

static void fill_transfers(struct dictionaries *d)
{
	for (unsigned i = 0; i < d->n_snapshots; i++)
		for (uint32_t j = 0; j < d->snapshots[i]->n; j++)
			transfer_append(d, &d->snapshots[i]->transfers[j]);
}

static void ended_append(struct dictionaries *d, const struct transfer_record *t, int64_t now)
{
	char rails[BUS_TEXT_BYTES];
	const struct dray_dbus_ended_transfer record = {
		TRANSFER_FIELDS(t, rails),
		.segment = t->peer ? peers_segment_of(d->agent->peers, t->peer) : "",
		.status = dray_error_name(t->code),
		.resent = t->resent,
		.duration_ns = dray_span(record_duration(t)),
		.waited_ns = dray_span(t->phase_ns[XFER_PHASE_WAIT]),
		.queued_ns = dray_span(t->phase_ns[XFER_PHASE_QUEUE]),
		.moved_ns = dray_span(t->phase_ns[XFER_PHASE_MOVE]),
		.notified_ns = dray_span(t->phase_ns[XFER_PHASE_COMPLETE]),
		.ago_ns = dray_span(now - t->ended_ns),
	};

	DICTIONARY_KEEP(d, ended_transfer, &record);
}

static int by_end(const void *a, const void *b)
{
	const struct transfer_record *const *x = a, *const *y = b;

	return dray_compare((*x)->ended_ns, (*y)->ended_ns);
}

static void fill_ended(struct dictionaries *d)
{
	dray_auto_free const struct transfer_record **all = NULL;
	int64_t now = dray_now().ns;
	size_t total = 0, at = 0;

	for (unsigned i = 0; i < d->n_snapshots; i++)
		total += d->snapshots[i]->n;
	all = calloc(total + 1, sizeof(*all));
	if (!all) {
		d->ret = -ENOMEM;
		return;
	}
	for (unsigned i = 0; i < d->n_snapshots; i++)
		for (uint32_t j = 0; j < d->snapshots[i]->n; j++)
			all[at++] = &d->snapshots[i]->records[j];
	qsort(all, total, sizeof(*all), by_end);
	for (size_t i = total > RECORDS_MAX ? total - RECORDS_MAX : 0; i < total; i++)
		ended_append(d, all[i], now);
}

struct list_call {
	struct pending_reply reply;
	struct transfers_query query;
	dictionaries_fn *fill;
};

static void listed(struct transfers_query *q, struct snapshot *const *snapshots, unsigned n)
{
	struct list_call *l = dray_container_of(q, struct list_call, query);
	struct dictionaries d = { .agent = l->reply.conn->server->agent,
				  .call = l->reply.m,
				  .snapshots = snapshots,
				  .n_snapshots = n };

	pending_reply_end(&l->reply, n ? list_reply(&d, l->reply.conn, l->fill) : -ENOMEM);
}

static void list_cancel(struct pending_reply *reply)
{
	dray_list_del(&dray_container_of(reply, struct list_call, reply)->query.link);
}

static int request(struct bus_conn *c, enum listing_kind listing, sd_bus_message *m,
		   sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "lists of transfers",
						.max = CALLS_MAX,
						.cancel = list_cancel };
	struct list_call *l;
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	l = pending_reply_new(&kind, sizeof(*l), c, m, reterr);
	if (!l)
		return -sd_bus_error_get_errno(reterr);
	l->query.fn = listed;
	l->fill = listing == LISTING_ENDED ? fill_ended : fill_transfers;
	agent_list_transfers(c->server->agent, listing, &l->query);
	return 1;
}

int dbus_method_list_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return request(userdata, LISTING_IN_FLIGHT, m, reterr);
}

int dbus_method_list_ended_transfers(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return request(userdata, LISTING_ENDED, m, reterr);
}

struct health_call {
	struct pending_reply reply;
	struct health_check check;
};

static void fill_conditions(struct dictionaries *d)
{
	struct ready ready;

	agent_ready(d->agent, &ready);
	for (size_t i = 0; i < ready.n; i++)
		DICTIONARY_KEEP(d, condition, &ready.conditions[i]);
}

static void checked(struct health_check *check, const char *fault)
{
	struct health_call *h = dray_container_of(check, struct health_call, check);
	dray_auto(sd_bus_message_unref) sd_bus_message *reply = NULL;
	struct dictionaries d = { .agent = h->reply.conn->server->agent };
	struct ready ready;
	int ret;

	agent_ready(d.agent, &ready);
	ret = sd_bus_message_new_method_return(h->reply.m, &reply);
	d.reply = reply;
	if (ret >= 0)
		ret = sd_bus_message_append(reply, "bsb", !*fault, fault, ready.ready);
	if (ret >= 0)
		ret = dictionaries_append(&d, fill_conditions);
	if (ret >= 0)
		bus_conn_send(h->reply.conn, reply, d.bytes);
	pending_reply_end(&h->reply, ret);
}

static void check_cancel(struct pending_reply *reply)
{
	health_cancel(&dray_container_of(reply, struct health_call, reply)->check);
}

int dbus_method_health(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "calls of Health",
						.max = CALLS_MAX,
						.cancel = check_cancel };
	struct bus_conn *c = userdata;
	struct health_call *h;
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	h = pending_reply_new(&kind, sizeof(*h), c, m, reterr);
	if (!h)
		return -sd_bus_error_get_errno(reterr);
	h->check = HEALTH_CHECK_INIT(h->check, checked);
	health_ask(c->server->agent->health, &h->check);
	return 1;
}
