/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare round trips between two processes.
 *
 *   ceiling_echo seqpacket --size BYTES   a packet there and back over a Unix socket, both blocking
 *   ceiling_echo eventfd                  one wakes the other with an eventfd, and is woken the same way
 *   ceiling_echo memory                   a word in shared memory, both spinning
 *
 * Answers "run COUNT" with the median round trip.
 */
#include <getopt.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/bench/bench.h"

#define SIZE_MAX_BYTES 65536u
/* Round trips between two looks at the clock; each way has its own. */
#define GROUP_FAST 16u

/* A cache line for each direction, so that a store disturbs nobody but its reader. */
struct words {
	_Alignas(128) _Atomic uint32_t there;
	_Alignas(128) _Atomic uint32_t back;
};

static int ends[2], wake[2];
static struct words *words;
static size_t size = 64;

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void seqpacket_echo(void)
{
	static uint8_t buffer[SIZE_MAX_BYTES];
	ssize_t n;

	while ((n = recv(ends[1], buffer, sizeof(buffer), 0)) > 0)
		if (send(ends[1], buffer, (size_t)n, MSG_NOSIGNAL) != n)
			return;
}

static void seqpacket_trip(void)
{
	static uint8_t buffer[SIZE_MAX_BYTES];

	if (send(ends[0], buffer, size, MSG_NOSIGNAL) != (ssize_t)size ||
	    recv(ends[0], buffer, sizeof(buffer), 0) != (ssize_t)size)
		bench_die_errno("echo");
}

static void eventfd_echo(void)
{
	eventfd_t value;

	while (!eventfd_read(wake[0], &value))
		if (eventfd_write(wake[1], 1))
			return;
}

static void eventfd_trip(void)
{
	eventfd_t value;

	if (eventfd_write(wake[0], 1) || eventfd_read(wake[1], &value))
		bench_die_errno("eventfd");
}

static void memory_echo(void)
{
	for (uint32_t seen = 0;;) {
		uint32_t now = atomic_load_explicit(&words->there, memory_order_acquire);

		if (now == seen) {
			relax();
			continue;
		}
		seen = now;
		atomic_store_explicit(&words->back, now, memory_order_release);
	}
}

static void memory_trip(void)
{
	uint32_t next = atomic_load_explicit(&words->there, memory_order_relaxed) + 1;

	atomic_store_explicit(&words->there, next, memory_order_release);
	while (atomic_load_explicit(&words->back, memory_order_acquire) != next)
		relax();
}

static const struct way {
	const char *name;
	void (*echo)(void);
	void (*trip)(void);
	unsigned group;
} ways[] = {
	{ "seqpacket", seqpacket_echo, seqpacket_trip, 1 },
	{ "eventfd", eventfd_echo, eventfd_trip, 1 },
	{ "memory", memory_echo, memory_trip, GROUP_FAST },
};

int main(int argc, char **argv)
{
	const struct way *way = NULL;
	struct bench_samples samples;
	uint64_t count;
	char word[16];
	pid_t child;

	for (size_t i = 0; argc > 1 && i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(argv[1], ways[i].name))
			way = &ways[i];
	if (argc == 4 && !strcmp(argv[2], "--size"))
		size = bench_number(argv[3]);
	if (!way || (argc != 2 && argc != 4) || !size || size > SIZE_MAX_BYTES)
		bench_die("see the head of ceiling_echo.c for how this is called");

	words = mmap(NULL, sizeof(*words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	wake[0] = eventfd(0, EFD_CLOEXEC);
	wake[1] = eventfd(0, EFD_CLOEXEC);
	if (words == MAP_FAILED || wake[0] < 0 || wake[1] < 0 ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		bench_die_errno("set-up");
	child = fork();
	if (child < 0)
		bench_die_errno("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		way->echo();
		_exit(0);
	}
	close(ends[1]);
	bench_samples_init(&samples);
	while (bench_command(word, &count)) {
		for (uint64_t i = 0; i < count; i += way->group) {
			int64_t start = bench_ns();

			for (unsigned k = 0; k < way->group; k++)
				way->trip();
			bench_sample(&samples, (double)(bench_ns() - start) / way->group);
		}
		bench_samples_say(&samples);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
