/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the control socket. Each has its own sd-bus object on the agent's event loop. conn_filter() sees every
 * message first and closes a client that sends without reading, before its queue of replies grows large.
 */
#include "agent/control/bus/bus.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/bus/input.h"
#include "agent/control/bus/internal.h"
#include "agent/control/owner/owner.h"
#include "agent/store/store.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

#define CONNS_MAX 256
/* Connections that may only read; the rest is left for clients that may change things. */
#define READERS_MAX 224
/* Messages that one client has not read yet. */
#define QUEUE_MAX 32
/* Unread bytes of lists after which a client gets no more lists. */
#define UNREAD_MAX (4u << 20)
/* Shorter lists may be made beside a long one; a connection has few that are not made yet. */
#define LONG_LIST_BYTES (UNREAD_MAX / 4)
/* No tenant of the data plane has this name. */
#define CONTROL_TENANT "(control)"
#define FLUSH_LIMIT_NS (100 * DRAY_NS_PER_MS)

static void conn_free(struct bus_conn *c)
{
	struct bus_server *server = c->server;

	dray_list_for_each(&c->replies, reply, struct pending_reply, link) {
		if (reply->kind->cancel)
			reply->kind->cancel(reply);
		pending_reply_free(reply);
	}
	store_verify_free(c->verify);
	store_trace_free(c->trace);
	dray_list_del(&c->link);
	server->n_conns--;
	if (!c->who.may_change)
		server->n_readers--;
	if (c->bus)
		sd_bus_detach_event(c->bus);
	sd_bus_close_unref(c->bus);
	bus_input_end(c->input);
	owner_unref(c->owner);
	free(c);
}

static int reap(sd_event_source *s, void *userdata)
{
	struct bus_server *server = userdata;

	dray_list_for_each(&server->conns, c, struct bus_conn, link) {
		if (c->doomed)
			conn_free(c);
	}
	return 0;
}

/*
 * At the end of the loop sd-bus would flush each attached connection: for 90 s if the client has not authenticated, and without
 * a limit if it does not read. What clients still get was sent by flush().
 */
static int leave(sd_event_source *s, void *userdata)
{
	struct bus_server *server = userdata;

	dray_list_for_each(&server->conns, c, struct bus_conn, link)
		sd_bus_detach_event(c->bus);
	return 0;
}

/* The event loop frees the connection later, because callers may still use it. */
static void conn_doom(struct bus_conn *c)
{
	c->doomed = true;
	sd_event_source_set_enabled(c->server->reaper, SD_EVENT_ONESHOT);
}

static uint64_t conn_queued(struct bus_conn *c)
{
	uint64_t n = 0;

	if (sd_bus_get_n_queued_write(c->bus, &n) < 0)
		return 0;
	if (!n)
		c->unread = 0;
	return n;
}

static bool conn_is_slow(struct bus_conn *c)
{
	if (c->doomed)
		return true;
	if (conn_queued(c) <= QUEUE_MAX)
		return false;
	bus_warning(
		c->server, c->who.uid,
		"closing the connection of a client that does not read its replies uid=%u pid=%d",
		c->who.uid, c->who.pid);
	conn_doom(c);
	return true;
}

static int too_many_lists(sd_bus_error *reterr)
{
	return sd_bus_error_set(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
				"the client has too many unread lists; read their replies first");
}

int bus_conn_check_list(struct bus_conn *c, sd_bus_message *m, sd_bus_error *reterr)
{
	if (!sd_bus_message_get_expect_reply(m))
		return 1;
	if (conn_queued(c) == 0 || c->unread < UNREAD_MAX)
		return 0;
	return too_many_lists(reterr);
}

int bus_conn_check_size(struct bus_conn *c, size_t bytes, sd_bus_error *reterr)
{
	conn_queued(c);
	if (bytes < LONG_LIST_BYTES || c->unread + c->unsent < UNREAD_MAX)
		return 0;
	return too_many_lists(reterr);
}

