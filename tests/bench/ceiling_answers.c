/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that reads of a few pieces in flight take over TCP, without agents: a child answers each request of a fixed
 * size with a head and a piece of its memory, and this process has --depth requests outstanding, as long as there are more.
 * It receives each piece straight into its place, and all requests that it owes go out in one call; the child answers all
 * that it has received in one call. Both sides know where each piece lies.
 *
 *   ceiling_answers --local M --remote M --ops FD [--depth PIECES] [--write] [--spin] [--streams N] [--check] [--batch]
 *
 * With --write the requests carry the pieces and the answers are heads. With --spin a side polls for a while before it sleeps
 * in a receive. Each of the streams has a thread here, a child, and its part of the depth. With --check this process verifies
 * the CRC-32C of each piece, whose bytes it sums as they come. With --batch it asks for --depth pieces at once, and for the
 * next ones when all of these have come, on all streams. Answers
 *   run OPERATIONS
 */
#include <getopt.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "ctl/ceiling/echo.h"
#include "lib/crc32c.h"
#include "schema/gen/peer.h"
#include "tests/bench/bench.h"

#define DEPTH_MAX 256u
#define STREAMS_MAX 64u
#define TRIES_MAX 4000                        /* of a side that spins, before it sleeps */
#define ASK (PMSG_FRAME_SIZE + PMSG_SEG_SIZE) /* of one piece */
#define ANSWER PMSG_FRAME_SIZE

/* One direction of a connection: messages with a head, and a piece of memory where it carries those. */
struct way {
	uint8_t *memory; /* NULL: heads alone */
	bool local;      /* the memory is the local one of the operations */
	size_t head;
	size_t op;            /* of the next message */
	uint64_t at;          /* bytes of that message that have moved */
	const uint32_t *sums; /* of the pieces of all operations, to verify; NULL: they are not */
	uint32_t sum;         /* of the bytes of this message's piece that have come */
};

/* What one thread of this process uses. Stream k of n moves operations k, k + n, k + 2n and so on. */
struct stream {
	int fd;
	struct way ask, reply;
	uint64_t wanted, done, bytes;
};

static struct bench_ops ops;
static bool spin, in_batches;
static pthread_barrier_t batch_begins;    /* all streams have the one before */
static unsigned depth = 1, n_streams = 1; /* depth: of each stream */
static struct stream streams[STREAMS_MAX];
static __thread uint8_t heads[DEPTH_MAX][ASK];

static uint64_t message_bytes(const struct way *w, size_t op)
{
	return w->head + (w->memory ? ops.v[op].length : 0);
}

/* Places of the next n messages. */
static unsigned gather(const struct way *w, struct iovec *iov, unsigned n)
{
	uint64_t skip = w->at;
	unsigned k = 0;

	for (unsigned i = 0; i < n; i++) {
		const struct bench_op *op = &ops.v[(w->op + (size_t)i * n_streams) % ops.n];
		struct iovec part[2] = { { heads[i], w->head } };
		unsigned parts = 1;

		if (w->memory)
			part[parts++] =
				(struct iovec){ w->memory + (w->local ? op->local : op->remote),
						op->length };
		for (unsigned p = 0; p < parts; p++) {
			size_t cut = skip < part[p].iov_len ? skip : part[p].iov_len;

			skip -= cut;
			if (cut < part[p].iov_len)
				iov[k++] = (struct iovec){ (uint8_t *)part[p].iov_base + cut,
							   part[p].iov_len - cut };
		}
	}
	return k;
}

/* The next n bytes of the message have come. */
static void check(struct way *w, uint64_t n)
{
	uint64_t from = w->at < w->head ? w->head : w->at, to = w->at + n;
	const struct bench_op *op = &ops.v[w->op];
	const uint8_t *piece = w->memory + (w->local ? op->local : op->remote);

	if (to > from)
		w->sum = dray_crc32c(w->sum, piece + (from - w->head), to - from);
	if (to < message_bytes(w, w->op))
		return;
	if (w->sum != w->sums[w->op])
		bench_die("other bytes have come");
	w->sum = 0;
}

/* n bytes have moved. Returns the messages that are complete. */
static unsigned advance(struct way *w, uint64_t n)
{
	unsigned done = 0;

	while (n) {
		uint64_t rest = message_bytes(w, w->op) - w->at, part = n < rest ? n : rest;

		if (w->sums)
			check(w, part);
		n -= part;
		w->at += part;
		if (part < rest)
			break;
		w->at = 0;
		w->op = (w->op + n_streams) % ops.n;
		done++;
	}
	return done;
}

/* Receives once, at most n messages; returns those that are complete, -1 at the end of the connection. */
static int receive(int fd, struct way *w, unsigned n)
{
	struct iovec iov[2 * DEPTH_MAX];
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = gather(w, iov, n) };
	ssize_t got;
	int tries = 0;

	do
		got = recvmsg(fd, &m, spin && tries < TRIES_MAX ? MSG_DONTWAIT : 0);
	while (got < 0 && errno == EAGAIN && ++tries);
	if (got < 0)
		bench_die_errno("recvmsg");
	return got > 0 ? (int)advance(w, (uint64_t)got) : -1;
}

static void send_all(int fd, struct way *w, unsigned n)
{
	while (n) {
		struct iovec iov[2 * DEPTH_MAX];
		struct msghdr m = { .msg_iov = iov, .msg_iovlen = gather(w, iov, n) };
		ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);

		if (sent < 0)
			bench_die_errno("sendmsg");
		n -= advance(w, (uint64_t)sent);
	}
}

