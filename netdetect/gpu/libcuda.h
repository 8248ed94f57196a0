/* SPDX-License-Identifier: Apache-2.0 */
/* Where CUDA's driver library is, without loading it. */
#ifndef DRAY_NETDETECT_GPU_LIBCUDA_H
#define DRAY_NETDETECT_GPU_LIBCUDA_H

#include <stdbool.h>

#include "netdetect/source/source.h"

/*
 * libcuda.so.1 of this program's word size: in the LD_LIBRARY_PATH that this process was started with, in the
 * loader's cache, in its standard folders; else where containers get it mounted. Its path in buf, "" where it is
 * nowhere. True: the loader finds it there. Any thread, blocking on files.
 */
bool nd_libcuda_find(const struct nd_source *s, char *buf, size_t n);

/* --- for tests --- */

/*
 * The next path in the cache of n bytes that ends in /libcuda.so.1, from *at on, which moves behind it; NULL for none. Pure.
 */
const char *nd_libcuda_cached(const char *cache, size_t n, size_t *at);

#endif
