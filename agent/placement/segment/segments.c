/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/segment/segments.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* A sweep waits up to twice as long, for a wake-up of the loop with another reason. */
#define SWEEP_NS (5 * DRAY_NS_PER_SEC)
#define SAVE_NS (3600 * DRAY_NS_PER_SEC)

static bool is_over(const struct segment *s, int64_t now)
{
	return !s->sources && s->check != SEGMENT_CHECK_SELF && !masters_pending(s->ss) &&
	       now - s->mentioned_ns > s->ss->deps.cfg->segment.expiry;
}

static void expire(struct segments *ss)
{
	int64_t now = dray_now().ns;

	dray_list_for_each(&ss->all, s, struct segment, link) {
		if (s->sources) {
			s->mentioned_ns = now;
			continue;
		}
		if (!is_over(s, now))
			continue;
		log_limited(DRAY_LOG_INFO, AREA, "%s is forgotten: no source mentions it any more",
			    s->name);
		state_drop_segment(ss->deps.state, s->name);
		ss->totals.expired++;
		segment_remove(s);
		segments_decide_soon(ss);
	}
	if (ss->n < (size_t)ss->deps.cfg->limits.segments)
		ss->left_out = false;
	segments_hints_again(ss);
	if (!shares_wait(ss))
		ss->hints_left_out = false;
}

/* After a kill the rows tell when segments were last ready. */
static void save_ready(struct segments *ss)
{
	int64_t now = dray_now().ns;

	if (now - ss->saved_ns < SAVE_NS)
		return;
	ss->saved_ns = now;
	dray_list_for_each(&ss->foreground, s, struct segment, foreground) {
		if (s->state != DMSG_SEGMENT_STATE_READY)
			continue;
		s->ready_ms = dray_unix_ms();
		segment_save_soon(s);
	}
}

static int on_sweep(sd_event_source *source, uint64_t usec, void *arg)
{
	struct segments *ss = arg;

	expire(ss);
	hosts_refresh(ss);
	segments_remember(ss);
	save_ready(ss);
	sd_event_source_set_time(source, (uint64_t)(dray_now().ns + SWEEP_NS) / 1000);
	sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	return 0;
}

static int start(struct segments *ss, struct dray_err *reterr)
{
	const struct segments_deps *d = &ss->deps;
	int r = resolver_new(&ss->resolver, d->event, reterr);

	if (r >= 0)
		r = prober_new(&ss->prober,
			       &(struct prober_deps){ .event = d->event,
						      .cfg = d->cfg,
						      .resolver = ss->resolver,
						      .peer_probes = d->peer_probes,
						      .peers = d->peers,
						      .probed = segment_on_probe,
						      .arg = ss },
			       reterr);
	if (r >= 0)
		r = segments_decide_init(ss);
	if (r >= 0)
		r = sd_event_add_time(d->event, &ss->sweep, CLOCK_MONOTONIC,
				      (uint64_t)(dray_now().ns + SWEEP_NS) / 1000, SWEEP_NS / 1000,
				      on_sweep, ss);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "segments: %s",
				    dray_errno_text(r));
	return 0;
}

int segments_new(struct segments **ret, const struct segments_deps *deps, struct dray_err *reterr)
{
	struct segments *ss = calloc(1, sizeof(*ss));
	int r;

	if (!ss)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "segments: out of memory");
	ss->deps = *deps;
	dray_list_init(&ss->all);
	dray_list_init(&ss->foreground);
	dray_list_init(&ss->own);
	dray_list_init(&ss->unsaved);
	dray_list_init(&ss->spare);
	dray_list_init(&ss->hosts);
	dray_map_init(&ss->by_name);
	dray_map_init(&ss->hosts_by_name);
	dray_map_init(&ss->shares);
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		ss->masters[i] = (struct master_entry){ .ss = ss, .index = i };
	snprintf(ss->self, sizeof(ss->self), "%s", deps->own_segment);
	r = start(ss, reterr);
	if (r < 0)
		segments_free(ss);
	else
		*ret = ss;
	return r;
}

struct segments *segments_free(struct segments *ss)
{
	if (!ss)
		return NULL;
	segments_decide_pending(ss);
	masters_free(ss);
	ss->sweep = sd_event_source_disable_unref(ss->sweep);
	dray_list_for_each(&ss->all, s, struct segment, link)
		segment_remove(s);
	ss->decide = sd_event_source_disable_unref(ss->decide);
	prober_free(ss->prober);
	resolver_free(ss->resolver);
	locality_deinit(&ss->locality);
	nd_listeners_deinit(&ss->listeners);
	dray_map_deinit(&ss->by_name);
	dray_map_deinit(&ss->hosts_by_name);
	shares_free(ss);
	free(ss->ports);
	free(ss);
	return NULL;
}

