/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a value into the store of this node's agent, fetches it, and reads it in place.
 *
 * The agent needs a store: drayd --set limits.store_bytes=1GiB.
 *
 *     cc -O2 -Wall put_get.c $(pkg-config --cflags --libs dray) -o put_get
 *     ./put_get [SOCKET]
 */
#include <dray/dray.h>
#include <stdio.h>
#include <string.h>

#define BYTES 65536

static int fail(struct dray *d, const char *what)
{
	fprintf(stderr, "put_get: %s: %s\n", what, dray_last_error(d));
	dray_disconnect(d);
	return 1;
}

int main(int argc, char **argv)
{
	struct dray_options options = { .socket = argc > 1 ? argv[1] : NULL };
	struct dray_store_range from = { .length = BYTES },
				to = { .offset = BYTES, .length = BYTES };
	struct dray_store_item item = {
		.key = "example/value", .key_length = 13, .ranges = &from, .ranges_n = 1
	};
	struct dray_store_batch batch = { .items = &item, .items_n = 1 };
	struct dray_store_result result;
	char why[256];
	uint64_t length;
	void *memory;
	struct dray *d;

	if (dray_connect(&options, &d, why, sizeof(why)) < 0) {
		fprintf(stderr, "put_get: %s\n", why);
		return 1;
	}
	if (dray_region_add_pool(d, 2 * BYTES, DRAY_READ | DRAY_WRITE, 0, &batch.region) < 0)
		return fail(d, "pool");
	if (dray_region_map(d, batch.region, &memory, &length, NULL) < 0)
		return fail(d, "map");

	memset(memory, 'x', BYTES);
	item.cost_us = 20000; /* to compute it again */
	if (dray_store(d, DRAY_STORE_PUT, &batch, &result) < 0)
		return fail(d, "put");
	printf("put: %s\n", result.status == DRAY_STORE_EXISTED ? "it was there" : "stored");

	item.ranges = &to;
	if (dray_store(d, DRAY_STORE_GET, &batch, &result) < 0)
		return fail(d, "get");
	if (result.status || memcmp(memory, (char *)memory + BYTES, BYTES) != 0) {
		fprintf(stderr, "put_get: get: status %u\n", result.status);
		return 1;
	}
	printf("got %llu bytes\n", (unsigned long long)result.length);

	if (dray_store(d, DRAY_STORE_READ, &batch, &result) < 0 || result.status)
		return fail(d, "read");
	printf("in place: %c\n", *(const char *)result.data);
	if (dray_store_release(d, &result.lease, 1) < 0)
		return fail(d, "release");
	dray_disconnect(d);
	return 0;
}
