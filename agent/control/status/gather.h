/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics, gathered from all modules, and the text of /metrics in Prometheus' format. Control thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "schema/gen/metrics.h"

#define METRICS_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct agent;
struct metrics_text;

/* Values of all metrics: sums over workers, or values of the control thread. */
void agent_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N]);

struct dray_dbus_transfer_time;

/* The times of each transport and class that carried transfers. */
void agent_each_transfer_time(struct agent *a,
			      void (*fn)(void *arg, const struct dray_dbus_transfer_time *t),
			      void *arg);

/* The store's name spaces at this moment, for the families of one text; free() it. NULL: no memory, and none is shown. */
struct store_shown;
struct store_shown *store_show(struct agent *a);

/* Writes the samples of one family with the functions below. */
void agent_samples(struct agent *a, enum dray_family f, const struct store_shown *spaces,
		   struct metrics_text *t);

/* Those of the store's name spaces. */
void store_samples(const struct store_shown *spaces, struct metrics_text *t, enum dray_family f);

/* labels: values in the order of the family's labels; NULL without labels. */
void metrics_sample(struct metrics_text *t, const char *const *labels, uint64_t value);
void metrics_sample_real(struct metrics_text *t, const char *const *labels, double value);

/* buckets: n_bounds + 1 counts; sum: in raw units. */
void metrics_histogram(struct metrics_text *t, const char *const *labels, const uint64_t *buckets,
		       uint64_t sum);

/* The text, which the caller frees, and its length. NULL: no memory. */
char *metrics_render(struct agent *a, size_t *ret_n);
