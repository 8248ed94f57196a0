/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the extents of a REGION_ADD to the memory of a region: every check that a client's descriptors must pass. A part is
 * a descriptor or a legacy CUDA IPC handle that came with the message; a piece is the range of a part that one extent
 * takes. Descriptors stay the caller's.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_EXTENTS_H
#define DRAY_AGENT_CONTROL_REGION_EXTENTS_H

#include "agent/control/region/mapping.h"
#include "agent/control/region/region.h"

/* The memory of a region, and a view of it without its head. */
struct extents {
	struct region_view *view; /* length, access, memory, extents and fault_guarded are set */
	uint32_t *parts;          /* of each of the view's extents */
	/* of each of the view's extents: its offset in the part, and its DMA-BUF. NULL for host memory */
	struct region_dmabuf *dmabufs;
	struct mapping **maps; /* of each descriptor, unless it is of a GPU; one reference each */
	uint32_t n_maps;
};

/* Sum of the extents' lengths. Error `range` if it overflows, `invalid` without extents, or if one is empty. */
int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr);

/*
 * Checks the extents without their descriptors. Returns the kind of the first one and the memory of all. Errors of
 * extents_length(), and `invalid` if kinds differ; cuda_ipc and cuda_vmm may be mixed.
 */
int extents_check(const struct dmsg_region_add *m, enum dmsg_kind *ret_kind,
		  enum region_memory *ret_memory, struct dray_err *reterr);

/*
 * Maps memfds of at most `limit` bytes, or duplicates DMA-BUFs and reserves addresses for them. Errors as REGION_ADD lists;
 * nothing is held then.
 */
int extents_map(struct mappings *ms, const struct region_spec *spec, enum region_memory memory,
		uint64_t limit, struct extents *ret, struct dray_err *reterr);

/* A pool: new memory of the agent. *ret_bytes: its length in whole pages, at most `limit`. */
int extents_map_pool(struct mappings *ms, const struct region_spec *spec, uint64_t limit,
		     struct extents *ret, uint64_t *ret_bytes, struct dray_err *reterr);

/*
 * Kinds cuda_ipc and cuda_vmm. *ret_parts, to be freed, is the input of gpu_open(): descriptors first, then handles. The
 * view has no addresses until extents_opened() sets them.
 */
int extents_read_gpu(const struct region_spec *spec, struct extents *ret,
		     struct gpu_part **ret_parts, unsigned *ret_n, struct dray_err *reterr);

/* Sets addresses and DMA-BUFs, which must outlive the view. */
void extents_opened(struct extents *e, unsigned device, const struct gpu_part *parts);

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

#endif
