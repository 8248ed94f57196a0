/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/env_profile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/nearest.h"
#include "schema/gen/errors.h"

#define ENV_PROFILE_NAME_(id, name) [ENV_PROFILE_##id] = name,
const char *const env_profile_names[ENV_PROFILE_N] = { ENV_PROFILES(ENV_PROFILE_NAME_) };

enum env_profile_id env_profile_find(const char *name)
{
	unsigned i = 0;

	while (i < ENV_PROFILE_N && strcmp(env_profile_names[i], name) != 0)
		i++;
	return (enum env_profile_id)i;
}

static int unknown_profile(const char *name, struct dray_err *reterr)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);
	char known[120];
	size_t at = 0;

	for (size_t i = 0; i < ENV_PROFILE_N; i++) {
		dray_nearest_offer(&nearest, env_profile_names[i]);
		at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
				       env_profile_names[i]);
	}
	return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
			    "unknown profile \"%.40s\"%s%s%s; there are %s", name,
			    nearest.best ? ", did you mean " : "", nearest.best ? nearest.best : "",
			    nearest.best ? "?" : "", known);
}

int env_profiles_check(const char *const *profiles, size_t n, struct dray_err *reterr)
{
	for (size_t i = 0; i < n; i++)
		if (env_profile_find(profiles[i]) == ENV_PROFILE_N)
			return unknown_profile(profiles[i], reterr);
	return 0;
}

int env_profiles_parse(const char *text, struct dray_strv *ret, struct dray_err *reterr)
{
	struct dray_strv list = DRAY_STRV_NULL;
	int r = 0;

	for (const char *at = text; r >= 0 && *at;) {
		size_t n = strcspn(at, ",");
		const char *name = at + strspn(at, " ");
		size_t length = n - dray_min((size_t)(name - at), n);

		while (length && name[length - 1] == ' ')
			length--;
		r = dray_strv_add(&list, name, length);
		at += n + (at[n] == ',');
		/* an empty name at the end is one, too */
		if (r >= 0 && !*at && at > text && at[-1] == ',')
			r = dray_strv_add(&list, "", 0);
	}
	if (r >= 0)
		r = env_profiles_check((const char *const *)list.v, list.n, reterr);
	if (r < 0) {
		dray_strv_clear(&list);
		return r;
	}
	*ret = list;
	return 0;
}
