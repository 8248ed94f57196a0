/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's commands about GPUs, and the patterns that it writes to its memory and checks. */
#include "tests/gpu/engine.h"
#include "tests/gpu/pattern.h"

/* Bytes of a region that are checked at a time. */
#define WINDOW (UINT64_C(256) << 20)

bool engine_devices(struct engine *e, char **argv, unsigned argc)
{
	char uuid[48], bdf[32], name[128];

	(void)argv;
	(void)argc;
	if (!cuda_open(&e->cuda, e->why, sizeof(e->why)))
		return false;
	printf("{\"devices\": [");
	for (int i = 0; i < e->cuda.devices; i++) {
		if (!cuda_uuid(&e->cuda, i, uuid, e->why, sizeof(e->why)) ||
		    e->cuda.device_bdf(bdf, sizeof(bdf), i) ||
		    e->cuda.device_name(name, sizeof(name), i))
			bench_die("device %d: %s", i, e->why);
		printf("%s{\"uuid\": \"%s\", \"bdf\": \"%s\", \"name\": \"%s\"}", i ? ", " : "",
		       uuid, bdf, name);
	}
	bench_say("]}");
	return true;
}

static bool free_memory(struct engine *e, int device, size_t *ret_free, size_t *ret_all)
{
	return cuda_use(&e->cuda, device, e->why, sizeof(e->why)) &&
	       cuda_ok(&e->cuda, e->cuda.mem_info(ret_free, ret_all), "cuMemGetInfo", e->why,
		       sizeof(e->why));
}

bool engine_free_memory(struct engine *e, char **argv, unsigned argc)
{
	size_t left, all;

	if (argc != 1)
		return engine_fail(e, "memory DEVICE");
	if (!free_memory(e, (int)bench_number(argv[0]), &left, &all))
		return false;
	bench_say("{\"free\": %zu, \"all\": %zu}", left, all);
	return true;
}

bool engine_watch(struct engine *e, char **argv, unsigned argc)
{
	int64_t ends;
	size_t left = 0, all;
	uint64_t wanted;

	if (argc != 3)
		return engine_fail(e, "watch DEVICE FREE MILLISECONDS");
	wanted = bench_number(argv[1]);
	ends = bench_ns() + (int64_t)bench_number(argv[2]) * 1000000;
	while (left < wanted && bench_ns() < ends)
		if (!free_memory(e, (int)bench_number(argv[0]), &left, &all))
			return false;
	bench_say("{\"ns\": %" PRId64 ", \"free\": %zu, \"reached\": %s}", bench_ns(), left,
		  left >= wanted ? "true" : "false");
	return true;
}

/* --- imports without an agent ------------------------------------------------------------------ */

bool engine_handles(struct engine *e, char **argv, unsigned argc)
{
	printf("{\"handles\": [");
	for (unsigned i = 0; i < argc; i++) {
		const struct memory *m = &e->memories[bench_number(argv[i]) % ENGINE_MEMORIES];

		printf("%s\"", i ? ", " : "");
		for (unsigned k = 0; k < sizeof(m->handle); k++)
			printf("%02x", m->handle[k]);
		printf("\"");
	}
	bench_say("]}");
	return true;
}

static void handle_parse(const char *text, struct cuda_ipc *ret)
{
	for (unsigned i = 0; i < sizeof(ret->bytes) && text[0] && text[1]; i++, text += 2) {
		char byte[3] = { text[0], text[1], 0 };

		ret->bytes[i] = (char)strtoul(byte, NULL, 16);
	}
}

