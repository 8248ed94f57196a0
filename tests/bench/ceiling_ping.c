/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency of a request and its answer in the kernel, over one TCP connection of loopback while others are full: two
 * processes, each with a thread for each connection, that only send and receive.
 *
 *   ceiling_ping --size BYTES [--streams N]
 *
 * Answers
 *   load 1, 0    keeps N connections full from now on, or idle
 *   trip COUNT   sends BYTES and waits for one byte back, one round trip at a time
 */
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "tests/bench/bench.h"

#define STREAMS_MAX 16u
#define PIECE (1u << 20)

static size_t size = 4096;
static unsigned streams_n = 2;
static int bulk[STREAMS_MAX], ping;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool loading;
static unsigned sending;

static void pair(int ret[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	ret[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || ret[0] < 0 || bind(listener, (void *)&at, sizeof(at)) ||
	    listen(listener, 1) || getsockname(listener, (void *)&at, &length) ||
	    connect(ret[0], (void *)&at, sizeof(at)))
		bench_die_errno("a connection over loopback");
	ret[1] = accept(listener, NULL, NULL);
	if (ret[1] < 0)
		bench_die_errno("accept");
	close(listener);
	for (unsigned i = 0; i < 2; i++)
		setsockopt(ret[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static uint8_t *memory(size_t n)
{
	uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		bench_die_errno("mmap");
	return p;
}

static void *swallow(void *arg)
{
	int sock = *(int *)arg;
	uint8_t *p = memory(PIECE);

	while (recv(sock, p, PIECE, 0) > 0)
		;
	return NULL;
}

static void answer(int sock)
{
	uint8_t *p = memory(size);

	while (recv(sock, p, size, MSG_WAITALL) == (ssize_t)size)
		if (send(sock, p, 1, MSG_NOSIGNAL) != 1)
			return;
}

static void *fill(void *arg)
{
	int sock = *(int *)arg;
	uint8_t *p = memory(PIECE);

	for (;;) {
		bool on;

		pthread_mutex_lock(&mutex);
		while (!loading)
			pthread_cond_wait(&changed, &mutex);
		sending++;
		pthread_mutex_unlock(&mutex);
		do {
			if (send(sock, p, PIECE, MSG_NOSIGNAL) != (ssize_t)PIECE)
				bench_die_errno("send");
			pthread_mutex_lock(&mutex);
			on = loading;
			pthread_mutex_unlock(&mutex);
		} while (on);
		pthread_mutex_lock(&mutex);
		sending--;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* Returns when the connections are being filled, or when the threads have stopped sending. */
static void load(bool on)
{
	pthread_mutex_lock(&mutex);
	loading = on;
	pthread_cond_broadcast(&changed);
	while (!on && sending)
		pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void trip(uint64_t count)
{
	static struct bench_samples samples;
	static uint8_t *p;
	uint8_t back;

	if (!samples.v) {
		bench_samples_init(&samples);
		p = memory(size);
	}
	for (uint64_t i = 0; i < count; i++) {
		int64_t begin = bench_ns();

		if (send(ping, p, size, MSG_NOSIGNAL) != (ssize_t)size ||
		    recv(ping, &back, 1, 0) != 1)
			bench_die_errno("ping");
		bench_sample(&samples, (double)(bench_ns() - begin));
	}
	bench_samples_say(&samples);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "size", required_argument, NULL, 's' },
		{ "streams", required_argument, NULL, 'n' },
		{ 0 },
	};
	int ends[STREAMS_MAX + 1][2];
	uint64_t number;
	pthread_t thread;
	pid_t pid;
	char word[16];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 's')
			size = bench_number(optarg);
		else if (option == 'n')
			streams_n = (unsigned)bench_number(optarg);
		else
			return 2;
	}
	if (!size || streams_n > STREAMS_MAX)
		bench_die("wrong usage; see the head of ceiling_ping.c");
	for (unsigned i = 0; i <= streams_n; i++)
		pair(ends[i]);
	pid = fork();
	if (pid < 0)
		bench_die_errno("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (unsigned i = 0; i < streams_n; i++)
			if (pthread_create(&thread, NULL, swallow, &ends[i][1]))
				bench_die("no thread");
		for (unsigned i = 0; i <= streams_n; i++)
			close(ends[i][0]);
		answer(ends[streams_n][1]);
		_exit(0);
	}
	for (unsigned i = 0; i < streams_n; i++) {
		bulk[i] = ends[i][0];
		if (pthread_create(&thread, NULL, fill, &bulk[i]))
			bench_die("no thread");
	}
	ping = ends[streams_n][0];
	for (unsigned i = 0; i <= streams_n; i++)
		close(ends[i][1]);
	while (bench_command(word, &number)) {
		if (!strcmp(word, "trip")) {
			trip(number);
		} else if (!strcmp(word, "load")) {
			load(number);
			bench_say("{}");
		} else {
			bench_die("no command %s", word);
		}
	}
	return 0;
}
