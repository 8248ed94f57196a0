/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/transfer/quota.h"

#include <errno.h>

#include "schema/gen/errors.h"

static bool quota_take(struct quota *q)
{
	/* relaxed: a count, nothing is published by it */
	if (atomic_fetch_add_explicit(&q->transfers, 1, memory_order_relaxed) < q->transfers_max)
		return true;
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
	return false;
}

static void quota_put(struct quota *q)
{
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
}

int quotas_take(struct session_shared *sh, struct dray_err *reterr)
{
	if (!quota_take(&sh->own))
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"%u transfers of this session are in flight (limits.transfers_per_session)",
			sh->own.transfers_max);
	if (!quota_take(sh->group_quota)) {
		quota_put(&sh->own);
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"%u transfers of this group are in flight (limits.transfers_per_group)",
			sh->group_quota->transfers_max);
	}
	if (!quota_take(sh->agent_quota)) {
		quota_put(sh->group_quota);
		quota_put(&sh->own);
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "%u transfers of this agent are in flight (limits.transfers)",
				    sh->agent_quota->transfers_max);
	}
	return 0;
}

void quotas_put(struct session_shared *s)
{
	quota_put(s->agent_quota);
	quota_put(s->group_quota);
	quota_put(&s->own);
}
