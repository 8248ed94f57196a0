/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepted connections that are not identified yet: at most limits.strangers of them, each for
 * peer.connect_timeout. When the limit is reached, the oldest connection that never sent a byte is closed, else the
 * oldest. So idle connections go first, and a peer, which sends at once, gets through a flood.
 *
 * The first byte identifies the kind of connection: a TLS record, or a stream hello.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "agent/control/peer/internal.h"
#include "lib/log.h"

/* After the peers, and before more connections are accepted. */
#define INCOMING_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 7)

#define TLS_FIRST_BYTE 0x16
#define STREAM_FIRST_BYTE (PMSG_MAGIC_STREAM & 0xff)

struct incoming *incoming_free(struct incoming *in)
{
	dray_list_del(&in->link);
	in->p->n_incoming--;
	check_answer_free(in->answer);
	conn_free(in->conn);
	sd_event_source_disable_unref(in->io);
	sd_event_source_disable_unref(in->timer);
	dray_close(in->fd);
	free(in);
	return NULL;
}

void incoming_refuse(struct incoming *in, const char *fmt, ...)
{
	char from[DRAY_ADDR_TEXT_MAX], why[DRAY_ERR_MSG_MAX];
	struct dray_addr host = in->from;
	struct peers_log log;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	in->p->totals.incoming_refused++;
	/* an address has one limit, whatever its ports */
	dray_addr_set_port(&host, 0);
	log = peers_log_about(in->p,
			      "connections from=", dray_addr_show(&host, from, sizeof(from)));
	log_within(log.limit, log.burst, log.about, DRAY_LOG_INFO, AREA,
		   "refused a connection: %s from=%s", why,
		   dray_addr_show(&in->from, from, sizeof(from)));
	incoming_free(in);
}

/* Resets the connection on close, so that a flood leaves no state in the kernel. */
static void abort_on_close(const struct incoming *in)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(in->conn ? in->conn->fd : in->fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

void incoming_evict(struct peers *p)
{
	struct incoming *victim = dray_list_first(&p->incoming, struct incoming, link);

	if (!victim)
		return;
	dray_list_for_each(&p->incoming, in, struct incoming, link) {
		if (!in->has_sent) {
			victim = in;
			break;
		}
	}
	abort_on_close(victim);
	incoming_refuse(victim, "limits.strangers = %lld connections are not identified yet",
			(long long)p->cfg->limits.strangers);
}

static void on_secured(struct conn *c)
{
	struct incoming *in = c->owner;

	hello_send(in->p, c, in->nonce);
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	hello_accept(c->owner, h, body);
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	struct incoming *in = c->owner;

	if (why->code == DRAY_E_PEER_DENIED && denied_accept(in->p, &in->from, why)) {
		in->p->totals.incoming_refused++;
		incoming_free(in);
		return;
	}
	incoming_refuse(in, "%s", why->msg);
}

static const struct conn_ops incoming_conn_ops = {
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};

static void start_tls(struct incoming *in)
{
	struct dray_err why = DRAY_ERR_NULL;

	in->io = sd_event_source_disable_unref(in->io);
	if (conn_accept(&in->conn, in->p->deps.event, in->p->tls, dray_take_fd(in->fd),
			&incoming_conn_ops, in, &why) < 0) {
		incoming_refuse(in, "%s", why.msg);
		return;
	}
	in->conn->message_max = INCOMING_MESSAGE_MAX;
	conn_set_priority(in->conn, INCOMING_PRIORITY);
}

/* Reads the hello and no byte more: the worker reads what follows. */
static void read_hello(struct incoming *in)
{
	ssize_t n = recv(in->fd, in->hello + in->n_hello, sizeof(in->hello) - in->n_hello,
			 MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		incoming_refuse(in, "a data stream closed within its hello");
		return;
	}
	in->n_hello += (size_t)n;
	if (in->n_hello == sizeof(in->hello)) {
		in->io = sd_event_source_disable_unref(in->io);
		stream_handle_hello(in);
	}
}

void incoming_retry(struct peers *p, const struct peer *ready)
{
	dray_list_for_each(&p->incoming, in, struct incoming, link) {
		struct pmsg_stream_hello h;

		pmsg_stream_hello_get(in->hello, &h);
		if (in->held && peer_is(ready, h.agent_id))
			stream_handle_hello(in);
	}
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct incoming *in = userdata;
	uint8_t first;
	ssize_t n;

	n = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	in->has_sent |= n > 0;
	if (in->n_hello || (n > 0 && first == STREAM_FIRST_BYTE))
		read_hello(in);
	else if (n <= 0)
		incoming_refuse(in, "it closed without sending anything");
	else if (first == TLS_FIRST_BYTE)
		start_tls(in);
	else
		incoming_refuse(in, "its first byte is 0x%02x: neither TLS nor a data stream",
				first);
	return 0;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct incoming *in = userdata;

	incoming_refuse(in, in->answer ?
				    "its check took too long" :
				    "the peer did not identify itself within peer.connect_timeout");
	return 0;
}

void incoming_add(struct peers *p, int fd, const struct dray_addr *from)
{
	uint64_t timeout_us = (uint64_t)p->cfg->peer.connect_timeout / 1000;
	struct incoming *in;

	if (p->n_incoming >= (uint64_t)p->cfg->limits.strangers)
		incoming_evict(p);
	in = calloc(1, sizeof(*in));
	if (!in) {
		dray_close(fd);
		return;
	}
	in->p = p;
	in->fd = fd;
	in->from = *from;
	dray_list_add(&p->incoming, &in->link);
	p->n_incoming++;
	if (sd_event_add_io(p->deps.event, &in->io, fd, EPOLLIN, on_io, in) < 0 ||
	    sd_event_source_set_priority(in->io, INCOMING_PRIORITY) < 0 ||
	    sd_event_add_time_relative(p->deps.event, &in->timer, CLOCK_MONOTONIC, timeout_us,
				       20000, on_timer, in) < 0)
		incoming_refuse(in, "no memory to watch it");
}

void incoming_close(struct peers *p)
{
	dray_list_for_each(&p->incoming, in, struct incoming, link)
		incoming_free(in);
}
