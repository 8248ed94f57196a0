/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of client files, shared by the extents and regions in the same file with the same access. A mapping covers the
 * whole file. The agent never populates it. Control thread only.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_MAPPING_H
#define DRAY_AGENT_CONTROL_REGION_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/control/region/closer.h"
#include "agent/control/region/pieces.h"
#include "lib/err.h"
#include "lib/list.h"

struct mappings {
	struct dray_list list;
	struct dray_jobs *closer; /* unmaps; borrowed */
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
	struct dray_list link;
	struct mappings *mappings;
	struct mapping_key key;
	uint32_t refs;
	uint8_t *base;
	uint64_t bytes;
	bool guarded; /* fault_guard_memory() took it */
	int fd;       /* our own */
};

void mappings_init(struct mappings *ms, struct dray_jobs *closer);

/* A mapping of `bytes`, the size of the file, or more; one reference. The descriptor is duplicated, not consumed. */
int mapping_get(struct mappings *ms, const struct mapping_key *key, int fd, uint64_t bytes,
		struct mapping **ret, struct dray_err *reterr);

/* The closer unmaps it after the last reference. Returns NULL. */
struct mapping *mapping_unref(struct mapping *m);

#endif
