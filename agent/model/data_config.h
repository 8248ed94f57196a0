/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the configuration that workers use. */
#ifndef DRAY_AGENT_MODEL_DATA_CONFIG_H
#define DRAY_AGENT_MODEL_DATA_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

struct data_config {
	uint64_t slice_size; /* bytes */
	int64_t slice_timeout_ns;
	int64_t deadline_ns; /* default */
	uint32_t slices_per_session;
	uint32_t tcp_streams, tcp_latency_streams;
	uint32_t tcp_slices_in_flight; /* each stream */
	uint64_t tcp_buffer;           /* bytes, 0: autotuning */
	int64_t connect_timeout_ns;
	int64_t backoff_min_ns, backoff_max_ns;
	int64_t poll_time_ns;
	int64_t slow_ns; /* longer transfers are logged; 0: none */
	bool report_all;
};

#endif
