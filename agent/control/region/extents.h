/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the extents of a REGION_ADD to mapped memory: every check that a client's descriptors must
 * pass.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_EXTENTS_H
#define DRAY_AGENT_CONTROL_REGION_EXTENTS_H

#include "agent/control/gpu/gpus.h"
#include "agent/control/region/mapping.h"
#include "agent/model/view.h"
#include "lib/handle.h"
#include "schema/gen/data.h"

/* Device memory has addresses here, which nothing is behind: see device_extents.c. */
struct extent_buffer {
	int fd; /* our own */
	uint8_t *base;
	uint64_t bytes; /* of address space; 0: none */
	dev_t dev;
	ino_t ino;
};

/* What was mapped: a view without its head, and what it lies in. */
struct extents {
	struct region_view *view; /* length, access, memory, extents and fault_guarded are set */
	struct mapping **maps;    /* one reference each */
	uint32_t n_maps;
	/* device memory: for each of the view's extents, its descriptor or handle, and what RDMA devices need */
	uint32_t *parts;
	struct region_dmabuf *dmabufs;
	struct extent_buffer *buffers; /* kind dmabuf */
	uint32_t n_buffers;
	struct dray_jobs *closer; /* of buffers; borrowed */
};

/*
 * Memfd extents. limit: largest file that is mapped. Errors as REGION_ADD lists; nothing is held
 * then. The descriptors stay the caller's.
 */
int extents_map(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		const int *fds, unsigned n_fds, uint64_t limit, struct extents *ret,
		struct dray_err *reterr);

/* A pool: new memory of the agent. *ret_bytes: what it really takes. */
int extents_map_pool(struct mappings *ms, dray_handle session, const struct dmsg_region_add *m,
		     uint64_t room, struct extents *ret, uint64_t *ret_bytes,
		     struct dray_err *reterr);

/*
 * Which memory all of them are in, and the kind of the first. `invalid` where they are of several; cuda_ipc and cuda_vmm
 * are one.
 */
int extents_memory(const struct dmsg_region_add *m, enum region_memory *ret,
		   enum dmsg_kind *ret_kind, struct dray_err *reterr);

/*
 * DMA-BUFs: their descriptors are duplicated, and each gets addresses that are its alone. Nothing here asks anybody but
 * the kernel's own DMA-BUF code. The closer, which must outlive them, gives them back.
 */
int extents_take_buffers(struct dray_jobs *closer, const struct dmsg_region_add *m, const int *fds,
			 unsigned n_fds, struct extents *ret, struct dray_err *reterr);

/*
 * Kinds cuda_ipc and cuda_vmm: *ret_parts, to be freed, is what gpu_open() is to open, in the order of descriptors, then
 * handles. The view has no addresses until extents_opened() tells them. The descriptors stay the caller's.
 */
int extents_read_gpu(const struct dmsg_region_add *m, const int *fds, unsigned n_fds,
		     struct extents *ret, struct gpu_part **ret_parts, unsigned *ret_n,
		     struct dray_err *reterr);

/* dmabufs: of each part; they must outlive the view. */
void extents_opened(struct extents *e, unsigned device, const struct gpu_part *parts,
		    const int *dmabufs);

/* Gives back the memory; the view stays for whoever wants to know what there was. */
void extents_release(struct extents *e);
void extents_deinit(struct extents *e);

/* Sum of the extents' lengths. `range` where it overflows, `invalid` for an empty one or none. */
int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr);

#endif
