/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes many targets repeatedly: at most probe.concurrency at a time, and one at a time for each host and port; the
 * longest overdue one first. Minor watches have at most half of the places, and begin after others that are due, also of
 * their own host. Control thread only; nothing blocks; nothing is logged.
 *
 * Probes of ready segments are due at ticks, a 64th of the interval or 250 ms, so that many of them share a wake-up. If
 * the event loop did not run for long, overdue probes of ready segments are spread over the next interval.
 */
#pragma once

#include "agent/placement/probe/fsm.h"
#include "agent/placement/probe/probe.h"

struct prober;
struct watch;

struct prober_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed; read anew at each use */
	struct resolver *resolver;     /* borrowed; NULL: names are not resolved, no http */
	const struct peer_probe_ops *peer_probes; /* NULL: no dray probes */
	struct peers *peers; /* for peer_probes; borrowed; outlives the prober */
	/*
	 * The watch changed its state, or a probe of it ended. From the event loop only; may add, hurry and free any
	 * watch. f is valid until the watch is freed; old: the state before.
	 */
	void (*probed)(void *arg, void *owner, enum dmsg_segment_state old,
		       const struct probe_fsm *f);
	void *arg;
};

int prober_new(struct prober **ret, const struct prober_deps *deps, struct dray_err *reterr);
/* Cancels all probes and frees all watches, without a callback. Not from a callback. Returns NULL. */
struct prober *prober_free(struct prober *p);

DRAY_DEFINE_CLEANUP(struct prober *, prober_free);

/* Begins to probe target, soon. state: as for probe_fsm_init(). 0, or -ENOMEM with reterr. */
int prober_watch(struct prober *p, const struct probe_target *target, enum dmsg_segment_state state,
		 void *owner, struct watch **ret, struct dray_err *reterr);
/* Cancels a probe in flight, without a callback. Takes NULL. Returns NULL. */
struct watch *watch_free(struct watch *w);

/* It is less important than others, which it must not delay. At first a watch is not minor. */
void watch_set_minor(struct watch *w, bool minor);

/* Probes as soon as there is room, for example because a listener was seen to open. */
void watch_now(struct watch *w);

/* Times are monotonic. Valid until the watch is freed. */
const struct probe_fsm *watch_state(const struct watch *w);
const struct probe_target *watch_target(const struct watch *w);

/* cfg has new values: what they make due earlier comes earlier. */
void prober_reconfigured(struct prober *p);

struct prober_totals {
	uint64_t probes, failures; /* that ended; of these, those that the target failed */
	uint32_t in_flight, watches;
};

const struct prober_totals *prober_totals(const struct prober *p);
