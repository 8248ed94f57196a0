/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, lists, maps, expiry times, rings, numbers in wire form. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/heap.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/spsc.h"
#include "lib/wire.h"
#include "tests/unit/cm.h"

static void handles_become_stale(void **state)
{
	struct dray_handles t;
	dray_handle a, b;
	int x, y;

	dray_handles_init(&t, 10, 0);
	assert_null(dray_handles_get(&t, 0));
	assert_int_equal(dray_handles_add(&t, &x, &a), 0);
	assert_true(a != 0);
	assert_ptr_equal(dray_handles_get(&t, a), &x);
	assert_ptr_equal(dray_handles_del(&t, a), &x);
	assert_null(dray_handles_get(&t, a));
	assert_null(dray_handles_del(&t, a));
	assert_int_equal(dray_handles_add(&t, &y, &b), 0);
	assert_int_equal(dray_handle_index(a), dray_handle_index(b));
	assert_true(a != b);
	assert_null(dray_handles_get(&t, a));
	assert_null(dray_handles_get(&t, b ^ ((uint64_t)1 << 40)));
	assert_null(dray_handles_get(&t, b + 1));
	assert_null(dray_handles_get(&t, UINT64_MAX));
	dray_handles_deinit(&t);
}

static void handles_have_a_limit(void **state)
{
	struct dray_handles t;
	dray_handle h[101];
	int x;

	dray_handles_init(&t, 100, 3);
	for (int i = 0; i < 100; i++)
		assert_int_equal(dray_handles_add(&t, &x, &h[i]), 0);
	assert_int_equal(dray_handles_add(&t, &x, &h[100]), -ENOSPC);
	dray_handles_del(&t, h[50]);
	assert_int_equal(dray_handles_add(&t, &x, &h[100]), 0);
	dray_handles_deinit(&t);
}

static void handles_can_be_deleted_in_a_walk(void **state)
{
	struct dray_handles t;
	uint32_t cursor = 0;
	dray_handle h;
	int x[50], n = 0;

	dray_handles_init(&t, 100, 3);
	for (int i = 0; i < 50; i++)
		assert_int_equal(dray_handles_add(&t, &x[i], &h), 0);
	while (dray_handles_next(&t, &cursor, &h)) {
		assert_non_null(dray_handles_del(&t, h));
		n++;
	}
	assert_int_equal(n, 50);
	assert_int_equal(t.count, 0);
	cursor = 0;
	assert_null(dray_handles_next(&t, &cursor, NULL));
	dray_handles_deinit(&t);
}

/* Two tables give out the same indices and generations, but no handle of one is found in the other. */
static void handles_have_a_kind(void **state)
{
	struct dray_handles regions, remotes;
	dray_handle a, b;
	int x, y;

	dray_handles_init(&regions, 10, 1);
	dray_handles_init(&remotes, 10, DRAY_HANDLE_KIND_MAX);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(dray_handles_add(&regions, &x, &a), 0);
		assert_int_equal(dray_handles_add(&remotes, &y, &b), 0);
		assert_int_equal(dray_handle_kind(a), 1);
		assert_int_equal(dray_handle_kind(b), DRAY_HANDLE_KIND_MAX);
		assert_true(a < b && b < (uint64_t)1 << 53);
		assert_int_equal(a & 0xffffffffffff, b & 0xffffffffffff);
		assert_ptr_equal(dray_handles_get(&regions, a), &x);
		assert_null(dray_handles_get(&regions, b));
		assert_null(dray_handles_get(&remotes, a));
		assert_null(dray_handles_del(&remotes, a));
		/* above the kind, too */
		assert_null(dray_handles_get(&regions, a | (uint64_t)1 << 53));
		assert_ptr_equal(dray_handles_del(&regions, a), &x);
		assert_ptr_equal(dray_handles_del(&remotes, b), &y);
	}
	dray_handles_deinit(&regions);
	dray_handles_deinit(&remotes);
}

/* When the generation of a slot wraps, it skips 0 and does not run into the kind. */
static void generations_wrap(void **state)
{
	struct dray_handles t;
	dray_handle first, h;
	int x;

	dray_handles_init(&t, 1, 2);
	assert_int_equal(dray_handles_add(&t, &x, &first), 0);
	dray_handles_del(&t, first);
	for (uint32_t i = 1; i < 0xffffff; i++) {
		if (dray_handles_add(&t, &x, &h) < 0 || h == first || dray_handle_kind(h) != 2)
			fail_msg("handle %llx after %u", (unsigned long long)h, i);
		dray_handles_del(&t, h);
	}
	assert_int_equal(dray_handles_add(&t, &x, &h), 0);
	assert_true(h == first);
	dray_handles_deinit(&t);
}

