/* SPDX-License-Identifier: Apache-2.0 */
/* This process: its pidfd, its time slices, and its statistics under the names of Prometheus. */
#pragma once

#include <stdint.h>

/* A descriptor that others can poll for the end of this process. -errno on kernels before 5.3, or if a sandbox forbids it. */
int process_pidfd(void);

/*
 * The calling thread, and threads that it starts later, have time slices of this length, at most: they run for a shorter time at
 * once, and get a processor sooner when they wake up beside threads with longer ones. The share of a processor stays the same, and
 * so do the policy and the nice value. Kernels before 6.12 accept the call and change nothing. 0 or -errno; -ENOTSUP: the thread has
 * a policy without time slices. *ret_before: the length until now, for process_restore_time_slice(); 0: nothing has changed.
 */
int process_limit_time_slice(uint64_t ns, uint64_t *ret_before);

/* The calling thread has time slices of this length again; 0: does nothing. 0 or -errno. */
int process_restore_time_slice(uint64_t before);

/* Unix time of the start in seconds, read once. 0 if /proc does not have it. */
double process_start_time(void);

/* Seconds, all threads together. */
double process_cpu_seconds(void);
uint64_t process_resident_bytes(void);
uint64_t process_open_fds(void);
uint64_t process_max_fds(void);
