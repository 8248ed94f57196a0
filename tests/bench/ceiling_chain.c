/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wake-ups of a lone read over TCP, without agents: this process wakes a second one by an eventfd, which asks a third
 * one over a connection of loopback, gets the payload from it, and wakes this process. All wait in blocking calls. With
 * --check the second one sums the payload's CRC-32C as it comes. With
 *
 * --memory the payload has another place in so much memory at both ends each time, so that it is in no near cache.
 *
 *   ceiling_chain [--size BYTES] [--memory BYTES] [--get PORT] [--check]
 *
 * Answers
 *   trip COUNT   round trips, one at a time
 *   get COUNT    the same of `GET key` at a redis server on loopback whose value has as many bytes; sets the value first
 */
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ctl/ceiling/echo.h"
#include "lib/crc32c.h"
#include "tests/bench/bench.h"

#define REQUEST 64
#define REPLY_MAX 64
/* Pieces from one place to the next: a prime, so that all have their turn, far enough that no processor fetches ahead. */
#define STRIDE 617

static size_t size = 4096, pieces = 1;
static uint8_t *memory, *payload;
static bool check;
static int request_fd, answer_fd;
static struct bench_samples samples;

static void send_all(int fd, const void *p, size_t n)
{
	if (send(fd, p, n, MSG_NOSIGNAL) != (ssize_t)n)
		bench_die_errno("send");
}

static bool receive_all(int fd, void *p, size_t n)
{
	return recv(fd, p, n, MSG_WAITALL) == (ssize_t)n;
}

/* The next payload has another place. Each process has its own. */
static void next_place(void)
{
	static size_t piece;

	piece = (piece + STRIDE) % pieces;
	payload = memory + piece * size;
}

static void ring(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) != sizeof(one))
		bench_die_errno("an eventfd");
}

static void await(int fd)
{
	uint64_t count;

	if (read(fd, &count, sizeof(count)) != sizeof(count))
		bench_die_errno("an eventfd");
}

/* Does not return in a child. */
static void start(void (*run)(int fd), int fd)
{
	pid_t child = ceiling_fork();

	if (child < 0)
		bench_die("fork: %s", strerror(-child));
	if (!child) {
		run(fd);
		_exit(0);
	}
}

/* The payload, and verifies it as it comes. */
static bool receive_checked(int fd, uint32_t wanted)
{
	uint32_t sum = 0;
	ssize_t n;

	for (size_t at = 0; at < size; at += (size_t)n) {
		n = recv(fd, payload + at, size - at, 0);
		if (n <= 0)
			return false;
		sum = dray_crc32c(sum, payload + at, (size_t)n);
	}
	if (sum != wanted)
		bench_die("other bytes have come");
	return true;
}

static void middle(int fd)
{
	uint32_t sum = dray_crc32c(0, payload, size);
	uint8_t request[REQUEST] = { 0 };

	for (;;) {
		await(request_fd);
		send_all(fd, request, sizeof(request));
		if (check ? !receive_checked(fd, sum) : !receive_all(fd, payload, size))
			return;
		ring(answer_fd);
		next_place();
	}
}

static void owner(int fd)
{
	uint8_t request[REQUEST];

	while (receive_all(fd, request, sizeof(request))) {
		send_all(fd, payload, size);
		next_place();
	}
}

static void open_chain(void)
{
	int ends[2] = { -1, -1 }, error = ceiling_tcp_pair(ends);

	if (error)
		bench_die("a connection over loopback: %s", strerror(-error));
	request_fd = eventfd(0, EFD_CLOEXEC);
	answer_fd = eventfd(0, EFD_CLOEXEC);
	if (request_fd < 0 || answer_fd < 0)
		bench_die_errno("eventfd");
	start(middle, ends[0]);
	start(owner, ends[1]);
	close(ends[0]);
	close(ends[1]);
}

static void trips(uint64_t count)
{
	int64_t began = bench_ns(), ended;

	for (uint64_t i = 0; i < count; i++) {
		ring(request_fd);
		await(answer_fd);
		ended = bench_ns();
		bench_sample(&samples, (double)(ended - began));
		began = ended;
	}
	bench_samples_say(&samples);
}

/* --- redis ------------------------------------------------------------------------------------- */

static int redis_connect(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0 || connect(fd, (void *)&at, sizeof(at)))
		bench_die_errno("redis");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void redis_set(int fd)
{
	char head[64], ok[5];
	int n = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$%zu\r\n", size);

	send_all(fd, head, (size_t)n);
	send_all(fd, payload, size);
	send_all(fd, "\r\n", 2);
	if (!receive_all(fd, ok, sizeof(ok)) || memcmp(ok, "+OK\r\n", sizeof(ok)) != 0)
		bench_die("redis has not set the value");
}

static void gets_of(int fd, uint64_t count)
{
	static const char get[] = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
	static uint8_t *reply;
	char head[REPLY_MAX];
	size_t whole = (size_t)snprintf(head, sizeof(head), "$%zu\r\n", size) + size + 2;
	int64_t began, ended;

	reply = reply ? reply : malloc(whole);
	if (!reply)
		bench_die("no memory");
	began = bench_ns();
	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, get, sizeof(get) - 1);
		if (!receive_all(fd, reply, whole))
			bench_die("redis has closed the connection");
		ended = bench_ns();
		bench_sample(&samples, (double)(ended - began));
		began = ended;
	}
	bench_samples_say(&samples);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "size", required_argument, NULL, 's' },
		{ "memory", required_argument, NULL, 'm' },
		{ "get", required_argument, NULL, 'g' },
		{ "check", no_argument, NULL, 'c' },
		{ 0 },
	};
	int option, redis = -1;
	size_t bytes = 0;
	uint16_t port = 0;
	uint64_t number;
	char word[16];

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 's')
			size = bench_number(optarg);
		else if (option == 'm')
			bytes = bench_number(optarg);
		else if (option == 'g')
			port = (uint16_t)bench_number(optarg);
		else if (option == 'c')
			check = true;
		else
			return 2;
	}
	pieces = size && bytes > size ? bytes / size : 1;
	memory = payload = malloc(pieces * size);
	if (!payload || !size || (pieces > 1 && pieces % STRIDE == 0))
		bench_die("wrong usage; see the head of ceiling_chain.c");
	memset(memory, 1,
	       pieces * size); /* pages of its own, where calloc() gives one of zeros for all */
	bench_samples_init(&samples);
	open_chain();
	if (port) {
		redis = redis_connect(port);
		redis_set(redis);
	}
	while (bench_command(word, &number)) {
		if (!strcmp(word, "trip"))
			trips(number);
		else if (!strcmp(word, "get") && redis >= 0)
			gets_of(redis, number);
		else
			bench_die("no command %s", word);
	}
	return 0;
}
