/* SPDX-License-Identifier: Apache-2.0 */
/* A measurement: opens both ends, rehearses, and runs laps in turn with the ceilings. */
#include <stdlib.h>
#include <string.h>

#include "ctl/bench/ceilings.h"
#include "ctl/bench/drive.h"
#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/data.h"

#define LOAD_ALONE_NS (DRAY_NS_PER_SEC / 2)
/* Fewer steps of a load say little. */
#define STEPS_MIN 20

struct run {
	const struct bench_plan *plan;
	struct bench_result *result;
	struct bench_end far; /* open if it is in this process */
	struct bench_session *sessions;
	struct bench_drive drive;
	struct bench_lap *lap;
	struct bench_ceilings ceilings;
	struct bench_load *load; /* NULL: none */
};

/* Using more memory than is available would make the kernel kill a process. */
static int memory_check(const struct bench_plan *p)
{
	uint64_t ends = !p->gpu + (!p->token && !p->far_gpu), available = UINT64_MAX;
	uint64_t needed = p->memory * p->sessions * ends;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			available = (uint64_t)kib << 10;
	if (f)
		fclose(f);
	if (needed <= available)
		return 0;
	return ctl_failed(p->ctl,
			  "this needs %s of memory, but %s are available; reduce --size, --ops, "
			  "--batch, --sessions or --memory",
			  ctl_size(needed), ctl_size(available));
}

static int token_get(struct run *r, struct dray_token *ret)
{
	const struct bench_plan *p = r->plan;
	int err;

	if (p->token) {
		err = dray_token_parse(p->token, ret);
		return err ? ctl_misuse(r->plan->ctl,
					"--token: this is not a token; use the output of --serve") :
			     0;
	}
	/* Each session uses its own part. */
	if (bench_end_open(&r->far, p, BENCH_OWNS, p->memory * p->sessions) < 0)
		return -1;
	err = dray_region_export(r->far.d, r->far.region, NULL, ret);
	return err ? bench_failed(r->plan->ctl, r->far.d, "exporting the memory", err) : 0;
}

static int sessions_open(struct run *r)
{
	struct bench_end *far = r->far.d ? &r->far : NULL;
	struct dray_token token;

	if (memory_check(r->plan) < 0 || token_get(r, &token) < 0)
		return -1;
	for (unsigned i = 0; i < r->plan->sessions; i++)
		if (bench_session_open(&r->sessions[i], r->plan, i, &token) < 0)
			return -1;
	for (unsigned i = 0; i < r->plan->sessions; i++)
		if (bench_session_rehearse(&r->sessions[i], far, &r->result->transport) < 0)
			return -1;
	return bench_drive_open(&r->drive, r->plan, r->sessions);
}

static int lap(struct run *r, uint64_t count, int64_t duration_ns)
{
	struct bench_result *res = r->result;

	if (bench_drive_lap(&r->drive, count, duration_ns, r->lap) < 0)
		return -1;
	res->transfers += r->lap->transfers;
	res->bytes += r->lap->bytes;
	res->duration_ns += r->lap->duration_ns;
	res->transport = r->lap->transport;
	ctl_histogram_merge(&res->latency, &r->lap->latency);
	return 0;
}

/* dray and the ceilings take turns in going first, so that both profit equally from warm caches. */
static int round_run(struct run *r, unsigned i)
{
	const struct bench_plan *p = r->plan;
	uint64_t count = p->count / p->rounds + (i < p->count % p->rounds);
	int64_t ns = p->duration_ns / (int64_t)p->rounds;
	int ret = 0;

	if (i % 2)
		ret = bench_ceilings_run(&r->ceilings, r->lap);
	if (!ret)
		ret = lap(r, count, ns);
	if (!ret && i % 2 == 0)
		ret = bench_ceilings_run(&r->ceilings, r->lap);
	if (!ret)
		bench_ceilings_compare(&r->ceilings, r->lap);
	return ret;
}

void bench_load_compare(struct bench_load_result *ret, double alone, double beside,
			const struct bench_result *transfers)
{
	double share = alone > 0 ? beside / alone : 1;

	ret->alone = alone;
	ret->beside = beside;
	ret->slowdown = share > 0 ? 1 / share : 0;
	ret->lost_ns_per_gb = (1 - share) * (double)transfers->duration_ns * 1e9 /
			      (double)dray_max(transfers->bytes, (uint64_t)1);
}

