/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, who may connect, and the data connections that workers serve. */
#include "agent/control/mooncake/mooncake.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/internal.h"
#include "agent/control/mooncake/publish.h"
#include "agent/model/mooncake_message.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "lib/share.h"
#include "schema/gen/errors.h"

struct data_conn {
	struct dray_list link;
	uint64_t id;
	unsigned worker;
	struct dray_addr from;
};

bool mooncake_admits(struct mooncake_server *s, const struct dray_addr *from, const char *what)
{
	bool allowed = networks_have(&s->cfg->mooncake.allow, from);
	char text[DRAY_ADDR_TEXT_MAX];

	if (allowed && !s->draining)
		return true;
	s->totals.connections_refused++;
	log_limited(DRAY_LOG_NOTICE, AREA, "refusing a %s: %s peer=%s", what,
		    allowed ? "the agent is draining" :
			      "mooncake.allow does not have the address of the peer",
		    dray_addr_show(from, text, sizeof(text)));
	return false;
}

void mooncake_refuse(struct mooncake_server *s, int fd)
{
	struct linger hard = { .l_onoff = 1 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	dray_close(fd);
}

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	struct mooncake_server *s = arg;

	if (mooncake_admits(s, from, "handshake"))
		handshake_add(s, fd, from);
	else
		mooncake_refuse(s, fd);
}

static struct data_conn *data_conn_new(struct mooncake_server *s, const struct dray_addr *from)
{
	struct data_conn *c;
	uint64_t held = 0;

	dray_list_for_each(&s->conns, other, const struct data_conn, link)
		held += dray_addr_same_host(&other->from, from);
	if (!dray_share_fits(s->conns_max - s->totals.connections, held, 1)) {
		log_limited(DRAY_LOG_WARNING, AREA,
			    "closing a data connection: %" PRIu64 " others are open, %" PRIu64
			    " of this address; see mooncake.connections",
			    s->totals.connections, held);
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct data_conn){ .id = ++s->next_id,
				 .worker = pool_pick(s->deps.pool),
				 .from = *from };
	dray_list_add(&s->conns, &c->link);
	s->totals.connections++;
	return c;
}

static void data_accepted(void *arg, int fd, const struct dray_addr *from)
{
	struct mooncake_server *s = arg;
	bool admitted = mooncake_admits(s, from, "data connection");
	struct data_conn *c = admitted ? data_conn_new(s, from) : NULL;
	char text[DRAY_ADDR_TEXT_MAX];

	s->totals.connections_refused += admitted && !c;
	if (!c) {
		mooncake_refuse(s, fd);
		return;
	}
	log_debug(AREA, "data connection %" PRIu64 " at worker %u peer=%s", c->id, c->worker,
		  dray_addr_show(from, text, sizeof(text)));
	worker_post(s->deps.pool->workers[c->worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = TRANSPORT_MOONCAKE,
						    .type = MOONCAKE_ADOPT,
						    .code = (uint32_t)fd,
						    .id = c->id } });
}

static const struct acceptor_ops handshake_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
};

static const struct acceptor_ops data_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = data_accepted,
};

void mooncake_server_message(struct mooncake_server *s, const struct transport_message *m)
{
	if (!s || m->type != MOONCAKE_CLOSED)
		return;
	dray_list_for_each(&s->conns, c, struct data_conn, link) {
		if (c->id != m->id)
			continue;
		dray_list_del(&c->link);
		free(c);
		s->totals.connections--;
		return;
	}
}

/* id 0: all that the worker has. */
static void tell_close(struct mooncake_server *s, unsigned worker, uint64_t id)
{
	worker_post(s->deps.pool->workers[worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = TRANSPORT_MOONCAKE,
						    .type = MOONCAKE_CLOSE,
						    .id = id } });
}

void mooncake_server_drain(struct mooncake_server *s, bool on)
{
	if (!s)
		return;
	s->draining = on;
	publisher_set(s->publisher, !on);
	if (!on)
		return;
	handshakes_close(s, true);
	if (s->rdma)
		rails_guests_end(*s->deps.rails, NULL, NULL, "the agent is draining");
	for (unsigned i = 0; i < s->deps.pool->n; i++)
		tell_close(s, i, 0);
}

/* GIDs of InfiniBand, whose ports have a LID, are no addresses. */
static bool is_infiniband(const struct mooncake_server *s, const char *device)
{
	struct rails_guest_device v[RAILS_MAX];
	unsigned n = rails_guest_devices(*s->deps.rails, v);

	for (unsigned i = 0; i < n; i++)
		if (!strcmp(v[i].name, device))
			return v[i].lid;
	return false;
}

bool mooncake_guest_allowed(const struct mooncake_server *s,
			    const struct rails_guest_request *guest)
{
	struct dray_addr gid = mooncake_gid_address(&guest->gid);

	return networks_have(&s->cfg->mooncake.allow, &guest->from) &&
	       (is_infiniband(s, guest->device) || networks_have(&s->cfg->mooncake.allow, &gid));
}

static bool is_allowed(void *arg, const struct rails_guest_request *guest)
{
	return mooncake_guest_allowed(arg, guest);
}

void mooncake_server_rails_changed(struct mooncake_server *s)
{
	if (!s || !s->rdma)
		return;
	handshakes_resume(s);
	publisher_wake(s->publisher);
}

void mooncake_server_ranges_changed(struct mooncake_server *s)
{
	if (s)
		publisher_wake(s->publisher);
}

void mooncake_server_stop(struct mooncake_server *s, void (*done)(void *arg), void *arg)
{
	publisher_stop(s ? s->publisher : NULL, done, arg);
}

