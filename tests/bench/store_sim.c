/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each eviction policy saves on traces: store_sim [--tuning] [--share SHARE] [FILE...]. Without a file it makes all
 * traces of tests/unit/store_traces.c, with the seeds for checks or for tuning. The format of files is described in
 * store_traces.h; the tier holds SHARE of their bytes (0.1). Each trace is replayed in one tier, and in two of which the
 * upper one has a quarter of the bytes. Each line of the output is one run: trace, tiers, seed, policy, hits, evictions,
 * cost saved and cost of all requests in microseconds, and the cost saved by a tier without limit.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/store_replay.h"

#define REQUESTS 200000

static void run_tiers(const struct store_trace *t, const char *name, uint64_t seed, uint64_t upper,
		      double most)
{
	for (enum policy_kind kind = 0; kind < POLICY_KIND_N; kind++) {
		struct store_replay r = store_replay(t, kind, t->capacity, upper);

		printf("%s\t%d\t%" PRIu64 "\t%s\t%zu\t%zu\t%.0f\t%.0f\t%.0f\n", name, upper ? 2 : 1,
		       seed, policy_name(kind), r.hits, r.evictions, r.saved, r.total, most);
	}
}

static void run(const struct store_trace *t, const char *name, uint64_t seed)
{
	double most = store_replay(t, POLICY_LRU, UINT64_MAX / 2, 0).saved;

	run_tiers(t, name, seed, 0, most);
	run_tiers(t, name, seed, t->capacity / STORE_TRACE_UPPER_SHARE, most);
	fflush(stdout);
}

static void run_made(const uint64_t *seeds, size_t n_seeds)
{
	struct store_trace t;

	for (size_t i = 0; i < store_trace_n_recipes; i++)
		for (size_t s = 0; s < n_seeds; s++) {
			store_trace_make(&t, &store_trace_recipes[i], seeds[s], REQUESTS);
			run(&t, store_trace_recipes[i].name, seeds[s]);
			store_trace_deinit(&t);
		}
}

static bool run_file(const char *path, double share)
{
	FILE *f = fopen(path, "re");
	struct store_trace t;
	size_t bad;

	if (!f) {
		fprintf(stderr, "store_sim: %s: %s\n", path, strerror(errno));
		return false;
	}
	bad = store_trace_read(&t, f, share);
	fclose(f);
	if (bad)
		fprintf(stderr,
			"store_sim: %s:%zu: not a key, a number of bytes and a cost above 0\n",
			path, bad);
	else
		run(&t, path, 0);
	store_trace_deinit(&t);
	return !bad;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "tuning", no_argument, NULL, 't' },
						 { "share", required_argument, NULL, 's' },
						 { NULL, 0, NULL, 0 } };
	static const uint64_t tuning[] = STORE_TRACE_TUNING_SEEDS,
			      checking[] = STORE_TRACE_CHECKING_SEEDS;
	bool tune = false, ok = true;
	double share = 0.1;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == '?')
			return 2;
		tune |= c == 't';
		if (c == 's')
			share = strtod(optarg, NULL);
	}
	for (int i = optind; i < argc; i++)
		ok &= run_file(argv[i], share);
	if (optind == argc)
		run_made(tune ? tuning : checking,
			 tune ? DRAY_ARRAY_SIZE(tuning) : DRAY_ARRAY_SIZE(checking));
	return !ok;
}
