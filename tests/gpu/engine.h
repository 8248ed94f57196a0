/* SPDX-License-Identifier: Apache-2.0 */
/* A minimal inference engine; the head of engine.c lists its commands. */
#pragma once

#include "client/dray.h"
#include "tests/bench/bench.h"
#include "tests/gpu/memory.h"

#define ENGINE_MEMORIES 512
#define ENGINE_REGIONS 64
#define ENGINE_EXTENTS 1024
#define ENGINE_WHY 512

/* A region keeps its index until it is removed. */
struct region {
	dray_region id; /* id 0: none */
	bool pool;      /* one extent, of `own` */
	struct memory own;
	unsigned n;
	struct extent {
		unsigned memory;
		uint64_t offset, length;
	} * extents;
	uint64_t bytes;
};

struct engine {
	struct dray *d;
	struct cuda cuda;
	bool has_cuda; /* the driver is open */
	struct memory memories[ENGINE_MEMORIES];
	struct region regions[ENGINE_REGIONS];
	char why[ENGINE_WHY];
	char code[64]; /* name of the error, or "" */
};

/* Stores the error of a command in e->why. Returns false. */
bool engine_fail(struct engine *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for an error rc of libdray. */
bool engine_refused(struct engine *e, const char *what, int rc);
/* The same for a failed transfer. */
bool engine_ended(struct engine *e, const struct dray_completion *c);

/* Quotes text for JSON; cuts text that does not fit. */
const char *engine_quote(const char *text, char *buf, size_t n);

struct region *engine_region(struct engine *e, const char *name);
/* Copies between a region's bytes and a buffer. */
bool engine_write(struct engine *e, struct region *r, uint64_t at, const uint8_t *from,
		  uint64_t bytes);
bool engine_read(struct engine *e, struct region *r, uint64_t at, uint8_t *to, uint64_t bytes);
/* The GPU address of a region of one extent; 0, with e->why, if it has none. */
cuda_address engine_address(struct engine *e, const struct region *r);

/* Maps the operations in a file; engine_ops_close() unmaps them. */
bool engine_ops(struct engine *e, const char *path, struct bench_ops *ret);
void engine_ops_close(struct bench_ops ops);

const char *engine_transport(unsigned transport);

/* Commands; argv has the arguments after the word. On success they print the answer. */
bool engine_run(struct engine *e, char **argv, unsigned argc);
bool engine_trip(struct engine *e, char **argv, unsigned argc);
bool engine_hold(struct engine *e, char **argv, unsigned argc);
bool engine_words(struct engine *e, char **argv, unsigned argc);
bool engine_fill(struct engine *e, char **argv, unsigned argc);
bool engine_check(struct engine *e, char **argv, unsigned argc);
bool engine_free_memory(struct engine *e, char **argv, unsigned argc);
bool engine_handles(struct engine *e, char **argv, unsigned argc);
bool engine_bare(struct engine *e, char **argv, unsigned argc);
bool engine_watch(struct engine *e, char **argv, unsigned argc);
bool engine_devices(struct engine *e, char **argv, unsigned argc);
