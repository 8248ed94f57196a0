/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/budget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "schema/gen/errors.h"

static const struct {
	const char *key, *what, *remedy;
	int code; /* busy: some end soon, and the client may try again */
} resources[RESOURCE_N] = {
	[RESOURCE_SESSIONS] = { "sessions", "sessions", "close one", DRAY_E_QUOTA },
	[RESOURCE_RING_BYTES] = { "ring_bytes", "bytes of rings",
				  "ask for fewer ring entries, or close sessions", DRAY_E_QUOTA },
	[RESOURCE_REGIONS] = { "regions", "regions", "remove some", DRAY_E_QUOTA },
	[RESOURCE_MAPPINGS] = { "mappings", "mapped files", "remove regions", DRAY_E_QUOTA },
	[RESOURCE_MAPPED_BYTES] = { "mapped_bytes", "bytes of mapped files", "remove regions",
				    DRAY_E_QUOTA },
	[RESOURCE_POOL_BYTES] = { "pool_bytes", "bytes of pools", "remove pools", DRAY_E_QUOTA },
	[RESOURCE_TOKENS] = { "tokens", "tokens", "revoke some, or give them a ttl", DRAY_E_QUOTA },
	[RESOURCE_LEASES] = { "leases", "leases", "end some", DRAY_E_QUOTA },
	[RESOURCE_LEASE_RANGES] = { "lease_ranges", "ranges of leases",
				    "describe blocks by strides, or end leases", DRAY_E_QUOTA },
	[RESOURCE_REMOTES] = { "remotes", "remotes", "release some", DRAY_E_QUOTA },
	[RESOURCE_ENGINE_BUFFERS] = { "engine_buffers", "buffers of Mooncake's engines in remotes",
				      "release some of these remotes", DRAY_E_QUOTA },
	[RESOURCE_TRANSFERS] = { "transfers", "transfers in flight", "wait until one ends",
				 DRAY_E_BUSY },
	[RESOURCE_WAITING_TRANSFERS] = { "waiting_transfers",
					 "transfers that wait for a word or for memory",
					 "wait until one starts", DRAY_E_BUSY },
	[RESOURCE_OPS] = { "ops", "operations in flight, in transfers of more than 4",
			   "wait until some end", DRAY_E_BUSY },
	[RESOURCE_NOTIFICATIONS] = { "notifications", "unread notifications", "read some",
				     DRAY_E_BUSY },
	[RESOURCE_MAILBOXES] = { "mailboxes", "mailboxes", "close one", DRAY_E_QUOTA },
	[RESOURCE_HINTS] = { "hints", "hints", "forget some", DRAY_E_QUOTA },
	[RESOURCE_STORE_BYTES] = { "store_bytes", "bytes in the store", "remove objects",
				   DRAY_E_BUSY },
	[RESOURCE_STORE_DISK_BYTES] = { "store_disk_bytes", "bytes in the store's disk tier",
					"remove objects", DRAY_E_BUSY },
	[RESOURCE_STORE_OBJECTS] = { "store_objects", "objects in the store", "remove some",
				     DRAY_E_BUSY },
	[RESOURCE_STORE_HELD_BYTES] = { "store_held_bytes",
					"bytes of objects pinned or read in place", "release some",
					DRAY_E_BUSY },
	[RESOURCE_STORE_HOLDS] = { "store_holds", "pins, and leases of objects read in place",
				   "release some", DRAY_E_BUSY },
};

const char *resource_name(enum resource r)
{
	return resources[r].key;
}

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void store(_Atomic uint64_t *v, int64_t to)
{
	atomic_store_explicit(v, (uint64_t)to, memory_order_relaxed);
}

