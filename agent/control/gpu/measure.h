/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how fast a device copies, with memory of its own, while nothing else uses the device. Blocks; copies take about a
 * millisecond each, and all together at most a quarter of a second.
 */
#pragma once

#include <stdatomic.h>

#include "agent/model/gpu_rates.h"

struct gpu_measure {
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	unsigned device;
	unsigned peer;   /* started, of copies between two devices; used only for these */
	unsigned share;  /* of struct gpu_queue_spec */
	uint64_t memory; /* bytes of the device */
	unsigned buses;  /* 1u << enum gpu_bus: what is measured */
	/* False: the measurement ends without a result. peer_go: likewise, of copies by the peer; NULL: there is none. */
	const _Atomic bool *go, *peer_go;
	/* the result, of `buses` */
	struct gpu_rates rates;
};

/* 0; -EAGAIN: something else uses the device; other -errno with reterr: -EIO: it is lost. */
int gpu_measure(struct gpu_measure *m, struct dray_err *reterr);
