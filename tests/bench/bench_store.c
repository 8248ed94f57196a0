/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client of the store of one agent, with OBJECTS objects of one size, and the bare copy of the same bytes.
 *
 *   bench_store --socket PATH --size BYTES
 *
 * Commands, each for N objects or requests:
 *   copy N       memcpy from memory of this process, to the places where get puts the objects
 *   get N        GET, one at a time
 *   batch N      GET of all objects in one request
 *   put N        PUT of new objects, one at a time; they are removed afterwards, outside of the time
 *   read N       READ in place, one at a time; released afterwards, outside of the time
 *   release N    READ and release
 *   exists64 N   EXISTS of 64 keys
 *   exists512 N  EXISTS of 512 keys
 *   fill N       PUT of N more objects of FILL_SIZE bytes, which stay, with keys of FILL_KEY bytes
 *   seek N       EXISTS of 512 keys of these, taken at random
 *   use N        GET of the first N of them
 */
#include <getopt.h>

#include "client/dray.h"
#include "tests/bench/bench.h"

#define OBJECTS 64
#define KEYS_MAX 512
#define FILL_SIZE 64
#define FILL_KEY 16
/* PUTs and leases between two removals or releases. */
#define ROUND 16

static struct dray *d;
static uint64_t size;
static uint8_t *near, *mirror;
static struct dray_store_item items[KEYS_MAX];
static struct dray_store_range ranges[KEYS_MAX];
static struct dray_store_result results[KEYS_MAX];
static char keys[KEYS_MAX][24];
static struct dray_store_batch batch = { .items = items };

static void request(enum dray_store_operation operation, unsigned first, unsigned n,
		    unsigned expected)
{
	batch.items = items + first;
	batch.items_n = n;
	if (dray_store(d, operation, &batch, results) < 0)
		bench_die("%s", dray_last_error(d));
	for (unsigned i = 0; i < n; i++)
		if (results[i].status != expected)
			bench_die("operation %d: a key has status %u", (int)operation,
				  results[i].status);
}

/* Keys from OBJECTS on are of objects that put stores. */
static void prepare(void)
{
	for (unsigned i = 0; i < KEYS_MAX; i++) {
		snprintf(keys[i], sizeof(keys[i]), "block %u", i);
		ranges[i] =
			(struct dray_store_range){ .offset = i % OBJECTS * size, .length = size };
		items[i] = (struct dray_store_item){ .key = keys[i],
						     .key_length = strlen(keys[i]),
						     .ranges = &ranges[i],
						     .ranges_n = 1 };
	}
}

static void fill(void)
{
	for (unsigned i = 0; i < OBJECTS; i++) {
		memset(near + i * size, (int)i, size);
		request(DRAY_STORE_PUT, i, 1, DRAY_STORE_OK);
	}
	memcpy(mirror, near, OBJECTS * size);
}

static void check(void)
{
	memset(near, 0xff, OBJECTS * size);
	request(DRAY_STORE_GET, 0, OBJECTS, DRAY_STORE_OK);
	if (memcmp(near, mirror, OBJECTS * size) != 0)
		bench_die("the objects differ from what was put");
}

static int64_t copy(uint64_t n)
{
	int64_t began = bench_ns();

	for (uint64_t i = 0; i < n; i++)
		memcpy(near + i % OBJECTS * size, mirror + i % OBJECTS * size, size);
	return bench_ns() - began;
}

static int64_t get(uint64_t n)
{
	int64_t began = bench_ns();

	for (uint64_t i = 0; i < n; i++)
		request(DRAY_STORE_GET, i % OBJECTS, 1, DRAY_STORE_OK);
	return bench_ns() - began;
}

static int64_t get_all(uint64_t n)
{
	int64_t began = bench_ns();

	for (uint64_t i = 0; i < n; i++)
		request(DRAY_STORE_GET, 0, OBJECTS, DRAY_STORE_OK);
	return bench_ns() - began;
}

static int64_t put(uint64_t n)
{
	int64_t took = 0;

	for (uint64_t done = 0; done < n; done += ROUND) {
		int64_t began = bench_ns();

		for (unsigned i = 0; i < ROUND; i++)
			request(DRAY_STORE_PUT, OBJECTS + i, 1, DRAY_STORE_OK);
		took += bench_ns() - began;
		request(DRAY_STORE_REMOVE, OBJECTS, ROUND, DRAY_STORE_OK);
	}
	return took;
}

static int64_t read_in_place(uint64_t n, bool with_release)
{
	int64_t took = 0;

	for (uint64_t done = 0; done < n; done += ROUND) {
		uint64_t leases[ROUND];
		int64_t began = bench_ns();

		for (unsigned i = 0; i < ROUND; i++) {
			request(DRAY_STORE_READ, (unsigned)(done + i) % OBJECTS, 1, DRAY_STORE_OK);
			leases[i] = results[0].lease;
			if (with_release)
				dray_store_release(d, &leases[i], 1);
		}
		took += bench_ns() - began;
		if (!with_release)
			dray_store_release(d, leases, ROUND);
	}
	return took;
}

