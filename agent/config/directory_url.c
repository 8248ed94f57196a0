/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/directory_url.h"

#include <string.h>

#include "agent/config/authority.h"
#include "agent/config/words.h"
#include "lib/cleanup.h"
#include "lib/plain.h"
#include "lib/units.h"

#define PORT 6379
#define SENTINEL_PORT 26379

static const struct {
	const char *text;
	bool tls, sentinel;
} schemes[] = {
	{ "redis://", false, false },         { "valkey://", false, false },
	{ "rediss://", true, false },         { "valkeys://", true, false },
	{ "redis-sentinel://", false, true }, { "valkey-sentinel://", false, true },
	{ "rediss-sentinel://", true, true }, { "valkeys-sentinel://", true, true },
};

static int refuse(struct dray_err *reterr, const char *shown, const char *why)
{
	char plain[101];

	dray_plain(plain, sizeof(plain), shown, strlen(shown));
	return config_invalid(reterr, "%s%s%s", plain, *plain ? ": " : "", why);
}

/* USER of n bytes. NULL, or what is wrong. */
static const char *user_parse(const char *s, size_t n, struct directory_url *url)
{
	if (memchr(s, ':', n))
		return "a password does not belong into the URL, which others may read: write it into "
		       "a file, and name the file in store.directory_password_file";
	if (!n || n >= sizeof(url->user))
		return "a user has 1 to 128 bytes";
	for (size_t i = 0; i < n; i++)
		if (s[i] <= ' ' || s[i] > '~' || s[i] == '%')
			return "a user is written as it is, in visible characters of ASCII without %";
	memcpy(url->user, s, n);
	return NULL;
}

/* A number of n digits. */
static const char *database_parse(const char *s, size_t n, struct directory_url *url)
{
	char text[8] = "";
	int64_t v;

	if (!n)
		return NULL;
	memcpy(text, s, dray_min(n, sizeof(text) - 1));
	if (n >= sizeof(text) || text[strspn(text, "0123456789")] ||
	    dray_int_parse(text, 0, &v) < 0 || v > DIRECTORY_DATABASE_MAX)
		return "behind the host comes the number of a database, such as /0";
	url->database = (unsigned)v;
	return NULL;
}

/* HOST[:PORT], or with sentinels several of them. */
static const char *hosts_parse(const char *s, size_t n, struct directory_url *url)
{
	const char *end = s + n, *why = NULL;

	for (const char *next; s <= end && !why; s = next + 1) {
		struct directory_host *h = &url->hosts[url->n_hosts];

		next = url->sentinel ? memchr(s, ',', (size_t)(end - s)) : NULL;
		next = next ? next : end;
		if (url->n_hosts++ == DIRECTORY_HOSTS_MAX)
			return "these are too many sentinels: 8 are allowed";
		why = authority_parse(s, (size_t)(next - s), url->sentinel ? SENTINEL_PORT : PORT,
				      "there is no HOST:PORT", h->host, &h->port);
	}
	return why;
}

/* #SERVICE */
static const char *service_parse(const char *s, struct directory_url *url)
{
	size_t n = strlen(s);

	if (url->sentinel != (n > 0))
		return url->sentinel ?
			       "behind # comes the service that the sentinels watch, such as "
			       "#mymaster" :
			       "a service (#...) has sentinels: write redis-sentinel://";
	if (!n)
		return NULL;
	if (n == 1 || n > sizeof(url->service))
		return "a service has 1 to 64 bytes";
	for (size_t i = 1; i < n; i++)
		if (s[i] <= ' ' || s[i] > '~')
			return "a service has visible characters of ASCII alone";
	memcpy(url->service, s + 1, n - 1);
	return NULL;
}

/* What follows the user. */
static const char *rest_parse(const char *s, struct directory_url *url)
{
	size_t n = strcspn(s, "/#"), n_database;
	const char *why = hosts_parse(s, n, url);

	s += n;
	if (!why && *s == '/') {
		n_database = strcspn(s + 1, "#");
		why = database_parse(s + 1, n_database, url);
		s += 1 + n_database;
	}
	return why ? why : service_parse(s, url);
}

int directory_url_parse(const char *s, struct directory_url *ret, struct dray_err *reterr)
{
	struct directory_url url = { .n_hosts = 0 };
	const char *why = NULL, *rest = NULL, *at;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(schemes); i++) {
		if (strncmp(s, schemes[i].text, strlen(schemes[i].text)) != 0)
			continue;
		rest = s + strlen(schemes[i].text);
		url.tls = schemes[i].tls;
		url.sentinel = schemes[i].sentinel;
	}
	if (!rest)
		return refuse(reterr, "",
			      "this is no URL of a directory: write redis://HOST:PORT, or with TLS "
			      "rediss://HOST:PORT, or redis-sentinel://HOST:PORT,...#SERVICE "
			      "(valkey is the same)");
	/* the last one: a password, which is refused, may have any character */
	at = strrchr(rest, '@');
	if (at) {
		why = user_parse(rest, (size_t)(at - rest), &url);
		rest = at + 1;
	}
	if (!why)
		why = rest_parse(rest, &url);
	if (why)
		return refuse(reterr, rest, why);
	*ret = url;
	return 0;
}

int directory_prefix_check(const char *prefix, struct dray_err *reterr)
{
	size_t n = strlen(prefix);

	if (!n || n > DIRECTORY_PREFIX_MAX)
		return config_invalid(reterr, "a prefix has 1 to %d bytes", DIRECTORY_PREFIX_MAX);
	for (size_t i = 0; i < n; i++)
		if (prefix[i] <= ' ' || prefix[i] > '~')
			return config_invalid(reterr,
					      "a prefix has visible characters of ASCII alone");
	return 0;
}
