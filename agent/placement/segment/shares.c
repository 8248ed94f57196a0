/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that are known only because hints name them: one client may give thousands of hints, so a share is left to others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/model/budget.h"
#include "agent/placement/segment/internal.h"
#include "lib/log.h"

static bool is_unused(const struct hint_share *share)
{
	return !share->n && !share->waits;
}

static void share_free(struct segments *ss, struct hint_share *share)
{
	dray_map_del(&ss->shares, &share->node);
	free(share);
}

struct hint_share *share_ensure(struct segments *ss, const struct hint_owner *owner)
{
	struct hint_share *share, key = { .key = { .uid = owner->uid } };

	memcpy(key.key.tenant, owner->tenant, strnlen(owner->tenant, TENANT_BYTES - 1));
	share = dray_map_entry(dray_map_find(&ss->shares, &key.key, sizeof(key.key)),
			       struct hint_share, node);
	if (share)
		return share;
	share = calloc(1, sizeof(*share));
	if (!share)
		return NULL;
	share->key = key.key;
	dray_map_add(&ss->shares, &share->node, &share->key, sizeof(share->key));
	return share;
}

void share_charge(struct segment *s, struct hint_share *share)
{
	struct hint_share *old = s->share;

	s->share = share;
	if (share)
		share->n++;
	if (!old)
		return;
	old->n--;
	if (is_unused(old))
		share_free(s->ss, old);
}

void share_log(const struct segment *s, enum dmsg_segment_state old, const char *reason)
{
	static struct dray_log_limit of_none;
	struct hint_share *share = s->share;
	char about[TENANT_BYTES + 80] = "about segments that hints name";

	if (share)
		snprintf(about, sizeof(about),
			 "about segments that hints of uid %u of tenant %s name", share->key.uid,
			 share->key.tenant);
	log_within(share ? &share->log : &of_none,
		   (uint32_t)s->ss->deps.cfg->limits.log_lines_per_owner, about, DRAY_LOG_NOTICE,
		   AREA, "%s %s -> %s: %s", s->name, dmsg_segment_state_name(old),
		   dmsg_segment_state_name(s->state), reason);
}

bool share_is_of(const struct hint_share *share, const struct hint_owner *owner)
{
	return share && share->key.uid == owner->uid && !strcmp(share->key.tenant, owner->tenant);
}

bool share_has_room(const struct segments *ss, const struct hint_share *share)
{
	uint64_t limit = (uint64_t)ss->deps.cfg->limits.segments;
	uint64_t all = ss->n < limit ? budget_share(limit, ss->n - ss->n_of_hints, 0) : 0;

	return ss->n_of_hints < all &&
	       (!share->n || share->n < budget_share(all, ss->n_of_hints - share->n, 0));
}

void share_waits(struct segments *ss, struct hint_share *share)
{
	share->waits = true;
	if (!ss->hints_left_out)
		log_warning(
			AREA,
			"%zu segments are named by hints alone, %zu of them by those of uid %u%s%s: further "
			"ones of that owner are left out; hints have half of what other sources leave of "
			"limits.segments = %lld, and an owner half of what other owners leave of that",
			ss->n_of_hints, share->n, share->key.uid,
			*share->key.tenant ? " of tenant " : "", share->key.tenant,
			(long long)ss->deps.cfg->limits.segments);
	ss->hints_left_out = true;
}

bool shares_wait(const struct segments *ss)
{
	dray_map_for_each(&ss->shares, share, struct hint_share, node)
		if (share->waits)
			return true;
	return false;
}

bool shares_take_waiting(struct segments *ss)
{
	bool any = false;

	dray_map_for_each(&ss->shares, share, struct hint_share, node) {
		if (!share->waits || !share_has_room(ss, share))
			continue;
		any = true;
		share->waits = false;
		if (is_unused(share))
			share_free(ss, share);
	}
	return any;
}

void shares_free(struct segments *ss)
{
	dray_map_for_each(&ss->shares, share, struct hint_share, node)
		share_free(ss, share);
	dray_map_deinit(&ss->shares);
}
