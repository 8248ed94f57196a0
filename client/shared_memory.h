/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_CLIENT_SHARED_MEMORY_H
#define DRAY_CLIENT_SHARED_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * May a descriptor that came from elsewhere be mapped? It holds these bytes (at least 1) and is
 * sealed so that it goes on to: a mapping of it cannot raise SIGBUS in the host.
 */
bool dc_shared_memory_ok(int fd, uint64_t bytes);

#endif
