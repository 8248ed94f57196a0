/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for steps that cannot fail any more, such as taking an object back. Addresses are kept in reserve; when an allocation
 * fails, a piece of them is given up, and the allocation is tried again.
 *
 * Requests of clients use malloc() and end with an error; only what must happen after their acceptance belongs here. Any thread.
 */
#pragma once

#include <stddef.h>

/* Takes the reserve. Without this call there is none. */
void dray_ballast_start(void);

/* As calloc(). Aborts if there is no memory for a second, though the reserve is used up. */
void *dray_calloc_sure(size_t n, size_t size) __attribute__((alloc_size(1, 2), malloc));
/* An array of `more` elements that begins with the n of the old one, which is freed. The others are zero. */
void *dray_array_grow_sure(void *old, size_t n, size_t more, size_t size);
