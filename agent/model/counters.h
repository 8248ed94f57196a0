/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one worker. Only its thread writes them; the control thread reads them. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "agent/model/quota.h"
#include "agent/model/transfer.h"
#include "gpu/plugin.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"
#include "schema/gen/metrics.h"

#define DATA_TRANSPORTS (DMSG_TRANSPORT_MOONCAKE + 1)
#define DATA_CLASSES (DMSG_CLASS_LATENCY + 1)

/* In raw units, by the bounds of the metric family; the last bucket has no bound. */
struct data_histogram {
	struct data_bucket {
		_Atomic uint64_t n, sum; /* of the values in it */
	} buckets[DRAY_FAMILY_BUCKETS_MAX + 1];
};

/* By the one thread that writes the histogram. */
static inline void histogram_observe(struct data_histogram *h, enum dray_family f, uint64_t v)
{
	const struct dray_family_info *info = &dray_families[f];
	unsigned i = 0;

	while (i < info->n_bounds && v > info->bounds[i])
		i++;
	shared_count(&h->buckets[i].n, 1);
	shared_count(&h->buckets[i].sum, v);
}

struct data_phases {
	/* transfers that spent no time in queue and in completion, which is most of the small ones; not in these histograms */
	_Atomic uint64_t at_once;
	/* by enum xfer_phase; none of XFER_PHASE_WAIT, in which the agent waits for the client */
	struct data_histogram of[XFER_PHASE_N];
};

struct data_counters {
	_Atomic uint64_t v[DRAY_METRIC_N];
	_Atomic uint64_t errors[DRAY_ERROR_N]; /* of transfers */
	_Atomic int64_t asked_ns;              /* when a session asked for a transfer last */
	struct data_histogram duration[DATA_TRANSPORTS],
		size[DATA_TRANSPORTS]; /* by enum dmsg_transport */
	/* the same, by enum dmsg_class */
	struct data_phases phases[DATA_TRANSPORTS][DATA_CLASSES];
	/* by device: what transfers of this agent's sessions read from its memory, and wrote to it */
	struct data_gpu_bytes {
		_Atomic uint64_t read, written;
	} gpus[GPU_DEVICES_MAX];
};
