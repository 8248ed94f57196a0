/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/store_log.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"

#define TIERS_TEXT 300

static const char *operation(uint16_t type)
{
	return type == DMSG_STORE_PUT    ? "PUT" :
	       type == DMSG_STORE_GET    ? "GET" :
	       type == DMSG_STORE_EXISTS ? "EXISTS" :
					   "READ";
}

/* Of each tier: keys, bytes and milliseconds. */
static const char *tiers_text(const struct store_report *r, char *buf, size_t n)
{
	static const char *const names[] = { [DMSG_STORE_TIER_MEMORY] = "memory",
					     [DMSG_STORE_TIER_DISK] = "disk",
					     [DMSG_STORE_TIER_AGENT] = "agents" };
	size_t at = 0;

	for (unsigned i = DMSG_STORE_TIER_MEMORY; i <= DMSG_STORE_TIER_AGENT && at < n; i++)
		at += (size_t)snprintf(buf + at, n - at, " %s=%u %s_bytes=%" PRIu64 " %s_ms=%.3f",
				       names[i], r->tiers[i].keys.n, names[i],
				       r->tiers[i].keys.bytes, names[i], dray_ms(r->tiers[i].ns));
	return buf;
}

void store_report_log(const struct store_report *r)
{
	uint32_t keys = r->ok.n + r->existed.n + r->unknown.n + r->failed.n;
	char tiers[TIERS_TEXT], space[sizeof(r->space)];

	log_info("store",
		 "%s of %u keys took %.3f ms: %u ok with %" PRIu64
		 " bytes, %u existed, %u unknown, "
		 "%u failed with %" PRIu64 " bytes; %s session=%" PRIu64 " request=%" PRIu64
		 " space=%s%s disk_turns=%u",
		 operation(r->type), keys, dray_ms(r->took_ns), r->ok.n, r->ok.bytes, r->existed.n,
		 r->unknown.n, r->failed.n, r->failed.bytes, dray_error_name(r->code), r->session,
		 r->request, *r->space ? dray_log_word(r->space, space, sizeof(space)) : "-",
		 tiers_text(r, tiers, sizeof(tiers)), r->turns);
}
