/* SPDX-License-Identifier: Apache-2.0 */
/* The two servers, and the sockets of http.listen and http.probe_listen. */
#include "agent/control/http/http.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/control/http/internal.h"
#include "agent/control/socket/acceptor.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

#define BACKLOG 1024
/* Each server may use this fraction (1/8) of RLIMIT_NOFILE. */
#define FD_SHARE 8

struct http_listener {
	struct dray_list link;
	struct http_server *server;
	int fd;
	struct acceptor acceptor;
};

static struct http_listener *listener_free(struct http_listener *l)
{
	dray_list_del(&l->link);
	acceptor_stop(&l->acceptor);
	dray_close(l->fd);
	free(l);
	return NULL;
}

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	struct http_listener *l = arg;

	if (server_add(l->server, fd, from) < 0)
		log_limited(
			DRAY_LOG_WARNING, AREA,
			"closing a new connection: as many as http.connections allows are open");
}

static void turned(void *arg)
{
	struct http_listener *l = arg;

	server_run(l->server);
}

static const struct acceptor_ops acceptor_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
	.turned = turned,
};

static int listener_add(struct http_server *s, int fd_consumed)
{
	struct http_listener *l = calloc(1, sizeof(*l));
	char text[DRAY_ADDR_TEXT_MAX];
	struct dray_addr addr = { .len = sizeof(addr.ss) };
	int r;

	if (!l) {
		dray_close(fd_consumed);
		return -ENOMEM;
	}
	l->server = s;
	l->fd = fd_consumed;
	dray_list_add(&s->listeners, &l->link);
	if (getsockname(l->fd, &addr.sa, &addr.len) < 0)
		return -errno;
	r = acceptor_start(&l->acceptor, s->agent->event, l->fd, &acceptor_ops, l);
	if (r >= 0)
		log_info(AREA, "%s on %s", s->probes_only ? "probes" : "metrics and probes",
			 dray_addr_show(&addr, text, sizeof(text)));
	return r;
}

static int open_one(struct http_server *s, const char *key, const char *address,
		    struct dray_err *reterr)
{
	dray_auto_close int fd = -1;
	struct dray_addr a;
	int on = 1, r = dray_addr_parse(address, &a);

	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_INVALID,
				    "%s: \"%s\" is not an address and port, such as 127.0.0.1:7412",
				    key, address);
	fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    (a.sa.sa_family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
	    bind(fd, &a.sa, a.len) < 0 || listen(fd, BACKLOG) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s: %s: %s%s", key, address,
				    dray_errno_text(errno),
				    errno == EADDRINUSE ?
					    "; choose another port, or 0 for a free one, or none" :
				    errno == EADDRNOTAVAIL ? "; it is not an address of this host" :
							     "");
	r = listener_add(s, dray_take_fd(fd));
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s: %s: %s", key, address,
				    dray_errno_text(r));
	return 0;
}

static int listeners_open(struct http_server *s, const char *key, const struct dray_strv *addresses,
			  struct dray_err *reterr)
{
	for (size_t i = 0; i < addresses->n; i++) {
		int r = open_one(s, key, addresses->v[i], reterr);

		if (r < 0)
			return r;
	}
	return 0;
}

void http_listeners_close(struct http_server *s)
{
	dray_list_for_each(&s->listeners, l, struct http_listener, link)
		listener_free(l);
}

static unsigned connections(const struct dray_config *cfg)
{
	unsigned n = (unsigned)cfg->http.connections;
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur / FD_SHARE >= n)
		return n;
	return dray_max((unsigned)l.rlim_cur / FD_SHARE, 1u);
}

static bool wanted(const struct dray_strv *addresses)
{
	return addresses->n && strcmp(addresses->v[0], "none");
}

static int server_open(struct http_server *s, struct agent *a, bool probes_only, const char *key,
		       const struct dray_strv *addresses, struct dray_err *reterr)
{
	int r;

	if (!wanted(addresses))
		return 0;
	r = server_init(s, a, probes_only, connections(&a->config->v));
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s: HTTP cannot start: %s", key,
				    dray_errno_text(r));
	return listeners_open(s, key, addresses, reterr);
}

int http_new(struct http **ret, struct agent *a, struct dray_err *reterr)
{
	const struct dray_config *cfg = &a->config->v;
	dray_auto(http_free) struct http *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "HTTP: out of memory");
	r = server_open(&h->all, a, false, "http.listen", &cfg->http.listen, reterr);
	if (r >= 0)
		r = server_open(&h->probes, a, true, "http.probe_listen", &cfg->http.probe_listen,
				reterr);
	if (r >= 0)
		*ret = dray_take(h);
	return r;
}

struct http *http_free(struct http *h)
{
	if (!h)
		return NULL;
	server_deinit(&h->all);
	server_deinit(&h->probes);
	free(h);
	return NULL;
}