static int64_t exists(uint64_t n, unsigned n_keys)
{
	int64_t began = bench_ns();

	for (uint64_t i = 0; i < n; i++) {
		batch.items = items;
		batch.items_n = n_keys;
		if (dray_store(d, DRAY_STORE_EXISTS, &batch, results) < 0)
			bench_die("%s", dray_last_error(d));
	}
	return bench_ns() - began;
}

static uint64_t filled;

static void name_filled(unsigned i, uint64_t number)
{
	snprintf(keys[i], sizeof(keys[i]), "%0*" PRIx64, FILL_KEY, number);
	ranges[i] = (struct dray_store_range){ .offset = i * FILL_SIZE, .length = FILL_SIZE };
	items[i].key_length = FILL_KEY;
}

/* Objects of `fill` from this one on. */
static int64_t request_filled(enum dray_store_operation operation, uint64_t first, uint64_t n)
{
	int64_t took = 0;

	for (uint64_t done = 0, some; done < n; done += some) {
		int64_t began;

		some = n - done < KEYS_MAX ? n - done : KEYS_MAX;
		for (unsigned i = 0; i < some; i++)
			name_filled(i, first + done + i);
		began = bench_ns();
		request(operation, 0, (unsigned)some, DRAY_STORE_OK);
		took += bench_ns() - began;
	}
	prepare();
	return took;
}

static int64_t put_more(uint64_t n)
{
	int64_t took = request_filled(DRAY_STORE_PUT, filled, n);

	filled += n;
	return took;
}

static int64_t seek(uint64_t n)
{
	int64_t took = 0;

	for (uint64_t k = 0; k < n; k++) {
		for (unsigned i = 0; i < KEYS_MAX; i++)
			name_filled(i, (uint64_t)random() % filled);
		took += exists(1, KEYS_MAX);
	}
	prepare();
	return took;
}

static void run(const char *word, uint64_t n)
{
	uint64_t bytes = n * size;
	int64_t took;

	if (!strcmp(word, "put") || !strcmp(word, "read") || !strcmp(word, "release"))
		n = (n + ROUND - 1) / ROUND * ROUND;
	if (!strcmp(word, "copy"))
		took = copy(n);
	else if (!strcmp(word, "get"))
		took = get(n);
	else if (!strcmp(word, "batch"))
		took = get_all(n);
	else if (!strcmp(word, "put"))
		took = put(n);
	else if (!strcmp(word, "read") || !strcmp(word, "release"))
		took = read_in_place(n, !strcmp(word, "release"));
	else if (!strcmp(word, "exists64"))
		took = exists(n, 64);
	else if (!strcmp(word, "exists512"))
		took = exists(n, KEYS_MAX);
	else if (!strcmp(word, "fill"))
		took = put_more(n);
	else if (!strcmp(word, "use"))
		took = request_filled(DRAY_STORE_GET, 0, n);
	else if (!strcmp(word, "seek"))
		took = seek(n);
	else
		bench_die("%s is no command", word);
	bytes = n * size * (strcmp(word, "batch") ? 1 : OBJECTS);
	bench_say("{\"seconds\": %.9f, \"bytes\": %" PRIu64 ", \"n\": %" PRIu64 "}",
		  (double)took / 1e9, bytes, n);
}

static void open_store(const char *path)
{
	struct dray_options options = { .socket = path };
	char why[256];
	uint64_t length;
	void *memory;

	if (dray_connect(&options, &d, why, sizeof(why)) < 0)
		bench_die("%s", why);
	if (dray_region_add_pool(d, OBJECTS * size, DRAY_READ | DRAY_WRITE, 0, &batch.region) < 0 ||
	    dray_region_map(d, batch.region, &memory, &length, NULL) < 0)
		bench_die("%s", dray_last_error(d));
	near = memory;
	mirror = mmap(NULL, OBJECTS * size, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (mirror == MAP_FAILED)
		bench_die_errno("mmap");
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "socket", required_argument, NULL, 's' },
						 { "size", required_argument, NULL, 'b' },
						 { 0 } };
	const char *path = NULL;
	uint64_t n;
	char word[16];
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 's')
			path = optarg;
		else if (o == 'b')
			size = bench_number(optarg);
		else
			return 1;
	}
	if (!path || !size)
		bench_die("--socket and --size are needed");
	open_store(path);
	prepare();
	fill();
	check();
	bench_say("{\"objects\": %d}", OBJECTS);
	while (bench_command(word, &n))
		run(word, n);
	/* those of `fill` may have driven them out */
	if (!filled)
		request(DRAY_STORE_REMOVE, 0, OBJECTS, DRAY_STORE_OK);
	dray_disconnect(d);
	return 0;
}