bool engine_bare(struct engine *e, char **argv, unsigned argc)
{
	cuda_address opened[ENGINE_EXTENTS];
	struct cuda_ipc handle = { 0 };
	int64_t began, done;
	unsigned n = 0;

	if (argc < 2 || argc > ENGINE_EXTENTS)
		return engine_fail(e, "bare DEVICE HANDLE...");
	if (!cuda_use(&e->cuda, (int)bench_number(argv[0]), e->why, sizeof(e->why)))
		return false;
	began = bench_ns();
	for (; n + 1 < argc; n++) {
		handle_parse(argv[n + 1], &handle);
		/* 1: CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
		if (!cuda_ok(&e->cuda, e->cuda.ipc_open(&opened[n], handle, 1),
			     "cuIpcOpenMemHandle", e->why, sizeof(e->why)))
			break;
	}
	done = bench_ns();
	for (unsigned i = 0; i < n; i++)
		e->cuda.ipc_close(opened[i]);
	if (n + 1 < argc)
		return false;
	bench_say("{\"open_ns\": %" PRId64 ", \"close_ns\": %" PRId64 "}", done - began,
		  bench_ns() - done);
	return true;
}

/* --- patterns --------------------------------------------------------------------------------- */

static uint8_t *window_new(uint64_t bytes)
{
	uint8_t *p = malloc(bytes < WINDOW ? bytes : WINDOW);

	if (!p)
		bench_die_errno("malloc");
	return p;
}

bool engine_fill(struct engine *e, char **argv, unsigned argc)
{
	struct region *r = argc >= 2 ? engine_region(e, argv[0]) : NULL;
	uint64_t seed, at, end;
	uint8_t *p;
	bool ok = true;

	if (!r)
		return false;
	seed = bench_number(argv[1]);
	at = argc > 2 ? bench_number(argv[2]) : 0;
	end = argc > 3 ? at + bench_number(argv[3]) : r->bytes;
	if (at > end || end > r->bytes)
		return engine_fail(e, "the range is outside the region");
	p = window_new(end - at);
	for (uint64_t n; at < end && ok; at += n) {
		n = end - at < WINDOW ? end - at : WINDOW;
		pattern_fill(p, at, n, seed);
		ok = engine_write(e, r, at, p, n);
	}
	free(p);
	if (ok)
		bench_say("{}");
	return ok;
}

/* Returns the index of the first byte that differs, or n. */
static uint64_t differs(const uint8_t *a, const uint8_t *b, uint64_t n)
{
	uint64_t i = 0;

	if (!memcmp(a, b, n))
		return n;
	while (a[i] == b[i])
		i++;
	return i;
}

/* Replaces the part of an operation that is in at .. at + n - 1 by the other pattern. */
static void overlay(uint8_t *p, uint64_t at, uint64_t n, uint64_t to, uint64_t from, uint64_t bytes,
		    uint64_t other)
{
	uint64_t skip = to < at ? at - to : 0;

	if (to >= at + n || to + bytes <= at)
		return;
	bytes -= skip;
	to += skip;
	if (bytes > at + n - to)
		bytes = at + n - to;
	pattern_fill(p + (to - at), from + skip, bytes, other);
}

bool engine_check(struct engine *e, char **argv, unsigned argc)
{
	struct region *r = argc == 5 ? engine_region(e, argv[0]) : NULL;
	uint64_t seed, other, at = 0;
	struct bench_ops ops;
	uint8_t *wanted, *found;
	bool here, ok = true;

	if (!r || !engine_ops(e, argv[3], &ops))
		return r ? false : engine_fail(e, "check REGION SEED OTHER OPS here|there");
	seed = bench_number(argv[1]);
	other = bench_number(argv[2]);
	here = !strcmp(argv[4], "here");
	wanted = window_new(r->bytes);
	found = window_new(r->bytes);
	for (uint64_t n, bad; at < r->bytes && ok; at += n) {
		n = r->bytes - at < WINDOW ? r->bytes - at : WINDOW;
		pattern_fill(wanted, at, n, seed);
		for (size_t i = 0; i < ops.n; i++)
			overlay(wanted, at, n, here ? ops.v[i].local : ops.v[i].remote,
				here ? ops.v[i].remote : ops.v[i].local, ops.v[i].length, other);
		ok = engine_read(e, r, at, found, n);
		if (!ok)
			break;
		bad = differs(found, wanted, n);
		if (bad < n)
			ok = engine_fail(e, "byte %" PRIu64 " is %02x and should be %02x", at + bad,
					 found[bad], wanted[bad]);
	}
	engine_ops_close(ops);
	free(wanted);
	free(found);
	if (ok)
		bench_say("{\"bytes\": %" PRIu64 "}", r->bytes);
	return ok;
}
