/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics as Prometheus text (version 0.0.4), from the tables of the schema: everything in them is
 * written, with its help, whether it has been used or not. Pure.
 */
#ifndef DRAY_AGENT_CONTROL_STATUS_METRICS_H
#define DRAY_AGENT_CONTROL_STATUS_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "schema/gen/metrics.h"

#define METRICS_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct metrics_text;

/* Where values come from. */
struct metrics_source {
	uint64_t (*value)(void *arg, enum dray_metric m);
	/* Writes the samples of one family, by the functions below. */
	void (*samples)(void *arg, enum dray_family f, struct metrics_text *t);
	void *arg;
};

/* labels: values, in the order of the family's labels; NULL where it has none. */
void metrics_sample(struct metrics_text *t, const char *const *labels, uint64_t value);
void metrics_sample_real(struct metrics_text *t, const char *const *labels, double value);

/* buckets: how many fell into each, n_bounds + 1 of them; sum: in raw units. */
void metrics_histogram(struct metrics_text *t, const char *const *labels, const uint64_t *buckets,
		       uint64_t sum);

/* The whole text, the caller's to free, and its length. NULL: no memory. */
char *metrics_render(const struct metrics_source *source, size_t *ret_n);

#endif
