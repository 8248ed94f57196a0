/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl bench: the plan of a measurement, its result, and the two modes. */
#pragma once

#include "client/dray.h"
#include "ctl/bench/gpu.h"
#include "ctl/bench/histogram.h"
#include "ctl/bench/load.h"
#include "ctl/ctl.h"
#include "lib/cleanup.h"

struct bench_plan {
	struct ctl *ctl;    /* for failures and remarks; borrowed */
	const char *socket; /* NULL: libdray's default */
	const char *owner;  /* data socket of the other end's agent; NULL: the same agent */
	int64_t timeout_ns;
	uint64_t size;       /* bytes of an operation */
	uint64_t ops;        /* operations of a transfer */
	uint64_t batch;      /* transfers in flight in each session */
	uint64_t sessions;   /* all driven by one thread */
	uint64_t count;      /* transfers in total; 0: use duration_ns */
	int64_t duration_ns; /* 0: use count */
	uint64_t memory;     /* of each session, at each end */
	uint64_t rounds;     /* in turn with the ceiling; 0: no ceiling */
	enum ctl_wait_method wait;
	enum dray_direction direction;
	enum dray_priority priority;
	const char *token; /* of the other end; NULL: both ends are in this process */
	const char *gpu,
		*far_gpu; /* of the memory of this end, and of the other; NULL: host memory */
	struct bench_gpus *gpus; /* that these name; NULL: none. Owned by bench.c */
	bool load;               /* keeps them busy */
	enum bench_load_kind load_kind;
};

struct bench_ceiling_result {
	const char *name;
	const char *text; /* the name for people */
	bool latency;     /* medians in nanoseconds, else bytes a second */
	/* medians of the rounds; a ratio is that of dray to the ceiling in one round */
	double dray, ceiling, ratio, ratio_min, ratio_max;
};

#define BENCH_CEILINGS_MAX 3

/* Of the load on a GPU. */
struct bench_load_result {
	const char *gpu;       /* UUID */
	double alone, beside;  /* steps per second, without and beside the transfers */
	double slowdown;       /* time beside the transfers to time alone */
	double lost_ns_per_gb; /* of its time */
};

#define BENCH_LOADS_MAX 2

struct bench_result {
	unsigned transport;
	uint64_t transfers, bytes;
	int64_t duration_ns;          /* without the time of the ceilings */
	double fairness;              /* Jain's index of the bytes of the sessions */
	struct ctl_histogram latency; /* of transfers, from submission to completion */
	struct bench_ceiling_result ceilings[BENCH_CEILINGS_MAX];
	unsigned n_ceilings;
	struct bench_load_result loads[BENCH_LOADS_MAX];
	unsigned n_loads;
};

/* One end of transfers: a session with its own memory. All zero: closed. */
struct bench_end {
	struct dray *d;
	struct dray_memory memory;    /* host memory */
	struct bench_gpu_memory *gpu; /* or GPU memory */
	uint64_t length;
	dray_region region;
};

enum bench_role {
	BENCH_SUBMITS, /* submits transfers */
	BENCH_OWNS,    /* only has memory, for this run */
	BENCH_SERVES,  /* only has memory, for holders of its token */
};

/* Opens session and memory. 0 or -1; the caller closes in any case. */
int bench_end_open(struct bench_end *e, const struct bench_plan *p, enum bench_role role,
		   uint64_t memory);
void bench_end_close(struct bench_end *e);
/* Writes bytes into the memory of the end. 0 or -1. */
int bench_end_put(struct bench_end *e, uint64_t at, const void *from, uint64_t n);
/* Bytes of the end, in place or copied to buf. NULL: failed. */
const uint8_t *bench_end_view(struct bench_end *e, uint64_t at, uint64_t n, uint8_t *buf);

/* Sets libdray's message about a failed call; ret is its negated code. Returns -1. */
int bench_failed(struct ctl *c, const struct dray *d, const char *what, int ret);

/* The rate per second of n in this time. */
static inline double bench_per_second(uint64_t n, int64_t ns)
{
	return (double)n * 1e9 / (double)dray_max(ns, (int64_t)1);
}

/* Bytes of a transfer's list in the arena; 0 for a single operation, which is in the ring. */
uint64_t bench_list_bytes(const struct bench_plan *p);

/* Fills in what the load lost by the transfers, from its steps per second without and beside them. */
void bench_load_compare(struct bench_load_result *ret, double alone, double beside,
			const struct bench_result *transfers);

/* Measures. 0 or -1. Remarks about missing measurements go to the error stream. */
int bench_run(const struct bench_plan *p, struct bench_result *ret);
/* Exports memory and serves it until standard input ends. 0 or -1. */
int bench_serve(struct ctl *c, const struct bench_plan *p);

void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f);
/* The columns are stable; new ones go to the end. */
void bench_plain(const struct bench_plan *p, const struct bench_result *r, FILE *f);
void bench_text(const struct bench_plan *p, const struct bench_result *r, FILE *f);