/* The rates of the load during a time without transfers. */
static int load_alone(struct run *r, double *ret)
{
	bench_load_mark(r->load);
	nanosleep(&(struct timespec){ .tv_nsec = LOAD_ALONE_NS }, NULL);
	return bench_load_rates(r->load, ret);
}

/* Measures beside the load, which runs alone before and after. */
static int measure_beside(struct run *r)
{
	double before[BENCH_LOADS_MAX], beside[BENCH_LOADS_MAX], after[BENCH_LOADS_MAX];
	struct bench_result *res = r->result;
	const struct bench_plan *p = r->plan;

	if (load_alone(r, before) < 0)
		return -1;
	r->drive.load = r->load;
	bench_load_mark(r->load);
	if (lap(r, p->count, p->duration_ns) < 0 || bench_load_rates(r->load, beside) < 0 ||
	    load_alone(r, after) < 0)
		return -1;
	res->n_loads = bench_gpus_n(p->gpus);
	for (unsigned i = 0; i < res->n_loads; i++) {
		double steps = beside[i] * (double)res->duration_ns / 1e9;

		bench_load_compare(&res->loads[i], (before[i] + after[i]) / 2, beside[i], res);
		res->loads[i].gpu = bench_gpus_at(p->gpus, i)->info.uuid;
		if (steps < STEPS_MIN)
			fprintf(p->ctl->err,
				"drayctl: the load on GPU %s had time for %.1f steps only; measure "
				"longer for its figures\n",
				res->loads[i].gpu, steps);
	}
	return 0;
}

static int measure(struct run *r)
{
	const struct bench_plan *p = r->plan;
	unsigned first = r->result->transport;
	int ret = 0;

	if (r->load)
		return measure_beside(r);
	if (!p->rounds)
		return lap(r, p->count, p->duration_ns);
	ret = bench_ceilings_open(&r->ceilings, p, r->sessions, &r->far, first);
	for (unsigned i = 0; !ret && i < p->rounds; i++)
		ret = round_run(r, i);
	/* A registration may end late, or a rail may be lost. */
	if (!ret && r->result->transport != first)
		fprintf(p->ctl->err,
			"drayctl: the path changed from %s to %s during the measurement, so there is "
			"no ceiling; run it again\n",
			dmsg_transport_name(first), dmsg_transport_name(r->result->transport));
	else if (!ret)
		bench_ceilings_result(&r->ceilings, r->result);
	return ret;
}

/* Jain's index: 1 if all sessions moved the same bytes, 1/n if one of n moved all. */
static double fairness(const struct bench_session *s, uint64_t n)
{
	double sum = 0, squares = 0;

	for (uint64_t i = 0; i < n; i++) {
		sum += (double)s[i].bytes;
		squares += (double)s[i].bytes * (double)s[i].bytes;
	}
	return squares > 0 ? sum * sum / ((double)n * squares) : 1;
}

int bench_run(const struct bench_plan *p, struct bench_result *ret_result)
{
	struct run r = { .plan = p,
			 .result = ret_result,
			 .drive = BENCH_DRIVE_NULL,
			 .sessions = calloc(p->sessions, sizeof(*r.sessions)),
			 .lap = calloc(1, sizeof(*r.lap)) };
	int ret = 0;

	if (!r.sessions || !r.lap)
		ret = ctl_no_memory(p->ctl);
	if (!ret)
		ret = sessions_open(&r);
	if (!ret && p->load)
		ret = bench_load_start(&r.load, p->ctl, p->gpus, p->load_kind);
	if (!ret)
		ret = measure(&r);
	if (!ret)
		ret_result->fairness = fairness(r.sessions, p->sessions);
	bench_load_free(r.load);
	bench_ceilings_close(&r.ceilings);
	bench_drive_close(&r.drive);
	for (uint64_t i = 0; r.sessions && i < p->sessions; i++)
		bench_session_close(&r.sessions[i]);
	bench_end_close(&r.far);
	free(r.sessions);
	free(r.lap);
	return ret;
}
