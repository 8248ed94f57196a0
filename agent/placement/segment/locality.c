/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/segment/locality.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/cleanup.h"

static int by_bytes(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct in6_addr));
}

static bool number_of(const char *text, struct in6_addr *ret)
{
	struct dray_addr a;

	if (inet_pton(AF_INET6, text, ret) == 1)
		return true;
	a.sa.sa_family = AF_INET;
	if (inet_pton(AF_INET, text, &a.in.sin_addr) != 1)
		return false;
	*ret = dray_addr_in6(&a);
	return true;
}

int locality_set_addresses(struct locality *l, const struct nd_links *links,
			   const struct dray_strv *node)
{
	size_t room = node->n + (links ? links->n_addrs : 0), n = 0;
	struct in6_addr *addrs = calloc(dray_max(room, (size_t)1), sizeof(*addrs));

	if (!addrs)
		return -ENOMEM;
	for (size_t i = 0; links && i < links->n_addrs; i++)
		addrs[n++] = links->addrs[i].addr;
	for (size_t i = 0; i < node->n; i++)
		n += number_of(node->v[i], &addrs[n]);
	qsort(addrs, n, sizeof(*addrs), by_bytes);
	if (n == l->n_addrs && (!n || !memcmp(addrs, l->addrs, n * sizeof(*addrs)))) {
		free(addrs);
		return 0;
	}
	free(l->addrs);
	l->addrs = addrs;
	l->n_addrs = n;
	return 1;
}

int locality_set_rules(struct locality *l, const struct dray_strv *words)
{
	struct local_rule *rules = calloc(dray_max(words->n, (size_t)1), sizeof(*rules));
	size_t n = 0;

	if (!rules)
		return -ENOMEM;
	for (size_t i = 0; i < words->n; i++)
		n += local_rule_parse(words->v[i], &rules[n], NULL) == 0;
	free(l->rules);
	l->rules = rules;
	l->n_rules = n;
	return 0;
}

void locality_deinit(struct locality *l)
{
	free(l->addrs);
	free(l->rules);
	*l = LOCALITY_NULL;
}

bool locality_has_addr(const struct locality *l, const struct dray_addr *addr)
{
	struct in6_addr a = dray_addr_in6(addr);

	return dray_addr_is_loopback(addr) ||
	       (l->n_addrs && bsearch(&a, l->addrs, l->n_addrs, sizeof(a), by_bytes));
}

static bool rule_matches(const struct local_rule *r, const char *host, const struct dray_addr *addr,
			 unsigned port)
{
	if (r->port && r->port != port)
		return false;
	if (r->addr.len && addr->len)
		return dray_addr_same_host(&r->addr, addr);
	return !r->addr.len && !addr->len && !strcasecmp(r->host, host);
}

int locality_find(const struct locality *l, const char *segment, char *reason, size_t n)
{
	char host[DRAY_HOST_BYTES];
	struct dray_addr addr;
	unsigned port;

	if (dray_host_port_split(segment, host, &port) < 0) {
		snprintf(reason, n, "it is not HOST:PORT");
		return 0;
	}
	if (dray_addr_parse(segment, &addr) < 0)
		addr.len = 0;
	for (size_t i = 0; i < l->n_rules; i++)
		if (rule_matches(&l->rules[i], host, &addr, port)) {
			snprintf(reason, n, "segment.local names it");
			return 1;
		}
	if (!addr.len) {
		snprintf(reason, n, "the addresses of %.100s are not known", host);
		return -EAGAIN;
	}
	if (locality_has_addr(l, &addr)) {
		snprintf(reason, n, "%s is an address of this node", host);
		return 1;
	}
	snprintf(reason, n, "%s is not an address of this node", host);
	return 0;
}
