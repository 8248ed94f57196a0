/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the facts for preferred.h, and handles changes of the preferred segment. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/array.h"
#include "lib/log.h"

#define DECIDE_PAUSE_NS (20 * DRAY_NS_PER_MS)

/* Facts and their memory. */
struct gathered {
	struct preferred_facts facts;
	struct preferred_segment *segments;
	struct preferred_hint *hints;
	const struct hint_owner *viewer;
	const char *tenant; /* of data.socket */
	bool failed;
};

static void gathered_deinit(struct gathered *g)
{
	free(g->segments);
	free(g->hints);
}

/* It is ready, or has not failed often enough yet. */
static bool answers(const struct segment *s, bool refused)
{
	if (refused || s->state == DMSG_SEGMENT_STATE_LOST)
		return false;
	if (s->state == DMSG_SEGMENT_STATE_READY || !s->watch)
		return true;
	return watch_state(s->watch)->failed < (uint64_t)s->ss->deps.cfg->probe.fall;
}

static bool is_agent(const struct segment *s)
{
	if (s->check == SEGMENT_CHECK_SELF || s->check == SEGMENT_CHECK_PEER || s->was_peer)
		return true;
	return s->watch && watch_target(s->watch)->kind == PROBE_DRAY;
}

static void segment_facts(const struct segment *s, struct preferred_segment *ret)
{
	bool refused = segment_is_refused(s);

	*ret = (struct preferred_segment){
		.name = s->name,
		.reason = refused && s->master_status ? s->master_status :
			  s->reason                   ? s->reason :
							"",
		.where = s->where ? s->where : "",
		.state = s->state,
		.verified = s->verified,
		.answers = answers(s, refused),
		.local = s->local,
		.located = s->ss->located && (!s->host || s->host->known),
		.loopback = segment_is_loopback(s),
		.agent = is_agent(s),
		/* a hint chooses for its scope and those who see it, not for the node */
		.mentioned = s->sources & ~(unsigned)SEGMENT_HINT,
		.hinted = s->sources & SEGMENT_HINT,
		.configured = s->sources & SEGMENT_CONFIG,
		.listens = s->sources & SEGMENT_LISTENER,
		.listed = s->sources & SEGMENT_MASTER,
		.capacity = s->capacity,
	};
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct preferred_segment *)a)->name,
		      ((const struct preferred_segment *)b)->name);
}

static int make_room(struct gathered *g, size_t n)
{
	g->segments = calloc(dray_max(n, (size_t)1), sizeof(*g->segments));
	return g->segments ? 0 : -ENOMEM;
}

static void add_segment(struct gathered *g, const struct segment *s)
{
	if (s)
		segment_facts(s, &g->segments[g->facts.n_segments++]);
}

static void add_named(struct gathered *g, const struct segments *ss, const char *name)
{
	if (name)
		add_segment(g, segment_find(ss, name));
}

/* In the order of preferred.h, each once. */
static void sort_segments(struct gathered *g)
{
	size_t n = g->facts.n_segments, kept = 0;

	if (n)
		qsort(g->segments, n, sizeof(*g->segments), by_name);
	for (size_t i = 0; i < n; i++)
		if (!kept || strcmp(g->segments[kept - 1].name, g->segments[i].name) != 0)
			g->segments[kept++] = g->segments[i];
	g->facts.segments = g->segments;
	g->facts.n_segments = kept;
}

/* All segments that may be of interest, with those that cannot be chosen. */
static int gather_all(const struct segments *ss, struct gathered *g)
{
	if (make_room(g, dray_list_length(&ss->foreground)) < 0)
		return -ENOMEM;
	dray_list_for_each(&ss->foreground, s, struct segment, foreground)
		add_segment(g, s);
	sort_segments(g);
	return 0;
}

/*
 * The segments that can be chosen: those of this node, and those that are named, also by the hints that were gathered
 * before. Any client can ask for the choice and give thousands of hints for other scopes, so these are not examined.
 */
