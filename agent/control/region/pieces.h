/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extents of a REGION_ADD as the client names them. A part is a descriptor or a legacy CUDA IPC handle that came with
 * the message; a piece is the range of a part that one extent takes.
 */
#ifndef DRAY_AGENT_CONTROL_REGION_PIECES_H
#define DRAY_AGENT_CONTROL_REGION_PIECES_H

#include <sys/types.h>

#include "agent/model/view.h"
#include "lib/err.h"
#include "schema/gen/data.h"

struct piece {
	uint64_t offset, length; /* in the part */
	uint32_t part;           /* descriptors first, then handles */
	uint32_t index;          /* of the extent */
};

/* What tells the files behind two descriptors apart. */
struct file_id {
	dev_t dev;
	ino_t ino;
};

/* Refuses one extent: sets "extent INDEX: why" and returns -EINVAL. */
int pieces_refuse(struct dray_err *reterr, int code, uint32_t index, const char *why);

/* Sum of the extents' lengths. Error `range` if it overflows, `invalid` if there is no extent or an empty one. */
int extents_length(const struct dmsg_region_add *m, uint64_t *ret_length, struct dray_err *reterr);

/*
 * Type of memory of all extents, and the kind of the first one. Error `invalid` if the types differ; cuda_ipc and cuda_vmm
 * are one type.
 */
int extents_memory(const struct dmsg_region_add *m, enum region_memory *ret,
		   enum dmsg_kind *ret_kind, struct dray_err *reterr);

/* One piece for each extent, to be freed. Checks that every part belongs to an extent. 0 or -errno with reterr. */
int pieces_read(const struct dmsg_region_add *m, unsigned n_fds, unsigned n_handles,
		struct piece **ret, struct dray_err *reterr);

/* A file that came by several descriptors counts as the first of these parts. ids: of each part. */
void pieces_join(struct piece *v, uint32_t n, const struct file_id *ids);

/* Sorts the pieces by part and offset, or back into the order of the extents. */
void pieces_by_place(struct piece *v, uint32_t n);
void pieces_by_index(struct piece *v, uint32_t n);

/*
 * Refuses pieces that overlap; they are sorted by place. In a region that is written to, two extents with the same bytes
 * would let transfers to different offsets overwrite each other.
 */
int pieces_check_overlap(const struct piece *v, uint32_t n, struct dray_err *reterr);

#endif
