/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: tokens with ranges, for a known number of holders and a limited time.
 *
 * A lease is waiting until every holder has acquired it, then held. It ends once, with the first of these outcomes: every holder has
 * released it (used), its time is over (expired), its owner or the owner's agent has ended it (ended), or a holder is lost (peer_lost).
 * The end is the revocation of the token: the workers here drop its grants, each peer with a grant that was not released acknowledges a
 * fence or is lost, and remotes of this agent are dropped. After all of that the token is freed, and lease_free() tells the owner.
 * So the owner hears of the end once, and only when the ranges are its own again.
 */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/region/internal.h"
#include "agent/model/handle.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* An expiry may be this late, or later if many are due: it saves wake-ups, and nobody relies on less. */
#define EXPIRY_ACCURACY_US 5000

struct lease {
	struct dray_list link; /* in counts->list, or in regions->orphans */
	struct token *token;
	dray_handle session;
	struct owner *owner;         /* of that session */
	struct lease_counts *counts; /* of that session; NULL: none, or it has ended */
	struct ranges *ranges;
	uint32_t holders, acquired, released;
	int64_t limit_ns; /* longest time to the expiry */
	int64_t made_ns;
	uint8_t outcome; /* enum dmsg_lease_outcome; 0: it has not ended */
};

const struct ranges *lease_ranges(const struct token *t)
{
	return t->lease->ranges;
}

bool lease_is_taken(const struct token *t)
{
	return t->lease->acquired >= t->lease->holders;
}

void lease_set_outcome(struct token *t, enum dmsg_lease_outcome outcome)
{
	if (!t->lease->outcome)
		t->lease->outcome = (uint8_t)outcome;
}

bool token_is_over(const struct token *t)
{
	return t->revoked || token_is_covered(t) || (t->lease && t->lease->outcome);
}

uint32_t lease_dead_code(const struct token *t)
{
	switch (t->lease->outcome) {
	case DMSG_LEASE_OUTCOME_USED:
		return DRAY_E_TOKEN_USED;
	case DMSG_LEASE_OUTCOME_EXPIRED:
		return DRAY_E_TOKEN_EXPIRED;
	default:
		return DRAY_E_REVOKED;
	}
}

static void count_acquired(const struct token *t)
{
	t->lease->acquired++;
	t->region->regions->lease_totals.holders++;
}

static void free_lease(struct lease *l)
{
	if (l->owner) {
		owner_put(l->owner, RESOURCE_LEASE_RANGES, l->ranges->n);
		owner_put(l->owner, RESOURCE_LEASES, 1);
		owner_unref(l->owner);
	}
	ranges_unref(l->ranges);
	free(l);
}

void lease_forget(struct token *t)
{
	free_lease(t->lease);
}

void lease_free(struct token *t)
{
	struct regions *r = t->region->regions;
	struct lease *l = t->lease;
	struct dmsg_lease_ended m = {
		.lease = t->handle,
		.outcome = l->outcome,
		.acquired = l->acquired,
	};

	dray_handles_del(&r->leases, t->handle);
	dray_heap_del(&r->lease_expiry, &t->expiry);
	dray_list_del(&l->link);
	if (l->counts) {
		l->counts->leases--;
		l->counts->ranges -= l->ranges->n;
	}
	r->lease_totals.ended[l->outcome]++;
	r->lease_totals.holders -= l->acquired - l->released;
	r->deps.up->lease_ended(*r->deps.sessions, l->session, &m);
	lease_forget(t);
}

/* Begins the end. May free t. */
static void finish(struct token *t, enum dmsg_lease_outcome outcome)
{
	lease_set_outcome(t, outcome);
	dray_heap_del(&t->region->regions->lease_expiry, &t->expiry);
	token_end(t);
}

void lease_holder_gone(struct token *t, enum pmsg_release_how how)
{
	struct lease *l = t->lease;

	if (!l || t->revoked)
		return;
	/* a lost one counts until the lease ends */
	if (how != PMSG_RELEASE_HOW_LOST)
		t->region->regions->lease_totals.holders--;
	if (how == PMSG_RELEASE_HOW_DECLINED)
		l->acquired--;
	else if (how == PMSG_RELEASE_HOW_LOST)
		/* while this agent drains, its peers give their grants back */
		finish(t, t->region->regions->draining || t->region->ending ?
				  DMSG_LEASE_OUTCOME_ENDED :
				  DMSG_LEASE_OUTCOME_PEER_LOST);
	else if (++l->released == l->holders)
		finish(t, DMSG_LEASE_OUTCOME_USED);
}

