/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renders all metrics of the schema as Prometheus text (version 0.0.4) with their help texts. Pure.
 */
#ifndef DRAY_AGENT_CONTROL_STATUS_METRICS_H
#define DRAY_AGENT_CONTROL_STATUS_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "schema/gen/metrics.h"

#define METRICS_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct metrics_text;

struct metrics_source {
	uint64_t (*value)(void *arg, enum dray_metric m);
	/* Writes the samples of one family with the functions below. */
	void (*samples)(void *arg, enum dray_family f, struct metrics_text *t);
	void *arg;
};

/* labels: values in the order of the family's labels; NULL without labels. */
void metrics_sample(struct metrics_text *t, const char *const *labels, uint64_t value);
void metrics_sample_real(struct metrics_text *t, const char *const *labels, double value);

/* buckets: n_bounds + 1 counts; sum: in raw units. */
void metrics_histogram(struct metrics_text *t, const char *const *labels, const uint64_t *buckets,
		       uint64_t sum);

/* The text, which the caller frees, and its length. NULL: no memory. */
char *metrics_render(const struct metrics_source *source, size_t *ret_n);

#endif
