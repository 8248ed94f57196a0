/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ceiling/echo.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/congestion.h"
#include "lib/cpu.h"

#define GROUP_FAST 16u
/* The answer over TCP, after all bytes have arrived. */
#define ANSWER_BYTES 8

/* Each direction has its own cache lines, so that a store affects only its reader. */
struct ceiling_echo_words {
	_Alignas(128) _Atomic uint32_t there;
	_Alignas(128) _Atomic uint32_t back;
};

static int whole(ssize_t n, size_t wanted)
{
	return n == (ssize_t)wanted ? 0 : n < 0 ? -errno : -EPIPE;
}

static void eventfd_echo(struct ceiling_echo *e)
{
	eventfd_t value;

	while (!eventfd_read(e->wake[0], &value))
		if (eventfd_write(e->wake[1], 1))
			return;
}

static int eventfd_trip(struct ceiling_echo *e)
{
	eventfd_t value;

	return eventfd_write(e->wake[0], 1) || eventfd_read(e->wake[1], &value) ? -errno : 0;
}

static void memory_echo(struct ceiling_echo *e)
{
	for (uint32_t seen = 0;;) {
		uint32_t now = atomic_load_explicit(&e->words->there, memory_order_acquire);

		if (now == seen) {
			dray_cpu_relax();
			continue;
		}
		seen = now;
		atomic_store_explicit(&e->words->back, now, memory_order_release);
	}
}

static int memory_trip(struct ceiling_echo *e)
{
	struct ceiling_echo_words *w = e->words;
	uint32_t next = atomic_load_explicit(&w->there, memory_order_relaxed) + 1;

	atomic_store_explicit(&w->there, next, memory_order_release);
	while (atomic_load_explicit(&w->back, memory_order_acquire) != next)
		dray_cpu_relax();
	return 0;
}

static void tcp_echo(struct ceiling_echo *e)
{
	uint64_t answer = 0;

	while (!whole(recv(e->ends[1], e->buffer, e->size, MSG_WAITALL), e->size))
		if (whole(send(e->ends[1], &answer, ANSWER_BYTES, MSG_NOSIGNAL), ANSWER_BYTES))
			return;
}

static int tcp_trip(struct ceiling_echo *e)
{
	uint64_t answer;
	int ret = whole(send(e->ends[0], e->buffer, e->size, MSG_NOSIGNAL), e->size);

	return ret ? ret :
		     whole(recv(e->ends[0], &answer, ANSWER_BYTES, MSG_WAITALL), ANSWER_BYTES);
}

static int eventfd_open(struct ceiling_echo *e)
{
	for (int i = 0; i < 2; i++) {
		e->wake[i] = eventfd(0, EFD_CLOEXEC);
		if (e->wake[i] < 0)
			return -errno;
	}
	return 0;
}

static int memory_open(struct ceiling_echo *e)
{
	void *p = mmap(NULL, sizeof(*e->words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	e->words = p;
	return 0;
}

int ceiling_tcp_pair(int ends[2])
{
	struct dray_addr name = { .in = { .sin_family = AF_INET,
					  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
				  .len = sizeof(name.in) };
	dray_auto_close int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || ends[0] < 0)
		return -errno;
	/* as the agents do */
	dray_congestion_at(listener, &name);
	dray_congestion_at(ends[0], &name);
	if (bind(listener, &name.sa, name.len) || listen(listener, 1) ||
	    getsockname(listener, &name.sa, &name.len) || connect(ends[0], &name.sa, name.len))
		return -errno;
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (ends[1] < 0)
		return -errno;
	for (int i = 0; i < 2; i++)
		setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return 0;
}

static int tcp_open(struct ceiling_echo *e)
{
	return ceiling_tcp_pair(e->ends);
}

static const struct way {
	int (*open)(struct ceiling_echo *e);
	void (*echo)(struct ceiling_echo *e);
	int (*trip)(struct ceiling_echo *e);
	unsigned group;
	bool spins;
} ways[CEILING_ECHO_N] = {
	[CEILING_ECHO_EVENTFD] = { eventfd_open, eventfd_echo, eventfd_trip, 1, false },
	[CEILING_ECHO_MEMORY] = { memory_open, memory_echo, memory_trip, GROUP_FAST, true },
	[CEILING_ECHO_TCP] = { tcp_open, tcp_echo, tcp_trip, 1, false },
};

pid_t ceiling_fork(void)
{
	pid_t parent = getpid(), child = fork();

	if (child)
		return child < 0 ? -errno : child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The parent may have died before. */
	if (getppid() != parent)
		_exit(0);
	return 0;
}

static int child_start(struct ceiling_echo *e)
{
	pid_t child = ceiling_fork();

	if (!child) {
		dray_close(e->ends[0]);
		ways[e->way].echo(e);
		_exit(0);
	}
	e->child = dray_max(child, 0);
	return dray_min(child, 0);
}

int ceiling_echo_open(struct ceiling_echo *e, enum ceiling_echo_way way, size_t size)
{
	int ret;

	*e = CEILING_ECHO_NULL;
	e->way = way;
	e->size = size;
	e->buffer = calloc(1, size);
	ret = e->buffer ? ways[way].open(e) : -ENOMEM;
	if (!ret)
		ret = child_start(e);
	if (ret) {
		ceiling_echo_close(e);
		return ret;
	}
	/* Without this copy, the child's death is an end of file. */
	e->ends[1] = dray_close(e->ends[1]);
	/* A child that is stopped before its prctl() would outlive us. */
	ret = ceiling_echo_trips(e, 1);
	ceiling_echo_pause(e);
	if (ret)
		ceiling_echo_close(e);
	return ret;
}

void ceiling_echo_close(struct ceiling_echo *e)
{
	if (e->child) {
		kill(e->child, SIGKILL);
		waitpid(e->child, NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		dray_close(e->ends[i]);
		dray_close(e->wake[i]);
	}
	if (e->words)
		munmap(e->words, sizeof(*e->words));
	free(e->buffer);
	*e = CEILING_ECHO_NULL;
}

void ceiling_echo_resume(struct ceiling_echo *e)
{
	if (ways[e->way].spins)
		kill(e->child, SIGCONT);
}

void ceiling_echo_pause(struct ceiling_echo *e)
{
	if (ways[e->way].spins)
		kill(e->child, SIGSTOP);
}

unsigned ceiling_echo_group(const struct ceiling_echo *e)
{
	return ways[e->way].group;
}

int ceiling_echo_trips(struct ceiling_echo *e, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int ret = ways[e->way].trip(e);

		if (ret)
			return ret;
	}
	return 0;
}
