/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and writes sizes and durations with units. Pure; no allocation. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* "4096", "64KiB", "1.5GiB", "10MB" (decimal units: powers of 1000); no sign. 0, -EINVAL, -ERANGE. */
int dray_size_parse(const char *s, int64_t *ret_bytes);

/* "30us", "500ms", "1.5s", "10min", "24h", "7d"; a bare number is refused except 0. Nanoseconds. */
int dray_duration_parse(const char *s, int64_t *ret_ns);

/* Decimal, 0x or (octal_ok) 0 prefix; whole string. 0, -EINVAL, -ERANGE. */
int dray_int_parse(const char *s, int octal_ok, int64_t *ret);

/* Writes an exact value with a short unit, such as 16GiB or 500ms. Returns buf. */
const char *dray_size_show(int64_t bytes, char *buf, size_t n);
const char *dray_duration_show(int64_t ns, char *buf, size_t n);
