/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that measures. Its memory is divided into slots of one transfer each. Transfers in flight have different
 * slots, and the slots are used in turn, so that more bytes are moved than fit in the caches. Lists and transfers are
 * made in advance, so that the measured time is mostly that of libdray. Within a slot, the remote operations are in the
 * opposite order, because the agent would merge neighbours.
 */
#pragma once

#include "ctl/bench/bench.h"

/* Operations of all sessions together, unless more are needed: lists of 24 MiB. */
#define BENCH_LISTS_OPS (1u << 20)

struct bench_flight {
	int64_t began_ns;
	struct bench_flight *next; /* of the idle ones */
};

struct bench_session {
	const struct bench_plan *plan;
	struct bench_end end;
	dray_remote remote;
	struct dray_op *ops; /* lists of all slots, plan->ops each */
	uint64_t slots, next_slot;
	struct dray_transfer *wave; /* plan->batch, complete except for list and flight */
	struct bench_flight *flights, *idle;
	uint64_t in_flight;
	uint64_t bytes; /* moved in total */
};

/* The results of an uninterrupted measurement. */
struct bench_lap {
	uint64_t transfers, bytes;
	int64_t duration_ns;
	unsigned transport; /* of the last transfer */
	struct ctl_histogram latency;
};

/* number: index of the session in the plan. 0 or -1; the caller closes in any case. */
int bench_session_open(struct bench_session *s, const struct bench_plan *p, unsigned number,
		       const struct dray_token *token);
void bench_session_close(struct bench_session *s);

/*
 * One transfer before the measurement, which makes the connections. If the other end is in this process (far, else
 * NULL), compares the bytes. 0 or -1.
 */
int bench_session_rehearse(struct bench_session *s, struct bench_end *far, unsigned *ret_transport);

/* Starts transfers up to the plan's batch, at most this many. The number started, or -1. */
int bench_session_start(struct bench_session *s, uint64_t most, int64_t now);
/* Takes the completions. Their number, or -1. */
int bench_session_complete(struct bench_session *s, struct bench_lap *lap);
