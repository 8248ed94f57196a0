/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that accept control connections and data streams of other agents. */
#include <errno.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "lib/log.h"

#define DEFAULT(host) host ":7411"
#define BACKLOG 4096 /* the kernel caps it at net.core.somaxconn */

static void listener_free(struct segment_listener *l)
{
	dray_list_del(&l->link);
	acceptor_stop(&l->acceptor);
	dray_close(l->fd);
	free(l);
}

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	struct segment_listener *l = arg;

	incoming_add(l->p, fd, from);
}

/* A peer may need only the descriptor that an unidentified connection holds. */
static void exhausted(void *arg)
{
	struct segment_listener *l = arg;

	incoming_evict(l->p);
}

static const struct acceptor_ops acceptor_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
	.exhausted = exhausted,
};

/* Accepts from a socket that already listens; consumes fd. */
static int listener_add(struct peers *p, int fd_consumed, struct dray_err *reterr)
{
	dray_auto_close int fd = fd_consumed;
	char text[DRAY_ADDR_TEXT_MAX];
	struct segment_listener *l;
	int r;

	l = calloc(1, sizeof(*l));
	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a listener");
	l->p = p;
	l->fd = dray_take_fd(fd);
	dray_list_add(&p->listeners, &l->link);
	l->addr.len = sizeof(l->addr.ss);
	if (getsockname(l->fd, &l->addr.sa, &l->addr.len) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO,
				    "peer.listen: reading the address: %s", dray_errno_text(errno));
	r = acceptor_start(&l->acceptor, p->deps.event, l->fd, &acceptor_ops, l);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY,
				    "peer.listen: watching the socket: %s", dray_errno_text(r));
	log_info(AREA, "listening on %s", dray_addr_show(&l->addr, text, sizeof(text)));
	return 0;
}

static int open_one(struct peers *p, const struct dray_addr *a, struct dray_err *reterr)
{
	char text[DRAY_ADDR_TEXT_MAX];
	dray_auto_close int fd = -1;
	int on = 1;

	fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    (a->sa.sa_family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
	    bind(fd, &a->sa, a->len) < 0 || listen(fd, BACKLOG) < 0)
		return dray_err_set(
			reterr, -errno, DRAY_E_IO, "peer.listen: %s: %s%s",
			dray_addr_show(a, text, sizeof(text)), dray_errno_text(errno),
			errno == EADDRINUSE ? "; choose another port, or 0 for a free one" : "");
	return listener_add(p, dray_take_fd(fd), reterr);
}

static int open_configured(struct peers *p, struct dray_err *reterr)
{
	const struct dray_strv *list = &p->cfg->peer.listen;
	struct dray_addr a;
	int r;

	if (list->n == 1 && !strcmp(list->v[0], "none"))
		return 0;
	for (size_t i = 0; i < list->n; i++) {
		r = segment_parse(list->v[i], &a);
		if (r < 0)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"peer.listen: \"%s\" is %s: write 1.2.3.4:7411, [2001:db8::1]:7411 or none",
				list->v[i],
				r == -EAFNOSUPPORT ? "a name, not an address" :
						     "no address and port");
		r = peers_check_key(p, &a, true, reterr);
		if (r == 0)
			r = open_one(p, &a, reterr);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Both address families; a host may lack one. */
static int open_defaults(struct peers *p, struct dray_err *reterr)
{
	static const char *const all[2] = { DEFAULT("0.0.0.0"), DEFAULT("[::]") };
	static const char *const loopback[2] = { DEFAULT("127.0.0.1"), DEFAULT("[::1]") };
	struct dray_err first = DRAY_ERR_NULL;
	struct dray_addr a;

	for (unsigned i = 0; i < 2; i++) {
		struct dray_err why = DRAY_ERR_NULL;
		int r;

		dray_assert(dray_addr_parse((peers_beyond_loopback(p) ? all : loopback)[i], &a) ==
			    0);
		r = open_one(p, &a, &why);
		if (r < 0 && !first.code)
			first = why;
		if (r < 0 && r != -EAFNOSUPPORT && r != -EADDRNOTAVAIL && r != -EPROTONOSUPPORT)
			return dray_err_set(reterr, r, why.code, "%s", why.msg);
	}
	if (dray_list_empty(&p->listeners))
		return dray_err_set(reterr, -EADDRNOTAVAIL, first.code, "%s", first.msg);
	return 0;
}

static int open_passed_one(struct peers *p, int fd_consumed, struct dray_err *reterr)
{
	struct dray_addr a = { .len = sizeof(a.ss) };
	dray_auto_close int fd = fd_consumed;
	int r;

	if (getsockname(fd, &a.sa, &a.len) < 0 ||
	    (a.sa.sa_family != AF_INET && a.sa.sa_family != AF_INET6) ||
	    !socket_listens(fd, a.sa.sa_family, SOCK_STREAM))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"the socket passed as \"peer\" is no TCP listener: write ListenStream=7411 in its unit");
	if (socket_set_flags(fd) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "the socket passed as \"peer\": %s",
				    dray_errno_text(errno));
	r = peers_check_key(p, &a, true, reterr);
	return r < 0 ? r : listener_add(p, dray_take_fd(fd), reterr);
}

static int open_passed(struct peers *p, struct dray_err *reterr)
{
	struct peers_deps *d = &p->deps;
	int r = 0;

	for (; r == 0 && d->n_listen_fds; d->n_listen_fds--)
		r = open_passed_one(p, *d->listen_fds++, reterr);
	return r;
}

int segment_listeners_open(struct peers *p, struct dray_err *reterr)
{
	int r;

	if (p->deps.n_listen_fds)
		r = open_passed(p, reterr);
	else if (p->cfg->peer.listen.n)
		r = open_configured(p, reterr);
	else
		r = open_defaults(p, reterr);
	if (r == 0)
		r = advertised_set(p, reterr);
	if (r == 0)
		log_info(AREA, "%s segment=%s",
			 *p->cfg->peer.key_file ? "peers prove the pre-shared key" :
						  "no key: peers are not authenticated",
			 *p->segment ? p->segment : "none");
	return r;
}

void segment_listeners_close(struct peers *p)
{
	dray_list_for_each(&p->listeners, l, struct segment_listener, link)
		listener_free(l);
}