int bus_conn_send(struct bus_conn *c, sd_bus_message *reply, size_t bytes)
{
	int ret = sd_bus_send(c->bus, reply, NULL);

	if (conn_queued(c))
		c->unread += bytes;
	return ret < 0 ? ret : 1;
}

void *pending_reply_new(const struct reply_kind *kind, size_t bytes, struct bus_conn *c,
			sd_bus_message *m, sd_bus_error *reterr)
{
	struct pending_reply *reply;
	unsigned n = 0;

	dray_list_for_each(&c->replies, other, struct pending_reply, link)
		n += other->kind == kind;
	if (n >= kind->max) {
		sd_bus_error_setf(reterr, SD_BUS_ERROR_LIMITS_EXCEEDED,
				  "%u %s are pending already; wait for their replies first", n,
				  kind->what);
		return NULL;
	}
	reply = calloc(1, bytes);
	if (!reply) {
		sd_bus_error_set_errno(reterr, -ENOMEM);
		return NULL;
	}
	reply->conn = c;
	reply->m = sd_bus_message_ref(m);
	reply->kind = kind;
	dray_list_add(&c->replies, &reply->link);
	return reply;
}

void pending_reply_free(struct pending_reply *reply)
{
	dray_list_del(&reply->link);
	sd_bus_message_unref(reply->m);
	free(reply);
}

void pending_reply_end(struct pending_reply *reply, int ret)
{
	if (ret < 0)
		sd_bus_reply_method_errno(reply->m, ret, NULL);
	pending_reply_free(reply);
}

/* Sees each message first. Returns 1 to drop it. */
static int conn_filter(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	return conn_is_slow(userdata);
}

static int conn_disconnected(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	conn_doom(userdata);
	return 0;
}

DRAY_DEFINE_CLEANUP(struct owner *, owner_unref);

/* fd: consumed. */
static int conn_start(struct bus_conn *c, int fd)
{
	int in = -1, out = -1, ret;
	sd_id128_t id = SD_ID128_NULL;

	ret = bus_input_new(&c->input, c->owner, fd, &in, &out);
	if (ret >= 0)
		ret = sd_bus_new(&c->bus);
	if (ret >= 0)
		ret = sd_bus_set_fd(c->bus, in, out);
	if (ret < 0) {
		dray_close(in);
		dray_close(out);
		return ret;
	}
	/* the credentials of the socket were read already, and sd-bus cannot read those of a pipe */
	ret = sd_bus_set_anonymous(c->bus, 1);
	if (ret >= 0)
		ret = sd_id128_randomize(&id);
	if (ret >= 0)
		ret = sd_bus_set_server(c->bus, 1, id);
	if (ret >= 0)
		ret = sd_bus_negotiate_fds(c->bus, 0);
	if (ret >= 0)
		ret = sd_bus_set_sender(c->bus, BUS_SENDER);
	if (ret >= 0)
		ret = sd_bus_start(c->bus);
	if (ret >= 0)
		ret = sd_bus_attach_event(c->bus, c->server->agent->event,
					  SD_EVENT_PRIORITY_NORMAL);
	if (ret >= 0)
		ret = sd_bus_match_signal(c->bus, NULL, NULL, "/org/freedesktop/DBus/Local",
					  "org.freedesktop.DBus.Local", "Disconnected",
					  conn_disconnected, c);
	if (ret >= 0)
		ret = sd_bus_add_filter(c->bus, NULL, conn_filter, c);
	if (ret >= 0)
		ret = bus_driver_add(c);
	if (ret >= 0)
		ret = bus_object_add(c);
	return ret;
}

/* One owner takes at most half of the readers that the others leave. */
static bool reader_fits(struct bus_server *server, const struct owner *o)
{
	uint64_t own = 0;

	dray_list_for_each(&server->conns, c, struct bus_conn, link)
		own += !c->who.may_change && c->owner == o;
	return own < budget_share(READERS_MAX, server->n_readers - own, 0);
}