void budgets_configure(struct budgets *b, const struct dray_config *cfg)
{
#define RESOURCE_CONFIGURE(name, key)                        \
	store(&b->of[RESOURCE_##name].max, cfg->limits.key); \
	store(&b->of[RESOURCE_##name].owner_max, cfg->limits.key##_per_owner);
	RESOURCES(RESOURCE_CONFIGURE)
#undef RESOURCE_CONFIGURE
}

void budget_account_init(struct budget_account *a, struct budgets *all, const char *tenant,
			 uint32_t uid)
{
	*a = (struct budget_account){ .all = all, .tenant = tenant, .uid = uid };
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* own, all: what this owner and all owners use. */
static uint64_t limit_of(const struct budget *b, uint64_t own, uint64_t all)
{
	return budget_share(load(&b->max), minus(all, own), load(&b->owner_max));
}

int budget_refuse(struct budget_account *a, enum resource r, uint64_t own, uint64_t all, uint64_t n,
		  struct dray_err *reterr)
{
	struct budget *b = &a->all->of[r];
	uint64_t max = load(&b->max), fixed = load(&b->owner_max);
	const char *key = resources[r].key, *what = resources[r].what,
		   *remedy = resources[r].remedy;
	int code = resources[r].code;
	int ret = code == DRAY_E_BUSY ? -EBUSY : -ENOSPC;

	atomic_fetch_add_explicit(&b->refused, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&a->of[r].refused, 1, memory_order_relaxed);
	if (n > minus(max, all))
		return dray_err_set(reterr, ret, code,
				    "the agent has %" PRIu64 " %s, and %" PRIu64
				    " more pass limits.%s = %" PRIu64 "; %s, or raise it",
				    all, what, n, key, max, remedy);
	if (fixed)
		return dray_err_set(reterr, ret, code,
				    "uid %u of tenant %s has %" PRIu64 " %s, and %" PRIu64
				    " more pass limits.%s_per_owner = %" PRIu64 "; %s, or raise it",
				    a->uid, a->tenant, own, what, n, key, fixed, remedy);
	return dray_err_set(reterr, ret, code,
			    "uid %u of tenant %s has %" PRIu64 " %s, and %" PRIu64
			    " more pass half of what others leave of limits.%s; %s, or set "
			    "limits.%s_per_owner",
			    a->uid, a->tenant, own, what, n, key, remedy, key);
}

static bool fits(const struct budget *b, uint64_t own, uint64_t all, uint64_t n)
{
	return n <= minus(limit_of(b, own, all), own);
}

/* *ret_own, *ret_all: what this owner and all owners used before. */
static bool take(struct budget_account *a, enum resource r, uint64_t n, uint64_t *ret_own,
		 uint64_t *ret_all)
{
	struct budget *b = &a->all->of[r];

	*ret_all = atomic_fetch_add_explicit(&b->used, n, memory_order_relaxed);
	*ret_own = atomic_fetch_add_explicit(&a->of[r].used, n, memory_order_relaxed);
	if (fits(b, *ret_own, *ret_all, n))
		return true;
	budget_put(a, r, n);
	return false;
}

int budget_take(struct budget_account *a, enum resource r, uint64_t n, struct dray_err *reterr)
{
	uint64_t own, all;

	return take(a, r, n, &own, &all) ? 0 : budget_refuse(a, r, own, all, n, reterr);
}

bool budget_try(struct budget_account *a, enum resource r, uint64_t n)
{
	uint64_t own, all;

	return take(a, r, n, &own, &all);
}

bool budget_restore(struct budget_account *a, enum resource r, uint64_t n)
{
	struct budget *b = &a->all->of[r];
	uint64_t all = atomic_fetch_add_explicit(&b->used, n, memory_order_relaxed);
	uint64_t own = atomic_fetch_add_explicit(&a->of[r].used, n, memory_order_relaxed);
	uint64_t owner_max = load(&b->owner_max);

	if (n <= minus(load(&b->max), all) && (!owner_max || n <= minus(owner_max, own)))
		return true;
	budget_put(a, r, n);
	return false;
}

int budget_check(struct budget_account *a, enum resource r, uint64_t n, struct dray_err *reterr)
{
	uint64_t own = load(&a->of[r].used), all = load(&a->all->of[r].used);

	return fits(&a->all->of[r], own, all, n) ? 0 : budget_refuse(a, r, own, all, n, reterr);
}

void budget_put(struct budget_account *a, enum resource r, uint64_t n)
{
	atomic_fetch_sub_explicit(&a->of[r].used, n, memory_order_relaxed);
	atomic_fetch_sub_explicit(&a->all->of[r].used, n, memory_order_relaxed);
}

uint64_t budget_used(const struct budget_account *a, enum resource r)
{
	return load(&a->of[r].used);
}

uint64_t budget_limit(const struct budget_account *a, enum resource r)
{
	return limit_of(&a->all->of[r], budget_used(a, r), load(&a->all->of[r].used));
}

uint64_t budget_most(const struct budget_account *a, enum resource r)
{
	return limit_of(&a->all->of[r], 0, 0);
}

int64_t budget_left(const struct budget_account *a, enum resource r)
{
	return (int64_t)(budget_limit(a, r) - budget_used(a, r));
}
