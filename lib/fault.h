/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded access to client memory. A client can take pages away at any time (hole punching, an
 * exhausted huge-page pool); touching them then raises SIGBUS. Every copy by CPU runs under a
 * guard that turns it into an error. System calls on such memory fail with EFAULT by themselves.
 *
 * fault_guard_memory() makes missing pages of a mapping fault instead of being allocated at the
 * agent's expense (userfaultfd in SIGBUS mode, user-mode only, where the kernel and the sandbox
 * allow it).
 */
#ifndef DRAY_LIB_FAULT_H
#define DRAY_LIB_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/copy.h"

/*
 * Installs the process's SIGBUS handler; control thread, before workers start. 0 or -errno.
 * Called again it does nothing, unless somebody has put another handler in its place.
 */
int fault_init(void);

/*
 * True where missing pages of [p, p+bytes) now fault; it lasts until the range is unmapped. p and
 * bytes are multiples of the mapping's page size. Not an error where it cannot be had. Control
 * thread.
 */
bool fault_guard_memory(void *p, uint64_t bytes);

/*
 * memcpy both of whose sides may fault. 0, or -EFAULT after an unknown part was copied. Any
 * thread.
 */
int fault_copy(void *dst, const void *src, size_t n);

/*
 * The same for a list, by dray_copy_pieces(): one guard for all of it. *ret_address: on -EFAULT, the byte that could not be
 * reached, as the kernel says; unlike a look at the memory afterwards it cannot be belied by a client that
 * brings its pages back.
 */
int fault_copy_pieces(const struct dray_piece *v, unsigned n, bool stream,
		      const void **ret_address);

/*
 * Runs fn(arg), which copies by means of its own: it may be left at any access to memory, and so holds nothing. 0, or
 * -EFAULT.
 */
int fault_run(void (*fn)(void *arg), void *arg);

/* Guarded aligned 32-bit load (acquire) and store (release). 0 or -EFAULT. */
int fault_load32(const uint32_t *p, uint32_t *ret);
int fault_store32(uint32_t *p, uint32_t v);

#endif
