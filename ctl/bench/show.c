/* SPDX-License-Identifier: Apache-2.0 */
/* What came out, for programs and for people. */
#include <inttypes.h>

#include "ctl/bench/bench.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "schema/gen/data.h"

static const char *direction_name(const struct bench_plan *p)
{
	return bench_directions[p->direction == DRAY_DIRECTION_WRITE];
}

static const char *class_name(const struct bench_plan *p)
{
	return bench_classes[p->priority == DRAY_PRIORITY_LATENCY];
}

/* --- JSON --------------------------------------------------------------------------------------- */

static void latency_json(struct ctl_json *j, const struct ctl_histogram *h)
{
	ctl_json_object(j, "latency_ns");
	ctl_json_uint(j, "min", h->min);
	ctl_json_uint(j, "mean", h->count ? h->sum / h->count : 0);
	ctl_json_uint(j, "p50", ctl_histogram_quantile(h, 0.5));
	ctl_json_uint(j, "p99", ctl_histogram_quantile(h, 0.99));
	ctl_json_uint(j, "p999", ctl_histogram_quantile(h, 0.999));
	ctl_json_uint(j, "max", h->max);
	ctl_json_end(j);
}

static void ceiling_json(struct ctl_json *j, const struct bench_ceiling_result *c)
{
	ctl_json_object(j, NULL);
	ctl_json_string(j, "name", c->name);
	ctl_json_string(j, "of", c->latency ? "latency_ns" : "bytes_per_second");
	ctl_json_real(j, "dray", c->dray);
	ctl_json_real(j, "ceiling", c->ceiling);
	ctl_json_real(j, "ratio", c->ratio);
	ctl_json_real(j, "ratio_min", c->ratio_min);
	ctl_json_real(j, "ratio_max", c->ratio_max);
	ctl_json_end(j);
}

void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_string(&j, "transport", dmsg_transport_name(r->transport));
	ctl_json_string(&j, "direction", direction_name(p));
	ctl_json_string(&j, "class", class_name(p));
	ctl_json_uint(&j, "size", p->size);
	ctl_json_uint(&j, "ops", p->ops);
	ctl_json_uint(&j, "batch", p->batch);
	ctl_json_uint(&j, "sessions", p->sessions);
	ctl_json_string(&j, "wait", bench_waits[p->wait]);
	ctl_json_uint(&j, "transfers", r->transfers);
	ctl_json_uint(&j, "operations", r->transfers * p->ops);
	ctl_json_uint(&j, "bytes", r->bytes);
	ctl_json_uint(&j, "duration_ns", (uint64_t)r->duration_ns);
	ctl_json_real(&j, "bytes_per_second", bench_per_second(r->bytes, r->duration_ns));
	ctl_json_real(&j, "operations_per_second",
		      bench_per_second(r->transfers * p->ops, r->duration_ns));
	ctl_json_real(&j, "fairness", r->fairness);
	latency_json(&j, &r->latency);
	ctl_json_uint(&j, "rounds", p->rounds);
	ctl_json_array(&j, "ceilings");
	for (unsigned i = 0; i < r->n_ceilings; i++)
		ceiling_json(&j, &r->ceilings[i]);
	ctl_json_end(&j);
	ctl_json_end(&j);
}

/* --- plain -------------------------------------------------------------------------------------- */

void bench_plain(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	fprintf(f,
		"%s\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
		"\t%" PRId64,
		dmsg_transport_name(r->transport), direction_name(p), class_name(p), p->size,
		p->ops, p->batch, r->transfers, r->bytes, r->duration_ns);
	fprintf(f, "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, ctl_histogram_quantile(&r->latency, 0.5),
		ctl_histogram_quantile(&r->latency, 0.99),
		ctl_histogram_quantile(&r->latency, 0.999));
	fprintf(f, "\t%" PRIu64 "\t%s\t%.4f", p->sessions, bench_waits[p->wait], r->fairness);
	for (unsigned i = 0; i < r->n_ceilings; i++)
		fprintf(f, "\t%s\t%.0f\t%.0f\t%.4f", r->ceilings[i].name, r->ceilings[i].dray,
			r->ceilings[i].ceiling, r->ceilings[i].ratio);
	fputc('\n', f);
}

/* --- text --------------------------------------------------------------------------------------- */

static void ceiling_text(const struct bench_ceiling_result *c, uint64_t rounds, FILE *f)
{
	char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES];

	if (c->latency)
		fprintf(f, "  ceiling     %s %s, dray p50 %s: %.3g times that", c->text,
			ctl_show_span((uint64_t)c->ceiling, a), ctl_show_span((uint64_t)c->dray, b),
			c->ratio);
	else
		fprintf(f, "  ceiling     %s %s, dray %s: %.3g of that", c->text,
			ctl_show_rate(c->ceiling, a), ctl_show_rate(c->dray, b), c->ratio);
	fprintf(f, " (%.3g to %.3g), medians of %" PRIu64 " rounds\n", c->ratio_min, c->ratio_max,
		rounds);
}

void bench_text(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES], c[CTL_HUMAN_BYTES], d[CTL_HUMAN_BYTES];

	fprintf(f, "%s, %s, %s: transfers of %" PRIu64 " x %s, %" PRIu64 " in flight",
		dmsg_transport_name(r->transport), direction_name(p), class_name(p), p->ops,
		ctl_show_size(p->size, a), p->batch);
	if (p->sessions > 1)
		fprintf(f, " in each of %" PRIu64 " sessions", p->sessions);
	fprintf(f, ", for %s\n", ctl_show_span((uint64_t)r->duration_ns, b));
	fprintf(f, "  throughput  %s, %s operations/s, %s transfers\n",
		ctl_show_rate(bench_per_second(r->bytes, r->duration_ns), a),
		ctl_show_count((uint64_t)bench_per_second(r->transfers * p->ops, r->duration_ns),
			       b),
		ctl_show_count(r->transfers, c));
	fprintf(f, "  latency     p50 %s, p99 %s, p99.9 %s, max %s\n",
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.5), a),
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.99), b),
		ctl_show_span(ctl_histogram_quantile(&r->latency, 0.999), c),
		ctl_show_span(r->latency.max, d));
	if (p->sessions > 1)
		fprintf(f, "  fairness    %.3f, Jain's index of bytes by session\n", r->fairness);
	for (unsigned i = 0; i < r->n_ceilings; i++)
		ceiling_text(&r->ceilings[i], p->rounds, f);
}
