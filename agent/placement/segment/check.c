/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how the state of a segment is learned, and handles changes of the state. */
#include <stdio.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/log.h"

static bool is_named_or_used(const struct segment *s)
{
	return s->named_preferred || s->was_peer || !strcmp(s->name, s->ss->remembered);
}

/* It is probed even if no source says how: it is on this node, hinted, named, or used. */
static bool is_wanted(const struct segment *s)
{
	return s->local || (s->sources & (SEGMENT_HINT | SEGMENT_PEER)) || is_named_or_used(s);
}

/* Of this node, and more than hints mention it. */
static bool is_own(const struct segment *s)
{
	return s->local && (s->sources & ~(unsigned)SEGMENT_HINT);
}

/*
 * Nothing but hints has it probed, or no source mentions it any more: others go first, because one client may give
 * thousands of hints.
 */
static bool is_minor(const struct segment *s)
{
	return !is_own(s) && !is_named_or_used(s) && strcmp(s->name, s->ss->preferred) != 0 &&
	       !(s->sources & (SEGMENT_CONFIG | SEGMENT_LISTENER | SEGMENT_PEER));
}

bool segment_may_go(const struct segment *s)
{
	if (s->check == SEGMENT_CHECK_SELF || s->local || s->named_preferred)
		return false;
	return (!s->sources && s->state != DMSG_SEGMENT_STATE_READY) ||
	       s->sources == SEGMENT_MASTER;
}

/* A master reports an address of the transfer engine that differs from the name. */
static bool has_endpoint(const struct segment *s)
{
	return s->te_endpoint && *s->te_endpoint && strcmp(s->te_endpoint, s->name) != 0;
}

static enum segment_check probe_of(const struct segment *s, struct probe_target *ret)
{
	if (has_endpoint(s) && probe_target_of(s->te_endpoint, PROBE_MOONCAKE, ret, NULL) == 0)
		return SEGMENT_CHECK_PROBE;
	/* nothing needs to listen at its name: Mooncake resolves names by a metadata server */
	if (s->listed_by || s->was_listed)
		return SEGMENT_CHECK_MASTER;
	if (s->restored) {
		*ret = *s->restored;
		return SEGMENT_CHECK_PROBE;
	}
	return probe_target_of(s->name, s->was_peer ? PROBE_DRAY : PROBE_TCP, ret, NULL) < 0 ?
		       SEGMENT_CHECK_NONE :
		       SEGMENT_CHECK_PROBE;
}

static enum segment_check check_of(const struct segment *s, struct probe_target *ret)
{
	if (!strcmp(s->name, s->ss->self))
		return SEGMENT_CHECK_SELF;
	if (s->configured) {
		*ret = *s->configured;
		return SEGMENT_CHECK_PROBE;
	}
	if (s->peer_ready)
		return SEGMENT_CHECK_PEER;
	if (s->listener && !has_endpoint(s)) {
		*ret = *s->listener;
		return SEGMENT_CHECK_PROBE;
	}
	return is_wanted(s) ? probe_of(s, ret) : SEGMENT_CHECK_NONE;
}

static const char *segment_check_name(const struct segment *s)
{
	switch (s->check) {
	case SEGMENT_CHECK_PROBE:
		return probe_kind_name(watch_target(s->watch)->kind);
	case SEGMENT_CHECK_MASTER:
		return "master";
	case SEGMENT_CHECK_PEER:
		return "peer";
	case SEGMENT_CHECK_NONE:
	case SEGMENT_CHECK_SELF:
		break;
	}
	return "";
}

static const char *sources_text(const struct segment *s, char *buf, size_t n)
{
	static const char *const names[] = { "config", "listener", "master", "peer", "hint" };
	size_t at = 0;

	*buf = '\0';
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(names); i++)
		if (s->sources & 1u << i)
			at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? "," : "", names[i]);
	if (!at)
		snprintf(buf, n, "%s", s->check == SEGMENT_CHECK_SELF ? "" : "state");
	return buf;
}

void segment_save(const struct segment *s)
{
	char target[PROBE_TARGET_TEXT_MAX] = "", sources[64];
	int64_t now = (int64_t)dray_unix_ms();

	if (s->state != DMSG_SEGMENT_STATE_READY && s->state != DMSG_SEGMENT_STATE_LOST)
		return;
	if (s->check == SEGMENT_CHECK_PROBE)
		probe_target_show(watch_target(s->watch), target, sizeof(target));
	state_save_segment(
		s->ss->deps.state,
		&(struct state_segment){
			.name = s->name,
			.probe = segment_check_name(s),
			.target = target,
			.sources = sources_text(s, sources, sizeof(sources)),
			.state = s->state,
			.since_ms = now - (dray_now().ns - s->since_ns) / DRAY_NS_PER_MS,
			.ready_ms = (int64_t)s->ready_ms,
			.reason = s->reason ? s->reason : "",
			.capacity = s->capacity,
			.allocated = s->allocated,
			.seen_ms = now - (dray_now().ns - s->mentioned_ns) / DRAY_NS_PER_MS });
}

