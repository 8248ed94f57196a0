/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from one memory to another by memcpy, operation by operation, with filled page tables.
 *
 *   ceiling_copy --local M --remote M --ops FD [--threads N]
 *
 * Answers "run OPERATIONS": copies the next operations of the list, which is used as a circle, from remote to
 * local. Local and remote may be the same memory. With N threads each thread copies the N-th part of every
 * operation; the threads wait for each other once for each run.
 */
#include <getopt.h>
#include <pthread.h>

#include "ctl/ceiling/copy.h"
#include "tests/bench/bench.h"

#define THREADS_MAX 64

/* The work of one thread: its part of each operation. */
struct part {
	pthread_t thread;
	pthread_barrier_t *begin, *end;
	struct ceiling_work work;
	size_t at;
	uint64_t count; /* operations; 0: the thread ends */
	uint64_t bytes; /* copied in the last run */
};

static void part_make(struct part *p, const struct ceiling_work *all, unsigned index, unsigned n)
{
	struct dray_op *ops = calloc(all->n, sizeof(*ops));

	if (!ops)
		bench_die("out of memory");
	for (size_t i = 0; i < all->n; i++) {
		const struct dray_op *op = &all->ops[i];
		uint64_t first = op->length / n * index;
		uint64_t last = index + 1 == n ? op->length : first + op->length / n;

		ops[i] = (struct dray_op){ op->local + first, op->remote + first, last - first };
	}
	p->work = (struct ceiling_work){ ops, all->n, all->local, all->remote };
}

static void copy_part(struct part *p)
{
	p->bytes = ceiling_copy(&p->work, DRAY_DIRECTION_READ, &p->at, p->count);
}

static void *copier(void *arg)
{
	struct part *p = arg;

	for (;;) {
		pthread_barrier_wait(p->begin);
		if (!p->count)
			return NULL;
		copy_part(p);
		pthread_barrier_wait(p->end);
	}
}

/* Returns the bytes copied by all threads. count 0 ends the threads. */
static uint64_t run(struct part *parts, unsigned n, uint64_t count)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		parts[i].count = count;
	if (n > 1)
		pthread_barrier_wait(parts[0].begin);
	copy_part(&parts[0]);
	if (n > 1 && count)
		pthread_barrier_wait(parts[0].end);
	for (unsigned i = 0; i < n; i++)
		bytes += parts[i].bytes;
	return bytes;
}

static void threads_start(struct part *parts, const struct ceiling_work *work, unsigned n)
{
	static pthread_barrier_t begin, end;

	if (pthread_barrier_init(&begin, NULL, n) || pthread_barrier_init(&end, NULL, n))
		bench_die("no barrier");
	for (unsigned i = 0; i < n; i++) {
		parts[i] = (struct part){ .begin = &begin, .end = &end };
		part_make(&parts[i], work, i, n);
		if (i && pthread_create(&parts[i].thread, NULL, copier, &parts[i]))
			bench_die("no thread");
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "ops", required_argument, NULL, 'o' },
		{ "threads", required_argument, NULL, 't' },
		{ 0 },
	};
	static struct part parts[THREADS_MAX];
	struct bench_memory local = { 0 }, remote = { 0 };
	struct bench_ops ops = { 0 };
	struct ceiling_work work;
	uint64_t count, threads = 1;
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
		case 't':
			threads = bench_number(optarg);
			break;
		default:
			return 2;
		}
	}
	if (!local.n || !remote.n || !ops.n || !threads || threads > THREADS_MAX)
		bench_die("wrong usage; see the head of ceiling_copy.c");
	bench_ops_check(ops, local.bytes, remote.bytes);
	work = (struct ceiling_work){ (const struct dray_op *)(const void *)ops.v, ops.n,
				      (uintptr_t)bench_memory_map(&local),
				      (uintptr_t)bench_memory_map(&remote) };
	threads_start(parts, &work, (unsigned)threads);
	while (bench_command(word, &count)) {
		int64_t start = bench_ns();
		uint64_t bytes;

		if (!count)
			bench_die("the command run needs a number of operations");
		bytes = run(parts, (unsigned)threads, count);
		bench_say("{\"seconds\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
			  (double)(bench_ns() - start) / 1e9, count, bytes);
	}
	run(parts, (unsigned)threads, 0);
	for (unsigned i = 1; i < threads; i++)
		pthread_join(parts[i].thread, NULL);
	return 0;
}