static void conn_new(void *arg, int fd, const struct dray_addr *from)
{
	struct bus_server *server = arg;
	struct owners *owners = server->agent->owners;
	dray_auto(owner_unref) struct owner *o = NULL;
	struct bus_client who;
	struct bus_conn *c;
	int ret;

	ret = bus_client_get(fd, &server->rules, &who);
	o = ret < 0 ? NULL : owner_get(owners, CONTROL_TENANT, who.uid);
	if (!o)
		o = owner_ref(owners->own);
	if (ret < 0) {
		log_limited(DRAY_LOG_WARNING, "control",
			    "closing a new connection: its credentials cannot be read: %s",
			    dray_errno_text(ret));
		owner_farewell(o, fd, NULL);
		return;
	}
	if (server->n_conns >= CONNS_MAX || (!who.may_change && !reader_fits(server, o))) {
		bus_warning(server, who.uid,
			    "refusing a connection: %u are open already uid=%u pid=%d",
			    server->n_conns, who.uid, who.pid);
		owner_farewell(o, fd, NULL);
		return;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		owner_farewell(o, fd, NULL);
		return;
	}
	c->owner = owner_ref(o);
	c->server = server;
	c->who = who;
	dray_list_init(&c->replies);
	snprintf(c->name, sizeof(c->name), ":1.%" PRIu64, ++server->last_number);
	dray_list_add(&server->conns, &c->link);
	server->n_conns++;
	server->n_readers += !who.may_change;
	ret = conn_start(c, fd);
	if (ret < 0) {
		bus_warning(server, who.uid, "closing a new connection: %s uid=%u pid=%d",
			    dray_errno_text(ret), who.uid, who.pid);
		conn_free(c);
	}
}

static int listener_open(struct bus_server *c, int listen_fd, struct dray_err *reterr)
{
	static const struct unix_listener_kind kind = { "control", SOCK_STREAM };
	const struct dray_config *cfg = &c->agent->config->v;
	gid_t group;
	int ret;

	ret = unix_listener_group_parse(kind.section, cfg->control.group, &group, reterr);
	if (ret < 0) {
		dray_close(listen_fd);
		return ret;
	}
	c->rules = (struct access_rules){ .owner = geteuid(),
					  .has_group = group != (gid_t)-1,
					  .group = group };
	if (listen_fd >= 0)
		return unix_listener_adopt(&c->listener, &kind, listen_fd, reterr);
	return unix_listener_bind(&c->listener, &kind, cfg->control.socket,
				  (mode_t)cfg->control.mode, group, reterr);
}

static const struct acceptor_ops acceptor_ops = {
	.area = "control",
	/* the same as for connections, so that busy clients cannot keep new ones out */
	.priority = SD_EVENT_PRIORITY_NORMAL,
	.accepted = conn_new,
};

static int sources_add(struct bus_server *c)
{
	sd_event *event = c->agent->event;
	int ret;

	ret = acceptor_start(&c->acceptor, event, c->listener.fd, &acceptor_ops, c);
	if (ret >= 0)
		ret = sd_event_add_defer(event, &c->reaper, reap, c);
	if (ret >= 0)
		ret = sd_event_source_set_enabled(c->reaper, SD_EVENT_OFF);
	if (ret >= 0)
		ret = long_lists_init(c);
	if (ret >= 0)
		ret = sd_event_add_exit(event, &c->leaver, leave, c);
	/* before what sd-bus does at the end */
	if (ret >= 0)
		ret = sd_event_source_set_priority(c->leaver, SD_EVENT_PRIORITY_IMPORTANT);
	return ret;
}

/* Clients that have not authenticated, or do not read, miss signals. ListEvents has the same changes. */
static bool conn_gets_signals(struct bus_conn *c)
{
	return !c->doomed && sd_bus_is_ready(c->bus) > 0 && conn_queued(c) <= QUEUE_MAX;
}

