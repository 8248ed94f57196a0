/* SPDX-License-Identifier: Apache-2.0 */
/* Common to all kinds: the time limit, the name, its addresses in turn, the socket, the result. */
#include "agent/placement/probe/probe.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/placement/net/lack.h"
#include "agent/placement/net/own_echo.h"
#include "agent/placement/probe/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Below the sockets: an answer that arrived in time must be read before the timer fires. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 5)
#define TIMER_ACCURACY_MAX_US 50000

static const struct probe_ops *const kinds[] = {
	[PROBE_TCP] = &probe_tcp_ops,
	[PROBE_DRAY] = &probe_dray_ops,
	[PROBE_MOONCAKE] = &probe_mooncake_ops,
	[PROBE_HTTP] = &probe_http_ops,
};

static void stop_attempt(struct probe *p)
{
	if (p->ops->stop)
		p->ops->stop(p);
	p->io = sd_event_source_disable_unref(p->io);
	p->fd = dray_close(p->fd);
	p->connected = false;
}

struct probe *probe_cancel(struct probe *p)
{
	if (!p)
		return NULL;
	stop_attempt(p);
	resolver_cancel(p->query);
	sd_event_source_disable_unref(p->timer);
	free(p);
	return NULL;
}

void probe_finish(struct probe *p, bool ok, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->result.reason, sizeof(p->result.reason), fmt, ap);
	va_end(ap);
	p->result.ok = ok;
	p->result.latency_ns = dray_now().ns - p->start_ns;
	/* a server of one connection at a time waits for the end of this one */
	stop_attempt(p);
	p->fn(p->arg, &p->result);
	probe_cancel(p);
}

static void arm(struct probe *p)
{
	int64_t now = dray_now().ns, left = dray_max(p->end_ns - now, (int64_t)0);
	unsigned shares = p->n_addrs - p->next_addr + 1;

	/* one address that does not answer must leave time for the others */
	if (p->n_addrs)
		left /= shares;
	sd_event_source_set_time(p->timer, (uint64_t)(now + left) / 1000 + 1);
	sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
}

/* Begins with the next address that can be tried. Below 0: no address is left. */
static int next_address(struct probe *p, struct dray_err *reterr)
{
	int r = -EHOSTUNREACH;

	while (p->next_addr < p->n_addrs) {
		const struct dray_addr *a = &p->addrs[p->next_addr++];
		struct dray_err why = DRAY_ERR_NULL;

		p->awaited = "connection";
		arm(p);
		r = p->ops->try_address(p, a, &why);
		/* the last address decides: one that is tried may fail by itself */
		p->result.lacking = dray_is_own_lack(r);
		if (r == 0)
			return 0;
		stop_attempt(p);
		*reterr = why;
	}
	return r;
}

void probe_fail_address(struct probe *p, const char *fmt, ...)
{
	struct dray_err why = DRAY_ERR_NULL;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why.msg, sizeof(why.msg), fmt, ap);
	va_end(ap);
	stop_attempt(p);
	if (p->next_addr < p->n_addrs && next_address(p, &why) == 0)
		return;
	probe_fail(p, "%s", why.msg);
}

static void on_resolved(void *arg, const struct dray_addr *addrs, unsigned n,
			const struct dray_err *why)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct probe *p = arg;

	p->query = NULL;
	p->n_addrs = dray_min(n, (unsigned)RESOLVER_ADDRS_MAX);
	if (!p->n_addrs) {
		p->result.lacking = why && net_is_lack(why->code);
		probe_fail(p, "%s", why ? why->msg : "the name has no addresses");
		return;
	}
	memcpy(p->addrs, addrs, p->n_addrs * sizeof(*addrs));
	if (next_address(p, &err) < 0)
		probe_fail(p, "%s", err.msg);
}

static void handle_connected(struct probe *p)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	if (err) {
		probe_fail_address(p, "%s", dray_errno_text(err));
		return;
	}
	if (net_is_own_echo(p->fd)) {
		probe_fail_address(p, "%s", dray_errno_text(ECONNREFUSED));
		return;
	}
	p->connected = true;
	p->awaited = "reply";
	sd_event_source_set_io_events(p->io, EPOLLIN);
	p->ops->ready(p, true);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	struct probe *p = userdata;

	if (p->connected)
		p->ops->ready(p, false);
	else
		handle_connected(p);
	return 0;
}

/* The kernel or the event loop is out of memory or descriptors. */
static int exhausted(int r, struct dray_err *reterr)
{
	return dray_err_set(reterr, r, net_error_code(r), "a probe: %s", dray_errno_text(r));
}

int probe_connect(struct probe *p, const struct dray_addr *addr, struct dray_err *reterr)
{
	int on = 1, r;

	p->fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->fd < 0)
		return exhausted(-errno, reterr);
	setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(p->fd, &addr->sa, addr->len) < 0 && errno != EINPROGRESS)
		return dray_err_set(reterr, -errno, DRAY_E_PEER_UNREACHABLE, "%s",
				    dray_errno_text(errno));
	r = sd_event_add_io(p->deps.event, &p->io, p->fd, EPOLLOUT, on_io, p);
	return r < 0 ? exhausted(r, reterr) : 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct probe *p = userdata;

	probe_fail_address(p, "no %s within %lld ms", p->awaited,
			   (long long)((dray_now().ns - p->start_ns) / DRAY_NS_PER_MS));
	return 0;
}

static int begin(struct probe *p, int64_t timeout_ns, struct dray_err *reterr)
{
	if (p->ops->run)
		return p->ops->run(p, reterr);
	if (dray_host_is_address(p->target.host, &p->addrs[0])) {
		dray_addr_set_port(&p->addrs[0], p->target.port);
		p->n_addrs = 1;
		return next_address(p, reterr);
	}
	p->awaited = "address of its name";
	if (!p->deps.resolver)
		return dray_err_set(reterr, -EHOSTUNREACH, DRAY_E_PEER_UNREACHABLE,
				    "%.120s is a name, and names are not resolved here",
				    p->target.host);
	return resolver_lookup(p->deps.resolver, p->target.host, p->target.port, timeout_ns,
			       on_resolved, p, &p->query, reterr);
}

int probe_start(struct probe **ret, const struct probe_deps *deps,
		const struct probe_target *target, int64_t timeout_ns, probe_fn fn, void *arg,
		struct dray_err *reterr)
{
	dray_auto(probe_cancel) struct probe *p = calloc(1, sizeof(*p));
	int64_t now = dray_now().ns;
	uint64_t accuracy = (uint64_t)dray_min(timeout_ns / 32000, (int64_t)TIMER_ACCURACY_MAX_US);
	int r;

	if (!p)
		return exhausted(-ENOMEM, reterr);
	p->deps = *deps;
	p->target = *target;
	p->ops = kinds[target->kind];
	p->fn = fn;
	p->arg = arg;
	p->fd = -1;
	p->start_ns = now;
	p->end_ns = now + timeout_ns;
	p->awaited = "reply";
	r = sd_event_add_time(deps->event, &p->timer, CLOCK_MONOTONIC,
			      (uint64_t)p->end_ns / 1000 + 1, dray_max(accuracy, (uint64_t)1),
			      on_timer, p);
	if (r >= 0)
		r = sd_event_source_set_priority(p->timer, TIMER_PRIORITY);
	if (r < 0)
		return exhausted(r, reterr);
	r = begin(p, timeout_ns, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(p);
	return 0;
}
