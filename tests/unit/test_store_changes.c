/* SPDX-License-Identifier: Apache-2.0 */
/* Objects as they come and go, and the listing of all: in order, without those of name spaces without a name, and bounded. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "agent/store/internal.h"
#include "agent/store/store.h"
#include "tests/unit/store_rig.h"

#define MANY 20000

static const char *const spaces[] = { "kv=t:1", "other=t:1" };

static struct rig {
	struct store_rig s;
	struct store_member *kv, *other, *own;
	unsigned woken;
	char text[4096];
	uint8_t seen[MANY];
} rig;

static void on_changed(void *arg)
{
	rig.woken++;
}

static int set_up(void **state)
{
	memset(&rig, 0, sizeof(rig));
	store_rig_make(&rig.s, store_rig_config(spaces, 2));
	assert_int_equal(store_watch(rig.s.store, on_changed, NULL), 0);
	store_rig_user(&rig.s);
	rig.kv = store_rig_join(&rig.s, "kv");
	rig.other = store_rig_join(&rig.s, "other");
	rig.own = store_rig_join(&rig.s, "");
	return 0;
}

static int tear_down(void **state)
{
	store_rig_end(&rig.s);
	return 0;
}

static struct store_key key_of(const char *key)
{
	return (struct store_key){ (const uint8_t *)key, (uint32_t)strlen(key) };
}

static enum dmsg_store_status put(struct store_member *m, const char *key, uint64_t bytes)
{
	struct store_object *o;
	enum dmsg_store_status s = rig_put_begin(m, key_of(key), bytes, 1, &o);

	/* a segment comes a moment later */
	for (unsigned i = 0; s == DMSG_STORE_STATUS_BUSY && i < 100000; i++) {
		sched_yield();
		s = rig_put_begin(m, key_of(key), bytes, 1, &o);
	}
	return s ? s : store_put_end(o, true);
}

static void on_change(void *arg, const struct store_change *c)
{
	size_t at = strlen(rig.text);

	snprintf(rig.text + at, sizeof(rig.text) - at, "%c%s/%.*s ", c->here ? '+' : '-', c->space,
		 (int)c->key.n, (const char *)c->key.p);
}

static const char *changes(uint32_t max)
{
	uint64_t lost;

	rig.text[0] = '\0';
	store_changes(rig.s.store, max, on_change, NULL, &lost);
	assert_int_equal(lost, 0);
	return rig.text;
}

static void test_changes(void **state)
{
	struct dmsg_store_result result;
	struct store_key key = key_of("a");

	assert_string_equal(changes(10), "");
	assert_int_equal(put(rig.kv, "a", 100), DMSG_STORE_STATUS_OK);
	assert_int_equal(put(rig.kv, "a", 100), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(put(rig.other, "a", 100), DMSG_STORE_STATUS_OK);
	assert_int_equal(put(rig.own, "private", 100), DMSG_STORE_STATUS_OK);
	store_remove(rig.kv, &key, 1, &result);
	store_remove(rig.kv, &key, 1, &result);
	/* some are taken while others come */
	assert_string_equal(changes(1), "+kv/a ");
	assert_int_equal(put(rig.kv, "b", 100), DMSG_STORE_STATUS_OK);
	assert_string_equal(changes(1), "+other/a ");
	assert_string_equal(changes(10), "-kv/a +kv/b ");
	assert_string_equal(changes(10), "");
	/* one wake-up for all that has come before it is heard */
	while (!rig.woken)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_int_equal(rig.woken, 1);
	assert_int_equal(put(rig.kv, "c", 100), DMSG_STORE_STATUS_OK);
	while (rig.woken < 2)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_string_equal(changes(10), "+kv/c ");
}

/* What is evicted is gone. */
static void test_eviction(void **state)
{
	char key[16];

	for (unsigned i = 0; i < 16; i++) {
		snprintf(key, sizeof(key), "%02u", i);
		assert_int_equal(put(rig.kv, key, MIB), DMSG_STORE_STATUS_OK);
	}
	changes(100);
	assert_non_null(strstr(rig.text, "+kv/15 "));
	assert_non_null(strstr(rig.text, "-kv/00 "));
	assert_null(strstr(rig.text, "-kv/15 "));
}

static void on_listed(void *arg, const struct store_change *c)
{
	unsigned *n = arg, i;

	assert_true(c->here);
	if (strcmp(c->space, "kv") != 0) {
		assert_string_equal(c->space, "other");
		return;
	}
	i = 0;
	for (uint32_t k = 0; k < c->key.n; k++)
		i = i * 10 + c->key.p[k] - '0';
	assert_true(i < MANY);
	rig.seen[i]++;
	++*n;
}

/* Changes that nobody takes are counted, no matter how many; a listing has all objects, also while the index grows. */
static void test_listing(void **state)
{
	struct store_listing at = { .group = 0 };
	unsigned n = 0, turns = 0;
	uint64_t lost;
	char key[24];

	assert_int_equal(put(rig.other, "a", 10), DMSG_STORE_STATUS_OK);
	assert_int_equal(put(rig.own, "private", 10), DMSG_STORE_STATUS_OK);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(key, sizeof(key), "%020u", i);
		assert_int_equal(put(rig.kv, key, 10), DMSG_STORE_STATUS_OK);
		/* the index is small when it begins */
		if (i >= 100 && i % 100 == 0)
			store_list(rig.s.store, &at, 1, on_listed, &n);
	}
	while (store_list(rig.s.store, &at, 64, on_listed, &n))
		assert_true(++turns < MANY);
	/* those that were there from the beginning */
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(rig.seen[i], 1);
	assert_int_equal(store_listed(rig.s.store), MANY + 1);
	memset(rig.seen, 0, sizeof(rig.seen));
	n = 0;
	while (store_list(rig.s.store, &at, 64, on_listed, &n))
		;
	assert_int_equal(n, MANY);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(rig.seen[i], 1);
	n = store_changes(rig.s.store, UINT32_MAX, on_change, NULL, &lost);
	assert_true(lost > 0 && n + lost == MANY + 1);
	assert_int_equal(put(rig.kv, key, 10), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(store_changes(rig.s.store, UINT32_MAX, on_change, NULL, &lost), 0);
}

/* The others are listed all the same. */
static void test_space_that_is_forgotten(void **state)
{
	struct store_listing at = { .group = 0 };
	struct dmsg_store_result result;
	char key[16];

	for (unsigned i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "%02u", i);
		assert_int_equal(put(rig.kv, key, 10), DMSG_STORE_STATUS_OK);
	}
	assert_int_equal(put(rig.other, "a", 10), DMSG_STORE_STATUS_OK);
	assert_true(store_list(rig.s.store, &at, 10, on_change, NULL));
	assert_non_null(strstr(rig.text, "+kv/"));
	assert_null(strstr(rig.text, "+other/a "));
	for (unsigned i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "%02u", i);
		store_remove(rig.kv, &(struct store_key){ (uint8_t *)key, 2 }, 1, &result);
	}
	store_user_free(rig.s.user);
	store_sweep(rig.s.store);
	store_rig_user(&rig.s);
	assert_int_equal(store_listed(rig.s.store), 1);
	while (store_list(rig.s.store, &at, 10, on_change, NULL))
		;
	assert_non_null(strstr(rig.text, "+other/a "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_changes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_eviction, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_listing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_space_that_is_forgotten, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
