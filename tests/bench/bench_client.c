/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that only makes transfers, over libdray. It has two sessions: one with the importing agent, and one
 * with the agent that owns the other memory (which can be the same agent).
 *
 *   bench_client --socket PATH --owner PATH --local M --remote M --ops FD [--write] [--batch OPERATIONS]
 *                [--depth TRANSFERS] [--latency-class] [--no-ring] [--no-spin] [--poll] [--rest]
 *
 * First line: {"transport": ..., "populate": seconds until both memories are registered}. Then it answers
 *   run OPERATIONS   this number of operations, --batch for each transfer, --depth transfers at a time
 *   trip COUNT       one transfer of --batch operations at a time: the median time from request to completion.
 *                    With --rest it sleeps 5 ms in each 7, and the first transfer after that does not count.
 *   hold BYTES       transfers without end until one fails; the answer comes when all have ended. With BYTES above
 *                    0 it first reports when this much was moved, so that a driver can cause a failure then.
 */
#include <getopt.h>
#include <unistd.h>

#include "schema/gen/data.h"
#include "tests/bench/bench_session.h"

#define DEPTH_MAX 4096u
#define TURN_NS 2000000
#define REST_US 5000

static struct dray *mine, *owner;
static struct dray_transfer transfer;
static struct bench_ops ops;
static size_t op_at;
static unsigned batch = 1, depth = 1;
static bool polling, resting;

/* Waits for completions as an engine does, or by spinning. */
static int advance(void)
{
	return polling ? dray_poll(mine) : dray_process(mine, -1);
}

/* Starts the next transfer of the list. 0, or a negated error. */
static int start(uint64_t limit, uint64_t *ret_bytes, uint64_t *ret_id)
{
	size_t left = ops.n - op_at, n = batch;
	int error;

	n = n < left ? n : left;
	n = n < limit ? n : limit;
	transfer.ops = (const struct dray_op *)(const void *)(ops.v + op_at);
	transfer.count = n;
	error = dray_submit(mine, &transfer, ret_id);
	if (error)
		return error;
	*ret_bytes = 0;
	for (size_t i = 0; i < n; i++)
		*ret_bytes += transfer.ops[i].length;
	op_at = (op_at + n) % ops.n;
	return 0;
}

static void run(uint64_t wanted)
{
	uint64_t started = 0, bytes = 0, moved, id;
	struct dray_completion c;
	unsigned in_flight = 0;
	int64_t begin = bench_ns(), cpu = bench_cpu_ns();
	int error;

	while (started < wanted || in_flight) {
		while (started < wanted && in_flight < depth) {
			error = start(wanted - started, &moved, &id);
			if (error == -DRAY_E_BUSY && in_flight)
				break;
			if (error)
				bench_die("submit: %s", dray_last_error(mine));
			started += transfer.count;
			bytes += moved;
			in_flight++;
		}
		error = advance();
		if (error < 0)
			bench_die("the session was lost: %s", dray_last_error(mine));
		while (dray_next_completion(mine, &c) == 1) {
			if (c.status)
				bench_die("transfer: %s: %s", dray_strerrorname(c.status),
					  c.message);
			in_flight--;
		}
	}
	bench_say("{\"seconds\": %.9f, \"cpu\": %.9f, \"ops\": %" PRIu64 ", \"bytes\": %" PRIu64
		  "}",
		  (double)(bench_ns() - begin) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9, started,
		  bytes);
}

static void one_trip(void)
{
	struct dray_completion c;
	uint64_t moved, id;
	int got;

	if (start(batch, &moved, &id))
		bench_die("submit: %s", dray_last_error(mine));
	while ((got = dray_next_completion(mine, &c)) == 0)
		if (advance() < 0)
			bench_die("the session was lost: %s", dray_last_error(mine));
	if (got < 0 || c.status)
		bench_die("transfer: %s", c.message);
}

static void trip(uint64_t count)
{
	static struct bench_samples samples;
	int64_t began, ended, since;

	if (!samples.v)
		bench_samples_init(&samples);
	/* reads the clock once for each trip: the end of one is the start of the next */
	began = since = bench_ns();
	for (uint64_t i = 0; i < count; i++) {
		one_trip();
		ended = bench_ns();
		bench_sample(&samples, (double)(ended - began));
		began = ended;
		if (resting && ended - since > TURN_NS) {
			usleep(REST_US);
			one_trip();
			began = since = bench_ns();
		}
	}
	bench_samples_say(&samples);
}

