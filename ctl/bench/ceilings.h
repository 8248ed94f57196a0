/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ceilings of a run of drayctl bench: which ones fit its path, and their rounds beside dray's. Which are
 * described in the manual, at --ceiling.
 */
#ifndef DRAY_CTL_BENCH_CEILINGS_H
#define DRAY_CTL_BENCH_CEILINGS_H

#include "ctl/bench/session.h"
#include "ctl/ceiling/echo.h"
#include "ctl/ceiling/tcp.h"

struct bench_ceiling {
	const struct bench_ceiling_ops *kind;
	struct ceiling_echo echo;
	struct ceiling_tcp *tcp;
	pid_t child;                    /* that receives; 0: none */
	double now;                     /* of the last round */
	double *values, *dray, *ratios; /* of all rounds */
};

struct bench_ceilings {
	const struct bench_plan *plan; /* these three: borrowed */
	const struct bench_session *sessions;
	const struct bench_end *far;
	struct dray_op *list; /* of all sessions, with addresses for offsets */
	struct ceiling_work work;
	size_t at; /* in the list, for copies */
	struct bench_ceiling *v;
	unsigned n, rounds;
};

/*
 * What fits the transport; for rdma nothing, which is noted. Borrows sessions and far end. Starts processes, which
 * end with the close or with this one. 0 or -1. Close also what is half open, or zeros.
 */
int bench_ceilings_open(struct bench_ceilings *c, const struct bench_plan *p,
			const struct bench_session *sessions, const struct bench_end *far,
			unsigned transport, FILE *notes, struct ctl_err *reterr);
void bench_ceilings_close(struct bench_ceilings *c);

/* A round of each, of as much work as dray's last one. 0 or -1. */
int bench_ceilings_run(struct bench_ceilings *c, const struct bench_lap *dray,
		       struct ctl_err *reterr);
/* Keeps what that gave, as a pair with this one of dray's. */
void bench_ceilings_compare(struct bench_ceilings *c, const struct bench_lap *dray);
/* After the last pair. */
void bench_ceilings_tell(struct bench_ceilings *c, struct bench_result *ret);

#endif
