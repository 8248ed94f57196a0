/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/net_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/list.h"
#include "tests/unit/cm.h"

static int loopback(int type, bool v6, unsigned port, struct dray_addr *ret)
{
	int fd = socket(v6 ? AF_INET6 : AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(dray_addr_parse(v6 ? "[::1]:0" : "127.0.0.1:0", ret), 0);
	dray_addr_set_port(ret, port);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
	assert_int_equal(bind(fd, &ret->sa, ret->len), 0);
	assert_int_equal(getsockname(fd, &ret->sa, &ret->len), 0);
	return fd;
}

/* --- names ---------------------------------------------------------------------------------------- */

#define TYPE_A 1
#define TYPE_AAAA 28
#define TTL_S 1

struct dns_server {
	struct dns_entry *table;
	int fd;
	sd_event_source *io;
	char text[DRAY_ADDR_TEXT_MAX];
};

/* Decodes the name of the question, with dots; returns the position of its type. */
static const uint8_t *name_read(const uint8_t *p, char *name, size_t n)
{
	size_t used = 0;

	for (; *p; p += *p + 1) {
		assert_true(used + *p + 2 < n);
		used += (size_t)snprintf(name + used, n - used, "%s%.*s", used ? "." : "", *p,
					 (const char *)p + 1);
	}
	return p + 1;
}

static uint8_t *record_write(uint8_t *p, uint16_t type, const char *text)
{
	/* reference to the question's name; class IN */
	const uint8_t head[] = { 0xc0, 12, 0, (uint8_t)type, 0, 1, 0, 0, 0, TTL_S, 0 };
	uint8_t n = type == TYPE_A ? 4 : 16;

	memcpy(p, head, sizeof(head));
	p += sizeof(head);
	*p++ = n;
	assert_int_equal(inet_pton(type == TYPE_A ? AF_INET : AF_INET6, text, p), 1);
	return p + n;
}

static size_t reply_write(const struct dns_entry *e, const uint8_t *q, size_t n, uint16_t type,
			  uint8_t *to)
{
	const char *const *v = type == TYPE_A ? e->v4 : e->v6;
	uint8_t *p = to + n;
	uint8_t count = 0;

	memcpy(to, q, n);
	to[2] = 0x84; /* an authoritative answer */
	to[3] = (uint8_t)(0x80 | e->rcode);
	for (; !e->rcode && count < 24 && v[count]; count++)
		p = record_write(p, type, v[count]);
	to[7] = count;
	/* no further records, such as EDNS of the question */
	to[9] = to[11] = 0;
	return (size_t)(p - to);
}

static struct dns_entry *entry_find(struct dns_server *s, const char *name)
{
	struct dns_entry *e = s->table;

	while (e->name && strcasecmp(e->name, name) != 0)
		e++;
	return e;
}

static int on_question(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct dns_server *s = arg;
	struct dray_addr from = { .len = sizeof(from.ss) };
	uint8_t q[512], reply[2048];
	ssize_t n = recvfrom(fd, q, sizeof(q), 0, &from.sa, &from.len);
	static const struct dns_entry none = { .rcode = 3 };
	struct dns_entry *e;
	const uint8_t *p;
	char name[256];
	size_t out;

	assert_true(n > 16);
	p = name_read(q + 12, name, sizeof(name));
	e = entry_find(s, name);
	e->asked++;
	out = reply_write(e->name ? e : &none, q, (size_t)(p + 4 - q), p[1], reply);
	if (e->how == DNS_SILENT)
		return 0;
	if (e->how == DNS_GARBAGE)
		memset(reply + 2, 0xff, out - 2);
	if (e->how == DNS_SHORT)
		out = 5;
	assert_int_equal(sendto(fd, reply, out, 0, &from.sa, from.len), (ssize_t)out);
	return 0;
}

struct dns_server *dns_server_new(sd_event *event, struct dns_entry *table)
{
	struct dns_server *s = calloc(1, sizeof(*s));
	struct dray_addr a;

	assert_non_null(s);
	s->table = table;
	s->fd = loopback(SOCK_DGRAM, false, 0, &a);
	/*
	 * room for a burst of questions, because a client repeats a lost question only after
	 * seconds, and not for ever
	 */
	assert_int_equal(setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &(int){ 1 << 20 }, sizeof(int)),
			 0);
	dray_addr_show(&a, s->text, sizeof(s->text));
	assert_true(sd_event_add_io(event, &s->io, s->fd, EPOLLIN, on_question, s) >= 0);
	return s;
}

struct dns_server *dns_server_free(struct dns_server *s)
{
	sd_event_source_disable_unref(s->io);
	close(s->fd);
	free(s);
	return NULL;
}

const char *dns_server_text(const struct dns_server *s)
{
	return s->text;
}

/* --- pages ---------------------------------------------------------------------------------------- */

