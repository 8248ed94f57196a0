/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel says of this process, under the names that Prometheus has for it. */
#ifndef DRAY_AGENT_PROCESS_PROCESS_H
#define DRAY_AGENT_PROCESS_PROCESS_H

#include <stdint.h>

/* Unix time of the start in seconds; found once. 0 where /proc does not tell. */
double process_start_time(void);

/* Seconds, all threads together. */
double process_cpu_seconds(void);
uint64_t process_resident_bytes(void);
uint64_t process_open_fds(void);
uint64_t process_max_fds(void);

#endif