void segment_save_soon(struct segment *s)
{
	dray_list_move(&s->ss->unsaved, &s->unsaved);
	segments_decide_soon(s->ss);
}

/* An administrator's hint, and the preferred segment, concern all clients. */
static bool is_of_clients(const struct segment *s)
{
	return s->of_hints && strcmp(s->name, s->ss->preferred) != 0 &&
	       !hints_names_for(s->ss->deps.hints, s->name, &(struct hint_owner){ "", 0 });
}

/* One client may name thousands of segments, whose changes must not displace those of others. */
static void record_change(struct segment *s, enum dmsg_segment_state old, const char *reason)
{
	if (is_of_clients(s)) {
		share_log(s, old, reason);
		return;
	}
	log_notice(AREA, "%s %s -> %s: %s", s->name, dmsg_segment_state_name(old),
		   dmsg_segment_state_name(s->state), reason);
	state_add_event(s->ss->deps.state, &(struct state_event){ .segment = s->name,
								  .at_ms = (int64_t)dray_unix_ms(),
								  .old = old,
								  .new = s->state,
								  .reason = reason });
}

void segment_set_state(struct segment *s, enum dmsg_segment_state state, bool verified,
		       const char *reason)
{
	struct segments *ss = s->ss;
	enum dmsg_segment_state old = s->state;
	struct segment_info info;

	s->verified = verified;
	segment_text(&s->reason, reason);
	if (state == DMSG_SEGMENT_STATE_READY || old == DMSG_SEGMENT_STATE_READY)
		s->ready_ms = dray_unix_ms();
	segments_decide_soon(ss);
	if (state == old)
		return;
	ss->renamed |= state == DMSG_SEGMENT_STATE_READY && (s->sources & SEGMENT_LISTENER);
	s->state = state;
	segment_spare(s);
	s->since_ns = dray_now().ns;
	ss->totals.by_state[old]--;
	ss->totals.by_state[state]++;
	/* that a probe begins is no news */
	if (state == DMSG_SEGMENT_STATE_PROBING || state == DMSG_SEGMENT_STATE_UNKNOWN)
		return;
	ss->totals.changes++;
	record_change(s, old, reason);
	segment_save_soon(s);
	segment_info_of(s, &info);
	ss->deps.up->changed(ss->deps.arg, &info, old);
}

void segment_on_probe(void *arg, void *owner, enum dmsg_segment_state old,
		      const struct probe_fsm *f)
{
	struct segment *s = owner;
	struct segment_info info;

	if (f->state != old) {
		segment_set_state(s, f->state, true, f->reason);
		return;
	}
	/* of the failures, only this one can change its rank among the candidates */
	if (f->state != s->state || f->verified != s->verified ||
	    (f->failures && f->failed == (uint64_t)s->ss->deps.cfg->probe.fall))
		segments_decide_soon(s->ss);
	if (f->state != s->state || f->verified == s->verified)
		return;
	/* a state from before the restart is confirmed, for which some callers wait */
	s->verified = f->verified;
	segment_text(&s->reason, f->reason);
	segment_info_of(s, &info);
	s->ss->deps.up->changed(s->ss->deps.arg, &info, s->state);
}

/* The state stays until the first probe of the new target confirms or changes it. */
static void watch_start(struct segment *s, const struct probe_target *target)
{
	struct dray_err err = DRAY_ERR_NULL;

	s->watch = watch_free(s->watch);
	if (prober_watch(s->ss->prober, target, s->state, s, &s->watch, &err) < 0) {
		s->check = SEGMENT_CHECK_NONE;
		log_limited(DRAY_LOG_WARNING, AREA, "%s is not probed: %s", s->name, err.msg);
		return;
	}
	s->verified = false;
}

static const struct master_entry *lister(const struct segment *s, uint32_t of)
{
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		if (of & 1u << i)
			return &s->ss->masters[i];
	return NULL;
}

bool segment_is_refused(const struct segment *s)
{
	uint32_t heard = masters_answering(s->ss, s->listed_by);

	return heard && !(heard & s->ok_by);
}

