/* SPDX-License-Identifier: Apache-2.0 */
/* From the extents of a REGION_ADD to the memory of a region: every check that a client's descriptors must pass. */
#ifndef DRAY_AGENT_CONTROL_REGION_EXTENTS_H
#define DRAY_AGENT_CONTROL_REGION_EXTENTS_H

#include "agent/control/gpu/gpus.h"
#include "agent/control/region/mapping.h"
#include "agent/control/region/pieces.h"
#include "lib/handle.h"

/* A DMA-BUF, and the addresses that stand for it: see device_extents.c. */
struct extent_buffer {
	int fd; /* a duplicate */
	uint8_t *base;
	uint64_t bytes; /* of address space; 0: none */
};

/* The memory of a region, and a view of it without its head. */
struct extents {
	struct region_view *view; /* length, access, memory, extents and fault_guarded are set */
	uint32_t *parts;          /* of each of the view's extents */
	/* of each of the view's extents: its offset in the part, and its DMA-BUF. NULL for host memory */
	struct region_dmabuf *dmabufs;
	struct mapping **maps; /* host memory; one reference each */
	uint32_t n_maps;
	struct extent_buffer *buffers; /* kind dmabuf */
	uint32_t n_buffers;
	struct dray_jobs *closer; /* of buffers; borrowed */
};

/*
 * Adds the view of the pieces, which are in the order of the extents, to e, which starts as zeros. Extents that follow
 * each other in one part become one. Their addresses are left to the caller. 0 or -ENOMEM with reterr; then, too, the
 * caller calls extents_deinit().
 */
int extents_init(struct extents *e, const struct piece *v, uint32_t n, uint16_t access,
		 struct dray_err *reterr);

/*
 * Memfd extents. limit: largest file that is mapped. Errors as REGION_ADD lists; nothing is held
 * then. The descriptors stay the caller's.
 */
int extents_map(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		const int *fds, unsigned n_fds, uint64_t limit, struct extents *ret,
		struct dray_err *reterr);

/* A pool: new memory of the agent. *ret_bytes: its length in whole pages. */
int extents_map_pool(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		     uint64_t room, struct extents *ret, uint64_t *ret_bytes,
		     struct dray_err *reterr);

/*
 * DMA-BUFs: duplicates their descriptors, and reserves addresses for each. Calls nothing but the kernel's own DMA-BUF code.
 * The closer, which must outlive them, releases both.
 */
int extents_take_buffers(struct dray_jobs *closer, const struct dmsg_region_add *m, const int *fds,
			 unsigned n_fds, struct extents *ret, struct dray_err *reterr);

/*
 * Kinds cuda_ipc and cuda_vmm. *ret_parts, to be freed, is the input of gpu_open(), in the order of descriptors, then
 * handles. The view has no addresses until extents_opened() sets them. The descriptors stay the caller's.
 */
int extents_read_gpu(const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		     struct extents *ret, struct gpu_part **ret_parts, unsigned *ret_n,
		     struct dray_err *reterr);

/* dmabufs: of each part; they must outlive the view. */
void extents_opened(struct extents *e, unsigned device, const struct gpu_part *parts,
		    const int *dmabufs);

/* Releases the memory. The view stays until extents_deinit(). */
void extents_release(struct extents *e);
void extents_deinit(struct extents *e);

#endif
