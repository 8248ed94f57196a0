/* SPDX-License-Identifier: Apache-2.0 */
/* This process: its pidfd, and its statistics under the names of Prometheus. */
#pragma once

#include <stdint.h>

/* A descriptor that others can poll for the end of this process. -errno on kernels before 5.3, or if a sandbox forbids it. */
int process_pidfd(void);

/* Unix time of the start in seconds, read once. 0 if /proc does not have it. */
double process_start_time(void);

/* Seconds, all threads together. */
double process_cpu_seconds(void);
uint64_t process_resident_bytes(void);
uint64_t process_open_fds(void);
uint64_t process_max_fds(void);
