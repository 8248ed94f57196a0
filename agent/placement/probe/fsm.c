/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/probe/fsm.h"

#include <stdio.h>

#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/cleanup.h"
#include "lib/random.h"

static int64_t any_part(int64_t span)
{
	return span > 0 ? (int64_t)(dray_random() % (uint64_t)span) : 0;
}

static void set_state(struct probe_fsm *f, enum dmsg_segment_state state, int64_t now)
{
	f->state = state;
	f->since_ns = now;
}

void probe_fsm_init(struct probe_fsm *f, enum dmsg_segment_state state, int64_t now)
{
	bool known = state == DMSG_SEGMENT_STATE_READY || state == DMSG_SEGMENT_STATE_LOST;

	*f = (struct probe_fsm){ .since_ns = now, .next_ns = now };
	f->state = known ? state : DMSG_SEGMENT_STATE_UNKNOWN;
	if (known)
		snprintf(f->reason, sizeof(f->reason), "as it was before the agent's start");
}

enum dmsg_segment_state probe_fsm_begin(struct probe_fsm *f, int64_t now)
{
	enum dmsg_segment_state old = f->state;

	dray_assert(!f->in_flight);
	f->in_flight = true;
	f->again = false;
	f->next_ns = INT64_MAX;
	if (old == DMSG_SEGMENT_STATE_UNKNOWN) {
		set_state(f, DMSG_SEGMENT_STATE_PROBING, now);
		snprintf(f->reason, sizeof(f->reason), "the first probe is under way");
	}
	return old;
}

static void succeeded(struct probe_fsm *f, const struct dray_config *cfg, const char *reason,
		      int64_t now)
{
	bool first = !f->verified;

	f->failures = 0;
	if (f->successes < UINT32_MAX)
		f->successes++;
	if (f->state == DMSG_SEGMENT_STATE_LOST && f->successes < cfg->probe.rise) {
		snprintf(f->reason, sizeof(f->reason), "it answers again, %u of %lld times: %.160s",
			 f->successes, (long long)cfg->probe.rise, reason);
		f->next_ns = now + cfg->probe.backoff_min;
		return;
	}
	if (f->state != DMSG_SEGMENT_STATE_READY) {
		set_state(f, DMSG_SEGMENT_STATE_READY, now);
		first = true;
	}
	f->verified = true;
	snprintf(f->reason, sizeof(f->reason), "%s", reason);
	f->next_ns = now + cfg->probe.interval -
		     any_part(first ? cfg->probe.interval : cfg->probe.interval / 8);
}

static void failed(struct probe_fsm *f, const struct dray_config *cfg, const char *reason,
		   int64_t now)
{
	int64_t pause;

	f->failed++;
	f->successes = 0;
	if (f->failures < UINT32_MAX)
		f->failures++;
	snprintf(f->reason, sizeof(f->reason), "%s", reason);
	if (f->state == DMSG_SEGMENT_STATE_READY && f->failures >= cfg->probe.fall)
		set_state(f, DMSG_SEGMENT_STATE_LOST, now);
	f->verified |= f->state == DMSG_SEGMENT_STATE_LOST;
	pause = backoff_pause(f->failures, cfg->probe.backoff_min, cfg->probe.backoff_max);
	if (f->state == DMSG_SEGMENT_STATE_READY)
		pause = dray_min(pause, cfg->probe.interval);
	f->next_ns = f->again ? now : now + backoff_spread(pause);
}

enum dmsg_segment_state probe_fsm_end(struct probe_fsm *f, const struct dray_config *cfg, bool ok,
				      const char *reason, int64_t latency_ns, int64_t now)
{
	enum dmsg_segment_state old = f->state;

	dray_assert(f->in_flight);
	f->in_flight = false;
	f->probes++;
	f->given_up = 0;
	if (ok) {
		f->latency_ns = dray_max(latency_ns, (int64_t)1);
		succeeded(f, cfg, reason, now);
	} else {
		failed(f, cfg, reason, now);
	}
	return old;
}

enum dmsg_segment_state probe_fsm_give_up(struct probe_fsm *f, const struct dray_config *cfg,
					  const char *reason, int64_t now)
{
	int64_t pause;

	dray_assert(f->in_flight);
	f->in_flight = false;
	f->probes++;
	if (f->given_up < UINT32_MAX)
		f->given_up++;
	snprintf(f->reason, sizeof(f->reason), "%s", reason);
	pause = backoff_pause(f->given_up, cfg->probe.backoff_min, cfg->probe.backoff_max);
	f->next_ns = now + backoff_spread(dray_min(pause, cfg->probe.interval));
	return f->state;
}

void probe_fsm_hurry(struct probe_fsm *f, int64_t now)
{
	f->again = true;
	if (!f->in_flight)
		f->next_ns = dray_min(f->next_ns, now);
}

void probe_fsm_reconfigured(struct probe_fsm *f, const struct dray_config *cfg, int64_t now)
{
	int64_t limit = f->failures ? dray_max(cfg->probe.backoff_min, cfg->probe.backoff_max) :
				      cfg->probe.interval;

	if (f->in_flight || f->next_ns <= now + limit)
		return;
	f->next_ns = now + limit - any_part(limit);
}

void probe_fsm_postpone(struct probe_fsm *f, const struct dray_config *cfg, int64_t now)
{
	if (f->in_flight || f->again || f->next_ns > now || f->failures ||
	    f->state != DMSG_SEGMENT_STATE_READY)
		return;
	f->next_ns = now + any_part(cfg->probe.interval);
}
