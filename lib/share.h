/* SPDX-License-Identifier: Apache-2.0 */
/* A fair division of something limited among users that come and go (dynamic thresholds). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * True if a user that holds `held` may take n more of what is free: it may have at most half of what the others leave, so that the last
 * part is for new users.
 */
static inline bool dray_share_fits(uint64_t free, uint64_t held, uint64_t n)
{
	return n <= free && (!held || held + n <= free);
}
