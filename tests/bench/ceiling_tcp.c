/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that moving memory over TCP takes: one process sends pieces of its memory, another receives them
 * in place. Nothing is asked, answered, checked or framed but for a count before each round and a byte after
 * it. What a transport reaches of this is its share of the possible.
 *
 *   ceiling_tcp receive --listen ADDRESS --memory M --ops FD [--column local|remote] ...
 *   ceiling_tcp send --connect ADDRESS:PORT --memory M --ops FD [--column local|remote] ...
 *   both: --streams N --batch OPERATIONS --threads N (0: one a stream) --buffer BYTES (0: the kernel's choice)
 *
 * receive says {"port": P}; send answers "run OPERATIONS". Batch k of the list travels on stream k modulo N,
 * on both sides, and the list is used in a circle.
 */
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/bench/bench.h"

#define STREAMS_MAX 64u
#define BATCH_MAX 1024u /* IOV_MAX */

struct stream {
	int sock;
	size_t op;        /* first of the next batch */
	uint64_t batches; /* of this round that are not begun */
	unsigned iov_at, iov_n;
	struct iovec iov[BATCH_MAX];
};

static struct stream streams[STREAMS_MAX];
static unsigned streams_n = 1, threads_n, batch = 1;
static bool sending;
static bool column_local;
static uint8_t *memory;
static struct bench_ops ops;

static void batch_begin(struct stream *s)
{
	s->iov_at = s->iov_n = 0;
	for (unsigned i = 0; i < batch; i++) {
		const struct bench_op *op = &ops.v[(s->op + i) % ops.n];

		s->iov[s->iov_n++] =
			(struct iovec){ memory + (column_local ? op->local : op->remote),
					op->length };
	}
	s->op = (s->op + (size_t)batch * streams_n) % ops.n;
	s->batches--;
}

/* One system call. True if the round is not over on this stream; *ret_moved: something could be moved. */
static bool pump(struct stream *s, int flags, bool *ret_moved)
{
	struct msghdr m = { 0 };
	ssize_t n;

	*ret_moved = false;
	if (s->iov_at == s->iov_n) {
		if (!s->batches)
			return false;
		batch_begin(s);
	}
	m.msg_iov = s->iov + s->iov_at;
	m.msg_iovlen = s->iov_n - s->iov_at;
	n = sending ? sendmsg(s->sock, &m, flags | MSG_NOSIGNAL) : recvmsg(s->sock, &m, flags);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		bench_die("the other side is gone");
	*ret_moved = true;
	while (n) {
		struct iovec *v = &s->iov[s->iov_at];
		size_t take = (size_t)n < v->iov_len ? (size_t)n : v->iov_len;

		v->iov_base = (uint8_t *)v->iov_base + take;
		v->iov_len -= take;
		n -= (ssize_t)take;
		s->iov_at += !v->iov_len;
	}
	return s->batches || s->iov_at < s->iov_n;
}

/* What the streams first, first + step, ... have to move in this round. */
static void pump_all(unsigned first, unsigned step)
{
	struct pollfd fds[STREAMS_MAX];
	bool moved;

	if (first + step >= streams_n) { /* a single one: blocking calls will do */
		while (pump(&streams[first], 0, &moved))
			;
		return;
	}
	for (;;) {
		bool any = false;
		unsigned n = 0;

		for (unsigned i = first; i < streams_n; i += step) {
			if (!pump(&streams[i], MSG_DONTWAIT, &moved))
				continue;
			any |= moved;
			fds[n++] =
				(struct pollfd){ streams[i].sock, sending ? POLLOUT : POLLIN, 0 };
		}
		if (!n)
			return;
		if (!any)
			poll(fds, n, -1);
	}
}

static void exchange(int sock, void *p, size_t n, bool out)
{
	if ((out ? send(sock, p, n, MSG_NOSIGNAL) : recv(sock, p, n, MSG_WAITALL)) != (ssize_t)n) {
		if (!out && !sending)
			exit(0); /* the sender has had enough */
		bench_die("the other side is gone");
	}
}

static void *send_round(void *arg)
{
	unsigned first = (unsigned)(uintptr_t)arg;
	uint8_t byte;

	for (unsigned i = first; i < streams_n; i += threads_n)
		exchange(streams[i].sock, &streams[i].batches, sizeof(uint64_t), true);
	pump_all(first, threads_n);
	for (unsigned i = first; i < streams_n; i += threads_n)
		exchange(streams[i].sock, &byte, 1, false);
	return NULL;
}

static void *receive_rounds(void *arg)
{
	unsigned first = (unsigned)(uintptr_t)arg;
	uint8_t byte = 1;

	for (;;) {
		for (unsigned i = first; i < streams_n; i += threads_n)
			exchange(streams[i].sock, &streams[i].batches, sizeof(uint64_t), false);
		pump_all(first, threads_n);
		for (unsigned i = first; i < streams_n; i += threads_n)
			exchange(streams[i].sock, &byte, 1, true);
	}
	return NULL;
}

static void on_threads(void *(*fn)(void *))
{
	pthread_t threads[STREAMS_MAX];

	for (unsigned i = 1; i < threads_n; i++)
		if (pthread_create(&threads[i], NULL, fn, (void *)(uintptr_t)i))
			bench_die("no thread");
	fn(NULL);
	for (unsigned i = 1; i < threads_n; i++)
		pthread_join(threads[i], NULL);
}

/* As many batches on each stream, at least as many operations as asked for. */
static void run(uint64_t wanted)
{
	uint64_t each = (wanted + (uint64_t)batch * streams_n - 1) / ((uint64_t)batch * streams_n);
	uint64_t bytes = 0;
	int64_t start, cpu;

	for (unsigned i = 0; i < streams_n; i++) {
		size_t op = streams[i].op;

		streams[i].batches = each;
		for (uint64_t b = 0; b < each; b++) {
			for (unsigned k = 0; k < batch; k++)
				bytes += ops.v[(op + k) % ops.n].length;
			op = (op + (size_t)batch * streams_n) % ops.n;
		}
	}
	start = bench_ns();
	cpu = bench_cpu_ns();
	on_threads(send_round);
	bench_say("{\"seconds\": %.9f, \"cpu\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64
		  "}",
		  (double)(bench_ns() - start) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9,
		  each * streams_n * batch, bytes);
}

static int open_socket(char *where, bool listening, int buffer)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
	char *port = listening ? NULL : strrchr(where, ':');
	struct addrinfo *found;
	int one = 1, sock;

	if (port)
		*port++ = 0;
	if (getaddrinfo(where, port ? port : "0", &hints, &found))
		bench_die("%s is no address", where);
	sock = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		bench_die_errno("socket");
	if (port)
		port[-1] = ':';
	/* before the connection: it decides the window scale. Accepted sockets inherit it. */
	if (buffer && (setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) ||
		       setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer))))
		bench_die_errno("socket buffers");
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (listening ? bind(sock, found->ai_addr, found->ai_addrlen) || listen(sock, STREAMS_MAX) :
			connect(sock, found->ai_addr, found->ai_addrlen))
		bench_die_errno(where);
	freeaddrinfo(found);
	return sock;
}

