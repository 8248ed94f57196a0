/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare round trips between two processes.
 *
 *   ceiling_echo seqpacket|eventfd|memory|tcp [--size BYTES]
 *
 * What these are is in ctl/ceiling/echo.h. Answers "run COUNT" with the median round trip.
 */
#include "ctl/ceiling/echo.h"
#include "tests/bench/bench.h"

static void run(struct ceiling_echo *e, struct bench_samples *samples, uint64_t count)
{
	unsigned group = ceiling_echo_group(e);

	ceiling_echo_resume(e);
	for (uint64_t i = 0; i < count; i += group) {
		int64_t start = bench_ns();
		int ret = ceiling_echo_trips(e, group);

		if (ret)
			bench_die("echo: %s", strerror(-ret));
		bench_sample(samples, (double)(bench_ns() - start) / group);
	}
	ceiling_echo_pause(e);
	bench_samples_say(samples);
}

int main(int argc, char **argv)
{
	enum ceiling_echo_way way = CEILING_ECHO_SEQPACKET;
	struct bench_samples samples;
	struct ceiling_echo echo;
	uint64_t count, size = 64;
	char word[16];
	int ret;

	while (argc > 1 && way < CEILING_ECHO_N && strcmp(argv[1], ceiling_echo_name(way)))
		way++;
	if (argc == 4 && !strcmp(argv[2], "--size"))
		size = bench_number(argv[3]);
	if (way == CEILING_ECHO_N || (argc != 2 && argc != 4) || !size)
		bench_die("see the head of ceiling_echo.c for how this is called");
	ret = ceiling_echo_open(&echo, way, size);
	if (ret)
		bench_die("set-up: %s", strerror(-ret));
	bench_samples_init(&samples);
	while (bench_command(word, &count))
		run(&echo, &samples, count);
	ceiling_echo_close(&echo);
	return 0;
}
