/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli), as in RFC 3720: by the processor's instruction where it has one, else by a table. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues crc, which is 0 at the beginning. Any thread. */
uint32_t dray_crc32c(uint32_t crc, const void *p, size_t n);

/* The same by the table. */
uint32_t dray_crc32c_by_table(uint32_t crc, const void *p, size_t n);
