/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl bench: what to measure, what came out, and the two things it can do. */
#ifndef DRAY_CTL_BENCH_BENCH_H
#define DRAY_CTL_BENCH_BENCH_H

#include "client/dray.h"
#include "ctl/ctl.h"
#include "ctl/bench/histogram.h"
#include "lib/cleanup.h"

#define BENCH_SESSIONS_MAX 64
#define BENCH_ROUNDS_MAX 1000

enum bench_wait {
	BENCH_WAIT_ADAPTIVE, /* spin for a while, then sleep */
	BENCH_WAIT_SPIN,
	BENCH_WAIT_SLEEP,
};

struct bench_plan {
	const char *socket; /* NULL: libdray's default */
	const char *owner;  /* of the agent with the other end; NULL: the same */
	int64_t timeout_ns;
	uint64_t size;       /* bytes of an operation */
	uint64_t ops;        /* operations of a transfer */
	uint64_t batch;      /* transfers in flight of each session */
	uint64_t sessions;   /* driven by this one thread */
	uint64_t count;      /* transfers in all; 0: by time */
	int64_t duration_ns; /* 0: by count */
	uint64_t memory;     /* of each session, at each end */
	uint64_t rounds;     /* beside the ceiling; 0: without */
	enum bench_wait wait;
	enum dray_direction direction;
	enum dray_priority priority;
	const char *token; /* text of the other end's; NULL: both ends are ours */
};

struct bench_ceiling_result {
	const char *name;
	const char *text; /* the same for people */
	bool latency;     /* medians in nanoseconds, else bytes a second */
	/* medians of the rounds; ratio: dray by ceiling of each */
	double dray, ceiling, ratio, ratio_min, ratio_max;
};

#define BENCH_CEILINGS_MAX 3

struct bench_result {
	unsigned transport;
	uint64_t transfers, bytes;
	int64_t duration_ns;          /* without what the ceilings took */
	double fairness;              /* Jain's index of bytes by session */
	struct ctl_histogram latency; /* of transfers, from submission to completion */
	struct bench_ceiling_result ceilings[BENCH_CEILINGS_MAX];
	unsigned n_ceilings;
};

/* One end: a session with memory of its own. */
struct bench_end {
	struct dray *d;
	struct dray_memory memory;
	dray_region region;
};

#define BENCH_END_NULL ((struct bench_end){ .d = NULL, .memory = { .fd = -1 } })

/* The end that asks for transfers, or one that only has memory: for this run, or for whoever has its token. */
enum bench_role { BENCH_ASKS, BENCH_OWNS, BENCH_SERVES };

/* Opens session and memory. 0 or -1. Close also what is half open. */
int bench_end_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role,
		   uint64_t memory, struct ctl_err *reterr);
void bench_end_close(struct bench_end *e);

/* -1, with what libdray says of a failed call: ret is its negated code. */
int bench_failed(struct ctl_err *reterr, const struct dray *d, const char *what, int ret);

/* Of what was done in so many nanoseconds. */
static inline double bench_per_second(uint64_t n, int64_t ns)
{
	return (double)n * 1e9 / (double)dray_max(ns, (int64_t)1);
}

/* Bytes that a transfer's list takes in the arena; 0: its one operation lies in the ring. */
uint64_t bench_list_bytes(const struct bench_plan *p);

/* 0 or -1. notes: lines for people about what is not measured. */
int bench_run(const struct bench_plan *p, FILE *notes, struct bench_result *ret,
	      struct ctl_err *reterr);
int bench_serve(struct ctl *c, const struct bench_plan *p, struct ctl_err *reterr);

extern const char *const bench_directions[]; /* these end with NULL, their default is first */
extern const char *const bench_classes[];
extern const char *const bench_waits[]; /* as in enum bench_wait */

void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f);
/* Frozen: columns are added at the end. */
void bench_plain(const struct bench_plan *p, const struct bench_result *r, FILE *f);
void bench_text(const struct bench_plan *p, const struct bench_result *r, FILE *f);

#endif