static int gather_choosable(const struct segments *ss, struct gathered *g)
{
	if (make_room(g, 3 + g->facts.n_hints + dray_list_length(&ss->own)) < 0)
		return -ENOMEM;
	dray_list_for_each(&ss->own, s, struct segment, own)
		add_segment(g, s);
	add_named(g, ss, g->facts.explicit_name);
	add_named(g, ss, g->facts.environment);
	add_named(g, ss, g->facts.remembered);
	for (size_t i = 0; i < g->facts.n_hints; i++)
		add_named(g, ss, g->facts.hints[i].segment);
	sort_segments(g);
	return 0;
}

/*
 * The choice for the node counts hints of clients of data.socket alone: other tenants must not decide for it. A hint for PUTs decides for
 * those of its owner only.
 */
static bool is_visible(const struct gathered *g, const struct hint *h)
{
	if (g->viewer)
		return hint_is_visible(h, g->viewer);
	return g->facts.stores || h->source != DMSG_HINT_SOURCE_CLIENT ||
	       !strcmp(h->tenant, g->tenant);
}

/* By whom the hint was given; the owner only where it matters, since all clients see the reason of the node's choice. */
static void show_giver(const struct gathered *g, const struct hint *h, char *ret, size_t n)
{
	const char *source = dmsg_hint_source_name(h->source);

	if (g->facts.stores && h->source == DMSG_HINT_SOURCE_CLIENT)
		snprintf(ret, n, "%s of uid %u of tenant %.32s", source, h->uid, h->tenant);
	else
		snprintf(ret, n, "%s", source);
}

/* Only given hints count: the environment and the remembered segment are facts of their own. */
static void add_hint(void *arg, const struct hint *h)
{
	struct gathered *g = arg;
	struct preferred_hint hint = { .segment = h->segment };
	char giver[80];

	if (!hint_is_given(h->source) || g->failed || !is_visible(g, h))
		return;
	show_giver(g, h, giver, sizeof(giver));
	snprintf(hint.about, sizeof(hint.about), "%s%.80s, by %s, score %u",
		 *h->scope ? "scope " : "of the whole node", h->scope, giver, h->score);
	g->failed = DRAY_APPEND(g->hints, g->facts.n_hints, hint) < 0;
}

/* Agents that PUTs can go to, in place of segments. */
static int gather_stores(struct segments *ss, struct gathered *g)
{
	struct segment_store stores[SEGMENT_STORES_MAX];
	unsigned n = ss->deps.up->stores ? ss->deps.up->stores(ss->deps.arg, stores) : 0;
	const char *put_at = ss->deps.cfg->store.put_at;

	g->segments = calloc(dray_max(n, 1u), sizeof(*g->segments));
	if (!g->segments)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++) {
		const struct segment_store *s = &stores[i];

		g->segments[i] = (struct preferred_segment){
			.name = s->name,
			.reason = s->fault ? s->fault : "it takes objects",
			.where = s->own ? "this agent" : "another agent, of store.peers",
			.state = s->fault ? DMSG_SEGMENT_STATE_LOST : DMSG_SEGMENT_STATE_READY,
			.verified = true,
			.answers = !s->fault,
			.local = s->own,
			.located = true,
			.mentioned = true,
		};
	}
	if (n)
		qsort(g->segments, n, sizeof(*g->segments), by_name);
	g->facts = (struct preferred_facts){ .stores = true,
					     .explicit_by = "store.put_at",
					     .explicit_name = *put_at ? put_at : NULL,
					     .segments = g->segments,
					     .n_segments = n,
					     .last = "",
					     .remembered = "" };
	return 0;
}

/* A hint for the whole node names a segment for engines, and says nothing of PUTs. */
static int gather_hints(struct segments *ss, const char *scope, struct gathered *g)
{
	if (*scope)
		hints_each_of(ss->deps.hints, scope, add_hint, g);
	if (!g->facts.stores)
		hints_each_of(ss->deps.hints, "", add_hint, g);
	g->facts.hints = g->hints;
	return g->failed ? -ENOMEM : 0;
}

/* all: also segments that cannot be chosen. */
static int gather(struct segments *ss, const char *scope, const struct hint_owner *viewer, bool all,
		  struct gathered *g)
{
	bool stores = !strncmp(scope, STORE_SCOPE, strlen(STORE_SCOPE));
	int r = 0;