struct page_server {
	sd_event *event;
	page_fn fn;
	void *arg;
	int fd;
	sd_event_source *io;
	struct dray_addr addr;
	struct dray_list conns;
	unsigned accepted, open;
};

struct page_conn {
	struct dray_list link;
	struct page_server *server;
	int fd;
	sd_event_source *io, *timer;
	char request[4096];
	size_t n, sent;
	bool asked, held;
	struct page_reply reply;
};

static void conn_free(struct page_conn *c)
{
	c->server->open--;
	dray_list_del(&c->link);
	sd_event_source_disable_unref(c->io);
	sd_event_source_disable_unref(c->timer);
	close(c->fd);
	free(c);
}

/*
 * Called when the whole reply was sent. Returns true if the connection is closed or there is
 * nothing left to do.
 */
static bool conn_end(struct page_conn *c)
{
	struct linger reset = { 1, 0 };

	switch (c->reply.end) {
	case PAGE_REPEAT:
		c->sent = 0;
		return false;
	case PAGE_HOLD:
		c->held = true;
		sd_event_source_set_io_events(c->io, EPOLLIN);
		return true;
	case PAGE_RESET:
		assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)),
				 0);
		break;
	case PAGE_CLOSE:
		break;
	}
	conn_free(c);
	return true;
}

/* Writes one piece, each time that the socket is writable or the pause is over. */
static void conn_write(struct page_conn *c)
{
	const struct page_reply *r = &c->reply;
	size_t n = r->n - c->sent, piece = !c->sent && r->first ? r->first : r->piece;
	ssize_t done;

	n = piece ? dray_min(n, piece) : n;
	done = n ? send(c->fd, r->bytes + c->sent, n, MSG_NOSIGNAL) : 0;
	if (done < 0 && errno == EAGAIN)
		return;
	if (done < 0) {
		conn_free(c);
		return;
	}
	c->sent += (size_t)done;
	if (c->sent == r->n && conn_end(c))
		return;
	sd_event_source_set_io_events(c->io, r->pause_us ? 0 : EPOLLOUT);
	if (r->pause_us) {
		assert_true(sd_event_source_set_time_relative(c->timer, r->pause_us) >= 0);
		assert_true(sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT) >= 0);
	}
}

static int on_pause(sd_event_source *s, uint64_t usec, void *arg)
{
	conn_write(arg);
	return 0;
}

static void conn_ask(struct page_conn *c)
{
	c->asked = true;
	c->server->fn(c->server->arg, c->request, &c->reply);
	sd_event_source_set_io_events(c->io, EPOLLOUT);
}

static int on_conn(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
	struct page_conn *c = arg;
	ssize_t n;

	if (c->asked && !c->held) {
		conn_write(c);
		return 0;
	}
	n = recv(fd, c->request + c->n, sizeof(c->request) - 1 - c->n, 0);
	/* the client has closed the connection */
	if (n <= 0) {
		conn_free(c);
		return 0;
	}
	c->n += (size_t)n;
	if (!c->asked && strstr(c->request, "\r\n\r\n"))
		conn_ask(c);
	return 0;
}

static int on_connection(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct page_server *s = arg;
	struct page_conn *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->server = s;
	c->fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(c->fd >= 0);
	assert_int_equal(setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), 0);
	s->accepted++;
	s->open++;
	dray_list_add(&s->conns, &c->link);
	assert_true(sd_event_add_io(s->event, &c->io, c->fd, EPOLLIN, on_conn, c) >= 0);
	assert_true(sd_event_add_time(s->event, &c->timer, CLOCK_MONOTONIC, UINT64_MAX, 1, on_pause,
				      c) >= 0);
	s->fn(s->arg, NULL, &c->reply);
	if (c->reply.unread)
		conn_ask(c);
	return 0;
}

struct page_server *page_server_new(sd_event *event, bool v6, unsigned port, page_fn fn, void *arg)
{
	struct page_server *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->event = event;
	s->fn = fn;
	s->arg = arg;
	dray_list_init(&s->conns);
	s->fd = loopback(SOCK_STREAM, v6, port, &s->addr);
	assert_int_equal(listen(s->fd, 64), 0);
	assert_true(sd_event_add_io(event, &s->io, s->fd, EPOLLIN, on_connection, s) >= 0);
	return s;
}

struct page_server *page_server_free(struct page_server *s)
{
	dray_list_for_each(&s->conns, c, struct page_conn, link)
		conn_free(c);
	sd_event_source_disable_unref(s->io);
	close(s->fd);
	free(s);
	return NULL;
}

unsigned page_server_port(const struct page_server *s)
{
	return dray_addr_port(&s->addr);
}

unsigned page_server_accepted(const struct page_server *s)
{
	return s->accepted;
}

unsigned page_server_open(const struct page_server *s)
{
	return s->open;
}
