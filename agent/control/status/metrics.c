/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/cleanup.h"

struct metrics_text {
	FILE *f;
	const struct dray_family_info *family; /* of the current samples */
};

static const char *const type_names[] = {
	[DRAY_METRIC_TYPE_COUNTER] = "counter",
	[DRAY_METRIC_TYPE_GAUGE] = "gauge",
	[DRAY_METRIC_TYPE_HISTOGRAM] = "histogram",
};

static void head(FILE *f, const char *name, const char *help, enum dray_metric_type type)
{
	fprintf(f, "# HELP %s ", name);
	for (; *help; help++)
		fputs(*help == '\\' ? "\\\\" : (char[]){ *help, '\0' }, f);
	fprintf(f, "\n# TYPE %s %s\n", name, type_names[type]);
}

static void label_write(FILE *f, const char *name, const char *value)
{
	fprintf(f, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", f);
		else if (*value == '"' || *value == '\\')
			fprintf(f, "\\%c", *value);
		else
			fputc(*value, f);
	}
	fputc('"', f);
}

/* suffix of the name; le: a bucket's label, or NULL. */
static void sample_begin(struct metrics_text *t, const char *suffix, const char *const *labels,
			 const char *le)
{
	const struct dray_family_info *family = t->family;

	fprintf(t->f, "%s%s", family->name, suffix);
	for (unsigned i = 0; i < family->n_labels; i++) {
		fputc(i ? ',' : '{', t->f);
		label_write(t->f, family->labels[i], labels[i]);
	}
	if (le) {
		fputc(family->n_labels ? ',' : '{', t->f);
		label_write(t->f, "le", le);
	}
	fputs(family->n_labels || le ? "} " : " ", t->f);
}

void metrics_sample(struct metrics_text *t, const char *const *labels, uint64_t value)
{
	sample_begin(t, "", labels, NULL);
	fprintf(t->f, "%" PRIu64 "\n", value);
}

void metrics_sample_real(struct metrics_text *t, const char *const *labels, double value)
{
	sample_begin(t, "", labels, NULL);
	fprintf(t->f, "%.6f\n", value);
}

void metrics_histogram(struct metrics_text *t, const char *const *labels, const uint64_t *buckets,
		       uint64_t sum)
{
	const struct dray_family_info *family = t->family;
	uint64_t total = 0;
	char le[32];

	for (unsigned i = 0; i <= family->n_bounds; i++) {
		snprintf(le, sizeof(le), "+Inf");
		if (i < family->n_bounds)
			snprintf(le, sizeof(le), "%.12g",
				 (double)family->bounds[i] / (double)family->scale);
		total += buckets[i];
		sample_begin(t, "_bucket", labels, le);
		fprintf(t->f, "%" PRIu64 "\n", total);
	}
	sample_begin(t, "_sum", labels, NULL);
	if (family->scale == 1)
		fprintf(t->f, "%" PRIu64 "\n", sum);
	else
		fprintf(t->f, "%.9f\n", (double)sum / (double)family->scale);
	sample_begin(t, "_count", labels, NULL);
	fprintf(t->f, "%" PRIu64 "\n", total);
}

char *metrics_render(struct agent *a, size_t *ret_n)
{
	uint64_t values[DRAY_METRIC_N] = { 0 };
	struct store_shown *spaces dray_auto_free = NULL;
	struct metrics_text t = { .f = NULL };
	char *text = NULL;
	int bad;

	t.f = open_memstream(&text, ret_n);
	if (!t.f)
		return NULL;
	agent_metrics(a, values);
	spaces = store_show(a);
	for (int i = 0; i < DRAY_METRIC_N; i++) {
		const struct dray_metric_info *m = &dray_metrics[i];

		head(t.f, m->name, m->help, m->type);
		fprintf(t.f, "%s %" PRIu64 "\n", m->name, values[i]);
	}
	for (int i = 0; i < DRAY_FAMILY_N; i++) {
		t.family = &dray_families[i];
		head(t.f, t.family->name, t.family->help, t.family->type);
		agent_samples(a, (enum dray_family)i, spaces, &t);
	}
	bad = ferror(t.f);
	if (fclose(t.f) || bad) {
		free(text);
		return NULL;
	}
	return text;
}
