/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's blocks of a paged KV cache move from one engine to another: 16 blocks of each of 4
 * layers, 64 operations of 32 KiB in one transfer. Each layer is a tensor in memory of its own; a
 * region joins them.
 *
 *     cc -O2 -Wall paged_kv.c $(pkg-config --cflags --libs dray) -o paged_kv
 *     ./paged_kv SOCKET [SOCKET OF THE OWNER'S AGENT]
 *
 * Tensors on a GPU work alike: dray_cuda_region_add() makes a region of their device pointers.
 */
#include <dray/dray.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 4u
#define BLOCKS 64u         /* of a layer */
#define BLOCK (32u << 10)  /* bytes */
#define REQUEST_BLOCKS 16u /* of each layer */
#define LAYER ((uint64_t)BLOCKS * BLOCK)

/* One engine's cache. */
struct engine {
	struct dray *d;
	struct dray_memory layers[LAYERS];
	dray_region cache;                  /* layer after layer */
	unsigned int table[REQUEST_BLOCKS]; /* the request's blocks in each layer */
};

/* After a failed call: prints the name of the error, its text and the next step, and exits. */
static void check(const char *what, struct dray *d, int error)
{
	if (error < 0)
		errx(1, "%s: %s: %s\n  fix: %s", what, dray_strerrorname(error),
		     d ? dray_last_error(d) : dray_strerror(error), dray_strerrorfix(error));
}

static void engine_start(struct engine *e, const char *socket, const char *name,
			 unsigned int access)
{
	struct dray_options options = { .socket = socket, .group = name, .name = name };
	struct dray_extent extents[LAYERS];
	struct dray_region_spec spec = {
		.name = "kv", .access = access, .extents = extents, .extents_n = LAYERS
	};
	char why[256];
	int error = dray_connect(&options, &e->d, why, sizeof(why));

	if (error)
		errx(1, "%s: %s: %s\n  fix: %s", name, dray_strerrorname(error), why,
		     dray_strerrorfix(error));
	for (unsigned int i = 0; i < LAYERS; i++) {
		check("layer", NULL, dray_memory_alloc(LAYER, 0, &e->layers[i]));
		extents[i] = (struct dray_extent){ .kind = DRAY_KIND_MEMFD,
						   .fd = e->layers[i].fd,
						   .length = LAYER };
	}
	check("cache", e->d, dray_region_add(e->d, &spec, &e->cache));
}

static void engine_end(struct engine *e)
{
	check("cache", e->d, dray_region_remove(e->d, e->cache));
	for (unsigned int i = 0; i < LAYERS; i++)
		dray_memory_free(&e->layers[i]);
	dray_disconnect(e->d);
}

static unsigned char *block_get(struct engine *e, unsigned int layer, unsigned int i)
{
	return (unsigned char *)e->layers[layer].address + (size_t)e->table[i] * BLOCK;
}

int main(int argc, char **argv)
{
	struct dray_op ops[LAYERS * REQUEST_BLOCKS];
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ,
				   .priority = DRAY_PRIORITY_LATENCY,
				   .ops = ops,
				   .deadline_ms = 30000 };
	struct engine prefill, decode;
	struct dray_token token;
	struct dray_completion c;

	if (argc < 2)
		errx(2, "usage: paged_kv SOCKET [SOCKET OF THE OWNER'S AGENT]");
	engine_start(&prefill, argv[argc - 1], "prefill", DRAY_READ);
	engine_start(&decode, argv[1], "decode", DRAY_WRITE);
	/* Each engine has chosen its own blocks for the request. */
	for (unsigned int i = 0; i < REQUEST_BLOCKS; i++) {
		prefill.table[i] = i * 3;
		decode.table[i] = BLOCKS - 1 - i * 2;
	}
	for (unsigned int layer = 0; layer < LAYERS; layer++)
		for (unsigned int i = 0; i < REQUEST_BLOCKS; i++)
			memset(block_get(&prefill, layer, i), (int)(layer * 64 + i + 1), BLOCK);

	/* One token for the whole cache serves all requests between the two engines. */
	check("export", prefill.d, dray_region_export(prefill.d, prefill.cache, NULL, &token));
	check("import", decode.d, dray_remote_import(decode.d, &token, 30000, &t.remote));
	t.local = decode.cache;
	for (unsigned int layer = 0; layer < LAYERS; layer++)
		for (unsigned int i = 0; i < REQUEST_BLOCKS; i++)
			ops[t.count++] = (struct dray_op){
				.local = layer * LAYER + (uint64_t)decode.table[i] * BLOCK,
				.remote = layer * LAYER + (uint64_t)prefill.table[i] * BLOCK,
				.length = BLOCK,
			};
	check("read", decode.d, dray_run(decode.d, &t, &c));
	printf("%zu operations, %llu bytes in %.0f us\n", t.count, (unsigned long long)c.bytes,
	       (double)c.duration_ns / 1e3);
	for (unsigned int layer = 0; layer < LAYERS; layer++)
		for (unsigned int i = 0; i < REQUEST_BLOCKS; i++)
			if (memcmp(block_get(&prefill, layer, i), block_get(&decode, layer, i),
				   BLOCK))
				errx(1, "block %u of layer %u differs", i, layer);

	check("release", decode.d, dray_remote_release(decode.d, t.remote));
	engine_end(&decode);
	engine_end(&prefill);
	puts("copied");
	return 0;
}
