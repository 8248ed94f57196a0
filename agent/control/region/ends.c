/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens and leases of a region that ends, and the leases of a session that has ended, begin to end in several turns of
 * the loop if they are many: each needs commands to the workers, and its grants messages to peers. Nothing can begin to use
 * a region that is ending, or a lease whose session has ended, and the workers drop a region after its grants.
 */
#include "agent/control/region/internal.h"

/* As many as the turn has room for. True: no token is left. */
static bool end_tokens(struct region *region)
{
	while (region->next_end != &region->tokens) {
		struct token *t = dray_list_entry(region->next_end, struct token, link);

		if (!turn_work_has_room(&region->regions->ends))
			return false;
		/* this may free t */
		region->next_end = t->link.next;
		token_revoke(t, region->end_number);
	}
	return true;
}

static bool is_pending(const struct regions *r)
{
	return !dray_list_empty(&r->unended) || !dray_list_empty(&r->orphans);
}

void ends_continue(struct regions *r)
{
	if (r->continuing)
		return;
	r->continuing = true;
	while (is_pending(r) && turn_work_has_room(&r->ends)) {
		struct region *region = dray_list_pop(&r->unended, struct region, unended);

		/* regions take turns, so that one with few tokens does not wait for one with many */
		if (region && end_tokens(region))
			region_tokens_ended(region);
		else if (region)
			dray_list_add(&r->unended, &region->unended);
		else
			leases_end_orphans(r);
	}
	r->continuing = false;
	if (is_pending(r))
		turn_work_go_on(&r->ends);
}

void region_end_tokens(struct region *region)
{
	struct regions *r = region->regions;

	region->end_number = ++r->revocations;
	region->next_end = region->tokens.next;
	if (end_tokens(region)) {
		region_tokens_ended(region);
		return;
	}
	dray_list_add(&r->unended, &region->unended);
	turn_work_go_on(&r->ends);
}

static int on_turn(sd_event_source *s, void *arg)
{
	ends_continue(arg);
	return 0;
}

int ends_init(struct regions *r)
{
	return r->deps.event ? turn_work_init(&r->ends, r->deps.event, ENDS_PER_TURN, on_turn, r) :
			       0;
}
