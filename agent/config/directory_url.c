/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/directory_url.h"

#include <string.h>

#include "agent/config/authority.h"
#include "agent/config/words.h"
#include "lib/cleanup.h"
#include "lib/plain.h"
#include "lib/units.h"

#define PORT 6379

static const struct {
	const char *text;
	bool tls;
} schemes[] = {
	{ "redis://", false },
	{ "valkey://", false },
	{ "rediss://", true },
	{ "valkeys://", true },
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

static const char *database_parse(const char *s, struct directory_url *url)
{
	int64_t v;

	if (!*s)
		return NULL;
	if (s[strspn(s, "0123456789")] || dray_int_parse(s, 0, &v) < 0 ||
	    v > DIRECTORY_DATABASE_MAX)
		return "behind the host comes the number of a database, such as /0";
	url->database = (unsigned)v;
	return NULL;
}

int directory_url_parse(const char *s, struct directory_url *ret, struct dray_err *reterr)
{
	struct directory_url url = { .port = 0 };
	const char *why = NULL, *authority = NULL, *rest, *at;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(schemes); i++) {
		if (strncmp(s, schemes[i].text, strlen(schemes[i].text)) != 0)
			continue;
		authority = s + strlen(schemes[i].text);
		url.tls = schemes[i].tls;
	}
	if (!authority)
		return refuse(reterr, "",
			      "this is no URL of a directory: write redis://HOST:PORT, or with TLS "
			      "rediss://HOST:PORT (valkey:// and valkeys:// are the same)");
	/* the last one: a password, which is refused, may have any character */
	at = strrchr(authority, '@');
	if (at) {
		why = user_parse(authority, (size_t)(at - authority), &url);
		authority = at + 1;
	}
	rest = authority + strcspn(authority, "/");
	if (!why)
		why = authority_parse(authority, (size_t)(rest - authority), PORT,
				      "there is no HOST:PORT", url.host, &url.port);
	if (!why && *rest)
		why = database_parse(rest + 1, &url);
	if (why)
		return refuse(reterr, authority, why);
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
