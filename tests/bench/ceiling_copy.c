/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's memcpy from one memory to another, operation by operation, page tables filled.
 *
 *   ceiling_copy --local M --remote M --ops FD
 *
 * Answers "run OPERATIONS": the next so many of the list, which is used in a circle, are copied from remote to
 * local. Local may be the first memory of the list alone and remote another, or both the same.
 */
#include <getopt.h>

#include "ctl/ceiling.h"
#include "tests/bench/bench.h"

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "ops", required_argument, NULL, 'o' },
		{ 0 },
	};
	struct bench_memory local = { 0 }, remote = { 0 };
	struct bench_ops ops = { 0 };
	struct ceiling_work work;
	uint64_t count;
	size_t at = 0;
	char word[16];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
			bench_memory_parse(optarg, &local);
			break;
		case 'r':
			bench_memory_parse(optarg, &remote);
			break;
		case 'o':
			ops = bench_ops_map((int)bench_number(optarg));
			break;
		default:
			return 2;
		}
	}
	if (!local.n || !remote.n || !ops.n)
		bench_die("see the head of ceiling_copy.c for how this is called");
	bench_ops_check(ops, local.bytes, remote.bytes);
	work = (struct ceiling_work){ (const struct dray_op *)(const void *)ops.v, ops.n,
				      (uintptr_t)bench_memory_map(&local),
				      (uintptr_t)bench_memory_map(&remote) };
	while (bench_command(word, &count)) {
		int64_t start = bench_ns();
		uint64_t bytes = ceiling_copy(&work, DRAY_DIRECTION_READ, &at, count);

		bench_say("{\"seconds\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
			  (double)(bench_ns() - start) / 1e9, count, bytes);
	}
	return 0;
}
