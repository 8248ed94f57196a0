/* SPDX-License-Identifier: Apache-2.0 */
/* The words of store.spaces: NAME=TENANT:UID, or NAME=TENANT:* for any uid. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "lib/wire.h"

/* Of store.put_at, and of a PUT: this agent. */
#define STORE_PUT_AT_LOCAL "local"

/* Its texts lie in the word. */
struct store_space_word {
	struct dray_str name, tenant;
	bool any_uid;
	uint32_t uid;
};

/* False: it has another form. */
bool store_space_word_parse(const char *word, struct store_space_word *ret);

/* One of these n words of store.spaces lets the owner use the name space. */
bool store_space_allows(const char *const *words, size_t n, struct dray_str name,
			struct dray_str tenant, uint32_t uid);

/* 0, or -EINVAL with reterr. */
int store_space_word_check(const char *word, struct dray_err *reterr);