/* Answers until the connection ends. */
static void answer(int fd, struct way in, struct way out)
{
	int n;

	while ((n = receive(fd, &in, depth)) >= 0)
		send_all(fd, &out, (unsigned)n);
}

static void *run_stream(void *arg)
{
	struct stream *s = arg;
	uint64_t asked = 0;

	s->done = s->bytes = 0;
	while (s->done < s->wanted) {
		uint64_t more = s->wanted - asked, room = depth - (asked - s->done);
		int n;

		more = more < room ? more : room;
		if (in_batches && asked > s->done)
			more = 0;
		else if (in_batches)
			pthread_barrier_wait(&batch_begins);
		for (uint64_t i = 0; i < more; i++)
			s->bytes += ops.v[(s->ask.op + i * n_streams) % ops.n].length;
		send_all(s->fd, &s->ask, (unsigned)more);
		asked += more;
		n = receive(s->fd, &s->reply, (unsigned)(asked - s->done));
		if (n < 0)
			bench_die("the child has closed the connection");
		s->done += (uint64_t)n;
	}
	return NULL;
}

static void run(uint64_t wanted)
{
	int64_t began = bench_ns();
	uint64_t done = 0, bytes = 0;
	pthread_t threads[STREAMS_MAX];

	for (unsigned i = 0; i < n_streams; i++) {
		streams[i].wanted = wanted / n_streams;
		if (i && pthread_create(&threads[i], NULL, run_stream, &streams[i]))
			bench_die("no thread");
	}
	run_stream(&streams[0]);
	for (unsigned i = 0; i < n_streams; i++) {
		if (i)
			pthread_join(threads[i], NULL);
		done += streams[i].done;
		bytes += streams[i].bytes;
	}
	bench_say("{\"seconds\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
		  (double)(bench_ns() - began) / 1e9, done, bytes);
}

/* Starts the child that answers on a stream. */
static void open_stream(struct stream *s, const struct way *asked, const struct way *replied)
{
	int ends[2], error = ceiling_tcp_pair(ends);
	pid_t child;

	if (error)
		bench_die("a connection over loopback: %s", strerror(-error));
	child = ceiling_fork();
	if (child < 0)
		bench_die("fork: %s", strerror(-child));
	if (!child) {
		close(ends[0]);
		answer(ends[1], *asked, *replied);
		_exit(0);
	}
	close(ends[1]);
	s->fd = ends[0];
}

/* CRC-32C of the pieces of all operations. */
static const uint32_t *sums_of(const uint8_t *memory)
{
	uint32_t *sums = calloc(ops.n, sizeof(*sums));

	if (!sums)
		bench_die_errno("calloc");
	for (size_t i = 0; i < ops.n; i++)
		sums[i] = dray_crc32c(0, memory + ops.v[i].remote, ops.v[i].length);
	return sums;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "ops", required_argument, NULL, 'o' },
		{ "depth", required_argument, NULL, 'd' },
		{ "write", no_argument, NULL, 'w' },
		{ "spin", no_argument, NULL, 's' },
		{ "streams", required_argument, NULL, 'n' },
		{ "check", no_argument, NULL, 'c' },
		{ "batch", no_argument, NULL, 'b' },
		{ 0 },
	};
	struct bench_memory local = { 0 }, remote = { 0 };
	struct way ask = { .head = ASK, .local = true }, reply = { .head = ANSWER, .local = true };
	struct way asked = { .head = ASK }, replied = { .head = ANSWER };
	uint8_t *near, *far;
	bool write = false, checks = false;
	uint64_t number;
	char word[16];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'l')
			bench_memory_parse(optarg, &local);
		else if (option == 'r')
			bench_memory_parse(optarg, &remote);
		else if (option == 'o')
			ops = bench_ops_map((int)bench_number(optarg));
		else if (option == 'd')
			depth = (unsigned)bench_number(optarg);
		else if (option == 'w')
			write = true;
		else if (option == 's')
			spin = true;
		else if (option == 'n')
			n_streams = (unsigned)bench_number(optarg);
		else if (option == 'c')
			checks = true;
		else if (option == 'b')
			in_batches = true;
		else
			return 2;
	}
	if (!local.n || !remote.n || !ops.n || !n_streams || n_streams > STREAMS_MAX ||
	    (write && checks) || depth < n_streams || depth > DEPTH_MAX)
		bench_die("wrong usage; see the head of ceiling_answers.c");
	bench_ops_check(ops, local.bytes, remote.bytes);
	near = bench_memory_map(&local);
	far = bench_memory_map(&remote);
	if (write) {
		ask.memory = near;
		asked.memory = far;
	} else {
		reply.memory = near;
		replied.memory = far;
	}
	if (checks)
		reply.sums = sums_of(far);
	depth /= n_streams;
	pthread_barrier_init(&batch_begins, NULL, n_streams);
	for (unsigned i = 0; i < n_streams; i++) {
		asked.op = replied.op = ask.op = reply.op = i % ops.n;
		streams[i].ask = ask;
		streams[i].reply = reply;
		open_stream(&streams[i], &asked, &replied);
	}
	while (bench_command(word, &number)) {
		if (strcmp(word, "run") != 0)
			bench_die("no command %s", word);
		run(number);
	}
	return 0;
}
