/* SPDX-License-Identifier: Apache-2.0 */
/* The verb bench and its options. */
#include "ctl/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/data.h"

#define SIZE_MAX_BYTES (1ll << 40)
#define MEMORY_DEFAULT (256ull << 20) /* of all sessions */
#define DURATION_DEFAULT_NS (2 * DRAY_NS_PER_SEC)
#define DURATION_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)
#define BATCH_MAX DMSG_RING_ENTRIES_MAX
#define ROUNDS_DEFAULT 11

const char *const bench_directions[] = { "read", "write", NULL };
const char *const bench_classes[] = { "bulk", "latency", NULL };
const char *const bench_waits[] = { "adaptive", "spin", "sleep", NULL };

static int shape_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int64_t size, ops, batch, sessions;

	if (ctl_option_size(c, CTL_OPTION_SIZE, 1, SIZE_MAX_BYTES, 1 << 20, &size, reterr) < 0 ||
	    ctl_option_count(c, CTL_OPTION_OPS, 1, DRAY_OPS_MAX, 1, &ops, reterr) < 0 ||
	    ctl_option_count(c, CTL_OPTION_BATCH, 1, BATCH_MAX, 8, &batch, reterr) < 0 ||
	    ctl_option_count(c, CTL_OPTION_SESSIONS, 1, BENCH_SESSIONS_MAX, 1, &sessions, reterr) <
		    0)
		return -1;
	p->size = (uint64_t)size;
	p->ops = (uint64_t)ops;
	p->batch = (uint64_t)batch;
	p->sessions = (uint64_t)sessions;
	return 0;
}

/* Checks that transfers in flight share no byte, and that there is room for their lists of operations. */
static int memory_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	uint64_t room, all;
	int64_t memory;
	char text[32];

	if (__builtin_mul_overflow(p->size, p->ops * p->batch, &room) ||
	    __builtin_mul_overflow(room, p->sessions, &all) || all > SIZE_MAX_BYTES)
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"--size times --ops times --batch%s is too large; use at most %s",
			p->sessions > 1 ? " times --sessions" : "",
			dray_size_show(SIZE_MAX_BYTES, text, sizeof(text)));
	if (bench_list_bytes(p) * p->batch > DMSG_ARENA_MAX)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--ops times --batch is too large for the %s of lists of a "
				   "session; use --batch %llu or less",
				   dray_size_show(DMSG_ARENA_MAX, text, sizeof(text)),
				   (unsigned long long)(DMSG_ARENA_MAX / bench_list_bytes(p)));
	if (ctl_option_size(c, CTL_OPTION_MEMORY, 4096, SIZE_MAX_BYTES,
			    (int64_t)dray_max(MEMORY_DEFAULT / p->sessions, room), &memory,
			    reterr) < 0)
		return -1;
	p->memory = (uint64_t)memory;
	if (p->memory < room && !c->values[CTL_OPTION_SERVE])
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"--memory %s is not enough; --size times --ops times --batch needs %s",
			c->values[CTL_OPTION_MEMORY],
			dray_size_show((int64_t)room, text, sizeof(text)));
	return 0;
}

static int length_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int64_t count, rounds;
	char a[32];

	if (ctl_option_count(c, CTL_OPTION_COUNT, 1, INT64_MAX, 0, &count, reterr) < 0 ||
	    ctl_option_span(c, CTL_OPTION_DURATION, DRAY_NS_PER_MS, DURATION_MAX_NS,
			    count ? 0 : DURATION_DEFAULT_NS, &p->duration_ns, reterr) < 0 ||
	    ctl_option_count(c, CTL_OPTION_ROUNDS, 1, BENCH_ROUNDS_MAX,
			     c->values[CTL_OPTION_CEILING] ? ROUNDS_DEFAULT : 0, &rounds,
			     reterr) < 0)
		return -1;
	if (count && count < rounds)
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"--count %lld is not enough for --rounds %lld; each round needs 1",
			(long long)count, (long long)rounds);
	if (!count && p->duration_ns < rounds * DRAY_NS_PER_MS)
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"--duration %s is not enough for --rounds %lld; each round needs 1ms",
			dray_duration_show(p->duration_ns, a, sizeof(a)), (long long)rounds);
	p->count = (uint64_t)count;
	p->rounds = (uint64_t)rounds;
	return 0;
}

static int plan_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	const char *socket = c->values[CTL_OPTION_SOCKET];
	int direction, priority, wait;

	*p = (struct bench_plan){ .timeout_ns = c->timeout_ns,
				  .socket = socket ? socket : c->env->socket,
				  .owner = c->values[CTL_OPTION_OWNER],
				  .token = c->values[CTL_OPTION_TOKEN] };
	if (shape_read(c, p, reterr) < 0 || length_read(c, p, reterr) < 0 ||
	    ctl_option_word(c, CTL_OPTION_DIRECTION, bench_directions, &direction, reterr) < 0 ||
	    ctl_option_word(c, CTL_OPTION_CLASS, bench_classes, &priority, reterr) < 0 ||
	    ctl_option_word(c, CTL_OPTION_WAIT_METHOD, bench_waits, &wait, reterr) < 0)
		return -1;
	p->direction = direction ? DRAY_DIRECTION_WRITE : DRAY_DIRECTION_READ;
	p->priority = priority ? DRAY_PRIORITY_LATENCY : DRAY_PRIORITY_BULK;
	p->wait = (enum bench_wait)wait;
	return memory_read(c, p, reterr);
}

/* "-" keeps the token out of the command line, which everybody on the machine can see. */
static int token_read(const struct ctl *c, char **ret, struct ctl_err *reterr)
{
	FILE *f = fdopen(dup(c->env->in), "r");
	size_t cap = 0;
	ssize_t n = -1;

	if (f) {
		n = getline(ret, &cap, f);
		fclose(f);
	}
	if (n <= 0)
		return ctl_err_set(
			reterr, CTL_EXIT_USAGE,
			"--token -: standard input has no token; pipe the output of --serve");
	(*ret)[strcspn(*ret, "\r\n")] = '\0';
	return 0;
}

static int measure(struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	dray_auto_free struct bench_result *result = calloc(1, sizeof(*result));
	dray_auto_free char *token = NULL;

	if (!result)
		return ctl_no_memory(reterr);
	if (p->token && !strcmp(p->token, "-")) {
		if (token_read(c, &token, reterr) < 0)
			return -1;
		p->token = token;
	}
	if (bench_run(p, c->err, result, reterr) < 0)
		return -1;
	if (c->format == CTL_JSON)
		bench_json(p, result, c->out);
	else if (c->format == CTL_PLAIN)
		bench_plain(p, result, c->out);
	else
		bench_text(p, result, c->out);
	return 0;
}

int ctl_bench(struct ctl *c, struct ctl_err *reterr)
{
	struct bench_plan plan;

	if (plan_read(c, &plan, reterr) < 0)
		return -1;
	return c->values[CTL_OPTION_SERVE] ? bench_serve(c, &plan, reterr) :
					     measure(c, &plan, reterr);
}
