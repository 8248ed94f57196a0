/* SPDX-License-Identifier: Apache-2.0 */
/* The verb: its options, and how the result is shown. */
#include "ctl/bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/args.h"
#include "ctl/human.h"
#include "ctl/json.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/data.h"

#define SIZE_MAX_BYTES (1ll << 40)
#define MEMORY_DEFAULT (256ll << 20)
#define DURATION_DEFAULT_NS (2 * DRAY_NS_PER_SEC)
#define DURATION_MAX_NS (24 * 3600 * DRAY_NS_PER_SEC)
#define BATCH_MAX 4096

static const char *const directions[] = { "read", "write", NULL };
static const char *const classes[] = { "bulk", "latency", NULL };

static int plan_exclusions(const struct ctl *c, struct ctl_err *reterr)
{
	static const enum ctl_option_id of_measuring[] = {
		CTL_OPTION_TOKEN, CTL_OPTION_SIZE,     CTL_OPTION_OPS,       CTL_OPTION_BATCH,
		CTL_OPTION_COUNT, CTL_OPTION_DURATION, CTL_OPTION_DIRECTION, CTL_OPTION_CLASS,
	};

	for (size_t i = 0; c->values[CTL_OPTION_SERVE] && i < DRAY_ARRAY_SIZE(of_measuring); i++)
		if (c->values[of_measuring[i]])
			return ctl_err_set(reterr, CTL_EXIT_USAGE,
					   "--serve and %s exclude each other: the end that "
					   "measures decides",
					   ctl_options[of_measuring[i]].name);
	if (c->values[CTL_OPTION_COUNT] && c->values[CTL_OPTION_DURATION])
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--count and --duration exclude each other");
	return 0;
}

static int plan_read(const struct ctl *c, struct bench_plan *p, struct ctl_err *reterr)
{
	int64_t size = 0, ops = 0, batch = 0, count = 0, memory, room;
	int direction = 0, priority = 0, ret;
	char text[32];

	*p = (struct bench_plan){ .timeout_ns = c->timeout_ns,
				  .socket = c->values[CTL_OPTION_SOCKET] ?
						    c->values[CTL_OPTION_SOCKET] :
						    c->env->socket,
				  .token = c->values[CTL_OPTION_TOKEN] };
	ret = plan_exclusions(c, reterr);
	ret = ret ? ret :
		    ctl_option_size(c, CTL_OPTION_SIZE, 1, SIZE_MAX_BYTES, 1 << 20, &size, reterr);
	ret = ret ? ret : ctl_option_count(c, CTL_OPTION_OPS, 1, DRAY_OPS_MAX, 1, &ops, reterr);
	ret = ret ? ret : ctl_option_count(c, CTL_OPTION_BATCH, 1, BATCH_MAX, 8, &batch, reterr);
	ret = ret ? ret : ctl_option_count(c, CTL_OPTION_COUNT, 1, INT64_MAX, 0, &count, reterr);
	ret = ret ? ret :
		    ctl_option_span(c, CTL_OPTION_DURATION, DRAY_NS_PER_MS, DURATION_MAX_NS,
				    count ? 0 : DURATION_DEFAULT_NS, &p->duration_ns, reterr);
	ret = ret ? ret : ctl_option_word(c, CTL_OPTION_DIRECTION, directions, &direction, reterr);
	ret = ret ? ret : ctl_option_word(c, CTL_OPTION_CLASS, classes, &priority, reterr);
	if (ret)
		return ret;
	/* no two transfers in flight may share a byte */
	if (__builtin_mul_overflow(size, ops * batch, &room) || room > SIZE_MAX_BYTES)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--size times --ops times --batch may be %s at most",
				   dray_size_show(SIZE_MAX_BYTES, text, sizeof(text)));
	ret = ctl_option_size(c, CTL_OPTION_MEMORY, 4096, SIZE_MAX_BYTES,
			      dray_max((int64_t)MEMORY_DEFAULT, room), &memory, reterr);
	if (!ret && memory < room && !c->values[CTL_OPTION_SERVE])
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "--memory %s: --size times --ops times --batch needs %s",
				   c->values[CTL_OPTION_MEMORY],
				   dray_size_show(room, text, sizeof(text)));
	p->size = (uint64_t)size;
	p->ops = (uint64_t)ops;
	p->batch = (uint64_t)batch;
	p->count = (uint64_t)count;
	p->memory = (uint64_t)memory;
	p->direction = direction ? DRAY_DIRECTION_WRITE : DRAY_DIRECTION_READ;
	p->priority = priority ? DRAY_PRIORITY_LATENCY : DRAY_PRIORITY_BULK;
	return ret;
}

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

