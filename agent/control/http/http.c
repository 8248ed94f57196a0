/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/http/http.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/control/http/internal.h"
#include "schema/gen/errors.h"

/* Each server may use this fraction (1/8) of RLIMIT_NOFILE. */
#define FD_SHARE 8

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
	return http_listen(s, key, addresses, reterr);
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
