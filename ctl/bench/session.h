/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that measures. Its memory is cut into slots of one transfer each; transfers in flight have slots of
 * their own, and the slots are used in turn, so that more than the caches' content is moved. Lists and transfers
 * are made once: while the clock runs there is little but libdray. Within a slot the remote operations lie in the
 * opposite order: the agent would merge neighbours into one.
 */
#ifndef DRAY_CTL_BENCH_SESSION_H
#define DRAY_CTL_BENCH_SESSION_H

#include "ctl/bench/bench.h"

/* Of all sessions together, where not more is needed: lists of 24 MiB. */
#define BENCH_LISTS_OPS (1u << 20)

struct bench_flight {
	int64_t began_ns;
	struct bench_flight *next; /* idle ones */
};

struct bench_session {
	const struct bench_plan *plan;
	struct bench_end end;
	dray_remote remote;
	struct dray_op *ops; /* lists of all slots, plan->ops each */
	uint64_t slots, next_slot;
	struct dray_transfer *wave; /* plan->batch, ready but for list and flight */
	struct bench_flight *flights, *idle;
	uint64_t in_flight;
	uint64_t bytes; /* moved, in all */
};

/* What was measured in one go. */
struct bench_lap {
	uint64_t transfers, bytes;
	int64_t duration_ns;
	unsigned transport; /* of the last transfer */
	struct ctl_histogram latency;
};

/* 0 or -1. `number` of plan->sessions. Close also what is half open. */
int bench_session_open(struct bench_session *s, const struct bench_plan *p, unsigned number,
		       const struct dray_token *token, struct ctl_err *reterr);
void bench_session_close(struct bench_session *s);

/*
 * One transfer before the clock runs: connections are made, and where the other end is ours (far, else NULL) the
 * bytes are compared. 0 or -1.
 */
int bench_session_rehearse(struct bench_session *s, const struct bench_end *far,
			   unsigned *ret_transport, struct ctl_err *reterr);

/* Starts as many as may be in flight, at most so many. How many, or -1. */
int bench_session_fly(struct bench_session *s, uint64_t most, int64_t now, struct ctl_err *reterr);
/* Takes those that have ended. How many, or -1. */
int bench_session_land(struct bench_session *s, struct bench_lap *lap, struct ctl_err *reterr);

#endif
