/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a transfer's operations, which says nothing about the order of its bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/data/transfer/ops_store.h"

/*
 * Sorts them by their offset on one side; those with equal ones stay in their order. Some 10 ns for each, and a second list of
 * the store meanwhile. False: there is no memory for that, and nothing has changed.
 */
bool ops_sort(struct ops_store *s, struct xfer_op *ops, uint32_t n, bool local);
