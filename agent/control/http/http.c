/* SPDX-License-Identifier: Apache-2.0 */
/* The two servers, and the sockets of http.listen and http.probe_listen. */
#include "agent/control/http/http.h"

#include <errno.h>
#include <string.h>

#include "agent/control/http/internal.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	if (server_add(arg, fd, from) < 0)
		log_limited(
			DRAY_LOG_WARNING, AREA,
			"closing a new connection: as many as http.connections allows are open");
}

static void turned(void *arg)
{
	server_run(arg);
}

static const struct acceptor_ops acceptor_ops = {
	.area = AREA,
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
	.turned = turned,
};

static int listeners_open(struct http_server *s, const struct dray_strv *addresses,
			  struct dray_err *reterr)
{
	for (size_t i = 0; i < addresses->n; i++) {
		struct dray_addr a;
		int r = dray_addr_parse(addresses->v[i], &a);

		if (r < 0)
			return dray_err_set(
				reterr, r, DRAY_E_INVALID,
				"%s: \"%s\" is not an address and port, such as 127.0.0.1:7412",
				s->listeners.key, addresses->v[i]);
		r = tcp_listener_bind(&s->listeners, &a, reterr);
		if (r < 0)
			return r;
	}
	return 0;
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
	r = server_init(s, a, probes_only, dray_fd_share((unsigned)a->config->v.http.connections));
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s: HTTP cannot start: %s", key,
				    dray_errno_text(r));
	s->listeners =
		(struct tcp_listeners){ .list = DRAY_LIST_INIT(s->listeners.list),
					.event = a->event,
					.key = key,
					.what = probes_only ? "probes" : "metrics and probes",
					.ops = &acceptor_ops,
					.arg = s };
	return listeners_open(s, addresses, reterr);
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
