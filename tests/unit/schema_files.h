/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the schema share: heap copies without slack, so that the sanitizer sees any step outside. */
#ifndef DRAY_TESTS_SCHEMA_FILES_H
#define DRAY_TESTS_SCHEMA_FILES_H

#include <stddef.h>
#include <stdint.h>

/* A heap copy of n bytes, to be freed. */
uint8_t *exact_copy(const void *src, size_t n);

/* All of a file, to be freed; fails the test where there is none. */
uint8_t *read_whole(const char *path, size_t *ret_n);

/* Decodes lower-case hex in place of out; returns bytes. */
size_t unhex(const char *hex, uint8_t *out, size_t cap);

#endif
