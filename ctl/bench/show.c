/* SPDX-License-Identifier: Apache-2.0 */
/* The results, for programs and for people. */
#include <inttypes.h>

#include "ctl/bench/bench.h"
#include "ctl/render/human.h"
#include "ctl/render/json.h"
#include "schema/gen/data.h"

void bench_json(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	const struct ctl_histogram *h = &r->latency;
	struct ctl_json j = CTL_JSON(f);

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_TEXT("transport", dmsg_transport_name(r->transport)),
		     J_TEXT("direction", dmsg_direction_name(p->direction)),
		     J_TEXT("class", dmsg_class_name(p->priority)), J_UINT("size", p->size),
		     J_UINT("ops", p->ops), J_UINT("batch", p->batch),
		     J_UINT("sessions", p->sessions),
		     J_TEXT("wait", ctl_options[CTL_OPTION_WAIT_METHOD].words[p->wait]),
		     J_UINT("transfers", r->transfers), J_UINT("operations", r->transfers * p->ops),
		     J_UINT("bytes", r->bytes), J_UINT("duration_ns", (uint64_t)r->duration_ns),
		     J_REAL("bytes_per_second", bench_per_second(r->bytes, r->duration_ns)),
		     J_REAL("operations_per_second",
			    bench_per_second(r->transfers * p->ops, r->duration_ns)),
		     J_REAL("fairness", r->fairness));
	ctl_json_record(&j, "latency_ns", J_UINT("min", h->min),
			J_UINT("mean", h->count ? h->sum / h->count : 0),
			J_UINT("p50", ctl_histogram_quantile(h, 0.5)),
			J_UINT("p99", ctl_histogram_quantile(h, 0.99)),
			J_UINT("p999", ctl_histogram_quantile(h, 0.999)), J_UINT("max", h->max));
	ctl_json_add(&j, J_UINT("rounds", p->rounds));
	ctl_json_array(&j, "ceilings");
	for (unsigned i = 0; i < r->n_ceilings; i++) {
		const struct bench_ceiling_result *c = &r->ceilings[i];

		ctl_json_record(&j, NULL, J_TEXT("name", c->name),
				J_TEXT("of", c->latency ? "latency_ns" : "bytes_per_second"),
				J_REAL("dray", c->dray), J_REAL("ceiling", c->ceiling),
				J_REAL("ratio", c->ratio), J_REAL("ratio_min", c->ratio_min),
				J_REAL("ratio_max", c->ratio_max));
	}
	ctl_json_end(&j);
	ctl_json_array(&j, "loads");
	for (unsigned i = 0; i < r->n_loads; i++) {
		const struct bench_load_result *l = &r->loads[i];

		ctl_json_record(&j, NULL, J_TEXT("gpu", l->gpu),
				J_REAL("steps_per_second_alone", l->alone),
				J_REAL("steps_per_second", l->beside),
				J_REAL("slowdown", l->slowdown),
				J_REAL("lost_ns_per_gb", l->lost_ns_per_gb));
	}
	ctl_json_end(&j);
	ctl_json_end(&j);
}

void bench_plain(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	fprintf(f,
		"%s\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
		"\t%" PRId64,
		dmsg_transport_name(r->transport), dmsg_direction_name(p->direction),
		dmsg_class_name(p->priority), p->size, p->ops, p->batch, r->transfers, r->bytes,
		r->duration_ns);
	fprintf(f, "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, ctl_histogram_quantile(&r->latency, 0.5),
		ctl_histogram_quantile(&r->latency, 0.99),
		ctl_histogram_quantile(&r->latency, 0.999));
	fprintf(f, "\t%" PRIu64 "\t%s\t%.4f", p->sessions,
		ctl_options[CTL_OPTION_WAIT_METHOD].words[p->wait], r->fairness);
	for (unsigned i = 0; i < r->n_ceilings; i++)
		fprintf(f, "\t%s\t%.0f\t%.0f\t%.4f", r->ceilings[i].name, r->ceilings[i].dray,
			r->ceilings[i].ceiling, r->ceilings[i].ratio);
	for (unsigned i = 0; i < r->n_loads; i++)
		fprintf(f, "\t%s\t%.4f\t%.4f", r->loads[i].gpu, r->loads[i].slowdown,
			r->loads[i].lost_ns_per_gb);
	fputc('\n', f);
}

static void ceiling_text(const struct bench_ceiling_result *c, uint64_t rounds, FILE *f)
{
	if (c->latency)
		fprintf(f, "  ceiling     %s %s, dray p50 %s: %.3g times that", c->text,
			ctl_span((uint64_t)c->ceiling), ctl_span((uint64_t)c->dray), c->ratio);
	else
		fprintf(f, "  ceiling     %s %s, dray %s: %.3g of that", c->text,
			ctl_rate(c->ceiling), ctl_rate(c->dray), c->ratio);
	fprintf(f, " (%.3g to %.3g), medians of %" PRIu64 " rounds\n", c->ratio_min, c->ratio_max,
		rounds);
}

void bench_text(const struct bench_plan *p, const struct bench_result *r, FILE *f)
{
	fprintf(f, "%s, %s, %s: transfers of %" PRIu64 " x %s, %" PRIu64 " in flight",
		dmsg_transport_name(r->transport), dmsg_direction_name(p->direction),
		dmsg_class_name(p->priority), p->ops, ctl_size(p->size), p->batch);
	if (p->sessions > 1)
		fprintf(f, " in each of %" PRIu64 " sessions", p->sessions);
	fprintf(f, ", for %s\n", ctl_span((uint64_t)r->duration_ns));
	fprintf(f, "  throughput  %s, %s operations/s, %s transfers\n",
		ctl_rate(bench_per_second(r->bytes, r->duration_ns)),
		ctl_count((uint64_t)bench_per_second(r->transfers * p->ops, r->duration_ns)),
		ctl_count(r->transfers));
	fprintf(f, "  latency     p50 %s, p99 %s, p99.9 %s, max %s\n",
		ctl_span(ctl_histogram_quantile(&r->latency, 0.5)),
		ctl_span(ctl_histogram_quantile(&r->latency, 0.99)),
		ctl_span(ctl_histogram_quantile(&r->latency, 0.999)), ctl_span(r->latency.max));
	if (!p->ctl->values[CTL_OPTION_TOKEN])
		fprintf(f,
			"  verified    the bytes of the first transfer, compared at both ends\n");
	if (p->sessions > 1)
		fprintf(f, "  fairness    %.3f, Jain's index of bytes by session\n", r->fairness);
	for (unsigned i = 0; i < r->n_ceilings; i++)
		ceiling_text(&r->ceilings[i], p->rounds, f);
	for (unsigned i = 0; i < r->n_loads; i++)
		fprintf(f,
			"  load        %s: its time x%.3f beside the transfers, %.2f ms lost for each "
			"GB\n",
			r->loads[i].gpu, r->loads[i].slowdown, r->loads[i].lost_ns_per_gb / 1e6);
}
