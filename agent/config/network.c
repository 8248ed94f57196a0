/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/internal.h"

#define V6_BITS 128u
#define V4_BITS 32u

/* The prefix of "/N", a number of at most `max`; -1: it is none. */
static int prefix_parse(const char *text, unsigned max)
{
	unsigned n = 0;

	if (!*text || strlen(text) > 3)
		return -1;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -1;
		n = n * 10 + (unsigned)(*text - '0');
	}
	return n <= max ? (int)n : -1;
}

static bool bit(const struct in6_addr *a, unsigned i)
{
	return a->s6_addr[i / 8] >> (7 - i % 8) & 1;
}

int network_parse(const char *word, struct network *ret, struct dray_err *reterr)
{
	const char *slash = strchr(word, '/');
	size_t n = slash ? (size_t)(slash - word) : strlen(word);
	char host[DRAY_HOST_BYTES];
	struct dray_addr a;
	unsigned max;
	int bits;

	if (n >= sizeof(host))
		return config_invalid(reterr, "\"%.60s...\" is not an address or network", word);
	memcpy(host, word, n);
	host[n] = '\0';
	if (!dray_host_is_address(host, &a))
		return config_invalid(reterr,
				      "\"%.60s\" is not an address or network: write 10.0.0.7, "
				      "10.0.0.0/24 or 2001:db8::/64",
				      word);
	max = a.sa.sa_family == AF_INET ? V4_BITS : V6_BITS;
	bits = slash ? prefix_parse(slash + 1, max) : (int)max;
	if (bits < 0)
		return config_invalid(reterr, "\"%.60s\": the prefix is a number up to %u", word,
				      max);
	*ret = (struct network){ dray_addr_in6(&a), (unsigned)bits + V6_BITS - max };
	for (unsigned i = ret->bits; i < V6_BITS; i++)
		if (bit(&ret->address, i))
			return config_invalid(reterr,
					      "\"%.60s\": the address has bits behind its prefix; "
					      "a typing error would open it to other networks",
					      word);
	return 0;
}

static bool is_v4(const struct in6_addr *a)
{
	return IN6_IS_ADDR_V4MAPPED(a);
}

bool network_has(const struct network *n, const struct dray_addr *a)
{
	struct in6_addr address = dray_addr_in6(a);

	/* a network of IPv6 that happens to hold all mapped addresses does not mean them */
	if (is_v4(&address) != (n->bits >= V6_BITS - V4_BITS && is_v4(&n->address)))
		return false;
	for (unsigned i = 0; i < n->bits; i++)
		if (bit(&n->address, i) != bit(&address, i))
			return false;
	return true;
}

bool networks_have(const struct dray_strv *words, const struct dray_addr *a)
{
	struct network n;

	for (size_t i = 0; i < words->n; i++)
		if (network_parse(words->v[i], &n, NULL) == 0 && network_has(&n, a))
			return true;
	return false;
}
