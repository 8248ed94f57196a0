/* SPDX-License-Identifier: Apache-2.0 */
/* A small store in memory, and owners with limits of their own. */
#pragma once

#include <string.h>
#include <systemd/sd-event.h>

#include "agent/model/quota.h"
#include "agent/store/store.h"
#include "tests/unit/cm.h"
#include "tests/unit/store_puts.h"

#define MIB (1ull << 20)

struct store_rig {
	sd_event *event;
	struct budgets budgets;
	struct owner_account accounts[2]; /* of tenant t; the index is the uid */
	struct store *store;
	struct store_user *user; /* of the second account; NULL: the test makes its own */
};

static inline void store_rig_count_nothing(struct owner_account *a)
{
}

/* It evicts by LRU. */
static inline struct store_config store_rig_config(const char *const *spaces, size_t n_spaces)
{
	return (struct store_config){
		.bytes = 16 * MIB,
		.segment_size = 2 * MIB,
		.policy = POLICY_LRU,
		.evict = true,
		.retry_ms = 1,
		.spaces = spaces,
		.n_spaces = n_spaces,
		.keep = store_rig_count_nothing,
		.release = store_rig_count_nothing,
	};
}

static inline void store_rig_make(struct store_rig *r, struct store_config cfg)
{
	struct dray_err err = DRAY_ERR_NULL;

	memset(r, 0, sizeof(*r));
	assert_true(sd_event_new(&r->event) >= 0);
	for (unsigned i = 0; i < RESOURCE_N; i++)
		r->budgets.of[i].max = r->budgets.of[i].owner_max = 12 * MIB;
	for (unsigned i = 0; i < 2; i++)
		budget_account_init(&r->accounts[i].budget, &r->budgets, "t", i);
	cfg.disk.event = r->event;
	assert_int_equal(store_new(&r->store, &cfg, &err), 0);
}

/* A user of the second account. */
static inline void store_rig_user(struct store_rig *r)
{
	struct dray_err err = DRAY_ERR_NULL;

	r->user = store_user_new(r->store, &r->accounts[1], &err);
	assert_non_null(r->user);
}

static inline struct store_member *store_rig_join(struct store_rig *r, const char *space)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_member *m =
		store_join(r->user, (struct dray_str){ space, (uint32_t)strlen(space) }, &err);

	assert_non_null(m);
	return m;
}

static inline void store_rig_end(struct store_rig *r)
{
	store_user_free(r->user);
	assert_true(store_free(r->store));
	sd_event_unref(r->event);
}
