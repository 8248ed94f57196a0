/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite3's view of the disk with faults: everything goes to the real one, but for what is made to fail. */
#ifndef DRAY_TESTS_UNIT_VFS_SHIM_H
#define DRAY_TESTS_UNIT_VFS_SHIM_H

#include <stdbool.h>
#include <stdint.h>

enum shim_op { SHIM_OPEN, SHIM_READ, SHIM_WRITE, SHIM_SYNC, SHIM_TRUNCATE, SHIM_OP_N };

/* From now on every database of this process. */
void shim_install(void);
void shim_remove(void);

/*
 * The n-th call (from 0) of those in `ops` (bits 1 << op) fails with this code of sqlite3, and all after it unless
 * `once`. Starts counting anew.
 */
void shim_fail(unsigned ops, int code, uint32_t n, bool once);

/* Nothing fails any more; whether something has since shim_fail(). */
bool shim_heal(void);

/* Writes wait until the disk is released. */
void shim_hang(void);
void shim_release(void);
/* Waits until somebody hangs in it. */
void shim_wait_hanging(void);

#endif
