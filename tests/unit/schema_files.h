/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for the tests of the schema. Copies on the heap have exact sizes, so that the sanitizer
 * finds every access beyond.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns a heap copy of n bytes; the caller frees it. */
uint8_t *exact_copy(const void *src, size_t n);

/* Returns the content of a file; the caller frees it. Fails the test if the file cannot be read. */
uint8_t *read_whole(const char *path, size_t *ret_n);

/* Decodes lower-case hex to out; returns the number of bytes. */
size_t unhex(const char *hex, uint8_t *out, size_t cap);
