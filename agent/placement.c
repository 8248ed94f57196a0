/* SPDX-License-Identifier: Apache-2.0 */
/* The agent knows of no segments and keeps no hints: what there is to say then. */
#include "agent/placement.h"

#include <errno.h>

#include "schema/gen/errors.h"

#define TEXT(s) ((struct dray_str){ s, sizeof(s) - 1 })

static int hint_get(void *arg, const char *scope, struct dmsg_hint_get_reply *ret,
		    struct dray_err *reterr)
{
	(void)arg;
	(void)ret;
	return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND, "no hint is known for %s",
			    *scope ? scope : "the whole node");
}

static int hint_put(void *arg, uid_t uid, const char *scope, const char *segment, uint32_t score,
		    uint64_t ttl_ms, struct dray_err *reterr)
{
	(void)arg;
	(void)score;
	(void)ttl_ms;
	if (!*segment)
		return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND,
				    "clients of uid %u have put no hint for %s", uid,
				    *scope ? scope : "the whole node");
	return dray_err_set(
		reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
		"this agent keeps no hints; set segment.preferred of the configuration");
}

static int segment_get(void *arg, const char *scope, struct dmsg_segment_get_reply *ret,
		       struct dray_err *reterr)
{
	(void)arg;
	(void)scope;
	(void)reterr;
	*ret = (struct dmsg_segment_get_reply){ .preference = DMSG_PREFERENCE_NONE,
						.state = DMSG_SEGMENT_STATE_UNKNOWN,
						.reason = TEXT("no segment is known") };
	return 0;
}

static int env_get(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		   struct dray_err *reterr)
{
	(void)arg;
	(void)profiles;
	(void)reterr;
	*ret_variables = *ret_notes = NULL;
	return 0;
}

const struct placement_upcalls agent_placement = {
	.hint_get = hint_get,
	.hint_put = hint_put,
	.segment_get = segment_get,
	.env_get = env_get,
};