void mooncake_server_reload(struct mooncake_server *s)
{
	if (!s)
		return;
	handshakes_close(s, false);
	if (s->rdma)
		rails_guests_end(
			*s->deps.rails, is_allowed, s,
			"mooncake.allow does not have the addresses of the guest any more");
	dray_list_for_each(&s->conns, c, const struct data_conn, link)
		if (!networks_have(&s->cfg->mooncake.allow, &c->from))
			tell_close(s, c->worker, c->id);
}

const char *mooncake_server_segment(const struct mooncake_server *s)
{
	return s ? s->name : "";
}

struct mooncake_totals mooncake_server_totals(const struct mooncake_server *s)
{
	return s ? s->totals : (struct mooncake_totals){ 0 };
}

static unsigned listener_port(const struct tcp_listeners *ls)
{
	const struct tcp_listener *l = dray_list_first(&ls->list, struct tcp_listener, link);

	return dray_addr_port(&l->addr);
}

/* Binds both sockets, and sets the port that the kernel gave to the handshake. */
static int listen_both(struct mooncake_server *s, struct dray_addr *a, struct dray_err *reterr)
{
	struct dray_addr data;
	int r;

	s->listeners.event = s->data_listeners.event = s->deps.event;
	s->listeners.arg = s->data_listeners.arg = s;
	s->listeners.key = "mooncake.listen";
	s->listeners.what = "handshake";
	s->listeners.ops = &handshake_ops;
	s->data_listeners.key = "mooncake.data_listen";
	s->data_listeners.what = "data connections";
	s->data_listeners.ops = &data_ops;
	r = tcp_listener_bind(&s->listeners, a, reterr);
	if (r < 0)
		return r;
	dray_addr_set_port(a, listener_port(&s->listeners));
	if (s->rdma)
		return 0;
	if (dray_addr_parse(s->cfg->mooncake.data_listen, &data) < 0) {
		data = *a;
		dray_addr_set_port(&data, 0);
	}
	r = tcp_listener_bind(&s->data_listeners, &data, reterr);
	if (r < 0)
		return r;
	s->data_port = listener_port(&s->data_listeners);
	return 0;
}

/* The name of the segment: peers connect to its host also for data. */
static int set_name(struct mooncake_server *s, const struct dray_addr *a, struct dray_err *reterr)
{
	const char *advertise = s->cfg->mooncake.advertise;

	if (*advertise)
		snprintf(s->name, sizeof(s->name), "%s", advertise);
	else
		dray_addr_show(a, s->name, sizeof(s->name));
	if (dray_endpoint_valid(s->name))
		return 0;
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "%s: other hosts cannot use \"%.80s\"; set mooncake.advertise to a "
			    "HOST:PORT that they can",
			    *advertise ? "mooncake.advertise" : "mooncake.listen", s->name);
}

static void set_conns_max(struct mooncake_server *s)
{
	unsigned wanted = (unsigned)s->cfg->mooncake.connections;

	s->conns_max = dray_fd_share(wanted);
	if (s->conns_max < wanted)
		log_warning(AREA,
			    "mooncake.connections is %u, an eighth of the limit of open files, "
			    "instead of %u; raise that limit",
			    s->conns_max, wanted);
}

static int start(struct mooncake_server *s, struct dray_err *reterr)
{
	struct dray_addr a;
	uint32_t max;
	int r = dray_addr_parse(s->cfg->mooncake.listen, &a);

	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_INVALID,
				    "mooncake.listen: \"%.80s\" is no address and port, such as "
				    "10.0.0.1:15000",
				    s->cfg->mooncake.listen);
	r = handshakes_init(s);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "mooncake.listen: %s",
				    dray_errno_text(r));
	r = listen_both(s, &a, reterr);
	if (r >= 0)
		r = set_name(s, &a, reterr);
	if (r < 0)
		return r;
	set_conns_max(s);
	max = descriptor_buffers_max(s->name);
	regions_mooncake_open(s->deps.regions, dray_min((uint32_t)s->cfg->mooncake.buffers, max),
			      s->rdma);
	if (!s->cfg->mooncake.allow.n)
		log_warning(AREA, "mooncake.allow is empty: no peer may connect");
	log_info(AREA, "Mooncake's engines may use this segment segment=%s data_port=%u", s->name,
		 s->data_port);
	return *s->cfg->mooncake.metadata ? publisher_new(&s->publisher, s, reterr) : 0;
}

int mooncake_server_new(struct mooncake_server **ret, const struct mooncake_deps *deps,
			struct dray_err *reterr)
{
	struct mooncake_server *s;
	int r;

	*ret = NULL;
	if (!*deps->cfg->mooncake.listen)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "mooncake.listen: out of memory");
	s->deps = *deps;
	s->cfg = deps->cfg;
	s->rdma = s->cfg->mooncake.protocol == DRAY_CONFIG_MOONCAKE_PROTOCOL_RDMA;
	dray_list_init(&s->conns);
	dray_list_init(&s->handshakes);
	dray_list_init(&s->listeners.list);
	dray_list_init(&s->data_listeners.list);
	r = start(s, reterr);
	if (r < 0)
		mooncake_server_free(s);
	else
		*ret = s;
	return r;
}

struct mooncake_server *mooncake_server_free(struct mooncake_server *s)
{
	if (!s)
		return NULL;
	tcp_listeners_close(&s->listeners);
	tcp_listeners_close(&s->data_listeners);
	handshakes_deinit(s);
	publisher_free(s->publisher);
	free(s->descriptor.text);
	dray_list_for_each(&s->conns, c, struct data_conn, link)
		free(c);
	free(s);
	return NULL;
}
