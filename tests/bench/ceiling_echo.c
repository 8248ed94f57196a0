/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare round trips between two processes.
 *
 *   ceiling_echo seqpacket|eventfd|memory|tcp [--size BYTES]
 *
 * seqpacket sends a packet to a child and back over a Unix socket; ctl/ceiling/echo.h explains the other kinds.
 * Answers "run COUNT" with the median round trip.
 */
#include <sys/socket.h>

#include "ctl/ceiling/echo.h"
#include "tests/bench/bench.h"

static const char *const names[] = { [CEILING_ECHO_EVENTFD] = "eventfd",
				     [CEILING_ECHO_MEMORY] = "memory",
				     [CEILING_ECHO_TCP] = "tcp",
				     [CEILING_ECHO_N] = "seqpacket" };

/* Opened unless the way is CEILING_ECHO_N, which has a packet and its socket. */
struct bare {
	enum ceiling_echo_way way;
	struct ceiling_echo echo;
	size_t size;
	char *packet;
	int sock;
};

static void packets_open(struct bare *b)
{
	int ends[2];
	ssize_t n;
	pid_t child;

	b->packet = calloc(1, b->size);
	if (!b->packet || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		bench_die_errno("socketpair");
	child = ceiling_fork();
	if (child < 0)
		bench_die("fork: %s", strerror(-child));
	while (!child)
		if ((n = recv(ends[1], b->packet, b->size, 0)) <= 0 ||
		    send(ends[1], b->packet, (size_t)n, MSG_NOSIGNAL) != n)
			_exit(0);
	b->sock = ends[0];
}

static int trips(struct bare *b, unsigned n)
{
	if (b->way != CEILING_ECHO_N)
		return ceiling_echo_trips(&b->echo, n);
	for (; n; n--)
		if (send(b->sock, b->packet, b->size, MSG_NOSIGNAL) < 0 ||
		    recv(b->sock, b->packet, b->size, 0) != (ssize_t)b->size)
			return -EPIPE;
	return 0;
}

static void run(struct bare *b, struct bench_samples *samples, uint64_t count)
{
	bool packets = b->way == CEILING_ECHO_N;
	unsigned group = packets ? 1 : ceiling_echo_group(&b->echo);

	if (!packets)
		ceiling_echo_resume(&b->echo);
	for (uint64_t i = 0; i < count; i += group) {
		int64_t start = bench_ns();
		int ret = trips(b, group);

		if (ret)
			bench_die("echo: %s", strerror(-ret));
		bench_sample(samples, (double)(bench_ns() - start) / group);
	}
	if (!packets)
		ceiling_echo_pause(&b->echo);
	bench_samples_say(samples);
}

int main(int argc, char **argv)
{
	struct bare b = { .way = 0, .size = 64 };
	struct bench_samples samples;
	uint64_t count;
	char word[16];
	int ret = 0;

	while (argc > 1 && b.way <= CEILING_ECHO_N && strcmp(argv[1], names[b.way]))
		b.way++;
	if (argc == 4 && !strcmp(argv[2], "--size"))
		b.size = bench_number(argv[3]);
	if (b.way > CEILING_ECHO_N || (argc != 2 && argc != 4) || !b.size)
		bench_die("wrong usage; see the head of ceiling_echo.c");
	if (b.way == CEILING_ECHO_N)
		packets_open(&b);
	else
		ret = ceiling_echo_open(&b.echo, b.way, b.size);
	if (ret)
		bench_die("set-up: %s", strerror(-ret));
	bench_samples_init(&samples);
	while (bench_command(word, &count))
		run(&b, &samples, count);
	if (b.way != CEILING_ECHO_N)
		ceiling_echo_close(&b.echo);
	return 0;
}
