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
	uint8_t *to;
	const uint8_t *from;
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
	to = bench_memory_map(&local);
	from = bench_memory_map(&remote);
	while (bench_command(word, &count)) {
		int64_t start = bench_ns();
		uint64_t bytes = 0;

		for (uint64_t i = 0; i < count; i++) {
			const struct bench_op *op = &ops.v[at];

			memcpy(to + op->local, from + op->remote, op->length);
			bytes += op->length;
			at = at + 1 == ops.n ? 0 : at + 1;
		}
		bench_say("{\"seconds\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
			  (double)(bench_ns() - start) / 1e9, count, bytes);
	}
	return 0;
}
