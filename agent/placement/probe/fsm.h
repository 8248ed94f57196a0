/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a probed segment, and the time of its next probe: a pure state machine over the keys probe.*. States are
 * enum dmsg_segment_state.
 *
 *   UNKNOWN -> PROBING    the first probe begins
 *   PROBING -> READY      the first success. Failures before it change nothing: what was never ready is not lost
 *   READY   -> LOST       probe.fall failures in a row
 *   LOST    -> READY      probe.rise successes in a row
 *
 * A READY segment is probed every probe.interval, less up to an eighth, so that segments which were added together are
 * probed at different times; the first pause is a random part of the interval. After a failure the pause is
 * probe.backoff_min, which doubles with each further failure up to probe.backoff_max, less up to half. While the segment
 * is READY the pause is not longer than the interval, so that a death is noticed soon. A LOST segment that has answered
 * is probed again after probe.backoff_min.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"

struct probe_fsm {
	enum dmsg_segment_state state;
	bool in_flight;
	/* probe_fsm_hurry() since the last probe began: the next one is not postponed, and due at once if the one in flight fails */
	bool again;
	bool verified;                 /* a probe has confirmed the state */
	int64_t since_ns;              /* last change of state */
	int64_t next_ns;               /* the next probe is due; INT64_MAX while one is in flight */
	uint32_t successes;            /* in a row */
	uint32_t failures;             /* in a row */
	uint32_t given_up;             /* in a row */
	uint64_t failed;               /* probes, of all that ended */
	int64_t latency_ns;            /* of the last success; 0: none */
	uint64_t probes;               /* that ended */
	char reason[DRAY_ERR_MSG_MAX]; /* result of the last probe that ended */
};

/*
 * Due at once. state: READY or LOST, as known from before a restart, which is not verified until a probe confirms or
 * changes it; any other state begins as UNKNOWN.
 */
void probe_fsm_init(struct probe_fsm *f, enum dmsg_segment_state state, int64_t now);

/* A probe begins. Returns the state before. */
enum dmsg_segment_state probe_fsm_begin(struct probe_fsm *f, int64_t now);

/* The probe ended. latency_ns counts for a success. Returns the state before. */
enum dmsg_segment_state probe_fsm_end(struct probe_fsm *f, const struct dray_config *cfg, bool ok,
				      const char *reason, int64_t latency_ns, int64_t now);

/* The agent could not make the probe, which says nothing of the target: it is due again after a pause. Returns the state. */
enum dmsg_segment_state probe_fsm_give_up(struct probe_fsm *f, const struct dray_config *cfg,
					  const char *reason, int64_t now);

/* The next probe is due now; during a probe, as soon as that fails. */
void probe_fsm_hurry(struct probe_fsm *f, int64_t now);

/* The configuration has changed: the next probe is due no later than it says. */
void probe_fsm_reconfigured(struct probe_fsm *f, const struct dray_config *cfg, int64_t now);

/* The event loop did not run. An overdue probe of a READY segment is due within the next interval, unless probe_fsm_hurry() asked for it. */
void probe_fsm_postpone(struct probe_fsm *f, const struct dray_config *cfg, int64_t now);
