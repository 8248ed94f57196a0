/* SPDX-License-Identifier: Apache-2.0 */
/* The verb and its options. */
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

/* Options that a --serve has no use for. */
static const enum ctl_option_id of_measuring[] = {
	CTL_OPTION_TOKEN,     CTL_OPTION_OWNER,    CTL_OPTION_SIZE,  CTL_OPTION_OPS,
	CTL_OPTION_BATCH,     CTL_OPTION_SESSIONS, CTL_OPTION_COUNT, CTL_OPTION_DURATION,
	CTL_OPTION_DIRECTION, CTL_OPTION_CLASS,    CTL_OPTION_HOW,   CTL_OPTION_CEILING,
	CTL_OPTION_ROUNDS,
};

/* --- options ------------------------------------------------------------------------------------ */

static int exclude(const struct ctl *c, enum ctl_option_id a, enum ctl_option_id b, const char *why,
		   struct ctl_err *reterr)
{
	if (!c->values[a] || !c->values[b])
		return 0;
	return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s and %s exclude each other%s",
			   ctl_options[a].name, ctl_options[b].name, why);
}

static int plan_exclusions(const struct ctl *c, struct ctl_err *reterr)
{
	int ret = 0;

	for (size_t i = 0; !ret && i < DRAY_ARRAY_SIZE(of_measuring); i++)
		ret = exclude(c, CTL_OPTION_SERVE, of_measuring[i],
			      ": the end that measures decides", reterr);
	ret = ret ? ret : exclude(c, CTL_OPTION_COUNT, CTL_OPTION_DURATION, "", reterr);
	ret = ret ? ret :
		    exclude(c, CTL_OPTION_TOKEN, CTL_OPTION_OWNER,
			    ": each says where the other end is", reterr);
	ret = ret ? ret :
		    exclude(c, CTL_OPTION_TOKEN, CTL_OPTION_CEILING,
			    ": a ceiling needs both ends on this machine, as with --owner", reterr);
	if (!ret && c->values[CTL_OPTION_ROUNDS] && !c->values[CTL_OPTION_CEILING])
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "--rounds goes with --ceiling");
	return ret;
}

static int shape_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int64_t size = 0, ops = 0, batch = 0, sessions = 0;
	int ret = ctl_option_size(c, CTL_OPTION_SIZE, 1, SIZE_MAX_BYTES, 1 << 20, &size, reterr);

	ret = ret ? ret : ctl_option_count(c, CTL_OPTION_OPS, 1, DRAY_OPS_MAX, 1, &ops, reterr);
	ret = ret ? ret : ctl_option_count(c, CTL_OPTION_BATCH, 1, BATCH_MAX, 8, &batch, reterr);
	ret = ret ? ret :
		    ctl_option_count(c, CTL_OPTION_SESSIONS, 1, BENCH_SESSIONS_MAX, 1, &sessions,
				     reterr);
	p->size = (uint64_t)size;
	p->ops = (uint64_t)ops;
	p->batch = (uint64_t)batch;
	p->sessions = (uint64_t)sessions;
	return ret;
}

/* No two transfers in flight may share a byte; and their lists must find room, or they are not in flight. */
static int memory_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	uint64_t room, all;
	int64_t memory;
	char text[32];

	if (__builtin_mul_overflow(p->size, p->ops * p->batch, &room) ||
	    __builtin_mul_overflow(room, p->sessions, &all) || all > SIZE_MAX_BYTES)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--size times --ops times --batch%s may be %s at most",
				   p->sessions > 1 ? " times --sessions" : "",
				   dray_size_show(SIZE_MAX_BYTES, text, sizeof(text)));
	if (bench_list_bytes(p) * p->batch > DMSG_ARENA_MAX)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--ops times --batch: a session has room for lists of %s, which "
				   "is a --batch of %llu here",
				   dray_size_show(DMSG_ARENA_MAX, text, sizeof(text)),
				   (unsigned long long)(DMSG_ARENA_MAX / bench_list_bytes(p)));
	if (ctl_option_size(c, CTL_OPTION_MEMORY, 4096, SIZE_MAX_BYTES,
			    (int64_t)dray_max(MEMORY_DEFAULT / p->sessions, room), &memory,
			    reterr) < 0)
		return -1;
	p->memory = (uint64_t)memory;
	if (p->memory < room && !c->values[CTL_OPTION_SERVE])
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--memory %s: --size times --ops times --batch needs %s",
				   c->values[CTL_OPTION_MEMORY],
				   dray_size_show((int64_t)room, text, sizeof(text)));
	return 0;
}

