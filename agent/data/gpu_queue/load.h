/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether other processes keep a device busy. Without MPS a GPU runs kernels of one process at a time, so a kernel of this
 * agent waits for its turn beside a process that computes: 2 ms beside large matrix products, 0.2 ms beside
 * short kernels, and some microseconds otherwise. Two things show it: a probe, which is a kernel that copies nothing, in a
 * queue of its own; and kernels that do not end, while a series of them holds the device and lets probes pass. Copies by
 * copy engines show nothing, because these do not wait. Two slow results in a row make a device busy, and a series of quick
 * ones makes it idle again, so that the gaps between an engine's steps do not.
 */
#pragma once

#include "agent/model/gpu_message.h"

/* Of one worker on one device. */
struct gpu_probe {
	uint64_t number; /* of the last one in its queue */
	int64_t sent_ns; /* 0: none is in flight */
	bool alone;      /* no kernel of this worker was in flight then */
	int64_t seen_ns; /* when the one in flight was last seen waiting */
};

/* Interval between looks at a probe in flight. */
#define GPU_PROBE_LOOK_NS 100000

/* Sends a probe if one is due. 0, or -EIO: the device is lost. */
int gpu_probe_send(struct gpu_probe *p, const struct gpu_queues *q, bool alone, int64_t now_ns);
/* Looks at the probe in flight. */
void gpu_probe_look(struct gpu_probe *p, const struct gpu_queues *q, int64_t now_ns);

/* A kernel has not ended for this time. True if that was noted; false if it is short, or another worker measures now. */
bool gpu_load_stalled(const struct gpu_queues *q, int64_t waited_ns, int64_t now_ns);

/* A result, and how long the kernel has waited. */
void gpu_load_note(struct gpu_load *l, bool slow, int64_t waited_ns, int64_t now_ns);
