/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of owners. */
#pragma once

#include "agent/model/quota.h"

/* With limits that no test reaches. */
static inline struct owner_account *account_without_limits(void)
{
	static struct budgets budgets;
	static struct owner_account account;

	for (unsigned i = 0; i < RESOURCE_N; i++)
		budgets.of[i].max = budgets.of[i].owner_max = UINT64_MAX;
	if (!account.budget.all) {
		account_init(&account, 100000);
		budget_account_init(&account.budget, &budgets, "test", 7);
	}
	return &account;
}

/* Another owner's, without limits either. */
static inline void account_init_other(struct owner_account *a)
{
	account_init(a, 100000);
	budget_account_init(&a->budget, account_without_limits()->budget.all, "test", 8);
}

/* Of this uid, with the limits of the configuration. */
static inline struct budget_account *budget_account_of(const struct dray_config *cfg, uint32_t uid)
{
	static struct budgets budgets;
	static struct budget_account accounts[16];
	unsigned i = 0;

	budgets_configure(&budgets, cfg);
	while (accounts[i].all && accounts[i].uid != uid)
		i++;
	if (!accounts[i].all)
		budget_account_init(&accounts[i], &budgets, "test", uid);
	return &accounts[i];
}
