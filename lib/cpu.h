/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_LIB_CPU_H
#define DRAY_LIB_CPU_H

static inline void dray_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * CPUs this process may use: the smaller of its affinity mask and its cgroup's CPU limit (v1 or
 * v2), at least 1.
 */
unsigned dray_cpu_count(void);

/*
 * The cgroup's CPU limit alone, rounded up; UINT_MAX without one. root is put before every path
 * that is read ("" outside of tests).
 */
unsigned dray_cpu_quota(const char *root);

#endif