struct item {
	int v;
	struct dray_list node;
};

static void lists_keep_order(void **state)
{
	struct item a = { .v = 1 }, b = { .v = 2 }, c = { .v = 3 };
	struct dray_list l, other;
	int sum = 0;

	dray_list_init(&l);
	dray_list_init(&other);
	assert_true(dray_list_empty(&l));
	assert_null(dray_list_first(&l, struct item, node));
	dray_list_add(&l, &b.node);
	dray_list_add_front(&l, &a.node);
	dray_list_add(&other, &c.node);
	dray_list_splice(&l, &other);
	assert_true(dray_list_empty(&other));
	dray_list_splice(&l, &other);
	dray_list_for_each(&l, it, struct item, node)
		sum = sum * 10 + it->v;
	assert_int_equal(sum, 123);
	dray_list_for_each(&l, it, struct item, node)
		dray_list_del(&it->node);
	assert_true(dray_list_empty(&l));
	dray_list_del(&a.node);
}

struct pair {
	struct dray_map_node node;
	unsigned key;
};

static struct pair *pair_find(const struct dray_map *m, unsigned key)
{
	return dray_map_entry(dray_map_find(m, &key, sizeof(key)), struct pair, node);
}

static void maps_find_existing_keys(void **state)
{
	static struct pair pairs[5000];
	unsigned seen = 0;
	struct dray_map m;

	dray_map_init(&m);
	assert_null(dray_map_next(&m, NULL));
	for (unsigned i = 0; i < 5000; i++) {
		pairs[i].key = i * 64;
		assert_null(pair_find(&m, i * 64));
		dray_map_add(&m, &pairs[i].node, &pairs[i].key, sizeof(pairs[i].key));
	}
	assert_int_equal(m.n, 5000);
	for (unsigned i = 0; i < 5000; i += 2)
		dray_map_del(&m, &pairs[i].node);
	for (unsigned i = 0; i < 5000; i++)
		assert_ptr_equal(pair_find(&m, i * 64), i % 2 ? &pairs[i] : NULL);
	dray_map_for_each(&m, p, struct pair, node)
		seen += p->key;
	assert_int_equal(seen, 2500u * 2500 * 64);
	dray_map_del(&m, &pairs[0].node);
	dray_map_for_each(&m, p, struct pair, node)
		dray_map_del(&m, &p->node);
	assert_int_equal(m.n, 0);
	assert_null(dray_map_next(&m, NULL));
	dray_map_deinit(&m);
	assert_null(pair_find(&m, 0));
	dray_map_add(&m, &pairs[0].node, &pairs[0].key, sizeof(pairs[0].key));
	assert_ptr_equal(pair_find(&m, 0), &pairs[0]);
	dray_map_deinit(&m);
}

/* Also while the table grows. */
static void maps_keep_the_order_of_equal_keys(void **state)
{
	static struct pair same[3], others[1000];
	unsigned key = 7, n = 0;
	struct dray_map m;

	dray_map_init(&m);
	for (unsigned i = 0; i < 1000; i++) {
		others[i].key = 1000 + i;
		if (i % 400 == 0)
			dray_map_add(&m, &same[i / 400].node, &key, sizeof(key));
		dray_map_add(&m, &others[i].node, &others[i].key, sizeof(key));
	}
	dray_map_for_each_of(&m, &key, sizeof(key), p, struct pair, node)
		assert_ptr_equal(p, &same[n++]);
	assert_int_equal(n, 3);
	dray_map_for_each_of(&m, &key, sizeof(key), p, struct pair, node)
		dray_map_del(&m, &p->node);
	assert_null(pair_find(&m, key));
	assert_int_equal(m.n, 1000);
	dray_map_deinit(&m);
}

/* Lengths around the hash's word size, and keys that differ in one byte. */
static void maps_distinguish_keys(void **state)
{
	struct dray_map_node nodes[41][2] = { 0 };
	char keys[41][2][40] = { 0 };
	struct dray_map m;

	dray_map_init(&m);
	for (size_t n = 0; n <= 40; n++)
		for (int k = 0; k < (n ? 2 : 1); k++) {
			if (k)
				keys[n][k][n - 1] = 1;
			assert_null(dray_map_find(&m, keys[n][k], n));
			dray_map_add(&m, &nodes[n][k], keys[n][k], n);
		}
	for (size_t n = 0; n <= 40; n++)
		for (int k = 0; k < (n ? 2 : 1); k++)
			assert_ptr_equal(dray_map_find(&m, keys[n][k], n), &nodes[n][k]);
	dray_map_deinit(&m);
}

