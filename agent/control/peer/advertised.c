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

#define REASON_BYTES (ND_REASON_MAX + 32)

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

/* The address of a candidate with the port of the listener that serves its family. */
static struct dray_addr address_of(const struct nd_addr *a, const struct tcp_listener *l)
{
	bool v4 = a->family == AF_INET;
	struct dray_addr ret = { .len = v4 ? sizeof(ret.in) : sizeof(ret.in6) };
	size_t n;
	const uint8_t *bytes = nd_addr_bytes(&a->addr, a->family, &n);

	ret.sa.sa_family = a->family;
	memcpy(v4 ? (void *)&ret.in.sin_addr : (void *)&ret.in6.sin6_addr, bytes, n);
	dray_addr_set_port(&ret, dray_addr_port(&l->addr));
	return ret;
}

/* The best address that a listener on all addresses serves (v4, v6: of that family, or NULL); else loopback. */
static struct dray_addr find_wildcard(const struct peers *p, const struct tcp_listener *v4,
				      const struct tcp_listener *v6, const struct nd_links *links,
				      char reason[REASON_BYTES])
{
	dray_auto_free struct nd_candidate *c = NULL;
	struct dray_addr ret;
	size_t n = 0;

	if (nd_advertise_rank(links, v4, v6, &c, &n) < 0)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		if (c[i].rejected || !allowed(p->cfg, c[i].link))
			continue;
		snprintf(reason, REASON_BYTES, "%s", c[i].reason);
		return address_of(c[i].addr, c[i].addr->family == AF_INET ? v4 : v6);
	}
	snprintf(reason, REASON_BYTES, "no address that other hosts could reach");
	dray_assert(dray_addr_parse(v4 ? "127.0.0.1:1" : "[::1]:1", &ret) == 0);
	dray_addr_set_port(&ret, dray_addr_port(v4 ? &v4->addr : &v6->addr));
	return ret;
}

/* The address to advertise; len 0: none. links NULL: reads the addresses of the kernel. */
static struct dray_addr find(struct peers *p, const struct nd_links *links,
			     char reason[REASON_BYTES])
{
	const struct tcp_listener *v4 = NULL, *v6 = NULL, *loopback = NULL, *other = NULL;
	struct dray_addr ret = { .len = 0 };
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_links own = { 0 };

	dray_list_for_each(&p->listeners.list, l, struct tcp_listener, link) {
		const struct tcp_listener **first = &other;

		if (dray_addr_is_wildcard(&l->addr))
			first = l->addr.sa.sa_family == AF_INET ? &v4 : &v6;
		else if (dray_addr_is_loopback(&l->addr))
			first = &loopback;
		if (!*first && !dray_addr_is_link_local(&l->addr))
			*first = l;
	}
	if (!other && (v4 || v6)) {
		if (!links && nd_links_scan(&ND_SOURCE_LIVE, &own, &err) < 0)
			log_warning(AREA, "reading the addresses of this host failed: %s, ignoring",
				    err.msg);
		ret = find_wildcard(p, v4, v6, links ? links : &own, reason);
		nd_links_deinit(&own);
	} else if (other || loopback) {
		snprintf(reason, REASON_BYTES, "the address of the listener");
		ret = other ? other->addr : loopback->addr;
	}
	return ret;
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
	const char *configured = p->cfg->peer.advertise;

	if (!*configured) {
		peers_links_changed(p, NULL);
		return 0;
	}
	if (!dray_endpoint_valid(configured) || strlen(configured) > PMSG_TOKEN_SEGMENT_MAX)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"peer.advertise: \"%s\" is not a segment that other hosts can reach: write host:port, 1.2.3.4:7411 or [2001:db8::1]:7411",
			configured);
	snprintf(p->segment, sizeof(p->segment), "%s", configured);
	return 0;
}

void peers_links_changed(struct peers *p, const struct nd_links *links)
{
	char text[DRAY_ADDR_TEXT_MAX], reason[REASON_BYTES];
	struct dray_addr addr;

	if (*p->cfg->peer.advertise)
		return;
	addr = find(p, links, reason);
	if (!addr.len || !strcmp(p->segment, dray_addr_show(&addr, text, sizeof(text))))
		return;
	dray_log(*p->segment ? DRAY_LOG_NOTICE : DRAY_LOG_INFO, AREA, "advertising %s%s%s: %s",
		 text, *p->segment ? " instead of " : "", p->segment, reason);
	snprintf(p->segment, sizeof(p->segment), "%s", text);
}
