/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy kernel is told; shared by the C that launches it and the CUDA that it is written in. */
#ifndef DRAY_GPU_CUDA_COPY_H
#define DRAY_GPU_CUDA_COPY_H

#include <stdint.h>

#define COPY_KERNEL "dray_copy"
/* So many pieces travel with the launch; more are read from host memory, which costs microseconds more. */
#define COPY_FEW 8
/* Kernels of a queue that run at the same time: no GPU holds more. */
#define COPY_OVERLAP 256
/* Pieces that the parts of a tile lie in. */
#define COPY_TILE_MAX 32
#define COPY_THREADS_MAX 1024

/* Imports that one context can know by another address. */
#define COPY_ALIASES_MAX 4096

/* The same as struct dray_piece. */
struct copy_piece {
	uint64_t to, from, bytes;
};

/*
 * Memory of a peer that is elsewhere in the context that copies; in GPU memory, one table for each context. Entries
 * come and go while copies of other memory read them: begin and end are read, and written, as one.
 */
struct copy_alias {
	uint64_t begin, end; /* where it is for its own device; both 0: no entry */
	uint64_t distance;   /* to where it is in this context, modulo 2^64 */
	uint64_t reserved;
};

/* In GPU memory, one for each queue, zero where no kernel is under way. */
struct copy_control {
	uint32_t blocks[COPY_OVERLAP]; /* that have ended, of the copy with that number */
};

/*
 * Every piece is cut into 2^parts parts of about the same size; a part is copied by one warp. A block takes `batch`
 * neighbouring parts for each of its warps at a time: its tile, whose parts lie in at most COPY_TILE_MAX pieces.
 */
struct copy_args {
	const struct copy_piece *pieces; /* NULL: they are in `few` */
	uint64_t to_base, from_base;
	uint64_t *done; /* in host memory: `number` is stored there when all is in place */
	uint64_t number;
	struct copy_control *control;
	uint32_t n, swapped, parts, batch;
	uint32_t alone; /* the next copy does not begin before this one has nothing left to copy */
	uint32_t n_aliases;
	const struct copy_alias *aliases;
	struct copy_piece few[COPY_FEW];
};

#endif
