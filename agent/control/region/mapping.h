/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of client files, shared by the extents and regions in the same file with the same access, and the threads that
 * close and unmap. A mapping covers the whole file. The agent never populates it. Control thread only.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_MAPPING_H
#define DRAY_AGENT_CONTROL_REGION_MAPPING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/err.h"
#include "lib/jobs.h"
#include "lib/list.h"

/*
 * A closer is a thread for calls that may take long: the last close of a large memfd frees its pages, and the close of a
 * file on FUSE or NFS waits for another process. dray_jobs_free() ends it. 0 or -errno.
 */
int closer_new(struct dray_jobs **ret);

/* Closes fd unless it is -1. Without memory for the job the calling thread closes it. */
void closer_close(struct dray_jobs *closer, int fd);

struct mappings {
	struct dray_list list;
	struct dray_jobs *closer; /* unmaps; borrowed */
};

/* Descriptors with the same id refer to the same file. */
struct file_id {
	dev_t dev;
	ino_t ino;
};

/* What identifies a mapping. */
struct mapping_key {
	struct file_id file;
	bool writable;
	/*
	 * The session, for huge-page files: their inode numbers are 32 bits of a counter that wraps, so they do not identify a
	 * file of another session. 0 for other files.
	 */
	uint64_t owner;
};

struct mapping {
	struct dray_list link; /* a reservation is in no list */
	struct mappings *mappings;
	struct mapping_key key;
	uint32_t refs;
	uint8_t *base;
	uint64_t bytes;
	bool guarded; /* by fault_guard_memory() */
	int fd;       /* a duplicate */
};

void mappings_init(struct mappings *ms, struct dray_jobs *closer);

/* A mapping of `bytes`, the size of the file, or more; one reference. The descriptor is duplicated, not consumed. */
int mapping_get(struct mappings *ms, const struct mapping_key *key, int fd, uint64_t bytes,
		struct mapping **ret, struct dray_err *reterr);

/*
 * Reserves addresses for a DMA-BUF, which the CPU does not map: RDMA devices need an address for it, and the agent tells
 * registrations apart by their addresses. An access faults. One reference; the descriptor is duplicated, not consumed.
 */
int mapping_reserve(struct mappings *ms, int fd, uint64_t bytes, struct mapping **ret,
		    struct dray_err *reterr);

/* The closer unmaps it after the last reference. */
void mapping_unref(struct mapping *m);

#endif
