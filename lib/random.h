/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the kernel, getrandom(2). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * Fills p with n bytes that are fit for secrets. Blocks only early at boot, until the kernel's generator is
 * ready. 0 or -errno.
 */
int dray_random_fill(void *p, size_t n);

/* For seeds and jitter, not for secrets. Neither fails nor blocks: without the kernel's generator it reads the clock. */
uint64_t dray_random(void);