static int length_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int64_t count = 0, rounds = 0;
	char a[32];
	int ret = ctl_option_count(c, CTL_OPTION_COUNT, 1, INT64_MAX, 0, &count, reterr);

	ret = ret ? ret :
		    ctl_option_span(c, CTL_OPTION_DURATION, DRAY_NS_PER_MS, DURATION_MAX_NS,
				    count ? 0 : DURATION_DEFAULT_NS, &p->duration_ns, reterr);
	ret = ret ? ret :
		    ctl_option_count(c, CTL_OPTION_ROUNDS, 1, BENCH_ROUNDS_MAX,
				     c->values[CTL_OPTION_CEILING] ? ROUNDS_DEFAULT : 0, &rounds,
				     reterr);
	if (!ret && count && count < rounds)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--count %lld: each of --rounds %lld needs one at least",
				   (long long)count, (long long)rounds);
	if (!ret && !count && p->duration_ns < rounds * DRAY_NS_PER_MS)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--duration %s: each of --rounds %lld needs 1ms at least",
				   dray_duration_show(p->duration_ns, a, sizeof(a)),
				   (long long)rounds);
	p->count = (uint64_t)count;
	p->rounds = (uint64_t)rounds;
	return ret;
}

static int plan_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int direction = 0, priority = 0, wait = 0, ret;

	*p = (struct bench_plan){ .timeout_ns = c->timeout_ns,
				  .socket = c->values[CTL_OPTION_SOCKET] ?
						    c->values[CTL_OPTION_SOCKET] :
						    c->env->socket,
				  .owner = c->values[CTL_OPTION_OWNER],
				  .token = c->values[CTL_OPTION_TOKEN] };
	ret = plan_exclusions(c, reterr);
	ret = ret ? ret : shape_read(c, p, reterr);
	ret = ret ? ret : length_read(c, p, reterr);
	ret = ret ? ret :
		    ctl_option_word(c, CTL_OPTION_DIRECTION, bench_directions, &direction, reterr);
	ret = ret ? ret : ctl_option_word(c, CTL_OPTION_CLASS, bench_classes, &priority, reterr);
	ret = ret ? ret : ctl_option_word(c, CTL_OPTION_HOW, bench_waits, &wait, reterr);
	ret = ret ? ret : memory_read(c, p, reterr);
	p->direction = direction ? DRAY_DIRECTION_WRITE : DRAY_DIRECTION_READ;
	p->priority = priority ? DRAY_PRIORITY_LATENCY : DRAY_PRIORITY_BULK;
	p->wait = (enum bench_wait)wait;
	return ret;
}

/* --- the verb ----------------------------------------------------------------------------------- */

/* "-": whoever holds a token may use it, and a command line can be seen by everybody on the machine. */
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
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--token -: there is no token on standard input");
	(*ret)[strcspn(*ret, "\r\n")] = '\0';
	return 0;
}

static int measure(struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	dray_auto_free struct bench_result *result = calloc(1, sizeof(*result));
	dray_auto_free char *token = NULL;

	if (!result)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory");
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

int ctl_bench(struct ctl *c)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct bench_plan plan;
	int ret;

	ret = plan_read(c, &plan, &err);
	if (!ret)
		ret = c->values[CTL_OPTION_SERVE] ? bench_serve(c, &plan, &err) :
						    measure(c, &plan, &err);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
