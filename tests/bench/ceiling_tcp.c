/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least time for moving memory over TCP (tests/unit/tcp_loop.h), between two processes.
 *
 *   ceiling_tcp receive --listen ADDRESS --memory M --ops FD [--column local|remote] ...
 *   ceiling_tcp send --connect ADDRESS:PORT --memory M --ops FD [--column local|remote] ...
 *   both: --streams N --batch OPERATIONS --threads N (0: one for each stream) --buffer BYTES (0: the kernel's choice)
 *         --zerocopy (MSG_ZEROCOPY when sending) --uring (io_uring) --unsent BYTES (TCP_NOTSENT_LOWAT)
 *         --busy-poll USEC (SO_BUSY_POLL)
 *
 * receive prints {"port": P}; send answers "run OPERATIONS".
 */
#include <getopt.h>

#include "tests/bench/bench.h"
#include "tests/bench/ceiling_options.h"
#include "tests/unit/tcp_loop.h"

static void check(int ret, const char *what)
{
	if (ret)
		bench_die("%s: %s", what, strerror(-ret));
}

static void send_all(struct ceiling_tcp *t, struct ceiling_options *o, char *where)
{
	char *port = strrchr(where, ':'), word[16];
	uint64_t wanted;

	if (!port)
		bench_die("%s is not ADDRESS:PORT", where);
	*port++ = 0;
	check(ceiling_tcp_connect(t, where, (uint16_t)bench_number(port)), "connect");
	while (bench_command(word, &wanted)) {
		int64_t start = bench_ns(), cpu = bench_cpu_ns();
		uint64_t operations, bytes, lent, copied;

		check(ceiling_tcp_send(t, wanted, &operations, &bytes), "send");
		options_count(o, &lent, &copied);
		bench_say("{\"seconds\": %.9f, \"cpu\": %.9f, \"ops\": %" PRIu64
			  ", \"bytes\": %" PRIu64 ", \"zerocopies\": %" PRIu64
			  ", \"copied\": %" PRIu64 "}",
			  (double)(bench_ns() - start) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9,
			  operations, bytes, lent, copied);
	}
}

static void receive_all(struct ceiling_tcp *t, const char *where)
{
	uint16_t port;

	check(ceiling_tcp_listen(t, where, &port), where);
	bench_say("{\"port\": %u}", port);
	check(ceiling_tcp_accept(t), "accept");
	check(ceiling_tcp_receive(t), "receive");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "connect", required_argument, NULL, 'c' },
		{ "memory", required_argument, NULL, 'm' },
		{ "ops", required_argument, NULL, 'o' },
		{ "column", required_argument, NULL, 'k' },
		{ "streams", required_argument, NULL, 's' },
		{ "threads", required_argument, NULL, 't' },
		{ "batch", required_argument, NULL, 'b' },
		{ "buffer", required_argument, NULL, 'B' },
		{ "zerocopy", no_argument, NULL, 'z' },
		{ "uring", no_argument, NULL, 'u' },
		{ "unsent", required_argument, NULL, 'U' },
		{ "busy-poll", required_argument, NULL, 'p' },
		{ 0 },
	};
	struct ceiling_tcp_plan plan = { .streams = 1, .batch = 1 };
	struct ceiling_options o = { 0 };
	struct bench_memory m = { 0 };
	struct bench_ops ops = { 0 };
	struct ceiling_tcp *t = NULL;
	char *where = NULL;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
		case 'c':
			where = optarg;
			plan.sending = option == 'c';
			break;
		case 'm':
			bench_memory_parse(optarg, &m);
			break;
		case 'o':
			ops = bench_ops_map((int)bench_number(optarg));
			break;
		case 'k':
			plan.local = !strcmp(optarg, "local");
			break;
		case 's':
			plan.streams = (unsigned)bench_number(optarg);
			break;
		case 't':
			plan.threads = (unsigned)bench_number(optarg);
			break;
		case 'b':
			plan.batch = (unsigned)bench_number(optarg);
			break;
		case 'B':
			plan.buffer = (int)bench_number(optarg);
			break;
		case 'z':
			o.zerocopy = true;
			break;
		case 'u':
			o.uring = true;
			break;
		case 'U':
			o.unsent = (unsigned)bench_number(optarg);
			break;
		case 'p':
			o.busy_poll = (unsigned)bench_number(optarg);
			break;
		default:
			return 2;
		}
	}
	if (!where || !m.n || !ops.n || !plan.streams || plan.streams > CEILING_TCP_STREAMS_MAX ||
	    !plan.batch || plan.batch > CEILING_TCP_BATCH_MAX)
		bench_die("wrong usage; see the head of ceiling_tcp.c");
	bench_ops_check(ops, plan.local ? m.bytes : UINT64_MAX, plan.local ? UINT64_MAX : m.bytes);
	plan.work.ops = (const struct dray_op *)(const void *)ops.v;
	plan.work.n = ops.n;
	plan.work.local = plan.work.remote = (uintptr_t)bench_memory_map(&m);
	options_apply(&o, &plan);
	check(ceiling_tcp_new(&plan, &t), "set-up");
	if (plan.sending)
		send_all(t, &o, where);
	else
		receive_all(t, where);
	ceiling_tcp_free(t);
	return 0;
}
