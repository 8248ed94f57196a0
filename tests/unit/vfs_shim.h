/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system for sqlite3 with faults: every call goes to the real one, except those that shall
 * fail.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum shim_op { SHIM_OPEN, SHIM_READ, SHIM_WRITE, SHIM_SYNC, SHIM_TRUNCATE, SHIM_OP_N };

/* Installs it for every database that this process opens from now on. */
void shim_install(void);
void shim_remove(void);

/*
 * The n-th call (from 0) of those in `ops` (bits 1 << op) fails with this code of sqlite3, and so
 * do all later ones unless `once`. Restarts the count.
 */
void shim_fail(unsigned ops, int code, uint32_t n, bool once);

/* Ends all faults. Returns whether a call has failed since shim_fail(). */
bool shim_heal(void);

/* Makes writes wait until the disk is released. */
void shim_hang(void);
void shim_release(void);
/* Waits until a thread hangs in a write. */
void shim_wait_hanging(void);
