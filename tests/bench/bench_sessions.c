/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with many sessions in one thread, which sleeps on their descriptors as an engine with many requests does.
 * Session i keeps --depth transfers queued, of shape i modulo the number of shapes.
 *
 *   bench_sessions --socket PATH --owner PATH --local M --remote M --sessions N --shape BYTES:OPERATIONS ...
 *                  [--depth TRANSFERS] [--probe BYTES:OPERATIONS [--apart]]
 *
 * The operations of a transfer are twice their size apart on both sides, so that they cannot be merged. The probe is a
 * further shape, of the latency class, in the first session or (--apart) in a session of its own.
 * First line: {"transport": ...}. Then it answers
 *   share MS      keeps all sessions busy for this time: bytes of each, and bytes per second until the last has ended
 *   load 1, 0     keeps all sessions busy from now on, or lets them finish their transfers
 *   trip COUNT    one probe at a time, from request to completion, beside all other transfers
 */
#include <getopt.h>
#include <sys/epoll.h>

#include "schema/gen/data.h"
#include "tests/bench/bench_session.h"

#define SESSIONS_MAX 1024u
#define SHAPES_MAX 8u
#define DEPTH_MAX 256u

struct shape {
	uint64_t bytes;
	unsigned n;
	struct dray_op *ops;
};

struct session {
	struct dray *d;
	struct dray_transfer transfer;
	const struct shape *shape;
	unsigned in_flight;
	uint64_t moved;
};

static struct session sessions[SESSIONS_MAX + 1];
static struct shape shapes[SHAPES_MAX + 1];
static struct dray *owner;
static struct dray_token token;
static unsigned sessions_n = 1, shapes_n, depth = 4;
static int epoll_fd;
static bool keeping;

static struct session *probing; /* the session of the probe */
static struct dray_transfer probe;
static uint64_t probe_id;
static bool probe_ended;

static struct shape shape_parse(char *text, uint64_t room)
{
	char *colon = strchr(text, ':');
	struct shape s;

	if (!colon)
		bench_die("a shape is BYTES:OPERATIONS");
	*colon = 0;
	s.bytes = bench_number(text);
	s.n = (unsigned)bench_number(colon + 1);
	if (!s.bytes || !s.n || s.n > DMSG_OPS_MAX || s.n * s.bytes * 2 - s.bytes > room)
		bench_die("a shape of %u operations of %" PRIu64 " bytes does not fit", s.n,
			  s.bytes);
	s.ops = calloc(s.n, sizeof(*s.ops));
	if (!s.ops)
		bench_die_errno("calloc");
	for (unsigned i = 0; i < s.n; i++)
		s.ops[i] = (struct dray_op){ i * 2 * s.bytes, i * 2 * s.bytes, s.bytes };
	return s;
}

static void session_open(struct session *s, const char *path, const struct bench_memory *local,
			 const struct shape *shape)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };

	s->d = bench_session_open(path, DRAY_OPTION_NO_RECONNECT);
	s->shape = shape;
	s->transfer = (struct dray_transfer){ .direction = DRAY_DIRECTION_WRITE,
					      .local = bench_session_add(s->d, local),
					      .remote = bench_session_import(s->d, &token),
					      .ops = shape->ops,
					      .count = shape->n };
	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, dray_fd(s->d), &ev) < 0)
		bench_die_errno("epoll_ctl");
}

static void keep(struct session *s)
{
	while (keeping && s->in_flight < depth) {
		int error = dray_submit(s->d, &s->transfer, NULL);

		if (error == -DRAY_E_BUSY && s->in_flight)
			return;
		if (error)
			bench_die("submit: %s", dray_last_error(s->d));
		s->in_flight++;
	}
}

static void reap(struct session *s, int timeout_ms)
{
	struct dray_completion c;

	if (dray_process(s->d, timeout_ms) < 0)
		bench_die("the session was lost: %s", dray_last_error(s->d));
	while (dray_next_completion(s->d, &c) == 1) {
		if (c.status)
			bench_die("transfer: %s: %s", dray_strerrorname(c.status), c.message);
		if (s == probing && c.id == probe_id) {
			probe_ended = true;
			continue;
		}
		s->in_flight--;
		s->moved += c.bytes;
	}
	if (s->shape)
		keep(s);
}

static void look(int timeout_ms)
{
	struct epoll_event ev[64];
	int n = epoll_wait(epoll_fd, ev, 64, timeout_ms);

	for (int i = 0; i < n; i++)
		reap(ev[i].data.ptr, 0);
}

/* Keeps every session busy from now on, or waits until all are idle. */
static void load(bool on)
{
	keeping = on;
	for (unsigned i = 0; i < sessions_n; i++)
		keep(&sessions[i]);
	for (unsigned i = 0; !on && i < sessions_n; i++)
		while (sessions[i].in_flight)
			look(-1);
}

