/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that were accepted and have shown nothing yet that they may use. At most limits.strangers of
 * them, each for peer.connect_timeout. When one more comes, the oldest that never sent a byte makes
 * room, else the oldest: whoever holds connections open for nothing loses them first, and a peer, which
 * speaks at once, gets through a flood.
 *
 * The first byte tells what it is: a TLS record, or a stream hello.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "agent/control/peer/internal.h"
#include "lib/log.h"
#include "lib/random.h"
#include "schema/gen/errors.h"

/* After the peers, and before more strangers are let in. */
#define STRANGER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 7)

#define TLS_FIRST_BYTE 0x16
#define STREAM_FIRST_BYTE (PMSG_MAGIC_STREAM & 0xff)

struct stranger *stranger_free(struct stranger *s)
{
	dray_list_del(&s->link);
	s->p->n_strangers--;
	conn_free(s->conn);
	sd_event_source_disable_unref(s->io);
	dray_close(s->fd);
	free(s);
	return NULL;
}

void stranger_refuse(struct stranger *s, const char *fmt, ...)
{
	char text[DRAY_ADDR_TEXT_MAX], why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	s->p->strangers_refused++;
	log_limited(DRAY_LOG_INFO, AREA, "refused a connection: %s from=%s", why,
		    dray_addr_show(&s->from, text, sizeof(text)));
	stranger_free(s);
}

/* An abortive close: the many connections of a flood leave no state behind in the kernel. */
static void abort_on_close(const struct stranger *s)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(s->conn ? s->conn->fd : s->fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

bool strangers_evict(struct peers *p)
{
	struct stranger *victim = dray_list_first(&p->strangers, struct stranger, link);

	if (!victim)
		return false;
	dray_list_for_each(&p->strangers, s, struct stranger, link) {
		if (!s->spoke) {
			victim = s;
			break;
		}
	}
	abort_on_close(victim);
	stranger_refuse(victim, "more than limits.strangers = %lld at a time",
			(long long)p->cfg->limits.strangers);
	return true;
}

/* --- a control connection ----------------------------------------------------------------------- */

static void on_secured(struct conn *c)
{
	struct stranger *s = c->owner;

	if (dray_random_fill(s->nonce, sizeof(s->nonce)) < 0) {
		conn_fail(c, DRAY_E_INTERNAL, "the kernel gave no random bytes for the nonce");
		return;
	}
	hello_send(s->p, c, s->nonce);
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	hello_accept(c->owner, h, body);
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	stranger_refuse(c->owner, "%s", why->msg);
}

static const struct conn_ops stranger_conn_ops = {
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};

static void start_tls(struct stranger *s)
{
	struct dray_err why = DRAY_ERR_NULL;

	sd_event_source_disable_unref(s->io);
	s->io = NULL;
	if (conn_accept(&s->conn, s->p->event, s->p->tls, dray_take_fd(s->fd), &stranger_conn_ops,
			s, &why) < 0) {
		stranger_refuse(s, "%s", why.msg);
		return;
	}
	s->conn->message_max = STRANGER_MESSAGE_MAX;
	conn_set_priority(s->conn, STRANGER_PRIORITY);
}

/* --- a data stream ------------------------------------------------------------------------------ */

/* Reads the hello and not a byte more: what follows is the worker's. */
static void read_hello(struct stranger *s)
{
	ssize_t n = recv(s->fd, s->hello + s->n_hello, sizeof(s->hello) - s->n_hello, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		stranger_refuse(s, "a data stream ended in its hello");
		return;
	}
	s->n_hello += (size_t)n;
	if (s->n_hello < sizeof(s->hello))
		return;
	sd_event_source_disable_unref(s->io);
	s->io = NULL;
	stream_handle_hello(s);
}

void strangers_retry(struct peers *p, const struct peer *ready)
{
	dray_list_for_each(&p->strangers, s, struct stranger, link) {
		struct pmsg_stream_hello h;

		if (!s->held)
			continue;
		pmsg_stream_hello_get(s->hello, &h);
		if (!memcmp(h.agent_id, ready->agent_id, sizeof(h.agent_id)))
			stream_handle_hello(s);
	}
}

/* --- the socket --------------------------------------------------------------------------------- */

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct stranger *s = userdata;
	uint8_t first;
	ssize_t n;

	if (s->n_hello) {
		read_hello(s);
		return 0;
	}
	n = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		stranger_refuse(s, "closed without a word");
		return 0;
	}
	s->spoke = true;
	if (first == TLS_FIRST_BYTE)
		start_tls(s);
	else if (first == STREAM_FIRST_BYTE)
		read_hello(s);
	else
		stranger_refuse(s, "its first byte is 0x%02x: neither TLS nor a data stream",
				first);
	return 0;
}

static void arm_timer(struct peers *p)
{
	struct stranger *oldest = dray_list_first(&p->strangers, struct stranger, link);

	if (!oldest) {
		sd_event_source_set_enabled(p->stranger_timer, SD_EVENT_OFF);
		return;
	}
	sd_event_source_set_time(p->stranger_timer, (uint64_t)oldest->end_ns / 1000 + 1);
	sd_event_source_set_enabled(p->stranger_timer, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct peers *p = userdata;
	int64_t now = peers_now(p);

	dray_list_for_each(&p->strangers, s, struct stranger, link) {
		if (s->end_ns > now)
			break;
		stranger_refuse(s, "nothing that is valid within peer.connect_timeout");
	}
	arm_timer(p);
	return 0;
}

void stranger_add(struct peers *p, int fd, const struct dray_addr *from)
{
	struct stranger *s;
	bool was_empty;

	if (p->n_strangers >= (uint64_t)p->cfg->limits.strangers)
		strangers_evict(p);
	s = calloc(1, sizeof(*s));
	if (!s) {
		dray_close(fd);
		return;
	}
	s->p = p;
	s->fd = fd;
	s->from = *from;
	s->end_ns = peers_now(p) + p->cfg->peer.connect_timeout;
	was_empty = dray_list_empty(&p->strangers);
	dray_list_add(&p->strangers, &s->link);
	p->n_strangers++;
	if (sd_event_add_io(p->event, &s->io, fd, EPOLLIN, on_io, s) < 0 ||
	    sd_event_source_set_priority(s->io, STRANGER_PRIORITY) < 0) {
		stranger_refuse(s, "no memory");
		return;
	}
	if (was_empty)
		arm_timer(p);
}

int strangers_init(struct peers *p)
{
	int r = sd_event_add_time(p->event, &p->stranger_timer, CLOCK_MONOTONIC, 0, 20000, on_timer,
				  p);

	if (r < 0)
		return r;
	return sd_event_source_set_enabled(p->stranger_timer, SD_EVENT_OFF);
}

void strangers_deinit(struct peers *p)
{
	dray_list_for_each(&p->strangers, s, struct stranger, link)
		stranger_free(s);
	p->stranger_timer = sd_event_source_disable_unref(p->stranger_timer);
}
