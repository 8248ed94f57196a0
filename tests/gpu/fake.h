/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU plug-in without GPUs, for tests: linked into unit tests, or loaded by an agent (gpu.plugin =
 * ".../tests/gpu/dray-fake-gpu.so").
 *
 * Its "GPU memory" is any file that can be mapped. The device it is on is told by its name: what /proc/self/fd says of
 * the descriptor contains "fake-gpu-N" (a memfd of that name, a file /dev/shm/fake-gpu-1-x), or it is no GPU memory.
 * cuda_vmm: the descriptor. cuda_ipc: 64 bytes, "FAKE" and the path of the file, filled up with NUL
 * (/proc/PID/fd/N for a memfd of the exporter). The addresses that an import gives are reserved and not accessible, so a
 * CPU that touches one dies; the bytes are reached by a mapping of the fake's own.
 *
 * A thread for each queue copies. An address that is not imported memory of the queue's device or of a peer, nor pinned,
 * not writable where it is written, or a list of pieces outside of host_alloc() loses the device, as an illegal access
 * does.
 *
 * Environment, read when the plug-in is opened:
 *   FAKE_GPU_DEVICES=N    how many there are (2)
 *   FAKE_GPU_PEERS=0      none reaches another
 *   FAKE_GPU_FAIL=a,b     these fail: open, start, import, queue, host_alloc, pin, flush (there is none), peer (a device
 *                         that starts reaches none of those that are started, nor they it)
 *   FAKE_GPU_DMABUF=1     export_dmabuf gives a duplicate of the file's descriptor; else -EOPNOTSUPP
 *   FAKE_GPU_ORDERED=1    devices say rdma_ordered
 *   FAKE_GPU_LOSE_AFTER=N each device is lost, once, at its copy after N that were done
 *   FAKE_GPU_LOSE=PATH    device N is lost when PATHN is there, and as long as it is
 *   FAKE_GPU_HOLD=PATH    copies do not begin while PATH is there
 *   FAKE_GPU_HOLD_IMPORT=PATH  import() waits while PATH is there
 *   FAKE_GPU_DRY=1        nothing is copied, and done at once: for the cost of what is around it
 *   FAKE_GPU_STATUS=PATH  struct fake_gpu_status is kept in this file
 */
#ifndef DRAY_TESTS_GPU_FAKE_H
#define DRAY_TESTS_GPU_FAKE_H

#include "gpu/plugin.h"

/* What is open now, then what was done so far; each a little-endian 64-bit number, in this order. */
struct fake_gpu_status {
	_Atomic uint64_t plugins, started, imports, queues, pins, host_allocs;
	_Atomic uint64_t held;   /* copies that wait for FAKE_GPU_HOLD or fake_gpu_hold() */
	_Atomic uint64_t ending; /* queue_free() that waits for what is under way */
	_Atomic uint64_t copies, pieces, bytes, engine_copies, imported, flushes, lost;
	_Atomic uint64_t illegal; /* accesses that lost a device */
};

extern const struct gpu_plugin_ops gpu_plugin_ops;

struct fake_gpu_status *fake_gpu_status(void);
/* As the environment does, from a test's own process. */
void fake_gpu_hold(bool hold);
/* true: the device is lost until it is told false, and started anew. */
void fake_gpu_lose(unsigned device, bool lost);
/* False as long as FAKE_GPU_PEERS=0 says so too. */
void fake_gpu_peers(bool peers);

#endif