static void share(uint64_t ms)
{
	static uint64_t moved[SESSIONS_MAX];
	int64_t begin = bench_ns(), end;
	uint64_t all = 0;

	for (unsigned i = 0; i < sessions_n; i++)
		sessions[i].moved = 0;
	load(true);
	end = begin + (int64_t)ms * 1000000;
	while (bench_ns() < end)
		look(1);
	for (unsigned i = 0; i < sessions_n; i++)
		moved[i] = sessions[i].moved;
	load(false);
	end = bench_ns();
	for (unsigned i = 0; i < sessions_n; i++)
		all += sessions[i].moved;
	printf("{\"bytes_per_second\": %.0f, \"moved\": [",
	       (double)all * 1e9 / (double)(end - begin));
	for (unsigned i = 0; i < sessions_n; i++)
		printf("%s%" PRIu64, i ? ", " : "", moved[i]);
	bench_say("]}");
}

static void trip(uint64_t count)
{
	static struct bench_samples samples;

	if (!probing)
		bench_die("trip needs --probe");
	if (!samples.v)
		bench_samples_init(&samples);
	for (uint64_t i = 0; i < count; i++) {
		int64_t begin = bench_ns();

		probe_ended = false;
		if (dray_submit(probing->d, &probe, &probe_id))
			bench_die("submit: %s", dray_last_error(probing->d));
		while (!probe_ended)
			reap(probing, -1);
		bench_sample(&samples, (double)(bench_ns() - begin));
		/* completions of other sessions */
		if (keeping)
			look(0);
	}
	bench_samples_say(&samples);
}

static void open_all(const char *path, const char *owner_path, const struct bench_memory *local,
		     const struct bench_memory *remote, bool apart)
{
	owner = bench_session_open(owner_path, DRAY_OPTION_NO_RECONNECT);
	token = bench_session_export(owner, bench_session_add(owner, remote));
	for (unsigned i = 0; i < sessions_n; i++)
		session_open(&sessions[i], path, local, &shapes[i % shapes_n]);
	if (shapes[SHAPES_MAX].n) {
		probing = &sessions[apart ? sessions_n : 0];
		if (apart) {
			session_open(probing, path, local, &shapes[SHAPES_MAX]);
			probing->shape = NULL; /* load() does not keep it busy */
		}
		probe = probing->transfer;
		probe.priority = DRAY_PRIORITY_LATENCY;
		probe.ops = shapes[SHAPES_MAX].ops;
		probe.count = shapes[SHAPES_MAX].n;
	}
	bench_say("{\"transport\": \"%s\"}",
		  bench_session_transport(sessions[0].d, sessions[0].transfer.remote));
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "owner", required_argument, NULL, 'o' },
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "sessions", required_argument, NULL, 'n' },
		{ "shape", required_argument, NULL, 'S' },
		{ "depth", required_argument, NULL, 'd' },
		{ "probe", required_argument, NULL, 'p' },
		{ "apart", no_argument, NULL, 'a' },
		{ 0 },
	};
	struct bench_memory local = { 0 }, remote = { 0 };
	char *texts[SHAPES_MAX + 1] = { 0 };
	const char *socket = NULL, *owner_socket = NULL;
	bool apart = false;
	uint64_t number, room;
	char word[16];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			socket = optarg;
			break;
		case 'o':
			owner_socket = optarg;
			break;
		case 'l':
			bench_memory_parse(optarg, &local);
			break;
		case 'r':
			bench_memory_parse(optarg, &remote);
			break;
		case 'n':
			sessions_n = (unsigned)bench_number(optarg);
			break;
		case 'S':
			if (shapes_n == SHAPES_MAX)
				bench_die("at most %u shapes", SHAPES_MAX);
			texts[shapes_n++] = optarg;
			break;
		case 'd':
			depth = (unsigned)bench_number(optarg);
			break;
		case 'p':
			texts[SHAPES_MAX] = optarg;
			break;
		case 'a':
			apart = true;
			break;
		default:
			return 2;
		}
	}
	if (!socket || !local.n || !remote.n || !shapes_n || !sessions_n ||
	    sessions_n > SESSIONS_MAX || !depth || depth > DEPTH_MAX)
		bench_die("wrong usage; see the head of bench_sessions.c");
	room = local.bytes < remote.bytes ? local.bytes : remote.bytes;
	for (unsigned i = 0; i <= SHAPES_MAX; i++)
		if (texts[i])
			shapes[i] = shape_parse(texts[i], room);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		bench_die_errno("epoll_create1");
	open_all(socket, owner_socket ? owner_socket : socket, &local, &remote, apart);
	while (bench_command(word, &number)) {
		if (!strcmp(word, "share")) {
			share(number);
		} else if (!strcmp(word, "trip")) {
			trip(number);
		} else if (!strcmp(word, "load")) {
			load(number);
			bench_say("{}");
		} else {
			bench_die("no command %s", word);
		}
	}
	for (unsigned i = 0; i <= SESSIONS_MAX; i++)
		if (sessions[i].d)
			dray_disconnect(sessions[i].d);
	dray_disconnect(owner);
	return 0;
}
