/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/http_url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "agent/config/authority.h"
#include "agent/config/words.h"
#include "lib/plain.h"

#define SCHEME "http://"

static int refuse(struct dray_err *reterr, const char *s, const char *why)
{
	char shown[101];

	dray_plain(shown, sizeof(shown), s, strlen(s));
	return config_invalid(reterr, "\"%s\": %s", shown, why);
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

/* HOST[:PORT] of n bytes. NULL, or what is wrong. */
static const char *host_parse(const char *s, size_t n, struct http_url *url)
{
	if (memchr(s, '@', n))
		return "user names and passwords are not sent: leave them out";
	return authority_parse(s, n, 80, "this is not a URL: write http://HOST:PORT/PATH",
			       url->host, &url->port);
}

int http_url_parse(const char *s, struct http_url *ret, struct dray_err *reterr)
{
	const char *why = text_error(s), *authority, *rest;
	struct http_url url;
	size_t n;

	if (why)
		return refuse(reterr, s, why);
	authority = s + strlen(SCHEME);
	rest = authority + strcspn(authority, "/?");
	why = host_parse(authority, (size_t)(rest - authority), &url);
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
