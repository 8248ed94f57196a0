/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU plug-in without GPUs, for tests: linked into unit tests, or loaded by an agent (gpu.plugin =
 * ".../tests/gpu/dray-fake-gpu.so").
 *
 * Its "GPU memory" is a mappable file whose name, as in /proc/self/fd, contains "fake-gpu-N" for device N (a memfd of that
 * name, a file /dev/shm/fake-gpu-1-x). Other files are not GPU memory. cuda_vmm: the descriptor. cuda_ipc: 64 bytes,
 * "FAKE" and the path of the file, padded with NUL (/proc/PID/fd/N for a memfd of the exporter). The addresses of an import
 * are reserved but not accessible, so a CPU access crashes; the fake itself uses another mapping.
 *
 * A thread for each queue copies. A copy by an engine that lies in two imports is refused, although their addresses are
 * neighbours if one is opened after the other. Illegal accesses lose the device, as on a GPU: an address that is neither pinned nor
 * imported memory of the queue's device or a peer, a write to memory that is not writable, and a list of pieces outside
 * memory of host_alloc().
 *
 * Environment, read when the plug-in is opened:
 *   FAKE_GPU_DEVICES=N    number of devices (2)
 *   FAKE_GPU_PEERS=0      no device reaches another
 *   FAKE_GPU_FAIL=a,b     functions that fail: open, start, import, queue, host_alloc, block, pin, flush (unsupported), peer (a
 *                         starting device and the devices that are started do not reach each other)
 *   FAKE_GPU_DMABUF=1     export_dmabuf gives a duplicate of the file's descriptor; else -EOPNOTSUPP
 *   FAKE_GPU_MEMORY=MIB   memory of a device (1024)
 *   FAKE_GPU_FREE=MIB     devices have no larger block of the plug-in's own memory
 *   FAKE_GPU_FREE_OF=N    only device N
 *   FAKE_GPU_ORDERED=1    devices report rdma_ordered
 *   FAKE_GPU_LOSE_AFTER=N each device is lost, once, at its copy number N + 1
 *   FAKE_GPU_LOSE=PATH    device N is lost as long as the file PATHN exists
 *   FAKE_GPU_HOLD=PATH    copies do not start while the file PATH exists
 *   FAKE_GPU_REFUSE=PATH  copies are refused while the file PATH exists
 *   FAKE_GPU_HOLD_IMPORT=PATH  import() waits while the file PATH exists and as many imports are open as it has bytes
 *   FAKE_GPU_HOLD_FREE=PATH  block_free() waits while the file PATH exists
 *   FAKE_GPU_BUSY=PATH    device N is busy while the file PATHN exists: kernels wait a millisecond. Without it devices
 *                         are shared, so that agents do not follow the load
 *   FAKE_GPU_DRY=1        copies complete at once without copying, to measure the cost around them; those of no pieces
 *                         still wait on a busy device
 *   FAKE_GPU_FOLDER=PATH  of the files of its own memory (/dev/shm)
 *   FAKE_GPU_STATUS=PATH  file for struct fake_gpu_status
 */
#pragma once

#include "gpu/plugin.h"

/* Open objects, then totals since the start; each is a little-endian 64-bit number, in this order. */
struct fake_gpu_status {
	_Atomic uint64_t plugins, started, imports, queues, pins, host_allocs, blocks;
	_Atomic uint64_t held;   /* copies that wait for FAKE_GPU_HOLD or fake_gpu_hold() */
	_Atomic uint64_t ending; /* calls of queue_free() that wait for copies in flight */
	_Atomic uint64_t copies, pieces, bytes, engine_copies, imported, flushes, lost;
	_Atomic uint64_t illegal; /* accesses that lost a device */
};

extern const struct gpu_plugin_ops gpu_plugin_ops;

struct fake_gpu_status *fake_gpu_status(void);
/* The same as the environment variables, for tests in this process. */
void fake_gpu_hold(bool hold);
/* true: copies are refused. */
void fake_gpu_refuse(bool refuse);
/* true: the device is lost until this is called with false and the device is started again. */
void fake_gpu_lose(unsigned device, bool lost);
/* true: kernels on the device wait a millisecond, and copy engines do not. */
void fake_gpu_busy(unsigned device, bool busy);
/* Sets whether devices reach each other; always false with FAKE_GPU_PEERS=0. */
void fake_gpu_peers(bool peers);
