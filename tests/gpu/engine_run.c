/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of the engine: a number of operations, one transfer at a time, or until one fails. */
#include "schema/gen/data.h"
#include "tests/gpu/engine.h"

#include <poll.h>

#define DEPTH_MAX 4096u

/* Transfers over a list of operations, which is used as a circle. */
struct work {
	struct dray_transfer t;
	struct bench_ops ops;
	size_t at;
	uint64_t batch;
	uint64_t bytes;     /* of transfers that ended ok */
	unsigned transport; /* of the last transfer */
};

static bool work_open(struct engine *e, struct work *w, char **argv, bool latency)
{
	struct region *r = engine_region(e, argv[0]);

	*w = (struct work){ 0 };
	if (!r || !engine_ops(e, argv[3], &w->ops))
		return false;
	w->t.local = r->id;
	w->t.remote.id = bench_number(argv[1]);
	w->t.direction = !strcmp(argv[2], "write") ? DRAY_DIRECTION_WRITE : DRAY_DIRECTION_READ;
	w->t.priority = latency ? DRAY_PRIORITY_LATENCY : DRAY_PRIORITY_BULK;
	return true;
}

/* Starts the next transfer, of at most limit operations. 0, or a negated error. */
static int work_start(struct engine *e, struct work *w, uint64_t limit)
{
	size_t left = w->ops.n - w->at, n = w->batch < left ? w->batch : left;
	int error;

	n = n < limit ? n : limit;
	w->t.ops = (const struct dray_op *)(const void *)(w->ops.v + w->at);
	w->t.count = n;
	error = dray_submit(e->d, &w->t, NULL);
	if (error)
		return error;
	w->at = (w->at + n) % w->ops.n;
	return 0;
}

static void advance(struct engine *e)
{
	if (dray_process(e->d, -1) < 0)
		bench_die("the session was lost: %s", dray_last_error(e->d));
}

/* Takes all completions. False, with e->why: a transfer failed. */
static bool reap(struct engine *e, struct work *w, uint64_t *in_flight)
{
	struct dray_completion c;
	bool ok = true;

	while (dray_next_completion(e->d, &c) == 1) {
		(*in_flight)--;
		w->transport = c.transport;
		w->bytes += c.bytes;
		if (c.status && ok)
			ok = engine_ended(e, &c);
	}
	return ok;
}

/* True if the next command can be read; there is at most one. */
static bool told_to_stop(void)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&input, 1, 0) > 0;
}

static bool run_all(struct engine *e, struct work *w, uint64_t wanted, uint64_t depth)
{
	uint64_t started = 0, in_flight = 0;
	bool ok = true, endless = !wanted;

	if (endless)
		wanted = UINT64_MAX;
	while (in_flight || (ok && started < wanted)) {
		if (endless && told_to_stop())
			wanted = started;
		while (ok && started < wanted && in_flight < depth) {
			int error = work_start(e, w, wanted - started);

			if (error == -DRAY_E_BUSY && in_flight)
				break;
			if (error) {
				ok = engine_refused(e, "submit", error);
				break;
			}
			started += w->t.count;
			in_flight++;
		}
		if (!in_flight)
			break;
		advance(e);
		ok = reap(e, w, &in_flight) && ok;
	}
	return ok;
}

bool engine_run(struct engine *e, char **argv, unsigned argc)
{
	struct work w;
	int64_t begin, cpu;
	uint64_t depth;
	bool ok;

	if (argc < 7)
		return engine_fail(e, "run REGION REMOTE read|write OPS TOTAL BATCH DEPTH");
	if (!work_open(e, &w, argv, argc > 7))
		return false;
	w.batch = bench_number(argv[5]);
	depth = bench_number(argv[6]);
	if (!w.batch || w.batch > DMSG_OPS_MAX || !depth || depth > DEPTH_MAX) {
		engine_ops_close(w.ops);
		return engine_fail(e, "batches are 1 to %d operations, depths 1 to %u",
				   DMSG_OPS_MAX, DEPTH_MAX);
	}
	begin = bench_ns();
	cpu = bench_cpu_ns();
	ok = run_all(e, &w, bench_number(argv[4]), depth);
	engine_ops_close(w.ops);
	if (ok)
		bench_say("{\"seconds\": %.9f, \"cpu\": %.9f, \"bytes\": %" PRIu64
			  ", \"transport\": \"%s\"}",
			  (double)(bench_ns() - begin) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9,
			  w.bytes, engine_transport(w.transport));
	return ok;
}

bool engine_trip(struct engine *e, char **argv, unsigned argc)
{
	static struct bench_samples samples;
	struct work w;
	uint64_t count;
	bool ok = true;

	if (argc < 5)
		return engine_fail(e, "trip REGION REMOTE read|write OPS COUNT");
	if (!work_open(e, &w, argv, argc > 5))
		return false;
	if (!samples.v)
		bench_samples_init(&samples);
	w.batch = 1;
	count = bench_number(argv[4]);
	for (uint64_t i = 0; i < count && ok; i++) {
		int64_t began = bench_ns();
		uint64_t in_flight = 1;
		int error = work_start(e, &w, 1);

		if (error) {
			ok = engine_refused(e, "submit", error);
			break;
		}
		for (;;) {
			ok = reap(e, &w, &in_flight);
			if (!in_flight)
				break;
			advance(e);
		}
		bench_sample(&samples, (double)(bench_ns() - began));
	}
	engine_ops_close(w.ops);
	if (ok)
		bench_samples_say(&samples);
	samples.n = 0;
	return ok;
}

bool engine_hold(struct engine *e, char **argv, unsigned argc)
{
	uint64_t in_flight = 0, failed = 0, done = 0, bytes = 0, depth, tell_at;
	struct dray_completion c;
	int64_t last = 0;
	bool going = true;
	struct work w;

	if (argc != 7)
		return engine_fail(e, "hold REGION REMOTE read|write OPS BATCH DEPTH TELL_AT");
	if (!work_open(e, &w, argv, false))
		return false;
	w.batch = bench_number(argv[4]);
	depth = bench_number(argv[5]);
	tell_at = bench_number(argv[6]);
	while (going || in_flight) {
		while (going && in_flight < depth) {
			int error = work_start(e, &w, w.batch);

			if (error && (error != -DRAY_E_BUSY || !in_flight))
				going = false; /* the library has already lost the remote */
			if (error)
				break;
			in_flight++;
		}
		if (!in_flight)
			break;
		advance(e);
		while (dray_next_completion(e->d, &c) == 1) {
			in_flight--;
			bytes += c.bytes;
			done += !c.status;
			if (!c.status)
				continue;
			going = false;
			last = bench_ns();
			if (!failed++)
				engine_ended(e, &c);
		}
		if (tell_at && bytes >= tell_at) {
			bench_say("{\"moving\": %" PRIu64 "}", bytes);
			tell_at = 0;
		}
	}
	engine_ops_close(w.ops);
	bench_say("{\"failed\": %" PRIu64 ", \"done\": %" PRIu64 ", \"last_ns\": %" PRId64
		  ", \"code\": \"%s\"}",
		  failed, done, last, e->code);
	e->code[0] = 0;
	return true;
}
