/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU, as much of it as the CUDA plug-in asks for: contexts, streams, IPC and VMM handles, and
 * no byte that is ever copied. A test loads it by path before the plug-in, which then gets it too, and says what fails.
 * One thread.
 *
 * IPC handle: the device that the memory is on, then a number. VMM: a descriptor of a file as large as the allocation,
 * which is on device 0.
 */
#ifndef DRAY_TESTS_GPU_PLUGIN_DRIVER_H
#define DRAY_TESTS_GPU_PLUGIN_DRIVER_H

#include <stdbool.h>

#ifndef PLUGIN_DRIVER_API
#define PLUGIN_DRIVER_API
#endif

/* Before a plug-in is opened: nothing fails, attributes are 1. */
PLUGIN_DRIVER_API void plugin_driver_reset(void);
/* A function ("cuIpcOpenMemHandle") gives that result where a context of the device is current, and so on; NULL: none does. */
PLUGIN_DRIVER_API void plugin_driver_fail(const char *function, int device, int result);
/* What all devices say. */
PLUGIN_DRIVER_API void plugin_driver_attribute(int attribute, int value);
/* What is submitted is not done until it is let go, or until somebody waits for it. */
PLUGIN_DRIVER_API void plugin_driver_hold(bool hold);
/* What is held of a stream is done when that has been looked at so often, whatever the answer was. */
PLUGIN_DRIVER_API void plugin_driver_finish_after(unsigned looks);
/* The device's context answers with an error from here on; what was called for its end, when it is destroyed. */
PLUGIN_DRIVER_API void plugin_driver_lose(int device);
/* The same behind the next call of the function, which still succeeds. */
PLUGIN_DRIVER_API void plugin_driver_lose_in(const char *function, int device);

/*
 * "contexts", "opened" (IPC memory), "streams": of the device, now. "maps": of VMM memory, tried so far. "waiting":
 * calls at the end of copies, of the device. Of all devices, so far: "waits" for streams without a limit; "cut", copies
 * that were under way when their stream was destroyed.
 */
PLUGIN_DRIVER_API int plugin_driver_count(const char *what, int device);

#endif
