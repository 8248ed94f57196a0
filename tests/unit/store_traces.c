/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_traces.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"
#include "lib/assert.h"
#include "lib/map.h"

#define MIB (1u << 20)
#define BLOCK_BYTES (2 * MIB) /* of a KV block */
#define BLOCK_COST 1000
#define CHAIN_MAX 600 /* blocks of a chat */
#define PROMPT 40     /* blocks of a prompt that many chats begin with */

/* Numbers that are the same for the same seed on every machine (SplitMix64). One trace is made at a time. */
static uint64_t random_state;

static uint64_t next_random(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* At least 0, below 1. */
static double fraction(void)
{
	return (double)(next_random() >> 11) * 0x1p-53;
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)(next_random() % n);
}

/* Ranks from 0, of which rank i has a weight of (i + 1)^-exponent. */
struct zipf {
	double *sums;
	uint32_t n;
};

static struct zipf zipf_new(uint32_t n, double exponent)
{
	struct zipf z = { calloc(n, sizeof(double)), n };
	double sum = 0;

	dray_assert(z.sums);
	for (uint32_t i = 0; i < n; i++)
		z.sums[i] = sum += pow(i + 1, -exponent);
	return z;
}

static uint32_t zipf_next(const struct zipf *z)
{
	double at = fraction() * z->sums[z->n - 1];
	uint32_t low = 0, high = z->n - 1;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (z->sums[middle] < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The bound of n_requests holds within a trace's maker: requests beyond it are dropped. */
static size_t wanted;

static bool full(const struct store_trace *t)
{
	return t->n_requests >= wanted;
}

static void request(struct store_trace *t, uint32_t object)
{
	if (!full(t))
		dray_assert(DRAY_APPEND(t->requests, t->n_requests, object) == 0);
}

static uint32_t object(struct store_trace *t, double bytes, double cost)
{
	struct store_trace_object o = { (uint64_t)bytes, (float)cost };

	dray_assert(DRAY_APPEND(t->objects, t->n_objects, o) == 0);
	return (uint32_t)t->n_objects - 1;
}

/* n objects of the same bytes and cost. The index of the first one. */
static uint32_t blocks(struct store_trace *t, uint32_t n)
{
	uint32_t first = (uint32_t)t->n_objects;

	for (uint32_t i = 0; i < n; i++)
		object(t, BLOCK_BYTES, BLOCK_COST);
	return first;
}

static void set_capacity(struct store_trace *t, double share, double bytes)
{
	t->capacity = (uint64_t)(share * bytes);
}

/* --- objects of one size and cost ---------------------------------------------------------------- */

/* a: exponent. */
static void make_zipf(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct zipf z = zipf_new(20000, r->a);

	blocks(t, z.n);
	while (!full(t))
		request(t, zipf_next(&z));
	set_capacity(t, r->share, (double)z.n * BLOCK_BYTES);
	free(z.sums);
}

static void make_loop(struct store_trace *t, const struct store_trace_recipe *r)
{
	uint32_t n = 5000;

	blocks(t, n);
	for (uint32_t i = 0; !full(t); i++)
		request(t, i % n);
	set_capacity(t, r->share, (double)n * BLOCK_BYTES);
}

/* Popular objects; a: of that many requests one is followed by a scan of b new objects, which are never read again. */
static void make_scan(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct zipf z = zipf_new(10000, 0.9);

	blocks(t, z.n);
	while (!full(t)) {
		request(t, zipf_next(&z));
		if (below((uint32_t)r->a))
			continue;
		for (uint32_t i = 0; i < (uint32_t)r->b; i++)
			request(t, blocks(t, 1));
	}
	set_capacity(t, r->share, (double)z.n * BLOCK_BYTES);
	free(z.sums);
}

/* Popularity changes: a: after so many requests, another object takes the place of a popular one. */
static void make_drift(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct zipf z = zipf_new(10000, 0.9);
	uint32_t *ranks = calloc(z.n, sizeof(*ranks));

	dray_assert(ranks);
	blocks(t, z.n);
	for (uint32_t i = 0; i < z.n; i++)
		ranks[i] = i;
	for (uint32_t i = 0; !full(t); i++) {
		if (i % (uint32_t)r->a == 0) {
			uint32_t popular = below(z.n / 10), other = below(z.n),
				 kept = ranks[popular];

			ranks[popular] = ranks[other];
			ranks[other] = kept;
		}
		request(t, ranks[zipf_next(&z)]);
	}
	set_capacity(t, r->share, (double)z.n * BLOCK_BYTES);
	free(z.sums);
	free(ranks);
}

/*
 * The more lately an object was used, the sooner it is used again, however often that was: the best case of LRU. a:
 * exponent of the distance in the order of last use. Every twentieth request is for a new object.
 */
static void make_stack(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct zipf z = zipf_new(4000, r->a);
	uint32_t *stack = calloc(z.n, sizeof(*stack)), at, taken;

	dray_assert(stack);
	blocks(t, z.n);
	for (uint32_t i = 0; i < z.n; i++)
		stack[i] = i;
	while (!full(t)) {
		at = z.n - 1;
		if (below(20))
			at = zipf_next(&z);
		else
			stack[at] = blocks(t, 1);
		taken = stack[at];
		memmove(stack + 1, stack, at * sizeof(*stack));
		stack[0] = taken;
		request(t, taken);
	}
	set_capacity(t, r->share, (double)z.n * BLOCK_BYTES);
	free(z.sums);
	free(stack);
}

/* --- KV blocks of chats --------------------------------------------------------------------------- */

struct chats {
	struct chat {
		uint32_t blocks[CHAIN_MAX];
		uint32_t n, turns; /* turns: left */
	} * all;
	uint32_t n;
	uint32_t (*prompts)[PROMPT];
	uint32_t n_prompts;
};

/* A block costs more, the further it is from the beginning. */
static uint32_t kv_block(struct store_trace *t, uint32_t position)
{
	return object(t, BLOCK_BYTES, 16 * (120 + 0.16 * position));
}

static struct chats chats_new(struct store_trace *t, uint32_t n, uint32_t n_prompts)
{
	struct chats c = { .n = n, .n_prompts = n_prompts };

	c.all = calloc(n, sizeof(*c.all));
	c.prompts = calloc(n_prompts, sizeof(*c.prompts));
	dray_assert(c.all && c.prompts);
	for (uint32_t i = 0; i < n_prompts * PROMPT; i++)
		c.prompts[i / PROMPT][i % PROMPT] = kv_block(t, i % PROMPT);
	return c;
}

/* A turn reads all blocks of its chat and adds some. A chat that has ended makes room for a new one. */
static void chats_turn(struct store_trace *t, struct chats *c)
{
	struct chat *chat = &c->all[below(c->n)];
	uint32_t more = 4 + below(30);

	if (!chat->turns) {
		chat->turns = 1 + (uint32_t)(-log(1 - fraction()) * 5);
		chat->n = PROMPT;
		memcpy(chat->blocks, c->prompts[below(c->n_prompts)], sizeof(c->prompts[0]));
	}
	for (uint32_t i = 0; i < chat->n; i++)
		request(t, chat->blocks[i]);
	for (; more && chat->n < CHAIN_MAX; more--) {
		chat->blocks[chat->n] = kv_block(t, chat->n);
		request(t, chat->blocks[chat->n++]);
	}
	chat->turns--;
}

/* In use by the chats that have not ended, roughly. */
static double chats_bytes(const struct chats *c)
{
	return c->n * 200.0 * BLOCK_BYTES;
}

static void chats_free(struct chats *c)
{
	free(c->all);
	free(c->prompts);
}

/* a: chats at a time. */
static void make_chats(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct chats c = chats_new(t, (uint32_t)r->a, 4);

	while (!full(t))
		chats_turn(t, &c);
	set_capacity(t, r->share, chats_bytes(&c));
	chats_free(&c);
}

/* --- encoder outputs and everything together --------------------------------------------------------- */

/* Images, sounds and videos: 64 to some 20,000 embeddings of 8 KiB; attention makes the long ones cost more for each byte. */
static uint32_t encoder_output(struct store_trace *t)
{
	double n = 64 * exp2(8 * fraction() * fraction() + 0.5 * fraction());

	return object(t, n * 8192, 3000 + n * (20 + 0.004 * n));
}

#define OUTPUTS 3000

struct outputs {
	struct zipf popularity;
	uint32_t objects[OUTPUTS];
	double bytes;
};

static void outputs_init(struct store_trace *t, struct outputs *o)
{
	o->popularity = zipf_new(OUTPUTS, 0.8);
	o->bytes = 0;
	for (uint32_t i = 0; i < OUTPUTS; i++) {
		o->objects[i] = encoder_output(t);
		o->bytes += (double)t->objects[o->objects[i]].bytes;
	}
}

/* One of them; now and then a new one takes the place of a popular one. */
static void outputs_request(struct store_trace *t, struct outputs *o)
{
	request(t, o->objects[zipf_next(&o->popularity)]);
	if (!below(1500))
		o->objects[below(OUTPUTS / 10)] = encoder_output(t);
}

static void make_outputs(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct outputs o;

	outputs_init(t, &o);
	while (!full(t))
		outputs_request(t, &o);
	set_capacity(t, r->share, o.bytes);
	free(o.popularity.sums);
}

/* Popular encoder outputs, those of files that nobody sends twice, chats, and scans such as of an evaluation. */
static void make_mixed(struct store_trace *t, const struct store_trace_recipe *r)
{
	struct chats c = chats_new(t, 60, 8);
	struct outputs o;

	outputs_init(t, &o);
	while (!full(t)) {
		uint32_t kind = below(100);

		if (kind < 60)
			outputs_request(t, &o);
		else if (kind < 64)
			chats_turn(t, &c);
		else if (kind < 90)
			request(t, encoder_output(t));
		else if (!below(400))
			for (unsigned i = 0; i < 200; i++)
				request(t, encoder_output(t));
	}
	set_capacity(t, r->share, o.bytes + chats_bytes(&c));
	free(o.popularity.sums);
	chats_free(&c);
}

const struct store_trace_recipe store_trace_recipes[] = {
	{ "zipf 0.7, 5 %", make_zipf, 0.05, 0.7, 0 },
	{ "zipf 0.7, 20 %", make_zipf, 0.20, 0.7, 0 },
	{ "zipf 1.0, 5 %", make_zipf, 0.05, 1.0, 0 },
	{ "zipf 1.2, 2 %", make_zipf, 0.02, 1.2, 0 },
	{ "loop, 90 %", make_loop, 0.9, 0, 0 },
	{ "loop, 50 %", make_loop, 0.5, 0, 0 },
	{ "scans, 5 %", make_scan, 0.05, 2000, 2000 },
	{ "scans, 20 %", make_scan, 0.20, 2000, 2000 },
	{ "slow drift, 5 %", make_drift, 0.05, 100, 0 },
	{ "drift, 10 %", make_drift, 0.10, 10, 0 },
	{ "fast drift, 10 %", make_drift, 0.10, 2, 0 },
	{ "recency 0.8, 20 %", make_stack, 0.20, 0.8, 0 },
	{ "recency 1.0, 10 %", make_stack, 0.10, 1.0, 0 },
	{ "recency 1.3, 5 %", make_stack, 0.05, 1.3, 0 },
	{ "30 chats, 30 %", make_chats, 0.30, 30, 0 },
	{ "30 chats, 80 %", make_chats, 0.80, 30, 0 },
	{ "100 chats, 50 %", make_chats, 0.50, 100, 0 },
	{ "encoder, 2 %", make_outputs, 0.02, 0, 0 },
	{ "encoder, 20 %", make_outputs, 0.20, 0, 0 },
	{ "mixed, 2 %", make_mixed, 0.02, 0, 0 },
	{ "mixed, 5 %", make_mixed, 0.05, 0, 0 },
	{ "mixed, 10 %", make_mixed, 0.10, 0, 0 },
	{ "mixed, 20 %", make_mixed, 0.20, 0, 0 },
};
const size_t store_trace_n_recipes = sizeof(store_trace_recipes) / sizeof(store_trace_recipes[0]);

void store_trace_make(struct store_trace *t, const struct store_trace_recipe *r, uint64_t seed,
		      size_t n_requests)
{
	*t = (struct store_trace){ .n_objects = 0 };
	random_state = seed;
	wanted = n_requests;
	r->make(t, r);
}

void store_trace_deinit(struct store_trace *t)
{
	free(t->objects);
	free(t->requests);
	*t = (struct store_trace){ .n_objects = 0 };
}

/* --- recorded ----------------------------------------------------------------------------------------- */

struct named {
	struct dray_map_node by_key;
	uint32_t object;
	char key[256];
};

static uint32_t object_of(struct store_trace *t, struct dray_map *keys, const char *key,
			  uint64_t bytes, double cost)
{
	struct named *n =
		dray_map_entry(dray_map_find(keys, key, strlen(key)), struct named, by_key);

	if (n)
		return n->object;
	n = calloc(1, sizeof(*n));
	dray_assert(n);
	memcpy(n->key, key, strlen(key));
	n->object = object(t, (double)bytes, cost);
	dray_map_add(keys, &n->by_key, n->key, strlen(key));
	return n->object;
}

static bool read_line(struct store_trace *t, struct dray_map *keys, const char *line)
{
	unsigned long long bytes;
	char key[256], rest;
	double cost;

	if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
		return true;
	if (sscanf(line, "%255s %llu %lf %c", key, &bytes, &cost, &rest) != 3 || !bytes ||
	    !(cost > 0))
		return false;
	request(t, object_of(t, keys, key, bytes, cost));
	return true;
}

size_t store_trace_read(struct store_trace *t, FILE *f, double share)
{
	struct dray_map keys;
	char line[512];
	size_t bad = 0, n = 0;
	double bytes = 0;

	*t = (struct store_trace){ .n_objects = 0 };
	wanted = SIZE_MAX;
	dray_map_init(&keys);
	while (!bad && fgets(line, sizeof(line), f))
		bad = ++n * !read_line(t, &keys, line);
	dray_map_for_each(&keys, k, struct named, by_key) {
		dray_map_del(&keys, &k->by_key);
		free(k);
	}
	dray_map_deinit(&keys);
	for (size_t i = 0; i < t->n_objects; i++)
		bytes += (double)t->objects[i].bytes;
	set_capacity(t, share, bytes);
	return bad;
}
