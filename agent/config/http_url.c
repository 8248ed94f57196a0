/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/http_url.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "lib/addr.h"
#include "schema/gen/errors.h"

#define SCHEME "http://"

static int refuse(struct dray_err *reterr, const char *s, const char *why)
{
	char shown[101];
	size_t i;

	/* a URL from outside may hold any byte */
	for (i = 0; s[i] && i < sizeof(shown) - 1; i++)
		shown[i] = s[i] < ' ' || s[i] > '~' ? '?' : s[i];
	shown[i] = '\0';
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "\"%s\": %s", shown, why);
}

static const char *text_error(const char *s)
{
	if (!strncasecmp(s, "https://", 8))
		return "TLS is not supported here: write http://";
	if (strncasecmp(s, SCHEME, strlen(SCHEME)) != 0)
		return "write http://HOST:PORT/PATH";
	for (const char *p = s; *p; p++)
		if (*p <= ' ' || *p > '~')
			return "blanks, control characters and characters beyond ASCII must be escaped as %XX";
	if (strchr(s, '#'))
		return "a fragment (#...) is not sent to a server: leave it out";
	return NULL;
}

/* Five digits at most, and at least one. */
static bool port_parse(const char *s, size_t n, unsigned *ret)
{
	unsigned v = 0;

	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9' || v > UINT16_MAX)
			return false;
		v = v * 10 + (unsigned)(s[i] - '0');
	}
	*ret = v;
	return n && v <= UINT16_MAX;
}

/* HOST[:PORT] of n bytes. NULL, or what is wrong. */
static const char *authority_parse(const char *s, size_t n, struct http_url *url)
{
	static const char no_url[] = "that is no URL: write http://HOST:PORT/PATH";
	bool brackets = *s == '[';
	const char *end = brackets ? memchr(s, ']', n) : memchr(s, ':', n);
	const char *host = s + brackets, *colon;
	struct dray_addr a;
	bool address;

	if (memchr(s, '@', n))
		return "user names and passwords are not sent: leave them out";
	if (brackets && !end)
		return no_url;
	if (!end)
		end = s + n;
	if (end == host)
		return no_url;
	colon = end + brackets;
	if (colon < s + n &&
	    (*colon != ':' || !port_parse(colon + 1, (size_t)(s + n - colon) - 1, &url->port)))
		return no_url;
	if (!url->port)
		return "a port is 1 to 65535";
	if ((size_t)(end - host) >= sizeof(url->host))
		return "the host name is too long";
	memcpy(url->host, host, (size_t)(end - host));
	url->host[end - host] = '\0';
	address = dray_host_is_address(url->host, &a);
	if (brackets && (!address || a.sa.sa_family != AF_INET6))
		return "the text in brackets is no IPv6 address (zones are not allowed)";
	return address || dray_host_is_name(url->host) ? NULL :
							 "this is no host name and no address";
}

int http_url_parse(const char *s, struct http_url *ret, struct dray_err *reterr)
{
	const char *why = text_error(s), *authority, *rest;
	struct http_url url = { .port = 80 };
	size_t n;

	if (why)
		return refuse(reterr, s, why);
	authority = s + strlen(SCHEME);
	rest = authority + strcspn(authority, "/?");
	why = authority_parse(authority, (size_t)(rest - authority), &url);
	if (why)
		return refuse(reterr, s, why);
	n = strlen(rest);
	/* a question mark without a query is not sent */
	if (n && strchr(rest, '?') == rest + n - 1)
		n--;
	if (n >= sizeof(url.target) - 1)
		return refuse(reterr, s, "path and query are too long");
	snprintf(url.target, sizeof(url.target), "%s%.*s", *rest == '/' ? "" : "/", (int)n, rest);
	*ret = url;
	return 0;
}

const char *http_url_authority(const struct http_url *url, char *buf, size_t n)
{
	snprintf(buf, n, strchr(url->host, ':') ? "[%s]:%u" : "%s:%u", url->host, url->port);
	return buf;
}
