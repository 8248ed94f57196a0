/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

bool host_is_address(const char *host, struct dray_addr *ret)
{
	*ret = (struct dray_addr){ .len = sizeof(ret->in) };
	ret->in.sin_family = AF_INET;
	if (inet_pton(AF_INET, host, &ret->in.sin_addr) == 1)
		return true;
	*ret = (struct dray_addr){ .len = sizeof(ret->in6) };
	ret->in6.sin6_family = AF_INET6;
	return inet_pton(AF_INET6, host, &ret->in6.sin6_addr) == 1;
}

bool host_is_name(const char *host)
{
	char text[HOST_MAX + 3];
	struct dray_addr a;
	size_t n = strlen(host);

	if (!n || n > HOST_MAX)
		return false;
	if (n > 1 && host[n - 1] == '.')
		n--;
	snprintf(text, sizeof(text), "%.*s:1", (int)n, host);
	return dray_addr_parse(text, &a) == -EAFNOSUPPORT;
}
