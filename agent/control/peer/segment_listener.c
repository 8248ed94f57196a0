/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that accept control connections and data streams of other agents. */
#include <errno.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "lib/log.h"

#define DEFAULT(host) host ":7411"

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	incoming_add(arg, fd, from);
}

/* A peer may need only the descriptor that an unidentified connection holds. */
static void exhausted(void *arg)
{
	incoming_evict(arg);
}

static const struct acceptor_ops acceptor_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
	.exhausted = exhausted,
};

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
			r = tcp_listener_bind(&p->listeners, &a, reterr);
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
		r = tcp_listener_bind(&p->listeners, &a, &why);
		if (r < 0 && !first.code)
			first = why;
		if (r < 0 && r != -EAFNOSUPPORT && r != -EADDRNOTAVAIL && r != -EPROTONOSUPPORT)
			return dray_err_set(reterr, r, why.code, "%s", why.msg);
	}
	if (dray_list_empty(&p->listeners.list))
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
			"the socket passed as \"peer\" is not a TCP listener: write ListenStream=7411 in its unit");
	if (socket_set_flags(fd) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "the socket passed as \"peer\": %s",
				    dray_errno_text(errno));
	r = peers_check_key(p, &a, true, reterr);
	return r < 0 ? r : tcp_listener_add(&p->listeners, dray_take_fd(fd), reterr);
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

	p->listeners = (struct tcp_listeners){ .list = DRAY_LIST_INIT(p->listeners.list),
					       .event = p->deps.event,
					       .key = "peer.listen",
					       .what = "listening",
					       .ops = &acceptor_ops,
					       .arg = p };
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
