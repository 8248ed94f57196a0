/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A listener on the test's event loop whose behaviour the test sets: it opens late, does not
 * accept, resets, or sends given bytes, at once or byte by byte, before or after a request. And a
 * probe, whose end the test waits for.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "agent/placement/probe/probe.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/list.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#ifndef MS
#define MS 1000000LL
#endif

#define server_until(event, ms, cond)                                 \
	({                                                            \
		int64_t end_ = dray_now().ns + (ms)*MS;               \
		bool holds_;                                          \
		while (!(holds_ = (cond)) && dray_now().ns < end_)    \
			assert_true(sd_event_run(event, 50000) >= 0); \
		holds_;                                               \
	})

struct server {
	sd_event *event;
	int fd; /* -1: closed */
	sd_event_source *io;
	struct dray_addr addr;
	char where[DRAY_ADDR_TEXT_MAX];
	struct dray_list guests;

	/* behaviour towards a connection */
	bool resets, closes; /* at once */
	size_t want;         /* bytes that it receives before it sends */
	const void *say;     /* NULL: sends nothing */
	size_t n_say;
	size_t chunk;      /* bytes in one turn of the loop; 0: no limit */
	bool closes_after; /* after it has sent say */
	/* likewise, but only its sending side; it waits for the other side's close */
	bool half_closes;

	/* counts of what happened */
	unsigned accepted, open, most_open;
	unsigned ended; /* closed by the other side */
	unsigned reset; /* reset by the other side */
	uint8_t heard[4096];
	size_t n_heard; /* of the last connection */
};

struct guest {
	struct dray_list link;
	struct server *v;
	sd_event_source *io;
	int fd;
	size_t n_heard, sent;
	bool told;
};

static inline void guest_free(struct guest *g)
{
	g->v->open--;
	dray_list_del(&g->link);
	sd_event_source_disable_unref(g->io);
	dray_close(g->fd);
	free(g);
}

/* Returns false if the connection is gone. */
static inline bool guest_hear(struct guest *g)
{
	struct server *v = g->v;
	uint8_t buf[4096];
	ssize_t n = recv(g->fd, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		v->ended += n == 0;
		v->reset += n < 0;
		guest_free(g);
		return false;
	}
	assert_true(g->n_heard + (size_t)n <= sizeof(v->heard));
	memcpy(v->heard + g->n_heard, buf, (size_t)n);
	g->n_heard += (size_t)n;
	v->n_heard = g->n_heard;
	return true;
}

static inline void guest_say(struct guest *g)
{
	struct server *v = g->v;
	size_t n = v->n_say - g->sent;
	ssize_t sent;

	if (v->chunk && n > v->chunk)
		n = v->chunk;
	sent = send(g->fd, (const uint8_t *)v->say + g->sent, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && errno != EAGAIN) {
		guest_free(g);
		return;
	}
	g->sent += sent < 0 ? 0 : (size_t)sent;
	if (g->sent < v->n_say)
		return;
	g->told = true;
	sd_event_source_set_io_events(g->io, EPOLLIN);
	if (v->half_closes)
		shutdown(g->fd, SHUT_WR);
	if (v->closes_after)
		guest_free(g);
}

static inline int guest_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	struct guest *g = userdata;
	struct server *v = g->v;

	if (revents & (EPOLLIN | EPOLLHUP | EPOLLERR) && !guest_hear(g))
		return 0;
	if (g->told || !v->say || g->n_heard < v->want)
		return 0;
	if (revents & EPOLLOUT)
		guest_say(g);
	else
		sd_event_source_set_io_events(g->io, EPOLLIN | EPOLLOUT);
	return 0;
}

