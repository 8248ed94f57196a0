/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that wait for a word, or for bytes that may move. A GPU, another process or another thread sets these, and wakes nobody, so the
 * worker looks at them again and again: in every turn while it has work, else after a pause that grows with the time waited. It looks at
 * a bounded number of transfers of each owner, whose sessions get equal parts of it.
 */
#pragma once

#include "agent/data/transfer/core.h"

/* The transfer waits from now on, until it is stopped, or its word has the value or it has bytes that may move; then it goes on. */
void wait_add(struct core *c, struct xfer *x);
/* Does nothing for a transfer that does not wait. */
void wait_del(struct xfer *x);

/* Looks at words. Returns when to call again at the latest (ns, INT64_MAX: never). */
int64_t waits_tick(struct core *c);
