/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers for Mooncake's engines that one worker knows, by address. They do not overlap. Worker thread only. */
#pragma once

#include "agent/model/view.h"

struct mooncake_export {
	uint64_t address, length;
	dray_handle grant;
};

struct mooncake_exports {
	struct mooncake_export *v; /* ascending */
	uint32_t n, cap;
};

void mooncake_exports_deinit(struct mooncake_exports *e);
void mooncake_exports_add(struct mooncake_exports *e, const struct grant_view *grant);
/* Harmless if it is not there. */
void mooncake_exports_del(struct mooncake_exports *e, const struct grant_view *grant);
/* The buffer that holds all of this range, which is not empty. NULL: there is none. */
const struct mooncake_export *mooncake_exports_find(const struct mooncake_exports *e,
						    uint64_t address, uint64_t length);
