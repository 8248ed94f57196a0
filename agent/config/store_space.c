/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/store_space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/internal.h"
#include "agent/config/tenant.h"
#include "schema/gen/data.h"

bool store_space_word_parse(const char *word, struct store_space_word *ret)
{
	const char *equals = strchr(word, '='), *colon = equals ? strchr(equals, ':') : NULL;
	unsigned long uid;
	char *end;

	if (!colon)
		return false;
	*ret = (struct store_space_word){
		.name = { word, (uint32_t)(equals - word) },
		.tenant = { equals + 1, (uint32_t)(colon - equals - 1) },
		.any_uid = !strcmp(colon + 1, "*"),
	};
	if (!ret->name.n || ret->name.n > DMSG_STORE_SPACE_MAX || !ret->tenant.n ||
	    ret->tenant.n >= TENANT_BYTES)
		return false;
	if (ret->any_uid)
		return true;
	if (colon[1] < '0' || colon[1] > '9')
		return false;
	uid = strtoul(colon + 1, &end, 10);
	ret->uid = (uint32_t)uid;
	return !*end && uid < UINT32_MAX;
}

static bool same(struct dray_str a, struct dray_str b)
{
	return a.n == b.n && !memcmp(a.p, b.p, a.n);
}

bool store_space_allows(const char *const *words, size_t n, struct dray_str name,
			struct dray_str tenant, uint32_t uid)
{
	for (size_t i = 0; i < n; i++) {
		struct store_space_word w;

		if (store_space_word_parse(words[i], &w) && same(w.name, name) &&
		    same(w.tenant, tenant) && (w.any_uid || w.uid == uid))
			return true;
	}
	return false;
}

int store_space_word_check(const char *word, struct dray_err *reterr)
{
	struct store_space_word w;

	if (store_space_word_parse(word, &w))
		return 0;
	return config_invalid(reterr,
			      "\"%.100s\" is not a name space: write NAME=TENANT:UID, such as "
			      "kv=default:1000, or * for any uid",
			      word);
}
