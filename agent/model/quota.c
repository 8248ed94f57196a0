/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/quota.h"

#include <errno.h>

#include "schema/gen/errors.h"

#define LEVELS 3

/* Of a session, its group and the agent. */
#define quotas_of(s)                                          \
	{                                                     \
		&(s)->own, (s)->group_quota, (s)->agent_quota \
	}

static int refuse(const struct quota *q, unsigned level, struct dray_err *reterr)
{
	static const struct {
		const char *owner, *limit;
	} names[LEVELS] = { { "session", "transfers_per_session" },
			    { "group", "transfers_per_group" },
			    { "agent", "transfers" } };

	return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
			    "%u transfers of this %s are in flight, as many as limits.%s allows; "
			    "wait until one ends",
			    q->transfers_max, names[level].owner, names[level].limit);
}

/* Relaxed: the counts publish no other memory. */
static void put(struct quota *const *q, unsigned levels)
{
	for (unsigned i = 0; i < levels; i++)
		atomic_fetch_sub_explicit(&q[i]->transfers, 1, memory_order_relaxed);
}

int quotas_check(const struct session_shared *s, struct dray_err *reterr)
{
	const struct quota *const q[LEVELS] = quotas_of(s);

	for (unsigned i = 0; i < LEVELS; i++)
		if (atomic_load_explicit(&q[i]->transfers, memory_order_relaxed) >=
		    q[i]->transfers_max)
			return refuse(q[i], i, reterr);
	return 0;
}

int quotas_take(struct session_shared *s, struct dray_err *reterr)
{
	struct quota *const q[LEVELS] = quotas_of(s);

	for (unsigned i = 0; i < LEVELS; i++) {
		if (atomic_fetch_add_explicit(&q[i]->transfers, 1, memory_order_relaxed) <
		    q[i]->transfers_max)
			continue;
		put(q, i + 1);
		return refuse(q[i], i, reterr);
	}
	return 0;
}

void quotas_put(struct session_shared *s)
{
	struct quota *const q[LEVELS] = quotas_of(s);

	put(q, LEVELS);
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