static double per_second(uint64_t n, int64_t ns)
{
	return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_string(&j, "transport", dmsg_transport_name(r->transport));
	ctl_json_string(&j, "direction", directions[p->direction == DRAY_DIRECTION_WRITE]);
	ctl_json_string(&j, "class", classes[p->priority == DRAY_PRIORITY_LATENCY]);
	ctl_json_uint(&j, "size", p->size);
	ctl_json_uint(&j, "ops", p->ops);
	ctl_json_uint(&j, "batch", p->batch);
	ctl_json_uint(&j, "transfers", r->transfers);
	ctl_json_uint(&j, "operations", r->transfers * p->ops);
	ctl_json_uint(&j, "bytes", r->bytes);
	ctl_json_uint(&j, "duration_ns", (uint64_t)r->duration_ns);
	ctl_json_real(&j, "bytes_per_second", per_second(r->bytes, r->duration_ns));
	ctl_json_real(&j, "operations_per_second",
		      per_second(r->transfers * p->ops, r->duration_ns));
	ctl_json_object(&j, "latency_ns");
	ctl_json_uint(&j, "min", r->latency.min);
	ctl_json_uint(&j, "mean", r->latency.count ? r->latency.sum / r->latency.count : 0);
	ctl_json_uint(&j, "p50", ctl_histogram_quantile(&r->latency, 0.5));
	ctl_json_uint(&j, "p99", ctl_histogram_quantile(&r->latency, 0.99));
	ctl_json_uint(&j, "p999", ctl_histogram_quantile(&r->latency, 0.999));
	ctl_json_uint(&j, "max", r->latency.max);
	ctl_json_end(&j);
	ctl_json_end(&j);
}

/* Frozen: columns are added at the end. */
static void plain_print(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	fprintf(f,
		"%s\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
		"\t%" PRId64,
		dmsg_transport_name(r->transport), directions[p->direction == DRAY_DIRECTION_WRITE],
		classes[p->priority == DRAY_PRIORITY_LATENCY], p->size, p->ops, p->batch,
		r->transfers, r->bytes, r->duration_ns);
	fprintf(f, "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n",
		ctl_histogram_quantile(&r->latency, 0.5), ctl_histogram_quantile(&r->latency, 0.99),
		ctl_histogram_quantile(&r->latency, 0.999));
}

static void text_print(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES], c[CTL_HUMAN_BYTES], d[CTL_HUMAN_BYTES];

	fprintf(f, "%s, %s, %s: transfers of %" PRIu64 " x %s, %" PRIu64 " in flight, for %s\n",
		dmsg_transport_name(r->transport), directions[p->direction == DRAY_DIRECTION_WRITE],
		classes[p->priority == DRAY_PRIORITY_LATENCY], p->ops, ctl_show_size(p->size, a),
		p->batch, ctl_show_span((uint64_t)r->duration_ns, b));
	fprintf(f, "  throughput  %s, %s operations/s, %s transfers\n",
		ctl_show_rate(per_second(r->bytes, r->duration_ns), a),
		ctl_show_count((uint64_t)per_second(r->transfers * p->ops, r->duration_ns), b),
		ctl_show_count(r->transfers, c));
	fprintf(f, "  latency     p50 %s, p99 %s, p99.9 %s, max %s\n",
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.5), a),
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.99), b),
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.999), c),
		ctl_show_span(r->latency.max, d));
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
	if (bench_run(p, result, reterr) < 0)
		return -1;
	if (c->format == CTL_JSON)
		bench_json(p, result, c->out);
	else if (c->format == CTL_PLAIN)
		plain_print(p, result, c->out);
	else
		text_print(p, result, c->out);
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
