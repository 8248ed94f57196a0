/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes and unmaps on a thread of its own what may take long: the last close of a large memfd frees its pages, and the
 * close of a descriptor on FUSE or NFS waits for another process. One closer serves descriptors whose close
 * is known to end, another one descriptors of unknown kinds, whose close may never end.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_CLOSER_H
#define DRAY_AGENT_CONTROL_REGION_CLOSER_H

#include <stdint.h>

#include "lib/jobs.h"

/* Freed by dray_jobs_free(). 0 or -errno. */
int closer_new(struct dray_jobs **ret);

/* Never fails: without memory for the job the caller itself closes. */
void closer_close(struct dray_jobs *closer, int fd);

/* Unmaps, then closes the descriptor (-1: none). */
void closer_unmap(struct dray_jobs *closer, void *p, uint64_t bytes, int fd);

#endif
