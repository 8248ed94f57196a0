/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl bench: what to measure, what came out, and the two things it can do. */
#ifndef DRAY_CTL_BENCH_H
#define DRAY_CTL_BENCH_H

#include "client/dray.h"
#include "ctl/ctl.h"
#include "ctl/histogram.h"

struct bench_plan {
	const char *socket; /* NULL: libdray's default */
	int64_t timeout_ns;
	uint64_t size;       /* bytes of an operation */
	uint64_t ops;        /* operations of a transfer */
	uint64_t batch;      /* transfers in flight */
	uint64_t count;      /* transfers in all; 0: by time */
	int64_t duration_ns; /* 0: by count */
	uint64_t memory;     /* at each end */
	enum dray_direction direction;
	enum dray_priority priority;
	const char *token; /* text of the other end's; NULL: both ends are ours */
};

struct bench_result {
	unsigned transport;
	uint64_t transfers, bytes;
	int64_t duration_ns;
	struct ctl_histogram latency; /* of transfers, from submission to completion */
};

/* One end: a session with memory of its own. */
struct bench_end {
	struct dray *d;
	struct dray_memory memory;
	dray_region region;
};

#define BENCH_END_NULL ((struct bench_end){ .d = NULL, .memory = { .fd = -1 } })

/* Opens session and memory. 0 or -1. Close also what is half open. */
int bench_end_open(struct bench_end *e, const struct bench_plan *p, struct ctl_err *reterr);
void bench_end_close(struct bench_end *e);

/* -1, with what libdray says of a failed call: ret is its negated code. */
int bench_failed(struct ctl_err *reterr, const struct dray *d, const char *what, int ret);

/* 0 or -1. */
int bench_run(const struct bench_plan *p, struct bench_result *ret, struct ctl_err *reterr);
void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f);
int bench_serve(struct ctl *c, const struct bench_plan *p, struct ctl_err *reterr);

#endif