static void heap_gives_the_smallest_key_first(void **state)
{
	static struct dray_heap_node nodes[1000];
	struct dray_heap h = { 0 };
	struct dray_heap_node *first;
	int64_t last = -1;
	unsigned n = 0;

	assert_null(dray_heap_first(&h));
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(dray_heap_set(&h, &nodes[i], i * 7919 % 1000), 0);
	for (unsigned i = 0; i < 1000; i += 3)
		dray_heap_del(&h, &nodes[i]);
	dray_heap_del(&h, &nodes[0]);
	assert_false(dray_heap_has(&nodes[0]));
	assert_int_equal(nodes[3].key, 3 * 7919 % 1000);
	while ((first = dray_heap_first(&h))) {
		assert_true(first->key > last);
		last = first->key;
		dray_heap_del(&h, first);
		n++;
	}
	assert_int_equal(n, 666);
	dray_heap_deinit(&h);
}

#define NODES 300

static void heap_stays_ordered_while_nodes_move(void **state)
{
	static struct dray_heap_node nodes[NODES];
	struct dray_heap h = { 0 };
	bool in[NODES] = { false };

	srandom(1);
	assert_int_equal(dray_heap_reserve(&h, NODES), 0);
	for (unsigned round = 0; round < 20000; round++) {
		unsigned i = (unsigned)random() % NODES;
		int64_t min = INT64_MAX;

		in[i] = random() % 3;
		if (in[i])
			assert_int_equal(dray_heap_set(&h, &nodes[i], random() % 1000), 0);
		else
			dray_heap_del(&h, &nodes[i]);
		for (unsigned k = 0; k < NODES; k++) {
			assert_int_equal(in[k], dray_heap_has(&nodes[k]));
			if (in[k])
				min = dray_min(min, nodes[k].key);
		}
		assert_true(min == INT64_MAX ? !dray_heap_first(&h) :
					       dray_heap_first(&h)->key == min);
	}
	dray_heap_deinit(&h);
}

static void ring_is_full_and_empty(void **state)
{
	struct dray_spsc r;
	uint64_t v;

	assert_int_equal(dray_spsc_init(&r, 4, sizeof(v)), 0);
	/* across the end of the slots, and of the counters */
	atomic_store(&r.tail, UINT32_MAX - 5);
	atomic_store(&r.head, UINT32_MAX - 5);
	for (uint64_t round = 0; round < 10; round++) {
		assert_true(dray_spsc_empty(&r));
		for (uint64_t i = 0; i < 4; i++) {
			assert_int_equal(dray_spsc_room(&r), 4 - i);
			v = round * 10 + i;
			assert_true(dray_spsc_push(&r, &v));
		}
		assert_false(dray_spsc_push(&r, &v));
		for (uint64_t i = 0; i < 4; i++) {
			assert_true(dray_spsc_pop(&r, &v));
			assert_int_equal(v, round * 10 + i);
		}
		assert_false(dray_spsc_pop(&r, &v));
	}
	dray_spsc_deinit(&r);
}

static void numbers_are_little_endian(void **state)
{
	uint8_t buf[14];

	dray_le_put16(buf, 0x0203);
	dray_le_put32(buf + 2, 0x04050607);
	dray_le_put64(buf + 6, 0x08090a0b0c0d0e0f);
	assert_memory_equal(buf, "\x03\x02\x07\x06\x05\x04\x0f\x0e\x0d\x0c\x0b\x0a\x09\x08",
			    sizeof(buf));
	assert_int_equal(dray_le_get16(buf), 0x0203);
	assert_int_equal(dray_le_get32(buf + 2), 0x04050607);
	assert_true(dray_le_get64(buf + 6) == 0x08090a0b0c0d0e0f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handles_become_stale),
		cmocka_unit_test(handles_have_a_limit),
		cmocka_unit_test(handles_can_be_deleted_in_a_walk),
		cmocka_unit_test(handles_have_a_kind),
		cmocka_unit_test(generations_wrap),
		cmocka_unit_test(lists_keep_order),
		cmocka_unit_test(maps_find_existing_keys),
		cmocka_unit_test(maps_keep_the_order_of_equal_keys),
		cmocka_unit_test(maps_distinguish_keys),
		cmocka_unit_test(heap_gives_the_smallest_key_first),
		cmocka_unit_test(heap_stays_ordered_while_nodes_move),
		cmocka_unit_test(ring_is_full_and_empty),
		cmocka_unit_test(numbers_are_little_endian),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
