/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that never blocks: its event loop waits in epoll for dray and for a timer of its own.
 * It connects, registers, imports, and keeps eight transfers in flight. Three other transfers fail:
 * one passes its deadline, the engine cancels one, and one leaves its range.
 *
 *     cc -O2 -Wall event_loop.c $(pkg-config --cflags --libs dray) -o event_loop
 *     ./event_loop SOCKET [SOCKET OF THE OWNER'S AGENT]
 */
#include <dray/dray.h>
#include <err.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BLOCK (64u << 10)
#define BLOCKS 64u
#define IN_FLIGHT 8u
#define DEADLINE_MS 20u
#define CANCEL_NS 10000000 /* after this time the engine cancels */

/* A transfer of the engine; its address is the arg of the request. */
struct job {
	const char *name;
	int expected; /* status */
	bool ended;
};

static struct job blocks = { .name = "block" };
static struct job late = { .name = "late", .expected = -DRAY_E_DEADLINE };
static struct job unwanted = { .name = "unwanted", .expected = -DRAY_E_CANCELLED };
static struct job outside = { .name = "outside", .expected = -DRAY_E_RANGE };

static struct engine {
	struct dray *d;
	struct dray_token token;   /* of the other engine's blocks */
	struct dray_memory memory; /* blocks, and a word that nobody writes */
	dray_region region;
	dray_remote remote;
	uint64_t unwanted;           /* id of that transfer */
	unsigned int started, ended; /* blocks */
	int timer;
} engine;

/* Prints an error: its name, the text with object and reason, and the next step. */
static void print_error(const char *what, int error, const char *text)
{
	fprintf(stderr, "%s: %s: %s\n  fix: %s\n", what, dray_strerrorname(error), text,
		dray_strerrorfix(error));
}

/* After a failed call. */
static void check(const char *what, struct dray *d, int error)
{
	if (error < 0) {
		print_error(what, error, d ? dray_last_error(d) : dray_strerror(error));
		exit(1);
	}
}

/* Starts a transfer of one block. With wait it begins when a word is 1, which never happens. */
static int start(struct job *job, unsigned int block, bool wait, unsigned int deadline_ms,
		 uint64_t *ret_id)
{
	struct dray_op op = { .local = (uint64_t)block * BLOCK,
			      .remote = (uint64_t)block * BLOCK,
			      .length = BLOCK };
	struct dray_transfer t = { .local = engine.region,
				   .remote = engine.remote,
				   .direction = DRAY_DIRECTION_READ,
				   .ops = &op,
				   .count = 1,
				   .deadline_ms = deadline_ms,
				   .arg = job };

	if (wait)
		t.wait = (struct dray_word){ .region = engine.region,
					     .offset = (uint64_t)BLOCK * BLOCKS,
					     .value = 1 };
	return dray_submit(engine.d, &t, ret_id);
}

/* The session is open: starts requests that answer with a completion. */
static void connected(void)
{
	struct dray_extent extent = { .kind = DRAY_KIND_MEMFD,
				      .fd = engine.memory.fd,
				      .length = engine.memory.length };
	struct dray_region_spec spec = { .access = DRAY_WRITE | DRAY_READ,
					 .flags = DRAY_REGION_NO_POPULATE,
					 .extents = &extent,
					 .extents_n = 1 };

	check("region", engine.d, dray_region_add_start(engine.d, &spec, NULL, NULL));
	check("import", engine.d,
	      dray_remote_import_start(engine.d, &engine.token, 30000, NULL, NULL));
}

/* Region and remote are there. */
static void ready(void)
{
	struct itimerspec in = { .it_value = { .tv_nsec = CANCEL_NS } };

	check("late", engine.d, start(&late, 0, true, DEADLINE_MS, NULL));
	check("unwanted", engine.d, start(&unwanted, 0, true, 30000, &engine.unwanted));
	check("outside", engine.d, start(&outside, BLOCKS, false, 30000, NULL));
	if (timerfd_settime(engine.timer, 0, &in, NULL) < 0)
		err(1, "timer");
}

static void completed(const struct dray_completion *c)
{
	struct job *job = c->arg;

	switch (c->request) {
	case DRAY_REQUEST_TRANSFER:
		if (c->status)
			print_error(job->name, c->status, c->message);
		if (c->status != job->expected)
			errx(1, "%s: the status is %d, not %d", job->name, c->status,
			     job->expected);
		job->ended = true;
		engine.ended += job == &blocks;
		return;
	case DRAY_REQUEST_REGION_ADD:
		engine.region = c->region;
		break;
	case DRAY_REQUEST_IMPORT:
		engine.remote = c->remote;
		break;
	default:
		return;
	}
	if (c->status) {
		print_error("set-up", c->status, c->message);
		exit(1);
	}
	if (engine.region.id && engine.remote.id)
		ready();
}

static void happened(const struct dray_event *e)
{
	switch (e->type) {
	case DRAY_EVENT_CONNECTED:
		connected();
		break;
	case DRAY_EVENT_LOST:
	case DRAY_EVENT_CLOSED:
	case DRAY_EVENT_REMOTE_LOST:
		/* A real engine imports again, after DRAY_EVENT_RESTORED if the session was lost. */
		print_error("session", e->code, e->message);
		exit(1);
	default:
		break;
	}
}

/* One turn of the loop. Returns false when all transfers have ended. */
static bool turn(void)
{
	struct dray_completion c;
	struct dray_event e;

	check("process", engine.d, dray_process(engine.d, 0));
	while (dray_next_event(engine.d, &e) == 1)
		happened(&e);
	while (dray_next_completion(engine.d, &c) == 1)
		completed(&c);
	while (engine.region.id && engine.remote.id && engine.started < BLOCKS &&
	       engine.started - engine.ended < IN_FLIGHT) {
		int error = start(&blocks, engine.started, false, 30000, NULL);

		if (error == -DRAY_E_BUSY)
			break; /* again after the next completion */
		check("read", engine.d, error);
		engine.started++;
	}
	return engine.ended < BLOCKS || !late.ended || !unwanted.ended || !outside.ended;
}

static void timer_expired(void)
{
	uint64_t times;

	if (read(engine.timer, &times, sizeof(times)) != sizeof(times))
		err(1, "timer");
	check("cancel", engine.d, dray_cancel(engine.d, engine.unwanted));
}

static void run(const char *socket)
{
	/* confirm_ms: a busy agent may take that long to confirm that a late transfer has stopped. */
	struct dray_options options = { .socket = socket, .group = "engine", .confirm_ms = 10000 };
	struct epoll_event dray = { .events = EPOLLIN },
			   timer = { .events = EPOLLIN, .data.u32 = 1 };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	char why[256];
	int error = dray_connect_start(&options, &engine.d, why, sizeof(why));

	if (error) {
		print_error("connect", error, why);
		exit(1);
	}
	check("memory", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS + 4, 0, &engine.memory));
	engine.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	if (epoll < 0 || engine.timer < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, dray_fd(engine.d), &dray) < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, engine.timer, &timer) < 0)
		err(1, "epoll");
	while (turn()) {
		struct epoll_event ready;

		if (epoll_wait(epoll, &ready, 1, -1) < 0)
			err(1, "epoll_wait");
		if (ready.data.u32 == 1)
			timer_expired();
	}
	for (unsigned int i = 0; i < BLOCKS; i++)
		if (((unsigned char *)engine.memory.address)[(size_t)i * BLOCK] != i + 1)
			errx(1, "block %u is wrong", i);
	close(epoll);
	close(engine.timer);
	/* The end of the program may block. */
	check("release", engine.d, dray_remote_release(engine.d, engine.remote));
	check("remove", engine.d, dray_region_remove(engine.d, engine.region));
	dray_memory_free(&engine.memory);
	dray_disconnect(engine.d);
}

int main(int argc, char **argv)
{
	struct dray_options options = { .group = "owner" };
	struct dray_memory memory;
	struct dray *owner;
	dray_region region;
	char why[256];
	int error;

	if (argc < 2)
		errx(2, "usage: event_loop SOCKET [SOCKET OF THE OWNER'S AGENT]");
	/* The other engine, which is usually another process, as in copy_blocks.c. */
	options.socket = argv[argc - 1];
	error = dray_connect(&options, &owner, why, sizeof(why));
	if (error) {
		print_error("owner", error, why);
		return 1;
	}
	check("memory", NULL, dray_memory_alloc((uint64_t)BLOCK * BLOCKS, 0, &memory));
	for (unsigned int i = 0; i < BLOCKS; i++)
		memset((char *)memory.address + (size_t)i * BLOCK, (int)i + 1, BLOCK);
	check("region", owner, dray_region_add_memory(owner, &memory, DRAY_READ, &region));
	check("export", owner, dray_region_export(owner, region, NULL, &engine.token));

	run(argv[1]);

	check("remove", owner, dray_region_remove(owner, region));
	dray_memory_free(&memory);
	dray_disconnect(owner);
	puts("copied");
	return 0;
}