static void hold(uint64_t tell_at)
{
	uint64_t in_flight = 0, failed = 0, done = 0, bytes = 0, moved, id;
	int64_t first = 0, last = 0;
	bool going = true;
	char why[64] = "";
	struct dray_completion c;

	while (going || in_flight) {
		while (going && in_flight < depth) {
			int error = start(batch, &moved, &id);

			if (error && (error != -DRAY_E_BUSY || !in_flight))
				going = false; /* the library has already lost the remote */
			if (error)
				break;
			in_flight++;
		}
		if (!in_flight)
			break;
		if (advance() < 0)
			bench_die("the session was lost: %s", dray_last_error(mine));
		while (dray_next_completion(mine, &c) == 1) {
			in_flight--;
			bytes += c.bytes;
			if (!c.status) {
				done++;
				continue;
			}
			going = false;
			last = bench_ns();
			if (!failed++) {
				first = last;
				snprintf(why, sizeof(why), "%s", dray_strerrorname(c.status));
			}
		}
		if (tell_at && bytes >= tell_at) {
			bench_say("{\"moving\": %" PRIu64 "}", bytes);
			tell_at = 0;
		}
	}
	bench_say("{\"failed\": %" PRIu64 ", \"done\": %" PRIu64 ", \"first_ns\": %" PRId64
		  ", \"last_ns\": %" PRId64 ", \"why\": \"%s\"}",
		  failed, done, first, last, why);
}

static void introduce(const struct bench_memory *local, const struct bench_memory *remote)
{
	struct dray_token token;
	int64_t begin = bench_ns();
	dray_region theirs;

	transfer.local = bench_session_add(mine, local);
	theirs = bench_session_add(owner, remote);
	begin = bench_ns() - begin;
	token = bench_session_export(owner, theirs);
	transfer.remote = bench_session_import(mine, &token);
	bench_say("{\"transport\": \"%s\", \"populate\": %.6f}",
		  bench_session_transport(mine, transfer.remote), (double)begin / 1e9);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "owner", required_argument, NULL, 'o' },
		{ "local", required_argument, NULL, 'l' },
		{ "remote", required_argument, NULL, 'r' },
		{ "ops", required_argument, NULL, 'O' },
		{ "batch", required_argument, NULL, 'b' },
		{ "depth", required_argument, NULL, 'd' },
		{ "write", no_argument, NULL, 'w' },
		{ "latency-class", no_argument, NULL, 'L' },
		{ "no-ring", no_argument, NULL, 'R' },
		{ "no-spin", no_argument, NULL, 'S' },
		{ "poll", no_argument, NULL, 'p' },
		{ "rest", no_argument, NULL, 'e' },
		{ 0 },
	};
	struct bench_memory local = { 0 }, remote = { 0 };
	const char *socket = NULL, *owner_socket = NULL;
	unsigned flags = DRAY_OPTION_NO_RECONNECT;
	uint64_t number;
	char word[16];
	int option;

	transfer.direction = DRAY_DIRECTION_READ;
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
		case 'O':
			ops = bench_ops_map((int)bench_number(optarg));
			break;
		case 'b':
			batch = (unsigned)bench_number(optarg);
			break;
		case 'd':
			depth = (unsigned)bench_number(optarg);
			break;
		case 'w':
			transfer.direction = DRAY_DIRECTION_WRITE;
			break;
		case 'L':
			transfer.priority = DRAY_PRIORITY_LATENCY;
			break;
		case 'R':
			flags |= DRAY_OPTION_NO_RING;
			break;
		case 'S':
			flags |= DRAY_OPTION_NO_SPIN;
			break;
		case 'p':
			polling = true;
			break;
		case 'e':
			resting = true;
			break;
		default:
			return 2;
		}
	}
	if (!socket || !local.n || !remote.n || !ops.n || !batch || batch > DMSG_OPS_MAX ||
	    !depth || depth > DEPTH_MAX)
		bench_die("wrong usage; see the head of bench_client.c");
	bench_ops_check(ops, local.bytes, remote.bytes);
	mine = bench_session_open(socket, flags);
	owner = bench_session_open(owner_socket ? owner_socket : socket, flags);
	introduce(&local, &remote);
	while (bench_command(word, &number)) {
		if (!strcmp(word, "run"))
			run(number);
		else if (!strcmp(word, "trip"))
			trip(number);
		else if (!strcmp(word, "hold"))
			hold(number);
		else
			bench_die("no command %s", word);
	}
	dray_disconnect(mine);
	dray_disconnect(owner);
	return 0;
}
