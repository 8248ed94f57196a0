/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the copy kernel, shared by its launcher in C and the kernel in CUDA. */
#pragma once

#include <stdint.h>

/* Pieces that fit into the launch itself; longer lists are read from host memory, which takes microseconds more. */
#define COPY_FEW 8
/* Kernels of a queue that run at the same time; no GPU runs more. */
#define COPY_OVERLAP 256
/* Pieces that a tile can touch. */
#define COPY_TILE_MAX 32
#define COPY_THREADS_MAX 1024

/* Entries of the alias table of one context. */
#define COPY_ALIASES_MAX 4096

/* The layout of struct dray_piece. */
struct copy_piece {
	uint64_t to, from, bytes;
};

/*
 * Memory of a peer that has another address in this context; one table for each context, in GPU memory. Entries
 * change while copies of other memory read the table, so begin and end are read and written as one value.
 */
struct copy_alias {
	uint64_t begin, end; /* addresses on its own device; both 0: no entry */
	uint64_t distance;   /* to add for the address in this context, modulo 2^64 */
	uint64_t reserved;
};

/* In GPU memory, one for each queue; zero while no kernel runs. */
struct copy_control {
	uint32_t blocks[COPY_OVERLAP]; /* by copy number: its blocks that have ended */
};

/*
 * Each piece is cut into 2^parts parts of similar size; one warp copies a part. A block takes `batch` neighbouring parts
 * for each of its warps at a time, its tile; these parts belong to at most COPY_TILE_MAX pieces.
 */
struct copy_args {
	const struct copy_piece *pieces; /* NULL: they are in `few` */
	uint64_t to_base, from_base;
	uint64_t *done; /* in host memory: set to `number` when all bytes are in place */
	uint64_t number;
	struct copy_control *control;
	uint32_t n, swapped, parts, batch;
	uint32_t alone; /* the next copy starts only after all blocks of this one have copied */
	uint32_t n_aliases;
	const struct copy_alias *aliases;
	struct copy_piece few[COPY_FEW];
};

#ifndef __CUDACC__
/* The kernel, as a symbol that the runtime knows; C launches it and does not call it. */
void dray_copy(struct copy_args a);
#endif
