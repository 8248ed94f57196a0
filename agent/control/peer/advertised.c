/* SPDX-License-Identifier: Apache-2.0 */
/* The segment that this agent advertises: configured, or found from listeners and addresses. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "netdetect/choose/address.h"
#include "netdetect/net/link.h"

struct found {
	struct dray_addr addr; /* len 0: none */
	char reason[ND_REASON_MAX + 32];
};

/* Listeners on all addresses of a family. */
struct wildcards {
	const struct segment_listener *v4, *v6;
};

static bool matches(const struct dray_strv *patterns, const char *name)
{
	for (size_t i = 0; i < patterns->n; i++)
		if (fnmatch(patterns->v[i], name, 0) == 0)
			return true;
	return false;
}

static bool allowed(const struct dray_config *cfg, const struct nd_link *link)
{
	if (cfg->peer.interfaces.n && !matches(&cfg->peer.interfaces, link->name))
		return false;
	return !matches(&cfg->peer.exclude_interfaces, link->name);
}

static void found_set(struct found *f, const struct nd_candidate *c, const struct wildcards *w)
{
	bool v4 = c->addr->family == AF_INET;
	size_t n;
	const uint8_t *bytes = nd_addr_bytes(&c->addr->addr, c->addr->family, &n);

	f->addr = (struct dray_addr){ .len = v4 ? sizeof(f->addr.in) : sizeof(f->addr.in6) };
	f->addr.sa.sa_family = c->addr->family;
	memcpy(v4 ? (void *)&f->addr.in.sin_addr : (void *)&f->addr.in6.sin6_addr, bytes, n);
	dray_addr_set_port(&f->addr, dray_addr_port(v4 ? &w->v4->addr : &w->v6->addr));
	snprintf(f->reason, sizeof(f->reason), "%s", c->reason);
}

/* The best address that a wildcard listener serves; loopback if there is none. */
static void find_wildcard(const struct dray_config *cfg, const struct wildcards *w,
			  const struct nd_links *links, struct found *ret)
{
	dray_auto_free struct nd_candidate *c = NULL;
	size_t n = 0;

	if (nd_advertise_rank(links, w->v4, w->v6, &c, &n) < 0)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		if (!c[i].rejected && allowed(cfg, c[i].link)) {
			found_set(ret, &c[i], w);
			return;
		}
	}
	dray_assert(dray_addr_parse(w->v4 ? "127.0.0.1:1" : "[::1]:1", &ret->addr) == 0);
	dray_addr_set_port(&ret->addr, dray_addr_port(w->v4 ? &w->v4->addr : &w->v6->addr));
	snprintf(ret->reason, sizeof(ret->reason), "no address that other hosts could reach");
}

/* A listener on one address that other hosts can reach, else the wildcards, else loopback. */
static const struct segment_listener *find_listener(struct peers *p, struct wildcards *w)
{
	const struct segment_listener *loopback = NULL;

	*w = (struct wildcards){ NULL, NULL };
	dray_list_for_each(&p->listeners, l, struct segment_listener, link) {
		bool v4 = l->addr.sa.sa_family == AF_INET;

		if (dray_addr_is_wildcard(&l->addr) && v4)
			w->v4 = w->v4 ? w->v4 : l;
		else if (dray_addr_is_wildcard(&l->addr))
			w->v6 = w->v6 ? w->v6 : l;
		else if (dray_addr_is_loopback(&l->addr))
			loopback = loopback ? loopback : l;
		else if (!dray_addr_is_link_local(&l->addr))
			return l;
	}
	return w->v4 || w->v6 ? NULL : loopback;
}

static void find(struct peers *p, const struct nd_links *links, struct found *ret)
{
	struct wildcards w;
	const struct segment_listener *one = find_listener(p, &w);
	struct nd_links own = { 0 };
	struct dray_err err = DRAY_ERR_NULL;

	*ret = (struct found){ .addr = { .len = 0 } };
	if (one) {
		ret->addr = one->addr;
		snprintf(ret->reason, sizeof(ret->reason), "the address listened on");
	}
	if (one || (!w.v4 && !w.v6))
		return;
	if (!links && nd_links_scan(&ND_SOURCE_LIVE, &own, &err) < 0)
		log_warning(AREA, "reading the addresses of this host: %s, ignoring", err.msg);
	find_wildcard(p->cfg, &w, links ? links : &own, ret);
	nd_links_deinit(&own);
}

int segment_parse(const char *segment, struct dray_addr *ret)
{
	char numeric[DRAY_ADDR_TEXT_MAX];

	if (strncmp(segment, "localhost:", 10) != 0)
		return dray_addr_parse(segment, ret);
	snprintf(numeric, sizeof(numeric), "127.0.0.1:%s", segment + 10);
	return dray_addr_parse(numeric, ret);
}

int advertised_set(struct peers *p, struct dray_err *reterr)
{
	const char *given = p->cfg->peer.advertise;
	char text[DRAY_ADDR_TEXT_MAX];
	struct found f;

	if (*given) {
		if (!dray_endpoint_valid(given) || strlen(given) > PMSG_TOKEN_SEGMENT_MAX)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"peer.advertise: \"%s\" is no segment that other hosts could reach: write host:port, 1.2.3.4:7411 or [2001:db8::1]:7411",
				given);
		snprintf(p->segment, sizeof(p->segment), "%s", given);
		return 0;
	}
	find(p, NULL, &f);
	if (!f.addr.len)
		return 0;
	snprintf(p->segment, sizeof(p->segment), "%s", dray_addr_show(&f.addr, text, sizeof(text)));
	log_info(AREA, "advertising %s, %s", p->segment, f.reason);
	return 0;
}

void peers_links_changed(struct peers *p, const struct nd_links *links)
{
	char text[DRAY_ADDR_TEXT_MAX];
	struct found f;

	if (*p->cfg->peer.advertise)
		return;
	find(p, links, &f);
	if (!f.addr.len || !strcmp(p->segment, dray_addr_show(&f.addr, text, sizeof(text))))
		return;
	log_notice(AREA, "advertising %s instead of %s, %s", text, p->segment, f.reason);
	snprintf(p->segment, sizeof(p->segment), "%s", text);
}