static uint16_t port_of(int sock)
{
	struct sockaddr_storage name = { 0 };
	socklen_t length = sizeof(name);

	if (getsockname(sock, (struct sockaddr *)&name, &length))
		bench_die_errno("getsockname");
	/* the port lies at the same place in both families */
	return ntohs(((struct sockaddr_in *)&name)->sin_port);
}

static void accept_all(int listener)
{
	int one = 1;

	bench_say("{\"port\": %u}", port_of(listener));
	for (unsigned i = 0; i < streams_n; i++) {
		uint8_t number;
		int sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (sock < 0)
			bench_die_errno("accept");
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		exchange(sock, &number, 1, false);
		if (number < streams_n)
			streams[number].sock = sock;
	}
	close(listener);
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
		{ 0 },
	};
	struct bench_memory m = { 0 };
	uint64_t number;
	char *where = NULL, word[16];
	int option, buffer = 0;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
		case 'c':
			where = optarg;
			sending = option == 'c';
			break;
		case 'm':
			bench_memory_parse(optarg, &m);
			break;
		case 'o':
			ops = bench_ops_map((int)bench_number(optarg));
			break;
		case 'k':
			column_local = !strcmp(optarg, "local");
			break;
		case 's':
			streams_n = (unsigned)bench_number(optarg);
			break;
		case 't':
			threads_n = (unsigned)bench_number(optarg);
			break;
		case 'b':
			batch = (unsigned)bench_number(optarg);
			break;
		case 'B':
			buffer = (int)bench_number(optarg);
			break;
		default:
			return 2;
		}
	}
	if (!where || !m.n || !ops.n || !streams_n || streams_n > STREAMS_MAX || !batch ||
	    batch > BATCH_MAX)
		bench_die("see the head of ceiling_tcp.c for how this is called");
	if (!threads_n || threads_n > streams_n)
		threads_n = streams_n;
	bench_ops_check(ops, column_local ? m.bytes : UINT64_MAX,
			column_local ? UINT64_MAX : m.bytes);
	memory = bench_memory_map(&m);
	for (unsigned i = 0; i < streams_n; i++)
		streams[i].op = (size_t)i * batch % ops.n;

	if (!sending) {
		accept_all(open_socket(where, true, buffer));
		on_threads(receive_rounds);
		return 0;
	}
	for (unsigned i = 0; i < streams_n; i++) {
		uint8_t mine = (uint8_t)i;

		streams[i].sock = open_socket(where, false, buffer);
		exchange(streams[i].sock, &mine, 1, true);
	}
	while (bench_command(word, &number))
		run(number);
	return 0;
}