void leases_expire(struct regions *r, int64_t now_ns)
{
	struct dray_heap_node *e;

	for (unsigned i = 0; i < LEASES_EXPIRE_PER_TURN && turn_work_has_room(&r->ends); i++) {
		e = dray_heap_first(&r->lease_expiry);
		if (!e || e->key > now_ns)
			break;
		finish(dray_container_of(e, struct token, expiry), DMSG_LEASE_OUTCOME_EXPIRED);
	}
}

/* The timer goes off when the next lease expires, at once if that is overdue. A lease that ended or was renewed meanwhile wakes it once in vain. */
static void arm(struct regions *r)
{
	const struct dray_heap_node *e = dray_heap_first(&r->lease_expiry);

	if (!r->lease_timer || !e)
		return;
	sd_event_source_set_time(r->lease_timer, (uint64_t)e->key / 1000 + 1);
	sd_event_source_set_enabled(r->lease_timer, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct regions *r = arg;

	leases_expire(r, dray_now().ns);
	arm(r);
	return 0;
}

int leases_init(struct regions *r)
{
	int ret;

	if (!r->deps.event)
		return 0;
	ret = sd_event_add_time(r->deps.event, &r->lease_timer, CLOCK_MONOTONIC, 0,
				EXPIRY_ACCURACY_US, on_timer, r);
	return ret < 0 ? ret : sd_event_source_set_enabled(r->lease_timer, SD_EVENT_OFF);
}

static int check_request(const struct region *region, const struct region_owner *owner,
			 const struct dmsg_lease *m, size_t segment_length, struct dray_err *reterr)
{
	uint32_t max = (uint32_t)region->regions->deps.cfg->limits.leases_per_session;
	int ret;

	if (!m->access || !m->holders || m->holders > DMSG_LEASE_HOLDERS_MAX || !m->expiry_ms)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"a lease needs read or write access, 1 to %d holders, and an expiry",
			DMSG_LEASE_HOLDERS_MAX);
	ret = token_allowed(region, m->access, segment_length, reterr);
	if (ret < 0)
		return ret;
	if (owner->leases && owner->leases->leases >= max)
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_QUOTA,
			"the session has %" PRIu32
			" leases, as many as limits.leases_per_session allows; end some, "
			"or raise it",
			max);
	return 0;
}

/* Reads the ranges, which the counts of the session and of its owner limit. */
static int take_ranges(struct lease *l, const struct region *region, struct owner *owner,
		       const struct dmsg_lease *m, struct dray_err *reterr)
{
	uint32_t max = (uint32_t)region->regions->deps.cfg->limits.lease_ranges_per_session;
	int ret = ranges_new(&l->ranges, m->ranges.p, m->ranges.n, region_view_of(region)->o.length,
			     reterr);

	if (ret < 0)
		return ret;
	if (l->counts && (l->counts->ranges >= max || l->ranges->n > max - l->counts->ranges))
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "the leases of the session have %" PRIu32
				    " ranges, and %" PRIu32
				    " more pass limits.lease_ranges_per_session = %" PRIu32
				    "; describe blocks by strides, or raise it",
				    l->counts->ranges, l->ranges->n, max);
	ret = owner_take(owner, RESOURCE_LEASES, 1, reterr);
	if (ret < 0)
		return ret;
	ret = owner_take(owner, RESOURCE_LEASE_RANGES, l->ranges->n, reterr);
	if (ret < 0)
		owner_put(owner, RESOURCE_LEASES, 1);
	else
		l->owner = owner_ref(owner);
	return ret;
}

static struct lease *lease_make(const struct region *region, const struct region_owner *owner,
				const struct dmsg_lease *m, struct dray_err *reterr)
{
	struct lease *l = calloc(1, sizeof(*l));

	if (!l) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a lease");
		return NULL;
	}
	l->session = owner->session;
	l->counts = owner->leases;
	l->holders = m->holders;
	l->limit_ns = (int64_t)m->expiry_ms * DRAY_NS_PER_MS;
	l->made_ns = dray_now().ns;
	if (take_ranges(l, region, owner->uid_owner, m, reterr) == 0)
		return l;
	free_lease(l);
	return NULL;
}

