/* SPDX-License-Identifier: Apache-2.0 */
/* The verb bench and its options. */
#include "ctl/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/data.h"

#define MEMORY_DEFAULT (256ull << 20) /* of all sessions */

/* Checks that transfers in flight share no byte, and that there is room for their lists of operations. */
static int memory_read(struct ctl *c, struct bench_plan *p)
{
	uint64_t most = (uint64_t)ctl_options[CTL_OPTION_SIZE].max, room, all;
	char text[32];

	if (__builtin_mul_overflow(p->size, p->ops * p->batch, &room) ||
	    __builtin_mul_overflow(room, p->sessions, &all) || all > most)
		return ctl_misuse(c,
				  "--size times --ops times --batch%s is too large; use at most %s",
				  p->sessions > 1 ? " times --sessions" : "",
				  dray_size_show((int64_t)most, text, sizeof(text)));
	if (bench_list_bytes(p) * p->batch > DMSG_ARENA_MAX)
		return ctl_misuse(c,
				  "--ops times --batch is too large for the %s of lists of a "
				  "session; use --batch %llu or less",
				  dray_size_show(DMSG_ARENA_MAX, text, sizeof(text)),
				  (unsigned long long)(DMSG_ARENA_MAX / bench_list_bytes(p)));
	if (!p->memory)
		p->memory = dray_max(MEMORY_DEFAULT / p->sessions, room);
	if (p->memory < room && !c->values[CTL_OPTION_SERVE])
		return ctl_misuse(
			c, "--memory %s is not enough; --size times --ops times --batch needs %s",
			c->values[CTL_OPTION_MEMORY],
			dray_size_show((int64_t)room, text, sizeof(text)));
	return 0;
}

static int length_check(const struct bench_plan *p)
{
	char a[32];

	if (p->count && p->count < p->rounds)
		return ctl_misuse(
			p->ctl, "--count %llu is not enough for --rounds %llu; each round needs 1",
			(unsigned long long)p->count, (unsigned long long)p->rounds);
	if (!p->count && p->duration_ns < (int64_t)p->rounds * DRAY_NS_PER_MS)
		return ctl_misuse(
			p->ctl,
			"--duration %s is not enough for --rounds %llu; each round needs 1ms",
			dray_duration_show(p->duration_ns, a, sizeof(a)),
			(unsigned long long)p->rounds);
	return 0;
}

static int gpu_check(const struct bench_plan *p)
{
	bool serves = p->ctl->values[CTL_OPTION_SERVE];

	if (p->far_gpu && (p->token || serves))
		return ctl_misuse(p->ctl, "--far-gpu is for an end that is here; use --gpu with "
					  "--serve there");
	if (p->load && (serves || (!p->gpu && !p->far_gpu)))
		return ctl_misuse(p->ctl,
				  "--load needs --gpu or --far-gpu, and is not for --serve");
	if (p->rounds && (p->gpu || p->far_gpu))
		return ctl_misuse(p->ctl, "--ceiling is for host memory; tests/gpu/run --bench has "
					  "the ceilings of GPU memory");
	return 0;
}

static uint64_t number(const struct ctl *c, enum ctl_option_id id)
{
	return (uint64_t)c->numbers[id];
}

static int plan_read(struct ctl *c, struct bench_plan *p)
{
	const char *socket = c->values[CTL_OPTION_SOCKET];

	*p = (struct bench_plan){
		.ctl = c,
		.timeout_ns = c->numbers[CTL_OPTION_TIMEOUT],
		.socket = socket ? socket : c->env->socket,
		.owner = c->values[CTL_OPTION_OWNER],
		.token = c->values[CTL_OPTION_TOKEN],
		.size = number(c, CTL_OPTION_SIZE),
		.ops = number(c, CTL_OPTION_OPS),
		.batch = number(c, CTL_OPTION_BATCH),
		.sessions = number(c, CTL_OPTION_SESSIONS),
		.count = number(c, CTL_OPTION_COUNT),
		.duration_ns = c->numbers[CTL_OPTION_COUNT] ? 0 : c->numbers[CTL_OPTION_DURATION],
		.memory = number(c, CTL_OPTION_MEMORY),
		.rounds = c->values[CTL_OPTION_CEILING] ? number(c, CTL_OPTION_ROUNDS) : 0,
		.wait = (enum ctl_wait_method)c->numbers[CTL_OPTION_WAIT_METHOD],
		.direction = c->numbers[CTL_OPTION_DIRECTION] == CTL_DIRECTION_WRITE ?
				     DRAY_DIRECTION_WRITE :
				     DRAY_DIRECTION_READ,
		.priority = c->numbers[CTL_OPTION_CLASS] == CTL_CLASS_LATENCY ?
				    DRAY_PRIORITY_LATENCY :
				    DRAY_PRIORITY_BULK,
		.gpu = c->values[CTL_OPTION_GPU],
		.far_gpu = c->values[CTL_OPTION_FAR_GPU],
		.load = c->numbers[CTL_OPTION_LOAD] != CTL_LOAD_NONE,
		.load_kind = c->numbers[CTL_OPTION_LOAD] == CTL_LOAD_STEPS ? BENCH_LOAD_STEPS :
									     BENCH_LOAD_STEADY,
	};
	return length_check(p) < 0 || gpu_check(p) < 0 ? -1 : memory_read(c, p);
}

/* "-" keeps the token out of the command line, which every user of the machine can see. */
static int token_read(struct ctl *c, char **ret)
{
	FILE *f = fdopen(dup(c->env->in), "r");
	size_t cap = 0;
	ssize_t n = -1;

	if (f) {
		n = getline(ret, &cap, f);
		fclose(f);
	}
	if (n <= 0)
		return ctl_misuse(
			c, "--token -: standard input has no token; pipe the output of --serve");
	(*ret)[strcspn(*ret, "\r\n")] = '\0';
	return 0;
}

static int measure(struct ctl *c, struct bench_plan *p)
{
	dray_auto_free struct bench_result *result = calloc(1, sizeof(*result));
	dray_auto_free char *token = NULL;

	if (!result)
		return ctl_no_memory(c);
	if (p->token && !strcmp(p->token, "-")) {
		if (token_read(c, &token) < 0)
			return -1;
		p->token = token;
	}
	if (bench_run(p, result) < 0)
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
	struct bench_plan plan;
	int ret = plan_read(c, &plan);

	if (!ret && (plan.gpu || plan.far_gpu))
		ret = bench_gpus_open(&plan.gpus, c, c->values[CTL_OPTION_GPU_PLUGIN], plan.gpu,
				      plan.far_gpu);
	if (!ret)
		ret = c->values[CTL_OPTION_SERVE] ? bench_serve(c, &plan) : measure(c, &plan);
	bench_gpus_close(plan.gpus);
	return ret;
}
