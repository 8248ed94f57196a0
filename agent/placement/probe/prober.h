/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes many targets over and over: who is due, how many at once (probe.concurrency, and one at a time for each
 * host and port), and what became of it. Control thread only, nothing blocks. Nothing is logged here: whoever
 * is told of a change says so.
 *
 * The longest overdue goes first. Those that are ready come by ticks, a 64th of the interval or 250 ms, so that many
 * of them share a wake-up. Where the loop stood still for long, settled segments that are overdue are
 * spread over the next interval, not probed all at once.
 */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_PROBER_H
#define DRAY_AGENT_PLACEMENT_PROBE_PROBER_H

#include "agent/placement/probe/probe.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"

struct prober;
struct watch;

struct prober_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed; read anew at each use */
	struct resolver *resolver;     /* borrowed; NULL: names are not resolved, no http */
	const struct peer_probe_ops *peer_probes; /* NULL: no dray probes */
	struct peers *peers; /* for peer_probes; borrowed; outlives the prober */
	/*
	 * The state of a watch changed. From the event loop alone; may add, hurry and free any watch. reason is valid
	 * during the call.
	 */
	void (*changed)(void *arg, void *owner, enum dmsg_segment_state old,
			enum dmsg_segment_state now, const char *reason);
	/* A probe of the watch ended, before `changed` about it; may be NULL. The same holds. r: what was learnt. */
	void (*probed)(void *arg, void *owner, const struct probe_result *r);
	void *arg;
};

int prober_new(struct prober **ret, const struct prober_deps *deps, struct dray_err *reterr);
/* Cancels all probes and frees all watches, without a word. Not from a callback. Returns NULL. */
struct prober *prober_free(struct prober *p);

DRAY_DEFINE_CLEANUP(struct prober *, prober_free);

/* Begins to probe target, soon. The state is unknown until then. 0, or -ENOMEM with reterr. */
int prober_watch(struct prober *p, const struct probe_target *target, void *owner,
		 struct watch **ret, struct dray_err *reterr);
/* The same, of a segment whose state was known before a restart: ready or lost, not verified. */
int prober_watch_known(struct prober *p, const struct probe_target *target,
		       enum dmsg_segment_state state, void *owner, struct watch **ret,
		       struct dray_err *reterr);
/* A probe under way is cancelled; nothing more is said about it. Takes NULL. Returns NULL. */
struct watch *watch_free(struct watch *w);

/* Probes as soon as there is room, such as when a listener was seen to open. */
void watch_now(struct watch *w);

struct watch_info {
	enum dmsg_segment_state state;
	const char *
		reason; /* of the state, or of what happened since; "" while unknown; valid until the next turn */
	int64_t since_ns;          /* monotonic time of the last change of state */
	int64_t latency_ns;        /* of the last probe that succeeded; 0: none has */
	uint64_t probes, failures; /* that ended; of these, failed */
	int64_t next_ns; /* monotonic time of the next probe; INT64_MAX: one is under way */
	bool verified;   /* a probe has confirmed the state since the watch began */
};

void watch_info(const struct watch *w, struct watch_info *ret);
const struct probe_target *watch_target(const struct watch *w);

/* cfg holds other values: what is due later than these would have it comes earlier. */
void prober_reconfigured(struct prober *p);

struct prober_totals {
	uint64_t probes, failures; /* that ended; of these, failed */
	uint32_t in_flight, watches;
};

void prober_totals(const struct prober *p, struct prober_totals *ret);

#endif
