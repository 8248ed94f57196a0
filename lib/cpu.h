/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/strv.h"

static inline void dray_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* What this process may use of the machine. */
struct dray_cpus {
	unsigned allowed;     /* CPUs it may run on (affinity, cpuset), at least 1 */
	unsigned quota_milli; /* its cgroup's limit, v1 or v2, in thousandths; UINT_MAX without one */
};

/* Reads a few small files of the kernel. Any thread: the result describes the main thread. */
void dray_cpus_get(struct dray_cpus *ret);

/* The first of these numbers alone, by one system call. */
unsigned dray_cpus_allowed(void);

/* CPUs that can be kept busy all the time, at least 1. Pure. */
unsigned dray_cpus_whole(const struct dray_cpus *c);

#define DRAY_CPUS_WHY_BYTES 48

/*
 * Whether a thread can spin without taking the CPU from the thread that it waits for, which takes two whole CPUs. why:
 * "", or the reason against it, such as "1 CPU allowed"; may be NULL with n 0. Pure.
 */
bool dray_cpus_can_spin(const struct dray_cpus *c, char *why, size_t n);

/* The folders of cgroups, of each version's hierarchies, whose CPU limits apply to this process. A zeroed struct has none. */
struct dray_cpu_limits {
	struct dray_strv v1, v2;
};

/*
 * Finds them again. root: prefix of every path that is read ("" outside of tests). -ENOMEM: not all of them were found. They stay the same
 * unless the process is moved to another cgroup, or the cgroup's file system is mounted elsewhere.
 */
int dray_cpu_limits_find(struct dray_cpu_limits *l, const char *root);
void dray_cpu_limits_deinit(struct dray_cpu_limits *l);

/* The least of the limits, in thousandths of a CPU; UINT_MAX without one. Reads a file of each folder, which does not block. */
unsigned dray_cpu_limits_read(const struct dray_cpu_limits *l);
