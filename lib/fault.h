/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded access to memory that another process shares and can take pages from at any time (hole punching, an
 * exhausted huge-page pool): an access then raises SIGBUS, which the guard turns into an error. System calls
 * on such memory fail with EFAULT by themselves.
 *
 * fault_guard_memory() makes missing pages of a mapping fault, so that they are not allocated at this
 * process's expense (userfaultfd in SIGBUS mode, user-mode only, where the kernel allows it).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/copy.h"

/*
 * Installs the process's SIGBUS handler, before threads start that use the guard. 0 or -errno. A second call does
 * nothing, unless the handler was replaced.
 */
int fault_init(void);

/*
 * True: missing pages of [p, p+bytes) fault from now on, until the range is unmapped. p and bytes are multiples of the
 * mapping's page size. False where the kernel refuses, which is no error. One thread only.
 */
bool fault_guard_memory(void *p, uint64_t bytes);

/*
 * memcpy of which both sides may fault. 0, or -EFAULT after an unknown part was copied. Any thread.
 */
int fault_copy(void *dst, const void *src, size_t n);

/*
 * The same for a list, by dray_copy_pieces(), with one guard for all of it. *ret_address: on -EFAULT, the byte that the
 * kernel could not reach. Reading the memory again would not tell: the other process may have put the page back.
 */
int fault_copy_pieces(const struct dray_piece *v, unsigned n, bool stream,
		      const void **ret_address);

/*
 * Runs fn(arg) under the guard. fn() may be left at any memory access, so it must hold no resource. 0 or -EFAULT.
 */
int fault_run(void (*fn)(void *arg), void *arg);

/* Guarded aligned 32-bit load (acquire) and store (release). 0 or -EFAULT. */
int fault_load32(const uint32_t *p, uint32_t *ret);
int fault_store32(uint32_t *p, uint32_t v);
