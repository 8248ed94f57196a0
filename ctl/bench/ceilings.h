/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ceilings of a run of drayctl bench: the choice of those that fit its path, and their rounds in turn with those of
 * dray. The manual describes them at --ceiling.
 */
#pragma once

#include "ctl/bench/session.h"
#include "ctl/ceiling/echo.h"
#include "ctl/ceiling/loop.h"

struct bench_ceiling {
	const struct bench_ceiling_ops *kind;
	struct ceiling_echo echo;
	struct ceiling_loop loop;
	double *values, *dray, *ratios; /* of all rounds */
};

struct bench_ceilings {
	const struct bench_plan *plan; /* these three are borrowed */
	const struct bench_session *sessions;
	const struct bench_end *far;
	struct dray_op *list; /* of all sessions, with addresses instead of offsets */
	struct ceiling_work work;
	size_t at; /* position of copies in the list */
	struct bench_ceiling v[BENCH_CEILINGS_MAX];
	unsigned n, rounds;
};

/*
 * Opens the ceilings that fit the transport; for rdma there are none, and a note says so. Borrows sessions and far end.
 * Starts processes, which end at the close or with this process. 0 or -1; the caller closes in any case.
 */
int bench_ceilings_open(struct bench_ceilings *c, const struct bench_plan *p,
			const struct bench_session *sessions, const struct bench_end *far,
			unsigned transport);
void bench_ceilings_close(struct bench_ceilings *c);

/* Runs a round of each, with as much work as the last round of dray. 0 or -1. */
int bench_ceilings_run(struct bench_ceilings *c, const struct bench_lap *dray);
/* Stores the results of that round as a pair with this round of dray. */
void bench_ceilings_compare(struct bench_ceilings *c, const struct bench_lap *dray);
/* Fills the results from all pairs. */
void bench_ceilings_result(struct bench_ceilings *c, struct bench_result *ret);
