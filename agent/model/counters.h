/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one worker. Only its thread writes them; the control thread reads them. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "schema/gen/data.h"
#include "schema/gen/metrics.h"

#define DATA_TRANSPORTS (DMSG_TRANSPORT_GPU + 1)

/* In raw units, by the bounds of the metric family; the last bucket has no bound. */
struct data_histogram {
	_Atomic uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1], sum;
};

struct data_counters {
	_Atomic uint64_t v[DRAY_METRIC_N];
	struct data_histogram duration[DATA_TRANSPORTS],
		size[DATA_TRANSPORTS]; /* by enum dmsg_transport */
};