int lease_new(struct regions *r, const struct region_owner *owner, const struct dmsg_lease *m,
	      const char *segment, uint64_t *ret_lease, uint8_t *ret_token,
	      uint32_t *ret_token_length, struct dray_err *reterr)
{
	struct dmsg_region_export what = { .access = m->access, .ttl_ms = m->expiry_ms };
	struct region *region;
	struct lease *l;
	struct token *t;
	int ret;

	if (r->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and leases nothing new");
	region = region_of_group(r, m->region, owner, reterr);
	if (!region)
		return -ENOENT;
	ret = check_request(region, owner, m, strlen(segment), reterr);
	if (ret < 0)
		return ret;
	l = lease_make(region, owner, m, reterr);
	if (!l)
		return -EINVAL;
	what.length = region_view_of(region)->o.length;
	memcpy(what.audience, m->audience, AGENT_ID_BYTES);
	t = token_new(region, &what, true, reterr);
	if (!t) {
		free_lease(l);
		return -ENOMEM;
	}
	t->lease = l;
	l->token = t;
	dray_list_init(&l->link);
	if (l->counts) {
		if (!l->counts->leases++)
			dray_list_init(&l->counts->list);
		dray_list_add(&l->counts->list, &l->link);
		l->counts->ranges += l->ranges->n;
	}
	r->lease_totals.made++;
	*ret_lease = t->handle;
	*ret_token_length = token_write(t, segment, m->expiry_ms, ret_token);
	if (dray_heap_first(&r->lease_expiry) == &t->expiry)
		arm(r);
	return 0;
}

int lease_end(struct regions *r, dray_handle lease, const struct region_owner *owner,
	      void (*done)(void *arg, uint32_t count), void *arg, struct dray_err *reterr)
{
	struct token *t = dray_handles_get(&r->leases, lease);

	if (!t || t->lease->session != owner->session)
		return handle_refuse(reterr, lease, DMSG_HANDLE_KIND_LEASE,
				     "of this session; it may have ended already");
	return revocation_start(t->region, t, done, arg, reterr);
}

void leases_session_gone(struct lease_counts *counts)
{
	struct regions *r = NULL;
	struct lease *l;

	while (counts->leases && (l = dray_list_pop(&counts->list, struct lease, link))) {
		counts->leases--;
		l->counts = NULL;
		r = l->token->region->regions;
		lease_set_outcome(l->token, DMSG_LEASE_OUTCOME_ENDED);
		dray_list_add(&r->orphans, &l->link);
	}
	if (r)
		ends_continue(r);
}

void leases_end_orphans(struct regions *r)
{
	struct lease *l;

	while (turn_work_has_room(&r->ends) && (l = dray_list_pop(&r->orphans, struct lease, link)))
		if (!l->token->revoked)
			finish(l->token, DMSG_LEASE_OUTCOME_ENDED);
}

static uint32_t left_ms(const struct token *t)
{
	uint64_t left = dray_span(t->expiry.key - dray_now().ns) / DRAY_NS_PER_MS;

	return (uint32_t)dray_min(left, (uint64_t)UINT32_MAX);
}

static struct token *find(struct regions *r, const struct pmsg_lease_key *key,
			  const uint8_t holder[AGENT_ID_BYTES], struct dray_err *reterr)
{
	struct pmsg_import m = { .token_id = key->token_id,
				 .region = key->region,
				 .incarnation = key->incarnation };

	memcpy(m.capability, key->capability, CAPABILITY_BYTES);
	return token_find(r, true, &m, holder, reterr);
}

int lease_acquire_local(struct regions *r, const struct pmsg_token *token,
			struct remote_view *remote, uint32_t *ret_expiry_ms,
			struct dray_err *reterr)
{
	struct pmsg_lease_key key = { .token_id = token->token_id,
				      .region = token->region,
				      .incarnation = token->incarnation };
	struct token *t;
	int ret;

	memcpy(key.capability, token->capability, CAPABILITY_BYTES);
	t = find(r, &key, r->deps.agent_id, reterr);
	if (!t)
		return -EPERM;
	ret = token_add_local(t, remote, reterr);
	if (ret < 0)
		return ret;
	count_acquired(t);
	remote->ranges = ranges_ref(t->lease->ranges);
	*ret_expiry_ms = left_ms(t);
	return 0;
}

/* A grant that this peer has, or will have before any answer, without a request. */
static struct grant *find_unasked(struct regions *r, dray_handle peer,
				  const struct pmsg_lease_key *key)
{
	struct token *t = dray_handles_get(&r->leases, key->token_id);

	if (!t || CRYPTO_memcmp(t->capability, key->capability, CAPABILITY_BYTES))
		return NULL;
	dray_list_for_each(&t->grants, g, struct grant, token_link)
		if (g->unasked && !g->ending && g->peer->peer == peer)
			return g;
	return NULL;
}

int lease_acquire(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		  const struct pmsg_lease_key *key, bool unasked, struct pmsg_lease_granted *ret,
		  const struct ranges **ret_ranges, struct dray_err *reterr)
{
	struct grant *g = unasked ? NULL : find_unasked(r, peer, key);
	struct token *t;

	if (g) {
		g->unasked = false;
		ret->grant = g->view.o.handle;
		return 1;
	}
	t = find(r, key, peer_agent_id, reterr);
	g = t ? grant_make(t, peer, reterr) : NULL;
	if (!g)
		return -EPERM;
	g->unasked = unasked;
	count_acquired(t);
	*ret = (struct pmsg_lease_granted){
		.grant = g->view.o.handle,
		.token_id = t->handle,
		.length = t->length,
		.access = t->access,
		.ranges = t->lease->ranges->n,
		.expiry_ms = left_ms(t),
		.rails = ret->rails,
	};
	memcpy(ret->capability, t->capability, CAPABILITY_BYTES);
	*ret_ranges = t->lease->ranges;
	return 0;
}

static int renew(struct token *t, uint32_t ms, uint32_t *ret_ms)
{
	struct regions *r = t->region->regions;
	int64_t ns = (int64_t)ms * DRAY_NS_PER_MS, until;

	if (token_is_over(t))
		return -ENOENT;
	if (!ms || ns > t->lease->limit_ns)
		ns = t->lease->limit_ns;
	until = dray_now().ns + ns;
	/* it has a place in the heap, so this cannot fail; an earlier timer arms itself again */
	if (until > t->expiry.key)
		dray_heap_set(&r->lease_expiry, &t->expiry, until);
	r->lease_totals.renewed++;
	*ret_ms = left_ms(t);
	return 0;
}

int lease_renew_local(struct regions *r, uint64_t token_id, uint32_t ms, uint32_t *ret_ms)
{
	struct token *t = dray_handles_get(&r->leases, token_id);

	return t ? renew(t, ms, ret_ms) : -ENOENT;
}

int lease_renew(struct regions *r, dray_handle peer, dray_handle grant, uint32_t ms,
		uint32_t *ret_ms)
{
	struct grant *g = grant_live(r, peer, grant);

	return g && g->token && g->token->lease ? renew(g->token, ms, ret_ms) : -ENOENT;
}

static const char *state_name(const struct lease *l)
{
	if (l->outcome)
		return dmsg_lease_outcome_name(l->outcome);
	return l->acquired < l->holders ? "waiting" : "held";
}

bool leases_next(struct regions *r, uint32_t *cursor,
		 void (*fn)(void *arg, const struct dray_dbus_lease *lease), void *arg)
{
	static const char *const access[] = {
		[DMSG_ACCESS_READ] = "r", [DMSG_ACCESS_WRITE] = "w", [DMSG_ACCESS_ALL] = "rw"
	};
	const struct token *t = dray_handles_next(&r->leases, cursor, NULL);
	const struct lease *l = t ? t->lease : NULL;
	int64_t now = dray_now().ns;

	if (!t)
		return false;
	fn(arg, &(struct dray_dbus_lease){
			.lease = t->handle,
			.session = l->session,
			.region = t->region->handle,
			.access = access[t->access & DMSG_ACCESS_ALL],
			.ranges = l->ranges->n,
			.pieces = l->ranges->pieces,
			.bytes = l->ranges->bytes,
			.holders = l->holders,
			.acquired = l->acquired,
			.released = l->released,
			.state = state_name(l),
			.age_ns = dray_span(now - l->made_ns),
			.left_ns = l->outcome ? 0 : dray_span(t->expiry.key - now),
		});
	return true;
}

struct leases_totals leases_totals(const struct regions *r)
{
	struct leases_totals totals = r->lease_totals;

	totals.leases = r->leases.count;
	return totals;
}