/* Age of a time of the wall clock. A clock that was set back gives 0. */
static int64_t age_ns(int64_t unix_ms)
{
	int64_t ago = (int64_t)dray_unix_ms() - unix_ms;

	if (ago < 0)
		return 0;
	return ago > INT64_MAX / 4 / DRAY_NS_PER_MS ? INT64_MAX / 4 : ago * DRAY_NS_PER_MS;
}

void segments_restore(struct segments *ss, const struct state_segment *row)
{
	int64_t now = dray_now().ns;
	struct probe_target target;
	struct segment *s;

	s = dray_endpoint_valid(row->name) && row->state < SEGMENT_STATES ?
		    segment_ensure(ss, row->name, SEGMENT_STATE) :
		    NULL;
	if (!s) {
		state_drop_segment(ss->deps.state, row->name);
		return;
	}
	/* the row comes late, and its segment was probed already */
	if (s->verified && s->check != SEGMENT_CHECK_SELF &&
	    (s->state == DMSG_SEGMENT_STATE_READY || s->state == DMSG_SEGMENT_STATE_LOST))
		return;
	if (*row->target && probe_target_parse(row->target, &target, NULL) == 0)
		segment_target(&s->restored, &target);
	/* a segment on this node is probed since its creation; the restored state replaces that */
	s->watch = watch_free(s->watch);
	s->was_peer = !strcmp(row->probe, "peer") || !strcmp(row->probe, "dray");
	ss->totals.by_state[s->state]--;
	s->state = row->state;
	ss->totals.by_state[s->state]++;
	s->verified = false;
	s->was_listed = !strcmp(row->probe, "master");
	s->since_ns = now - age_ns(row->since_ms);
	segment_text(&s->reason, row->reason);
	s->ready_ms = row->ready_ms < 0 ? 0 : (uint64_t)row->ready_ms;
	s->capacity = row->capacity;
	s->allocated = row->allocated;
	/* its sources get the time of segment.expiry to mention it */
	s->mentioned_ns = now;
	dray_list_move(&ss->foreground, &s->foreground);
	if (s->local || s->sources || !strcmp(s->name, ss->remembered))
		segment_recheck(s);
}

void segments_restore_preferred(struct segments *ss, const struct state_preferred *row)
{
	if (row->preference == DMSG_PREFERENCE_DETECTED && dray_endpoint_valid(row->name))
		snprintf(ss->remembered, sizeof(ss->remembered), "%s", row->name);
	segments_decide_soon(ss);
}

void segments_refill(struct segments *ss)
{
	if (*ss->remembered)
		segments_save_remembered(ss);
	dray_list_for_each(&ss->all, s, struct segment, link)
		segment_save(s);
}

int segments_start(struct segments *ss, struct dray_err *reterr)
{
	if (segments_configure(ss) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "segments: out of memory");
	segments_decide_soon(ss);
	return masters_set(ss, reterr);
}

void segments_reload(struct segments *ss)
{
	struct dray_err err = DRAY_ERR_NULL;

	if (segments_configure(ss) < 0)
		log_error(AREA, "out of memory; not all segments of the configuration are known");
	if (masters_set(ss, &err) < 0)
		log_error(AREA, "mooncake.masters: %s", err.msg);
	prober_reconfigured(ss->prober);
	listeners_apply(ss);
	segments_decide_soon(ss);
}

bool segments_find(struct segments *ss, const char *name, struct segment_info *ret)
{
	const struct segment *s = segment_find(ss, name);

	if (s)
		segment_info_of(s, ret);
	return s != NULL;
}

void segments_each(struct segments *ss,
		   void (*fn)(void *arg, const struct dray_dbus_segment *segment), void *arg)
{
	struct segment_info info;

	dray_list_for_each(&ss->all, s, struct segment, link) {
		segment_info_of(s, &info);
		fn(arg, &info.record);
	}
}

void segments_totals(const struct segments *ss, struct segments_totals *ret)
{
	const struct prober_totals *p = prober_totals(ss->prober);

	*ret = ss->totals;
	ret->known = ss->n;
	ret->probes = p->probes;
	ret->probe_failures = p->failures;
	ret->probes_in_flight = p->in_flight;
}
