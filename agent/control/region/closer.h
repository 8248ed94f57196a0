/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that closes and unmaps what may take long: the last close of a large memfd frees its
 * pages, and the close of a descriptor on FUSE or NFS waits for somebody else. Jobs run in order.
 * One closer for what is known to end, another for descriptors of unknown kinds, which may never.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_CLOSER_H
#define DRAY_AGENT_CONTROL_REGION_CLOSER_H

#include <stdint.h>

#include "lib/cleanup.h"

struct closer;

/* 0 or -errno. */
int closer_new(struct closer **ret);

/* Finishes what is queued, but waits no longer than a second for it. Returns NULL. */
struct closer *closer_free(struct closer *c);

DRAY_DEFINE_CLEANUP(struct closer *, closer_free);

/* Never fails: without memory for the job the caller does it itself. */
void closer_close(struct closer *c, int fd);

/* Unmaps, then closes the descriptor (-1: none). */
void closer_unmap(struct closer *c, void *p, uint64_t bytes, int fd);

#endif
