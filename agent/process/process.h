/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of this process, under the names of Prometheus. */
#pragma once

#include <stdint.h>

/* Unix time of the start in seconds, read once. 0 if /proc does not have it. */
double process_start_time(void);

/* Seconds, all threads together. */
double process_cpu_seconds(void);
uint64_t process_resident_bytes(void);
uint64_t process_open_fds(void);
uint64_t process_max_fds(void);