static inline void server_reset_on_close(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

static inline int server_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	struct server *v = userdata;
	int on = 1, got = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct guest *g;

	if (got < 0)
		return 0;
	v->accepted++;
	v->n_heard = 0;
	if (v->resets || v->closes) {
		if (v->resets)
			server_reset_on_close(got);
		close(got);
		return 0;
	}
	setsockopt(got, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	g = calloc(1, sizeof(*g));
	assert_non_null(g);
	*g = (struct guest){ .v = v, .fd = got };
	dray_list_add(&v->guests, &g->link);
	v->open++;
	v->most_open = dray_max(v->most_open, v->open);
	assert_true(sd_event_add_io(v->event, &g->io, got,
				    v->say && !v->want ? EPOLLIN | EPOLLOUT : EPOLLIN, guest_on_io,
				    g) >= 0);
	return 0;
}

/* Listens at the previous address, or at addr the first time. */
static inline void server_open(struct server *v)
{
	int on = 1;

	v->fd = socket(v->addr.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(v->fd >= 0);
	setsockopt(v->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	assert_int_equal(bind(v->fd, &v->addr.sa, v->addr.len), 0);
	assert_int_equal(listen(v->fd, 512), 0);
	assert_int_equal(getsockname(v->fd, &v->addr.sa, &v->addr.len), 0);
	dray_addr_show(&v->addr, v->where, sizeof(v->where));
	assert_true(sd_event_add_io(v->event, &v->io, v->fd, EPOLLIN, server_on_io, v) >= 0);
}

/* Closes the listener and all its connections. */
static inline void server_shut(struct server *v)
{
	v->io = sd_event_source_disable_unref(v->io);
	v->fd = dray_close(v->fd);
	dray_list_for_each(&v->guests, g, struct guest, link) {
		server_reset_on_close(g->fd);
		guest_free(g);
	}
}

static inline void server_init(struct server *v, sd_event *event, const char *where)
{
	*v = (struct server){ .event = event, .fd = -1 };
	dray_list_init(&v->guests);
	assert_int_equal(dray_addr_parse(where, &v->addr), 0);
	server_open(v);
}

/* Stops accepting; only the kernel accepts connections. */
static inline void server_ignore(struct server *v, bool ignore)
{
	sd_event_source_set_enabled(v->io, ignore ? SD_EVENT_OFF : SD_EVENT_ON);
}

static inline void server_deinit(struct server *v)
{
	server_shut(v);
}

static inline sd_event *server_loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* --- one probe ------------------------------------------------------------------------------------ */

struct outcome {
	unsigned done;
	struct probe_result r;
	struct dray_err err;
	int ret; /* of probe_start() */
	struct probe *probe;
};

static inline void outcome_take(void *arg, const struct probe_result *r)
{
	struct outcome *o = arg;

	o->done++;
	o->r = *r;
	o->probe = NULL;
	assert_true(*r->reason && !strchr(r->reason, '\n'));
	assert_true(r->latency_ns > 0);
}

static inline int outcome_begin(struct outcome *o, const struct probe_deps *deps,
				const char *target, int64_t timeout_ns)
{
	struct probe_target t;

	memset(o, 0, sizeof(*o));
	assert_int_equal(probe_target_parse(target, &t, &o->err), 0);
	o->ret = probe_start(&o->probe, deps, &t, timeout_ns, outcome_take, o, &o->err);
	assert_int_equal(o->done, 0);
	return o->ret;
}

/* Probes KIND://where, and waits for the end. */
static inline void outcome_of(struct outcome *o, const struct probe_deps *deps, const char *kind,
			      const char *where, const char *path, int64_t timeout_ns)
{
	char text[PROBE_TARGET_TEXT_MAX];

	snprintf(text, sizeof(text), "%s://%s%s", kind, where, path);
	if (outcome_begin(o, deps, text, timeout_ns) < 0) {
		/* the result is the same: no connection */
		assert_true(o->err.code && *o->err.msg);
		o->r.ok = false;
		snprintf(o->r.reason, sizeof(o->r.reason), "%s", o->err.msg);
		o->done = 1;
	}
	assert_true(server_until(deps->event, timeout_ns / MS + 20000, o->done));
	assert_int_equal(o->done, 1);
}

#define assert_says(reason, text)                                                            \
	do {                                                                                 \
		if (!strstr(reason, text))                                                   \
			fail_msg("the reason is \"%s\" and does not contain \"%s\"", reason, \
				 text);                                                      \
	} while (0)

#define assert_ready(o)                                \
	do {                                           \
		if (!(o)->r.ok)                        \
			fail_msg("%s", (o)->r.reason); \
	} while (0)

#define assert_not_ready(o, text)                 \
	do {                                      \
		assert_false((o)->r.ok);          \
		assert_says((o)->r.reason, text); \
	} while (0)