	*g = (struct gathered){ .viewer = viewer,
				.tenant = ss->deps.cfg->data.tenant,
				.facts = { .explicit_by = "segment.preferred",
					   .explicit_name = preferred_of_config(ss->deps.cfg),
					   .environment = ss->deps.environment,
					   .last = ss->preferred,
					   .remembered = ss->remembered } };
	if (stores)
		r = gather_stores(ss, g);
	if (r >= 0)
		r = gather_hints(ss, scope, g);
	if (r >= 0 && !stores)
		r = all ? gather_all(ss, g) : gather_choosable(ss, g);
	return r;
}

static void preferred_of(struct segments *ss, const struct candidate *c, struct preferred *ret)
{
	const struct segment *s = segment_find(ss, c->name);

	*ret = (struct preferred){ .name = c->name,
				   .preference = c->preference,
				   .agent = s && is_agent(s) };
	snprintf(ret->reason, sizeof(ret->reason), "%s", c->reason);
	ret->flags = DMSG_SEGMENT_FLAG_PREFERRED;
	if (!s) {
		ret->flags |= DMSG_SEGMENT_FLAG_UNVERIFIED;
		return;
	}
	ret->name = s->name;
	ret->state = s->state;
	ret->capacity = s->capacity;
	ret->allocated = s->allocated;
	ret->flags |= (s->verified ? 0 : DMSG_SEGMENT_FLAG_UNVERIFIED) |
		      (s->local ? DMSG_SEGMENT_FLAG_NODE_LOCAL : 0);
}

/* No segment is preferred: the reason of an explicit choice without a segment, or a general one. */
static void preferred_none(const struct preferred_facts *f, const struct candidate *v, size_t n,
			   struct preferred *ret)
{
	*ret = (struct preferred){ .name = "" };
	if (n && !*v->name)
		snprintf(ret->reason, sizeof(ret->reason), "%s", v->reason);
	else if (f->stores)
		snprintf(ret->reason, sizeof(ret->reason),
			 "this agent has no store, or no address by which others reach it");
	else
		snprintf(ret->reason, sizeof(ret->reason),
			 "no segment of this node is ready; drayctl segments --explain says more");
}

void segments_preferred(struct segments *ss, const char *scope, const struct hint_owner *viewer,
			struct preferred *ret)
{
	dray_auto_free struct candidate *v = NULL;
	struct gathered g;
	size_t n = 0;

	*ret = (struct preferred){ .name = "", .reason = "out of memory" };
	if (gather(ss, scope, viewer, false, &g) >= 0 && preferred_rank(&g.facts, &v, &n) >= 0) {
		preferred_none(&g.facts, v, n, ret);
		for (size_t i = 0; i < n; i++)
			if (v[i].chosen)
				preferred_of(ss, &v[i], ret);
	}
	gathered_deinit(&g);
}

int segments_explain(struct segments *ss, const char *scope,
		     void (*fn)(void *arg, const struct dray_dbus_candidate *candidate), void *arg)
{
	dray_auto_free struct candidate *v = NULL;
	struct gathered g;
	size_t n = 0;
	int r = gather(ss, scope, NULL, true, &g);

	if (r >= 0)
		r = preferred_rank(&g.facts, &v, &n);
	for (size_t i = 0; i < n; i++)
		fn(arg,
		   &(struct dray_dbus_candidate){
			   .rank = (uint32_t)i + 1,
			   .segment = v[i].name,
			   .preference = dmsg_preference_name(v[i].preference),
			   .state = dmsg_segment_state_name(
				   v[i].known ? v[i].known->state : DMSG_SEGMENT_STATE_UNKNOWN),
			   .chosen = v[i].chosen,
			   .reason = v[i].reason,
		   });
	gathered_deinit(&g);
	return r;
}

void segments_save_remembered(const struct segments *ss)
{
	state_save_preferred(ss->deps.state,
			     &(struct state_preferred){ .name = ss->remembered,
							.preference = DMSG_PREFERENCE_DETECTED,
							.at_ms = (int64_t)dray_unix_ms() });
}

