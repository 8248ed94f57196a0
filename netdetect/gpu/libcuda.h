/* SPDX-License-Identifier: Apache-2.0 */
/* Finds CUDA's driver library without loading it. */
#pragma once

#include "netdetect/source/source.h"

/*
 * Looks for libcuda.so.1 of this program's word size where the loader does: the LD_LIBRARY_PATH that this process was
 * started with, the loader's cache, its standard folders. Then looks where container runtimes mount it. buf: its path,
 * "" if not found. True if the loader finds it. Any thread; blocks on files.
 */
bool nd_libcuda_find(const struct nd_source *s, char *buf, size_t n);

/*
 * The next path in a loader cache of n bytes that ends in /libcuda.so.1, from *at on; NULL if there is none. *at moves
 * behind the path. Pure; public for its test.
 */
const char *nd_libcuda_cached(const char *cache, size_t n, size_t *at);