static void take_masters_word(struct segment *s)
{
	char reason[DRAY_ERR_MSG_MAX + 80];
	const struct master_entry *by =
		lister(s, masters_answering(s->ss, s->listed_by & s->ok_by));
	bool was = s->state == DMSG_SEGMENT_STATE_READY || s->state == DMSG_SEGMENT_STATE_LOST;

	if (by) {
		snprintf(reason, sizeof(reason), "%s lists it", by->url);
		segment_set_state(s, DMSG_SEGMENT_STATE_READY, true, reason);
		return;
	}
	/* a master that was not read yet may list it */
	if (masters_pending(s->ss))
		return;
	by = lister(s, masters_answering(s->ss, s->listed_by));
	if (by)
		snprintf(reason, sizeof(reason), "%s reports %.60s", by->url,
			 s->master_status ? s->master_status : "nothing of it");
	else if ((by = lister(s, s->listed_by)))
		snprintf(reason, sizeof(reason), "%s listed it and does not answer: %s", by->url,
			 by->why);
	else
		snprintf(reason, sizeof(reason), "no master lists it any more");
	segment_set_state(s, was ? DMSG_SEGMENT_STATE_LOST : DMSG_SEGMENT_STATE_PROBING, true,
			  reason);
}

void segment_recheck(struct segment *s)
{
	struct segments *ss = s->ss;
	struct probe_target target;
	enum segment_check check = check_of(s, &target);
	bool fits = check == SEGMENT_CHECK_PROBE && s->watch &&
		    probe_target_equal(watch_target(s->watch), &target);

	if (!fits)
		s->watch = watch_free(s->watch);
	s->check = check;
	dray_list_del(&s->foreground);
	if (check != SEGMENT_CHECK_NONE || s->local || is_wanted(s))
		dray_list_add(&ss->foreground, &s->foreground);
	dray_list_del(&s->own);
	if (is_own(s))
		dray_list_add(&ss->own, &s->own);
	switch (check) {
	case SEGMENT_CHECK_PROBE:
		if (!fits)
			watch_start(s, &target);
		if (s->watch)
			watch_set_minor(s->watch, is_minor(s));
		break;
	case SEGMENT_CHECK_MASTER:
		take_masters_word(s);
		break;
	case SEGMENT_CHECK_PEER:
		segment_set_state(s, DMSG_SEGMENT_STATE_READY, true,
				  "the agent there is connected");
		break;
	case SEGMENT_CHECK_SELF:
		segment_set_state(s, DMSG_SEGMENT_STATE_READY, true, "this agent");
		break;
	case SEGMENT_CHECK_NONE:
		/* it may be on this node: the lookup of its host is not finished */
		if (s->host && !s->host->known && !s->verified && s->state)
			break;
		segment_set_state(
			s, DMSG_SEGMENT_STATE_UNKNOWN, false,
			"not probed: neither on this node nor configured, hinted or used");
		break;
	}
	segment_spare(s);
	segments_decide_soon(ss);
}

void segment_info_of(const struct segment *s, struct segment_info *ret)
{
	int64_t ready_ms = s->state == DMSG_SEGMENT_STATE_READY ? 0 : (int64_t)s->ready_ms;
	int64_t now = dray_now().ns, now_ms = (int64_t)dray_unix_ms();

	ret->state = s->state;
	ret->of_clients = is_of_clients(s);
	ret->record = (struct dray_dbus_segment){
		.segment = s->name,
		.state = dmsg_segment_state_name(s->state),
		.verified = s->verified,
		.preferred = !strcmp(s->name, s->ss->preferred),
		.local = s->local,
		.sources = sources_text(s, ret->sources, sizeof(ret->sources)),
		.probe = segment_check_name(s),
		.target = ret->target,
		.reason = s->reason ? s->reason : "",
		.since_ns = dray_span(now - s->since_ns),
		.capacity = s->capacity,
		.allocated = s->allocated,
		.ready_ago_ns = dray_span(ready_ms ? (now_ms - ready_ms) * DRAY_NS_PER_MS : 0),
	};
	ret->target[0] = '\0';
	if (s->watch) {
		const struct probe_fsm *f = watch_state(s->watch);

		probe_target_show(watch_target(s->watch), ret->target, sizeof(ret->target));
		if (*f->reason)
			ret->record.reason = f->reason;
		ret->record.latency_ns = dray_span(f->latency_ns);
		ret->record.probes = f->probes;
		ret->record.failures = f->failed;
		ret->record.next_ns = f->next_ns == INT64_MAX ? 0 : dray_span(f->next_ns - now);
	}
}
