/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

/*
 * Bytes of memory that this process may use: those of the machine, or the least limit of its cgroup (v2) and of those above it. root: prefix of
 * the paths of /proc and of cgroups ("" outside of tests). 0: unknown. Any thread; reads a few small files of the kernel.
 */
uint64_t dray_memory_get(const char *root);
