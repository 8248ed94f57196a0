/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a segment from the probes of it, and when the next one is due: a pure state machine in
 * whatever time it is told. States are enum dmsg_segment_state, names dmsg_segment_state_name().
 *
 *   UNKNOWN -> PROBING    the first probe begins
 *   PROBING -> READY      the first success. Failures before that leave it PROBING: it is not lost, it never was there
 *   READY   -> LOST       `fall` failures in a row
 *   LOST    -> READY      `rise` successes in a row
 *
 * In settled state a READY segment is probed every interval, less up to an eighth, so that those begun together
 * part; the first time any part of the interval. After a failure the pause is backoff_min and doubles with each
 * more to backoff_max, less up to half; not above the interval while READY, so that a death is seen soon. A LOST one
 * that has answered is probed again after backoff_min.
 */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_FSM_H
#define DRAY_AGENT_PLACEMENT_PROBE_FSM_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/err.h"
#include "schema/gen/data.h"

struct probe_fsm_config {
	int64_t interval_ns;
	int64_t backoff_min_ns, backoff_max_ns;
	uint32_t rise, fall; /* at least 1 */
};

struct probe_fsm {
	enum dmsg_segment_state state;
	bool in_flight;
	bool again;              /* hurried while in flight: a failure may be old news */
	bool verified;           /* a probe has confirmed the state: it is not only believed */
	int64_t since_ns;        /* last change of state */
	int64_t next_ns;         /* the next probe is due; INT64_MAX while one is in flight */
	uint32_t successes;      /* in a row */
	uint32_t failures;       /* in a row */
	uint64_t probes, failed; /* in all that ended */
	int64_t latency_ns;      /* of the last success; 0: none was */
	char reason[DRAY_ERR_MSG_MAX]; /* what the last probe that ended found */
};

/* UNKNOWN, due at once. */
void probe_fsm_init(struct probe_fsm *f, int64_t now);

/*
 * What was known before a restart: READY or LOST, due at once, and not verified until a probe finds the same or
 * changes it, by the rules above. Other states say nothing. Before the first probe alone.
 */
void probe_fsm_restore(struct probe_fsm *f, enum dmsg_segment_state state, int64_t now);

/* A probe begins. Returns the state before. */
enum dmsg_segment_state probe_fsm_begin(struct probe_fsm *f, int64_t now);

/* It ended. latency_ns counts for a success. Returns the state before. */
enum dmsg_segment_state probe_fsm_end(struct probe_fsm *f, const struct probe_fsm_config *cfg,
				      bool ok, const char *reason, int64_t latency_ns, int64_t now);

/* The next probe is due now; while one is in flight, as soon as that fails. */
void probe_fsm_hurry(struct probe_fsm *f, int64_t now);

/* No later than a new configuration would have it. */
void probe_fsm_reconfigured(struct probe_fsm *f, const struct probe_fsm_config *cfg, int64_t now);

/* A READY one that is overdue because nobody ran is put off by any part of an interval. */
void probe_fsm_postpone(struct probe_fsm *f, const struct probe_fsm_config *cfg, int64_t now);

#endif
