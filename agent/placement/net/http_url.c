/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/net/http_url.h"

#include <errno.h>
#include <http_parser.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "agent/placement/net/host.h"
#include "schema/gen/errors.h"

static int refuse(struct dray_err *reterr, const char *s, const char *why)
{
	char shown[101];
	size_t i;

	/* what comes from outside may hold anything */
	for (i = 0; s[i] && i < sizeof(shown) - 1; i++)
		shown[i] = s[i];
	shown[i] = '\0';
	for (i = 0; shown[i]; i++)
		if (shown[i] < ' ' || shown[i] > '~')
			shown[i] = '?';
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "\"%s\": %s", shown, why);
}

static bool begins_with(const char *s, const char *scheme)
{
	return !strncasecmp(s, scheme, strlen(scheme));
}

/* What the parser would take, or refuse without saying why. */
static const char *why_not(const char *s)
{
	if (begins_with(s, "https://"))
		return "TLS is not spoken here: write http://";
	if (!begins_with(s, "http://"))
		return "write http://HOST:PORT/PATH";
	for (const char *p = s; *p; p++)
		if (*p <= ' ' || *p > '~')
			return "blanks, control characters and others than ASCII must be escaped as %XX";
	if (strchr(s, '#'))
		return "what follows # is not sent to a server: leave it out";
	return NULL;
}

static const char *why_not_host(const struct http_url *url, bool brackets)
{
	struct dray_addr a;
	bool address = host_is_address(url->host, &a);

	if (brackets && (!address || a.sa.sa_family != AF_INET6))
		return "what stands in brackets is no IPv6 address, without a zone";
	return address || host_is_name(url->host) ? NULL : "that is no host name and no address";
}

static bool field_copy(const char *s, const struct http_parser_url *u,
		       enum http_parser_url_fields f, char *to, size_t n)
{
	if (!(u->field_set & (1U << f)))
		return true;
	if (u->field_data[f].len >= n)
		return false;
	memcpy(to, s + u->field_data[f].off, u->field_data[f].len);
	to[u->field_data[f].len] = '\0';
	return true;
}

int http_url_parse(const char *s, struct http_url *ret, struct dray_err *reterr)
{
	struct http_url url = { .port = 80, .target = "/" };
	char path[HTTP_TARGET_MAX + 1] = "/", query[HTTP_TARGET_MAX + 1] = "";
	const char *why = why_not(s);
	struct http_parser_url u;

	if (why)
		return refuse(reterr, s, why);
	http_parser_url_init(&u);
	if (http_parser_parse_url(s, strlen(s), 0, &u) || !(u.field_set & (1U << UF_HOST)))
		return refuse(reterr, s, "that is no URL: write http://HOST:PORT/PATH");
	if (u.field_set & (1U << UF_USERINFO))
		return refuse(reterr, s, "user names and passwords are not sent: leave them out");
	if (!field_copy(s, &u, UF_HOST, url.host, sizeof(url.host)))
		return refuse(reterr, s, "the host name is too long");
	if (u.field_set & (1U << UF_PORT))
		url.port = u.port;
	if (!url.port)
		return refuse(reterr, s, "a port is 1 to 65535");
	why = why_not_host(&url, s[u.field_data[UF_HOST].off - 1] == '[');
	if (why)
		return refuse(reterr, s, why);
	if (!field_copy(s, &u, UF_PATH, path, sizeof(path)) ||
	    !field_copy(s, &u, UF_QUERY, query, sizeof(query)) ||
	    strlen(path) + strlen(query) + 1 > HTTP_TARGET_MAX)
		return refuse(reterr, s, "path and query are too long");
	snprintf(url.target, sizeof(url.target), "%.*s%s%.*s", (int)strlen(path), path,
		 u.field_set & (1U << UF_QUERY) ? "?" : "", (int)strlen(query), query);
	*ret = url;
	return 0;
}

const char *http_url_authority(const struct http_url *url, char *buf, size_t n)
{
	snprintf(buf, n, strchr(url->host, ':') ? "[%s]:%u" : "%s:%u", url->host, url->port);
	return buf;
}
