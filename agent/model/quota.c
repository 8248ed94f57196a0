/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/quota.h"

#include <errno.h>

#include "schema/gen/errors.h"

static bool quota_take(struct quota *q)
{
	/* relaxed: the count publishes no other memory */
	if (atomic_fetch_add_explicit(&q->transfers, 1, memory_order_relaxed) < q->transfers_max)
		return true;
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
	return false;
}

static void quota_put(struct quota *q)
{
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
}

static int refuse(const struct quota *q, const char *whose, const char *limit,
		  struct dray_err *reterr)
{
	return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
			    "%u transfers of this %s are in flight (limits.%s)", q->transfers_max,
			    whose, limit);
}

static int refuse_own(const struct session_shared *s, struct dray_err *reterr)
{
	return refuse(&s->own, "session", "transfers_per_session", reterr);
}

static int refuse_group(const struct session_shared *s, struct dray_err *reterr)
{
	return refuse(s->group_quota, "group", "transfers_per_group", reterr);
}

static int refuse_agent(const struct session_shared *s, struct dray_err *reterr)
{
	return refuse(s->agent_quota, "agent", "transfers", reterr);
}

static bool has_room(const struct quota *q)
{
	return atomic_load_explicit(&q->transfers, memory_order_relaxed) < q->transfers_max;
}

int quotas_check(const struct session_shared *s, struct dray_err *reterr)
{
	if (!has_room(&s->own))
		return refuse_own(s, reterr);
	if (!has_room(s->group_quota))
		return refuse_group(s, reterr);
	return has_room(s->agent_quota) ? 0 : refuse_agent(s, reterr);
}

int quotas_take(struct session_shared *s, struct dray_err *reterr)
{
	if (!quota_take(&s->own))
		return refuse_own(s, reterr);
	if (!quota_take(s->group_quota)) {
		quota_put(&s->own);
		return refuse_group(s, reterr);
	}
	if (!quota_take(s->agent_quota)) {
		quota_put(s->group_quota);
		quota_put(&s->own);
		return refuse_agent(s, reterr);
	}
	return 0;
}

void quotas_put(struct session_shared *s)
{
	quota_put(s->agent_quota);
	quota_put(s->group_quota);
	quota_put(&s->own);
}
