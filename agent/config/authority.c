/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/authority.h"

#include <stdio.h>
#include <string.h>

const char *authority_parse(const char *s, size_t n, unsigned port, const char *no_url,
			    char host[DRAY_HOST_BYTES], unsigned *ret_port)
{
	bool brackets = n && *s == '[', no_port;
	const char *end = memchr(s, brackets ? ']' : ':', n);
	char text[DRAY_HOST_BYTES + 16], default_port[16] = "";
	struct dray_addr a;
	bool address;

	no_port = brackets ? end && end + 1 == s + n : !end;
	if (no_port)
		snprintf(default_port, sizeof(default_port), ":%u", port);
	if ((size_t)snprintf(text, sizeof(text), "%.*s%s", (int)n, s, default_port) >= sizeof(text))
		return "the host name is too long";
	if (dray_host_port_split(text, host, ret_port) < 0)
		return end || n < DRAY_HOST_BYTES ? no_url : "the host name is too long";
	if (!*host)
		return no_url;
	if (!*ret_port)
		return "a port is 1 to 65535";
	address = dray_host_is_address(host, &a);
	if (brackets && (!address || a.sa.sa_family != AF_INET6))
		return "the text in brackets is not an IPv6 address (zones are not allowed)";
	return address || dray_host_is_name(host) ? NULL :
						    "this is neither a host name nor an address";
}
