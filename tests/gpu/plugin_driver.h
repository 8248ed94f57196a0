/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA runtime and the driver that the CUDA plug-in uses, without a GPU: contexts, streams, IPC and VMM handles. They
 * copy no bytes. The runtime of NVIDIA works over no other driver than NVIDIA's, so the plug-in's own unit test loads a plug-in that is
 * linked with this in its place, and chooses which functions fail. For one thread.
 *
 * IPC handle: the device of the memory, then a number; the other bytes do not matter. VMM: a descriptor of a file as large as the allocation, which is
 * on device 0.
 */
#pragma once

#include <stdbool.h>

#ifndef PLUGIN_DRIVER_API
#define PLUGIN_DRIVER_API
#endif

/* Call it before a plug-in is opened. Afterwards no function fails, and attributes are 1, except that streams write no words. */
PLUGIN_DRIVER_API void plugin_driver_reset(void);
/* The version of CUDA that the driver is for, 0: there is no driver. */
PLUGIN_DRIVER_API void plugin_driver_version(int version);
/*
 * Makes a function ("cudaIpcOpenMemHandle") return the result while a context of the device is current; NULL: no function. Device -1: the driver
 * lacks it.
 */
PLUGIN_DRIVER_API void plugin_driver_fail(const char *function, int device, int result);
/* The function that was named last succeeds so many times before. */
PLUGIN_DRIVER_API void plugin_driver_fail_after(unsigned n);
/* Sets an attribute of all devices. */
PLUGIN_DRIVER_API void plugin_driver_attribute(int attribute, int value);
/* true: submitted work is not done until hold(false), or until a call waits for it. */
PLUGIN_DRIVER_API void plugin_driver_hold(bool hold);
/* Held work of a stream is done after this number of queries of the stream. */
PLUGIN_DRIVER_API void plugin_driver_finish_after(unsigned looks);
/* From now on calls in the device's context fail; its pending callbacks run when it is destroyed. */
PLUGIN_DRIVER_API void plugin_driver_lose(int device);
/* The same after the next call of the function, which still succeeds. */
PLUGIN_DRIVER_API void plugin_driver_lose_in(const char *function, int device);

/*
 * Current numbers of the device: "contexts", "opened" (IPC memory), "streams", "waiting" (callbacks after copies). Totals of
 * all devices: "maps" (attempts to map VMM memory), "waits" (for streams, without a limit), "cut" (copies in flight when
 * their stream was destroyed), "calls" and "listed" (copies of lists, and pieces in them), "joined" (streams with such copies
 * for which another one waits), "events" (not destroyed), "foreign" (addresses of copies in IPC memory that is open in
 * another context), "plain" (copies of one piece), "rows" (bytes of copies in two rows).
 */
PLUGIN_DRIVER_API int plugin_driver_count(const char *what, int device);
