/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one worker. Only its thread writes them; the control thread reads them. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "agent/model/quota.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"
#include "schema/gen/metrics.h"

#define DATA_TRANSPORTS (DMSG_TRANSPORT_GPU + 1)

/* In raw units, by the bounds of the metric family; the last bucket has no bound. */
struct data_histogram {
	_Atomic uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1], sum;
};

/* By the one thread that writes the histogram. */
static inline void histogram_observe(struct data_histogram *h, enum dray_family f, uint64_t v)
{
	const struct dray_family_info *info = &dray_families[f];
	unsigned i = 0;

	while (i < info->n_bounds && v > info->bounds[i])
		i++;
	shared_count(&h->buckets[i], 1);
	shared_count(&h->sum, v);
}

struct data_counters {
	_Atomic uint64_t v[DRAY_METRIC_N];
	_Atomic uint64_t errors[DRAY_ERROR_N]; /* of transfers */
	struct data_histogram duration[DATA_TRANSPORTS],
		size[DATA_TRANSPORTS]; /* by enum dmsg_transport */
};
