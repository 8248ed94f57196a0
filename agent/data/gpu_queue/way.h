/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a copy: the choice, by the load of the devices and by how fast each way is. No state. */
#pragma once

#include <stdbool.h>

#include "agent/model/gpu_rates.h"
#include "schema/gen/config.h"

/* What copies: which device's queue, of kernels or of copy engines; or both, through copy memory on the device (transport/gpu/relay.c). */
struct gpu_way {
	uint8_t device;
	bool engines;
	bool staged;
	bool lists; /* of struct gpu_copy, for what copy engines do */
	bool pads; /* staged, from the host: runs shorter than GPU_RUN_LEAST are read with the bytes behind them */
};

/* Copy engines read runs of this length from the host without a time slice, and as lists. */
#define GPU_RUN_LEAST (32u << 10)
/* A side whose bytes follow each other in runs of this length counts as a row. */
#define GPU_ROW_MIN (256u << 10)

struct gpu_way_question {
	enum gpu_route route;
	enum gpu_bus bus; /* the route's */
	const struct gpu_rates *rates;
	enum dray_config_gpu_copy setting;
	uint8_t device; /* that copies if nothing speaks against it */
	bool busy;
	int other; /* the device on the other side, if it can make the copy too; -1: none */
	bool other_busy;
	uint32_t pieces; /* of the transfer */
	uint64_t bytes;
	uint64_t run; /* between device and host: bytes that follow each other in host memory, on average */
	bool can_pad; /* from the host: bytes behind a run may be read */
	uint64_t memory; /* bytes of copy memory on each device that a staged copy needs; 0: it cannot be made now */
	uint64_t could_have; /* as memory, once it has been asked for; 0: it is never given */
	int64_t wait_ns;     /* of a kernel on the busy device */
};

struct gpu_way gpu_way_choose(const struct gpu_way_question *q);
/* Copy memory is worth having: with what the agent gives the copy would be staged. */
bool gpu_way_wants_memory(const struct gpu_way_question *q);
