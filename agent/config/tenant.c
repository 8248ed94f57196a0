/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/tenant.h"

#include <errno.h>
#include <string.h>

#include "agent/config/words.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

int tenant_name_check(const char *name, struct dray_err *reterr)
{
	size_t n = strspn(name, NAME_CHARS);

	if (n && !name[n] && n < TENANT_BYTES)
		return 0;
	return config_invalid(reterr,
			      "\"%.60s\" is not the name of a tenant: write 1 to %d letters, "
			      "digits, dots, underscores or hyphens",
			      name, TENANT_BYTES - 1);
}

int tenant_parse(const char *word, struct tenant *ret, struct dray_err *reterr)
{
	const char *colon = strchr(word, ':');
	struct tenant t = { .path = colon ? colon + 1 : "" };

	if (*t.path != '/' || !strcmp(t.path, "/") || (size_t)(colon - word) >= TENANT_BYTES)
		return config_invalid(
			reterr,
			"\"%.100s\" is not a data socket: write NAME:PATH, such as "
			"team-a:/run/dray/team-a/dray.sock, with at most %d bytes of name",
			word, TENANT_BYTES - 1);
	memcpy(t.name, word, (size_t)(colon - word));
	if (tenant_name_check(t.name, reterr) < 0)
		return -EINVAL;
	*ret = t;
	return 0;
}
