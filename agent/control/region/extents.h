/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the extents of a REGION_ADD to the memory of a region: every check that a client's descriptors must pass. A part is
 * a descriptor or a legacy CUDA IPC handle that came with the message; a piece is the range of a part that one extent
 * takes. Descriptors stay the caller's.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "agent/control/owner/owner.h"
#include "agent/control/region/region.h"
#include "lib/map.h"

/* --- mapping.c: mappings of client files --- */

/*
 * Openers of several owners use it together with the control thread. The lock covers the map and the references, never a
 * wait for a file.
 */
struct mappings {
	pthread_mutex_t lock;
	struct dray_map by_file; /* of struct mapping */
};

/* Descriptors with the same id refer to the same file. */
struct file_id {
	dev_t dev;
	ino_t ino;
};
_Static_assert(sizeof(struct file_id) == sizeof(dev_t) + sizeof(ino_t),
	       "it is a key of a map, so it has no padding");

/* What identifies a mapping. */
struct mapping_key {
	struct file_id file;
	bool writable;
	/*
	 * The session, for huge-page files: their inode numbers are 32 bits of a counter that wraps, so they do not identify a
	 * file of another session. 0 for other files.
	 */
	uint64_t session;
};

/*
 * Shared by the extents and regions of one owner in the same file with the same access. A mapping covers the whole file. The agent never
 * allocates its pages, but fills its page tables.
 */
struct mapping {
	struct dray_map_node by_file; /* a reservation is in no map */
	struct mappings *mappings;
	struct mapping_key key;
	struct owner *owner; /* which pays for it, and whose thread unmaps it */
	struct owner_job unmap;
	uint32_t refs;
	uint8_t *base;
	uint64_t bytes;
	bool guarded; /* by fault_guard_memory() */
	int fd;       /* a duplicate */
	/* of the control thread: fills that use it, and whether the last reference is gone; it stays mapped for these fills */
	uint32_t fills;
	bool unused;
};

void mappings_init(struct mappings *ms);
void mappings_deinit(struct mappings *ms);

/* A mapping of `bytes`, the size of the file, or more; one reference. The descriptor is duplicated, not consumed. */
int mapping_get(struct mappings *ms, struct owner *o, const struct mapping_key *key, int fd,
		uint64_t bytes, struct mapping **ret, struct dray_err *reterr);

/*
 * Reserves addresses for a DMA-BUF, which the CPU does not map: RDMA devices need an address for it, and the agent tells
 * registrations apart by their addresses. An access faults. One reference; the descriptor is duplicated, not consumed.
 */
int mapping_reserve(struct mappings *ms, struct owner *o, int fd, uint64_t bytes,
		    struct mapping **ret, struct dray_err *reterr);

/* Control thread. A fill that it counts has ended. */
void mapping_filled(struct mapping *m);

/* Control thread. A thread of its owner unmaps it after the last reference: the last close of a large memfd frees its pages. */
void mapping_unref(struct mapping *m);

/* --- extents --- */

/* The memory of a region, and a view of it without its head. */
struct extents {
	struct region_view *view; /* length, access, memory, extents and fault_guarded are set */
	/* of each of the view's extents: its offset in the part, and its DMA-BUF. NULL for host memory */
	struct region_dmabuf *dmabufs;
	uint32_t *open;        /* memory of the view's words */
	struct mapping **maps; /* of each descriptor, unless it is of a GPU; one reference each */
	uint32_t n_maps;
	struct fill *fill; /* fills their page tables; NULL: nothing does */
};

/*
 * Checks the extents without their descriptors. Returns the kind of the first one and the memory of all. Errors of
 * extents_length(), and `invalid` if kinds differ; cuda_ipc and cuda_vmm may be mixed.
 */
int extents_check(const struct dmsg_region_add *m, enum dmsg_kind *ret_kind,
		  enum region_memory *ret_memory, struct dray_err *reterr);

/*
 * Maps memfds of at most `limit` bytes, or duplicates DMA-BUFs and reserves addresses for them. Errors as REGION_ADD lists.
 * This function and the next two fill e, which starts as zeros; extents_deinit() follows an error, too. This one may wait
 * for the client's files: it is for the opener of the owner.
 */
int extents_map(struct mappings *ms, const struct region_spec *spec, enum region_memory memory,
		uint64_t limit, struct extents *e, struct dray_err *reterr);

/* A pool: new memory of the agent. *ret_bytes, also on error: its whole pages, if they count as pool_bytes of the owner; else 0. */
int extents_map_pool(struct mappings *ms, const struct region_spec *spec, struct extents *e,
		     uint64_t *ret_bytes, struct dray_err *reterr);

/*
 * Kinds cuda_ipc and cuda_vmm. *ret_parts, to be freed, is the input of gpu_open(): descriptors first, then handles. The
 * view has no addresses until extents_part_opened() sets them.
 */
int extents_read_gpu(const struct region_spec *spec, struct extents *e, struct gpu_part **ret_parts,
		     unsigned *ret_n, struct dray_err *reterr);

/*
 * A part is open: sets the addresses of its extents, and then its word. Any thread; the parts of one request follow each other. The
 * mapping must outlive the view.
 */
void extents_part_opened(struct extents *e, unsigned device, unsigned part, uint64_t address);
/* All parts are open: sets their DMA-BUFs, which must outlive the view, and the word of all. */
void extents_opened(struct extents *e, const struct gpu_part *parts);

/*
 * Control thread. Begins to fill the page tables of guarded host memory, in the background, on a thread of its owner: else the first
 * transfer to each page takes a fault, which costs more than to receive the page. Pages that are not in memory are left (lib/memfd.h).
 * e must stay where it is until extents_release(), which ends it.
 */
void extents_fill(struct extents *e);
/* Control thread. The step that runs goes on without the extents. NULL is allowed. */
void fill_cancel(struct fill *f);

/* Releases the memory. The view stays until extents_deinit(). */
void extents_release(struct extents *e);
void extents_deinit(struct extents *e);

/* --- for the files that make extents --- */

struct piece {
	uint64_t offset, length; /* in the part */
	uint32_t part;           /* descriptors first, then handles */
	uint32_t index;          /* of the extent */
};

/* Refuses one extent: sets "extent INDEX: why" and returns -EINVAL. */
int pieces_refuse(struct dray_err *reterr, int code, uint32_t index, const char *why);

/* One piece for each extent, to be freed. Checks that every part belongs to an extent. 0 or -errno with reterr. */
int pieces_read(const struct dmsg_region_add *m, unsigned n_fds, unsigned n_handles,
		struct piece **ret, struct dray_err *reterr);

/*
 * Adds the view of the pieces, which are in the order of the extents, to e, which starts as zeros. Extents that follow
 * each other in one part become one. The caller sets their addresses. Then sorts the pieces by part and offset. Error
 * `invalid` if extents overlap in a region that is written to: transfers to different offsets would overwrite each other.
 * After an error the caller calls extents_deinit(), too.
 */
int extents_init(struct extents *e, struct piece *v, const struct dmsg_region_add *m,
		 struct dray_err *reterr);
