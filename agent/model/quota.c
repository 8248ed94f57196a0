/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/quota.h"

#include <errno.h>

#include "schema/gen/errors.h"

static bool is_full(const struct quota *q)
{
	return atomic_load_explicit(&q->transfers, memory_order_relaxed) >= q->transfers_max;
}

static int refuse(const struct quota *q, const char *whose, struct dray_err *reterr)
{
	return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
			    "%u transfers of this %s are in flight, as many as "
			    "limits.transfers_per_%s allows; wait until one ends",
			    q->transfers_max, whose, whose);
}

/* Relaxed: the counts publish no other memory. */
static bool take(struct quota *q)
{
	if (atomic_fetch_add_explicit(&q->transfers, 1, memory_order_relaxed) < q->transfers_max)
		return true;
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
	return false;
}

static void put(struct quota *q)
{
	atomic_fetch_sub_explicit(&q->transfers, 1, memory_order_relaxed);
}

int quotas_check(const struct session_shared *s, struct dray_err *reterr)
{
	if (is_full(&s->own))
		return refuse(&s->own, "session", reterr);
	if (is_full(s->group_quota))
		return refuse(s->group_quota, "group", reterr);
	return budget_check(&s->account->budget, RESOURCE_TRANSFERS, 1, reterr);
}

int quotas_take(struct session_shared *s, struct dray_err *reterr)
{
	int ret;

	if (!take(&s->own))
		return refuse(&s->own, "session", reterr);
	ret = take(s->group_quota) ? 0 : refuse(s->group_quota, "group", reterr);
	if (ret >= 0) {
		ret = budget_take(&s->account->budget, RESOURCE_TRANSFERS, 1, reterr);
		if (ret < 0)
			put(s->group_quota);
	}
	if (ret < 0)
		put(&s->own);
	return ret;
}

void quotas_put(struct session_shared *s)
{
	put(&s->own);
	put(s->group_quota);
	budget_put(&s->account->budget, RESOURCE_TRANSFERS, 1);
}

void account_init(struct owner_account *a, uint32_t fds_max)
{
	atomic_init(&a->fds, 0);
	a->fds_max = fds_max;
	atomic_init(&a->waiting, false);
}

bool account_stops(struct owner_account *a)
{
	if (atomic_load_explicit(&a->fds, memory_order_relaxed) < a->fds_max)
		return false;
	atomic_store(&a->waiting, true);
	return atomic_load(&a->fds) >= a->fds_max;
}

bool account_may_resume(struct owner_account *a)
{
	return atomic_load(&a->fds) <= a->fds_max / 2 && atomic_load(&a->waiting) &&
	       atomic_exchange(&a->waiting, false);
}