/* Stores the detected segment for the next start, and as a hint that clients can list. */
static void remember(struct segments *ss, const struct preferred *p)
{
	enum dmsg_hint_source source = p->preference == DMSG_PREFERENCE_ENVIRONMENT ?
					       DMSG_HINT_SOURCE_ENVIRONMENT :
					       DMSG_HINT_SOURCE_DETECTED;
	struct dray_err err = DRAY_ERR_NULL;

	if (p->preference == DMSG_PREFERENCE_DETECTED) {
		snprintf(ss->remembered, sizeof(ss->remembered), "%s", p->name);
		segments_save_remembered(ss);
	}
	/* earlier detected segments are no hints any more */
	if (*p->name)
		hints_forget_found(ss->deps.hints, p->name);
	ss->remembered_ns = dray_now().ns;
	if (p->preference != DMSG_PREFERENCE_ENVIRONMENT &&
	    p->preference != DMSG_PREFERENCE_DETECTED)
		return;
	if (hints_put(ss->deps.hints,
		      &(struct hint_put){ .scope = "", .segment = p->name, .source = source },
		      &err) < 0)
		log_limited(DRAY_LOG_WARNING, AREA, "%s is not stored as a hint: %s", p->name,
			    err.msg);
}

/* How urgent its probe is depends on whether it is preferred. */
static void recheck_named(struct segments *ss, const char *name)
{
	struct segment *s = segment_find(ss, name);

	if (s)
		segment_recheck(s);
}

static void decide(struct segments *ss)
{
	char old[SEGMENT_NAME_BYTES];
	struct segment_info info;
	struct preferred p;
	bool known;

	segments_preferred(ss, "", NULL, &p);
	if (!strcmp(p.name, ss->preferred))
		return;
	snprintf(old, sizeof(old), "%s", ss->preferred);
	snprintf(ss->preferred, sizeof(ss->preferred), "%s", p.name);
	ss->totals.preferred_changes++;
	log_notice(AREA, "preferred segment %s -> %s: %s", *old ? old : "none",
		   *p.name ? p.name : "none", p.reason);
	remember(ss, &p);
	known = *p.name && segments_find(ss, ss->preferred, &info);
	ss->deps.up->preferred(ss->deps.arg, old, ss->preferred, known ? &info : NULL, p.reason);
	recheck_named(ss, old);
	recheck_named(ss, ss->preferred);
}

void segments_remember(struct segments *ss)
{
	struct preferred p;

	if (!*ss->preferred || dray_now().ns - ss->remembered_ns < ss->deps.cfg->hint.ttl / 2)
		return;
	segments_preferred(ss, "", NULL, &p);
	remember(ss, &p);
}

static void save(struct segments *ss)
{
	dray_list_for_each(&ss->unsaved, s, struct segment, unsaved) {
		dray_list_del(&s->unsaved);
		segment_save(s);
	}
}

static int on_decide(sd_event_source *source, uint64_t usec, void *arg)
{
	struct segments *ss = arg;

	ss->decided_ns = dray_now().ns;
	if (ss->renamed) {
		ss->renamed = false;
		listeners_apply(ss);
	}
	decide(ss);
	save(ss);
	return 0;
}

static bool is_pending(const struct segments *ss)
{
	int enabled = SD_EVENT_OFF;

	sd_event_source_get_enabled(ss->decide, &enabled);
	return enabled != SD_EVENT_OFF;
}

void segments_decide_pending(struct segments *ss)
{
	if (!ss->decide || !is_pending(ss))
		return;
	sd_event_source_set_enabled(ss->decide, SD_EVENT_OFF);
	on_decide(ss->decide, 0, ss);
}

/* At once, but at most every DECIDE_PAUSE_NS, because a decision examines all candidates. */
void segments_decide_soon(struct segments *ss)
{
	if (is_pending(ss))
		return;
	sd_event_source_set_time(ss->decide, (uint64_t)(ss->decided_ns + DECIDE_PAUSE_NS) / 1000);
	sd_event_source_set_enabled(ss->decide, SD_EVENT_ONESHOT);
}

int segments_decide_init(struct segments *ss)
{
	int r = sd_event_add_time(ss->deps.event, &ss->decide, CLOCK_MONOTONIC, 0, 1, on_decide,
				  ss);

	return r < 0 ? r : sd_event_source_set_enabled(ss->decide, SD_EVENT_OFF);
}
