/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/env_profile.h"

#include <stdio.h>
#include <string.h>

#include "agent/config/words.h"
#include "lib/nearest.h"

#define ENV_PROFILE_NAME_(id, name) [ENV_PROFILE_##id] = name,
const char *const env_profile_names[ENV_PROFILE_N] = { ENV_PROFILES(ENV_PROFILE_NAME_) };

enum env_profile_id env_profile_find(const char *name)
{
	unsigned i = 0;

	while (i < ENV_PROFILE_N && strcmp(env_profile_names[i], name) != 0)
		i++;
	return (enum env_profile_id)i;
}

int env_profile_check(const char *name, struct dray_err *reterr)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);
	char known[120];
	size_t at = 0;

	if (env_profile_find(name) != ENV_PROFILE_N)
		return 0;
	for (size_t i = 0; i < ENV_PROFILE_N; i++) {
		dray_nearest_offer(&nearest, env_profile_names[i]);
		at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
				       env_profile_names[i]);
	}
	return config_invalid(reterr, "unknown profile \"%.40s\"%s%s%s; there are %s", name,
			      nearest.best ? ", did you mean " : "",
			      nearest.best ? nearest.best : "", nearest.best ? "?" : "", known);
}

int env_profiles_parse(const char *text, struct dray_strv *ret, struct dray_err *reterr)
{
	struct dray_strv list = DRAY_STRV_NULL;
	int r = dray_strv_split(text, &list);

	if (r >= 0 && *text && !list.n)
		r = env_profile_check(text, reterr);
	for (size_t i = 0; r >= 0 && i < list.n; i++)
		r = env_profile_check(list.v[i], reterr);
	if (r < 0)
		dray_strv_clear(&list);
	else
		*ret = list;
	return r;
}