/* Texts may contain bytes that are not UTF-8. */
static int signal_append(sd_bus_message *m, const char *types, va_list ap)
{
	char text[BUS_TEXT_BYTES];
	int ret = 0;

	for (; *types && ret >= 0; types++)
		if (*types == 's')
			ret = sd_bus_message_append(m, "s",
						    bus_text(va_arg(ap, const char *), text));
		else if (*types == 't')
			ret = sd_bus_message_append(m, "t", va_arg(ap, uint64_t));
		else
			ret = sd_bus_message_append(m, "u", va_arg(ap, uint32_t));
	return ret;
}

static void emit(struct bus_server *server, const char *signal, const char *types, va_list ap)
{
	dray_list_for_each(&server->conns, c, struct bus_conn, link) {
		dray_auto(sd_bus_message_unref) sd_bus_message *m = NULL;
		va_list each;

		if (!conn_gets_signals(c) ||
		    sd_bus_message_new_signal(c->bus, &m, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
					      signal) < 0)
			continue;
		va_copy(each, ap);
		if (signal_append(m, types, each) >= 0)
			sd_bus_send(c->bus, m, NULL);
		va_end(each);
		/* the only property whose changes are signalled */
		if (!strcmp(signal, DRAY_DBUS_SIGNAL_STATE_CHANGED))
			sd_bus_emit_properties_changed(c->bus, DRAY_DBUS_PATH, DRAY_DBUS_INTERFACE,
						       DRAY_DBUS_PROPERTY_STATE, NULL);
	}
}

static void flush(struct bus_server *server)
{
	int64_t ends = dray_now().ns + FLUSH_LIMIT_NS;

	for (;;) {
		struct pollfd fds[CONNS_MAX];
		struct bus_conn *conns[CONNS_MAX];
		int64_t left = ends - dray_now().ns;
		unsigned n = 0;

		dray_list_for_each(&server->conns, c, struct bus_conn, link) {
			if (c->doomed || !conn_queued(c) || n == CONNS_MAX)
				continue;
			fds[n] = (struct pollfd){ .fd = bus_input_fd(c->input), .events = POLLOUT };
			conns[n++] = c;
		}
		if (!n || left <= 0 || poll(fds, n, (int)(left / DRAY_NS_PER_MS) + 1) <= 0)
			return;
		/* sd_bus_process() writes first; it then answers messages as usual */
		for (unsigned i = 0; i < n; i++)
			if (fds[i].revents && sd_bus_process(conns[i]->bus, NULL) < 0)
				conns[i]->doomed = true;
	}
}

static const struct bus_signals signals = { .emit = emit, .flush = flush };

int bus_server_new(struct bus_server **ret_server, struct agent *agent, int listen_fd,
		   struct dray_err *reterr)
{
	struct bus_server *c = calloc(1, sizeof(*c));
	int ret;

	if (!c) {
		dray_close(listen_fd);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	}
	c->agent = agent;
	c->listener = UNIX_LISTENER_NULL;
	dray_list_init(&c->conns);
	dray_list_init(&c->long_lists);
	ret = listener_open(c, listen_fd, reterr);
	if (ret >= 0) {
		ret = sources_add(c);
		if (ret < 0)
			dray_err_set(reterr, ret, DRAY_E_IO, "control socket: %s",
				     dray_errno_text(ret));
	}
	if (ret < 0) {
		bus_server_free(c);
		return ret;
	}
	agent->bus_signals = &signals;
	*ret_server = c;
	return 0;
}

struct bus_server *bus_server_free(struct bus_server *c)
{
	if (!c)
		return NULL;
	dray_list_for_each(&c->conns, conn, struct bus_conn, link)
		conn_free(conn);
	acceptor_stop(&c->acceptor);
	turn_work_deinit(&c->listing);
	sd_event_source_disable_unref(c->reaper);
	sd_event_source_disable_unref(c->leaver);
	unix_listener_close(&c->listener);
	free(c);
	return NULL;
}
