/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/addr.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/units.h"

/* 0 to 65535 in decimal, no sign, no leading zero. */
static int port_parse(const char *s, unsigned *ret)
{
	int64_t v;

	if (s[strspn(s, "0123456789")] || dray_int_parse(s, 0, &v) < 0 || v > UINT16_MAX)
		return -EINVAL;
	*ret = (unsigned)v;
	return 0;
}

/* Labels of letters, digits, - and _; the last one is not a number, so that no address passes. */
static bool name_valid(const char *s, size_t n)
{
	bool digits_only = true;
	size_t label = 0;

	if (!n || n > DRAY_HOST_MAX)
		return false;
	for (size_t i = 0; i < n; i++) {
		char c = s[i];

		if (c == '.') {
			if (!label || s[i - 1] == '-')
				return false;
			label = 0;
			digits_only = true;
			continue;
		}
		if (c >= '0' && c <= '9')
			label++;
		else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
			 (c == '-' && label)) {
			label++;
			digits_only = false;
		} else {
			return false;
		}
		if (label > 63)
			return false;
	}
	return label && s[n - 1] != '-' && !digits_only;
}

bool dray_host_is_address(const char *host, struct dray_addr *ret)
{
	*ret = (struct dray_addr){ .len = sizeof(ret->in) };
	ret->in.sin_family = AF_INET;
	if (inet_pton(AF_INET, host, &ret->in.sin_addr) == 1)
		return true;
	*ret = (struct dray_addr){ .len = sizeof(ret->in6) };
	ret->in6.sin6_family = AF_INET6;
	return inet_pton(AF_INET6, host, &ret->in6.sin6_addr) == 1;
}

bool dray_host_is_name(const char *host)
{
	size_t n = strlen(host);

	return n <= DRAY_HOST_MAX && name_valid(host, n > 1 && host[n - 1] == '.' ? n - 1 : n);
}

size_t dray_host_key(const char *host, char key[static DRAY_HOST_MAX])
{
	size_t n = 0;

	for (; n < DRAY_HOST_MAX && host[n]; n++)
		key[n] = (char)tolower((unsigned char)host[n]);
	return n;
}

int dray_host_port_split(const char *s, char host[DRAY_HOST_BYTES], unsigned *ret_port)
{
	bool brackets = *s == '[';
	const char *end = strchr(s, brackets ? ']' : ':');
	size_t n;

	if (!end || (brackets && end[1] != ':'))
		return -EINVAL;
	s += brackets;
	n = (size_t)(end - s);
	if (n >= DRAY_HOST_BYTES)
		return -EINVAL;
	memcpy(host, s, n);
	host[n] = '\0';
	return port_parse(end + (brackets ? 2 : 1), ret_port);
}

int dray_addr_parse(const char *s, struct dray_addr *ret)
{
	char host[DRAY_HOST_BYTES];
	struct dray_addr a;
	unsigned port;
	int r = dray_host_port_split(s, host, &port);

	if (r < 0)
		return r;
	if (!dray_host_is_address(host, &a))
		return *s != '[' && name_valid(host, strlen(host)) ? -EAFNOSUPPORT : -EINVAL;
	if ((*s == '[') != (a.sa.sa_family == AF_INET6))
		return -EINVAL;
	dray_addr_set_port(&a, port);
	*ret = a;
	return 0;
}

const char *dray_addr_show(const struct dray_addr *a, char *buf, size_t n)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (a->sa.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &a->in6.sin6_addr, host, sizeof(host));
		snprintf(buf, n, "[%s]:%u", host, dray_addr_port(a));
	} else if (a->sa.sa_family == AF_INET) {
		inet_ntop(AF_INET, &a->in.sin_addr, host, sizeof(host));
		snprintf(buf, n, "%s:%u", host, dray_addr_port(a));
	} else {
		snprintf(buf, n, "?");
	}
	return buf;
}

struct in6_addr dray_addr_in6(const struct dray_addr *a)
{
	struct in6_addr r = IN6ADDR_ANY_INIT;

	if (a->sa.sa_family != AF_INET)
		return a->in6.sin6_addr;
	r.s6_addr[10] = r.s6_addr[11] = 0xff;
	memcpy(&r.s6_addr[12], &a->in.sin_addr, sizeof(a->in.sin_addr));
	return r;
}

bool dray_addr_same_host(const struct dray_addr *a, const struct dray_addr *b)
{
	struct in6_addr x = dray_addr_in6(a), y = dray_addr_in6(b);

	return IN6_ARE_ADDR_EQUAL(&x, &y);
}

/* The IPv4 address in host order, also where it is mapped into IPv6. */
static bool v4_of(const struct dray_addr *a, uint32_t *ret)
{
	if (a->sa.sa_family == AF_INET) {
		*ret = ntohl(a->in.sin_addr.s_addr);
		return true;
	}
	if (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) {
		const uint8_t *p = &a->in6.sin6_addr.s6_addr[12];

		*ret = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
		return true;
	}
	return false;
}

bool dray_addr_is_loopback(const struct dray_addr *a)
{
	uint32_t v4;

	if (v4_of(a, &v4))
		return v4 >> 24 == 127;
	return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
}

bool dray_addr_is_wildcard(const struct dray_addr *a)
{
	uint32_t v4;

	if (v4_of(a, &v4))
		return v4 == 0;
	return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

bool dray_addr_is_link_local(const struct dray_addr *a)
{
	uint32_t v4;

	if (v4_of(a, &v4))
		return v4 >> 16 == (169 << 8 | 254);
	return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr);
}

unsigned dray_addr_port(const struct dray_addr *a)
{
	if (a->sa.sa_family == AF_INET6)
		return ntohs(a->in6.sin6_port);
	return a->sa.sa_family == AF_INET ? ntohs(a->in.sin_port) : 0;
}

void dray_addr_set_port(struct dray_addr *a, unsigned port)
{
	if (a->sa.sa_family == AF_INET6)
		a->in6.sin6_port = htons((uint16_t)port);
	else if (a->sa.sa_family == AF_INET)
		a->in.sin_port = htons((uint16_t)port);
}

bool dray_endpoint_valid(const char *s)
{
	char host[DRAY_HOST_BYTES];
	struct dray_addr a;
	unsigned port;
	int r;

	if (dray_host_port_split(s, host, &port) < 0 || !port)
		return false;
	r = dray_addr_parse(s, &a);
	/* other hosts cannot reach these */
	if (r == 0)
		return !dray_addr_is_wildcard(&a) && !dray_addr_is_link_local(&a);
	return r == -EAFNOSUPPORT;
}
