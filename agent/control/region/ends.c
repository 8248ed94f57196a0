/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens and leases of a region that ends or whose tokens are all revoked, and the leases of a session that has ended, begin to end in
 * several turns of the loop if they are many: each needs commands to the workers, and its grants messages to peers. Nothing can begin to use
 * a token that has yet to end, and the workers drop a region after its grants. What importers of a region that ends urgently have not confirmed
 * by then is detached in the same turns.
 */
#include "agent/control/region/internal.h"

/* The next one that is to end. Tokens are in the order of their birth. NULL: none. */
static struct token *next_token(const struct region *region)
{
	struct token *t = dray_list_entry(region->unreached, struct token, link);

	return region->unreached != &region->tokens && token_is_covered(t) ? t : NULL;
}

/* As many as the turn has room for. */
static void end_tokens(struct region *region)
{
	struct regions *r = region->regions;
	struct token *t;

	while ((t = next_token(region))) {
		/* this may free t */
		region->unreached = t->link.next;
		if (turn_work_has_room(&r->ends) && token_revoke(t))
			continue;
		region->unreached = &t->link;
		dray_list_move(&r->unended, &region->unended);
		return;
	}
	dray_list_del(&region->unended);
	if (region->ending)
		region_tokens_ended(region);
}

/* Detaches importers of the token, as many as the turn has room for. True: none is left. */
static bool detach_importers(struct token *t)
{
	struct regions *r = t->region->regions;

	while (!dray_list_empty(&t->grants) || !dray_list_empty(&t->local_imports)) {
		if (!turn_work_has_room(&r->ends))
			return false;
		r->ends.done++;
		if (!dray_list_empty(&t->grants))
			grant_detach(dray_list_first(&t->grants, struct grant, token_link));
		else
			local_import_free(r, dray_list_first(&t->local_imports, struct local_import,
							     link));
	}
	return true;
}

void region_abandon_tokens(struct region *region)
{
	struct regions *r = region->regions;
	struct token *t;

	while ((t = dray_list_first(&region->tokens, struct token, link))) {
		if (!detach_importers(t)) {
			dray_list_move(&r->unended, &region->unended);
			turn_work_go_on(&r->ends);
			return;
		}
		/* it is revoked, so this frees it */
		token_check(t);
	}
	dray_list_del(&region->unended);
}

static bool is_pending(const struct regions *r)
{
	return !dray_list_empty(&r->unended) || !dray_list_empty(&r->unended_tokens) ||
	       !dray_list_empty(&r->gone_peers) || !dray_list_empty(&r->orphans);
}

void ends_continue(struct regions *r)
{
	if (r->continuing)
		return;
	r->continuing = true;
	while (is_pending(r) && turn_work_has_room(&r->ends)) {
		struct region *region;
		struct token *token;

		grants_end_gone(r);
		token = dray_list_pop(&r->unended_tokens, struct token, unended);
		if (token)
			token_end(token);
		region = dray_list_pop(&r->unended, struct region, unended);
		/* regions take turns, so that one with few tokens does not wait for one with many */
		if (!region)
			leases_end_orphans(r);
		else if (region->dropped)
			region_check(region);
		else
			end_tokens(region);
	}
	r->continuing = false;
	if (is_pending(r))
		turn_work_go_on(&r->ends);
}

void region_end_tokens(struct region *region)
{
	end_tokens(region);
	if (!dray_list_empty(&region->unended))
		turn_work_go_on(&region->regions->ends);
}

static int on_turn(sd_event_source *s, uint64_t usec, void *arg)
{
	ends_continue(arg);
	return 0;
}

int ends_init(struct regions *r)
{
	return r->deps.event ? turn_work_init(&r->ends, r->deps.event, ENDS_PER_TURN, on_turn, r) :
			       0;
}
