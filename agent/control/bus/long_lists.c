/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each turn of the loop appends some records of lists, and the lists of several clients take turns. A list is copied when the call comes;
 * those of ListLeases and ListHints, which have up to a million records, are not: their records are looked for in each turn.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "agent/control/region/region.h"
#include "agent/placement/hint/hints.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus_vtable.h"

/* Of one connection. */
#define LISTS_MAX 4

struct long_list {
	struct pending_reply reply;
	struct dray_list link; /* in server->long_lists */
	struct dictionaries d;
	/* keeps some more records; false: there are none; NULL: all have been kept */
	bool (*step)(struct long_list *l);
	uint32_t lease; /* cursor */
	char *scopes;   /* that had hints at the start, each with its NUL */
	size_t n, at;
};

static void lease_append(void *arg, const struct dray_dbus_lease *lease)
{
	struct long_list *l = arg;

	DICTIONARY_KEEP(&l->d, lease, lease);
}

static bool leases_step(struct long_list *l)
{
	return leases_next(l->d.agent->regions, &l->lease, lease_append, l);
}

static void hint_append(void *arg, const struct hint *h)
{
	struct long_list *l = arg;
	const struct dray_dbus_hint record = {
		.scope = h->scope,
		.segment = h->segment,
		.source = dmsg_hint_source_name(h->source),
		.uid = h->uid,
		.score = h->score,
		.age_ns = dray_span(h->age_ms) * DRAY_NS_PER_MS,
		.left_ns = dray_span(h->left_ms) * DRAY_NS_PER_MS,
		.counts = h->counts,
	};

	DICTIONARY_KEEP(&l->d, hint, &record);
}

static void scope_count(void *arg, const char *scope)
{
	struct long_list *l = arg;

	l->n += strlen(scope) + 1;
}

static void scope_copy(void *arg, const char *scope)
{
	struct long_list *l = arg;
	size_t n = strlen(scope) + 1;

	memcpy(l->scopes + l->at, scope, n);
	l->at += n;
}

static void scopes_copy(struct long_list *l)
{
	struct hints *hints = l->d.agent->hints;

	hints_each_scope(hints, scope_count, l);
	l->scopes = malloc(l->n + 1);
	if (!l->scopes) {
		l->d.ret = -ENOMEM;
		return;
	}
	hints_each_scope(hints, scope_copy, l);
	l->at = 0;
}

static bool hints_step(struct long_list *l)
{
	const char *scope = l->scopes + l->at;

	if (l->at == l->n)
		return false;
	l->at += strlen(scope) + 1;
	hints_each_of(l->d.agent->hints, scope, hint_append, l);
	return true;
}

static void cancel(struct pending_reply *reply)
{
	struct long_list *l = dray_container_of(reply, struct long_list, reply);

	dray_list_del(&l->link);
	if (!l->step)
		reply->conn->unsent -= l->d.bytes;
	dictionaries_deinit(&l->d);
	free(l->scopes);
}

static void finish(struct long_list *l)
{
	int ret = dictionaries_end(&l->d, l->reply.conn);

	cancel(&l->reply);
	pending_reply_end(&l->reply, ret);
}

static void go_on(struct bus_server *server)
{
	struct long_list *l;

	while (turn_work_has_room(&server->listing) &&
	       (l = dray_list_pop(&server->long_lists, struct long_list, link))) {
		dray_list_add(&server->long_lists, &l->link);
		server->listing.done++;
		if (dictionaries_append_kept(&l->d))
			continue;
		if (l->d.ret < 0 || !l->step || !l->step(l))
			finish(l);
	}
	if (!dray_list_empty(&server->long_lists))
		turn_work_go_on(&server->listing);
}

static int on_turn(sd_event_source *source, uint64_t usec, void *arg)
{
	go_on(arg);
	return 0;
}

int long_lists_init(struct bus_server *server)
{
	return turn_work_init(&server->listing, server->agent->event, LISTED_PER_TURN, on_turn,
			      server);
}

/* The list that d describes. NULL with d->reterr set. */
static struct long_list *list_new(const struct dictionaries *d, struct bus_conn *c,
				  const struct reply_kind *kind, bool (*step)(struct long_list *l))
{
	struct long_list *l = pending_reply_new(kind, sizeof(*l), c, d->call, d->reterr);

	if (!l)
		return NULL;
	l->d = *d;
	l->step = step;
	dray_list_add(&c->server->long_lists, &l->link);
	dictionaries_begin(&l->d);
	return l;
}

int list_reply(const struct dictionaries *d, struct bus_conn *c, dictionaries_fn *fn)
{
	static const struct reply_kind kind = { .what = "lists",
						.max = LISTS_MAX,
						.cancel = cancel };
	struct long_list *l = list_new(d, c, &kind, NULL);
	sd_bus_error late = SD_BUS_ERROR_NULL;
	int ret;

	if (!l)
		return d->reterr ? -sd_bus_error_get_errno(d->reterr) : -EBUSY;
	fn(&l->d);
	/* what it points to is gone in later turns */
	l->d.reterr = NULL;
	ret = l->d.ret;
	if (ret >= 0)
		ret = bus_conn_check_size(c, l->d.bytes, d->reterr ? d->reterr : &late);
	c->unsent += l->d.bytes;
	if (ret >= 0) {
		go_on(c->server);
		return 1;
	}
	cancel(&l->reply);
	pending_reply_free(&l->reply);
	if (sd_bus_error_is_set(&late))
		ret = sd_bus_reply_method_error(d->call, &late);
	sd_bus_error_free(&late);
	return ret;
}

int dbus_method_list_leases(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "lists of leases",
						.max = 1,
						.cancel = cancel };
	struct bus_conn *c = userdata;
	struct dictionaries d = { .agent = c->server->agent, .call = m, .reterr = reterr };
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	if (!list_new(&d, c, &kind, leases_step))
		return -sd_bus_error_get_errno(reterr);
	go_on(c->server);
	return 1;
}

int dbus_method_list_hints(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	static const struct reply_kind kind = { .what = "lists of hints",
						.max = 1,
						.cancel = cancel };
	struct bus_conn *c = userdata;
	struct dictionaries d = { .agent = c->server->agent, .call = m, .reterr = reterr };
	struct long_list *l;
	int ret = bus_conn_check_list(c, m, reterr);

	if (ret)
		return ret;
	l = list_new(&d, c, &kind, hints_step);
	if (!l)
		return -sd_bus_error_get_errno(reterr);
	scopes_copy(l);
	go_on(c->server);
	return 1;
}
