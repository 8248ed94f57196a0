/* SPDX-License-Identifier: Apache-2.0 */
/* The store against a model: random PUT, GET, REMOVE, pins and leases of two owners, with bytes that tell each object. */
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/store/store.h"
#include "agent/store/internal.h"
#include "schema/gen/errors.h"
#include "tests/unit/store_rig.h"

#define KEYS 64
#define STEPS 20000

static struct store_rig rig;
static int kept;

static void keep(struct owner_account *a)
{
	(void)a;
	kept++;
}

static void release(struct owner_account *a)
{
	(void)a;
	kept--;
}

static struct store *store_make(enum policy_kind policy, bool evict)
{
	static const char *const spaces[] = { "both=t:*", "one=t:0" };
	struct store_config cfg = store_rig_config(spaces, 2);

	cfg.policy = policy;
	cfg.evict = evict;
	cfg.keep = keep;
	cfg.release = release;
	store_rig_make(&rig, cfg);
	return rig.store;
}

static uint8_t *bytes_of(struct store *s, const struct store_object *o)
{
	return store_region(s)->extents[0].base + store_object_offset(o);
}

struct model {
	struct store *s;
	struct store_user *u;
	struct store_member *m;
	uint32_t version[KEYS]; /* 0: removed, or it never was */
	uint32_t length[KEYS];
	uint32_t last;
};

static struct store_key key_of(char *text, unsigned k)
{
	return (struct store_key){ (uint8_t *)text, (uint32_t)snprintf(text, 16, "key-%u", k) };
}

static void put(struct model *m, unsigned k)
{
	uint32_t n = 1 + (uint32_t)rand() % (rand() % 8 ? 5000 : 900000);
	struct store_object *o;
	char text[16];
	enum dmsg_store_status status =
		rig_put_begin(m->m, key_of(text, k), n, (uint32_t)rand() % 1000, &o);

	if (status == DMSG_STORE_STATUS_EXISTS) {
		assert_true(m->version[k]);
		return;
	}
	if (status == DMSG_STORE_STATUS_BUSY)
		return;
	assert_int_equal(status, DMSG_STORE_STATUS_OK);
	memset(bytes_of(m->s, o), (int)(++m->last & 0xff), n);
	if (rand() % 10 == 0) {
		store_put_end(o, false);
		return;
	}
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
	m->version[k] = m->last;
	m->length[k] = n;
}

static void get(struct model *m, unsigned k)
{
	char text[16];
	struct store_wait wait = { 0 };
	struct store_get g = { .object = NULL };
	struct store_object *o;

	if (store_get_begin(m->m, key_of(text, k), &wait, &g))
		return;
	o = g.object;
	assert_false(g.loads);
	assert_true(m->version[k]);
	assert_int_equal(store_object_bytes(o), m->length[k]);
	for (uint32_t i = 0; i < m->length[k]; i += m->length[k] / 7 + 1)
		assert_int_equal(bytes_of(m->s, o)[i], m->version[k] & 0xff);
	assert_int_equal(bytes_of(m->s, o)[m->length[k] - 1], m->version[k] & 0xff);
	assert_int_equal(store_get_end(&g), DMSG_STORE_STATUS_OK);
}

static void step(struct model *m)
{
	struct dmsg_store_result result;
	struct dmsg_store_place place;
	struct store_files files;
	unsigned k = (unsigned)rand() % KEYS;
	char text[16];
	struct store_key key = key_of(text, k);

	switch (rand() % 8) {
	case 0:
		store_remove(m->m, &key, 1, &result);
		if (!result.status)
			m->version[k] = 0;
		break;
	case 1:
		store_pin(m->u, m->m, &key, 1, &result);
		break;
	case 2:
		store_unpin(m->u, m->m, &key, 1, &result);
		break;
	case 3:
		store_read(m->u, m->m, &key, 1, &place, &files);
		for (unsigned i = 0; i < files.n; i++)
			close(files.fd[i]);
		if (!place.status) {
			uint8_t wire[DMSG_STORE_LEASE_SIZE];

			dmsg_store_lease_put(wire, &(struct dmsg_store_lease){ place.lease });
			assert_int_equal(store_release(m->u, &(struct dray_vec){ wire, 1 }, false),
					 1);
			assert_int_equal(store_release(m->u, &(struct dray_vec){ wire, 1 }, false),
					 0);
		}
		break;
	case 4:
	case 5:
		get(m, k);
		break;
	default:
		put(m, k);
	}
}

static void random_steps(enum policy_kind policy, bool evict)
{
	struct store *s = store_make(policy, evict);
	struct dray_err err = DRAY_ERR_NULL;
	struct model models[2] = { { .s = s }, { .s = s } };

	srand(policy + 1);
	for (unsigned i = 0; i < 2; i++) {
		models[i].u = store_user_new(s, &rig.accounts[i], &err);
		models[i].m = store_join(models[i].u, (struct dray_str){ "", 0 }, &err);
		assert_non_null(models[i].m);
	}
	for (unsigned i = 0; i < STEPS; i++)
		step(&models[rand() % 2]);
	for (unsigned i = 0; i < 2; i++)
		store_user_free(models[i].u);
	assert_int_equal(store_totals(s).held_bytes, 0);
	assert_int_equal(rig.budgets.of[RESOURCE_STORE_HELD_BYTES].used, 0);
	while (store_evict(s, "", "t", 0, UINT64_MAX).more ||
	       store_evict(s, "", "t", 1, UINT64_MAX).more)
		;
	assert_int_equal(store_totals(s).objects, 0);
	assert_int_equal(rig.budgets.of[RESOURCE_STORE_BYTES].used, 0);
	store_sweep(s);
	assert_int_equal(kept, 0);
	store_rig_end(&rig);
}

static void test_random(void **state)
{
	(void)state;
	for (unsigned p = 0; p < POLICY_KIND_N; p++) {
		random_steps((enum policy_kind)p, true);
		random_steps((enum policy_kind)p, false);
	}
}

static void test_who_may_use_a_name_space(void **state)
{
	struct store *s = store_make(POLICY_LRU, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *a = store_user_new(s, &rig.accounts[0], &err),
			  *b = store_user_new(s, &rig.accounts[1], &err);

	(void)state;
	assert_non_null(store_join(a, (struct dray_str){ "one", 3 }, &err));
	assert_null(store_join(b, (struct dray_str){ "one", 3 }, &err));
	assert_int_equal(err.code, DRAY_E_DENIED);
	assert_null(store_join(b, (struct dray_str){ "on", 2 }, &err));
	assert_ptr_not_equal(store_join(a, (struct dray_str){ "both", 4 }, &err), NULL);
	assert_non_null(store_join(b, (struct dray_str){ "both", 4 }, &err));
	store_user_free(a);
	store_user_free(b);
	store_sweep(s);
	assert_int_equal(kept, 0);
	store_rig_end(&rig);
}

/* docs/store.md states the size. */
static void test_bytes_of_an_object(void **state)
{
	(void)state;
	/* the allocator adds 8 bytes, and 8 by rounding on average; the index has one or two pointers for each object */
	assert_true(sizeof(struct store_object) + 8 + 8 + 16 <= 136);
}

static void put_at(struct store_member *m, unsigned k, uint32_t cost_us)
{
	struct store_object *o;
	char text[16];

	assert_int_equal(rig_put_begin(m, key_of(text, k), 64, cost_us, &o), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
}

/* An owner with nothing to evict takes nothing from the others of its name space. */
static void test_full_share_in_a_shared_name_space(void **state)
{
	enum { OTHERS = 500, OWN = 32 };
	struct store *s = store_make(POLICY_LRU, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *u[2];
	struct store_member *m[2];
	struct store_object *o;
	struct dmsg_store_result r;
	char text[16];
	struct store_key key;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		u[i] = store_user_new(s, &rig.accounts[i], &err);
		m[i] = store_join(u[i], (struct dray_str){ "both", 4 }, &err);
		assert_non_null(m[i]);
	}
	for (unsigned k = 0; k < OTHERS; k++)
		put_at(m[0], k, 1);
	for (unsigned k = 0; k < OWN; k++) {
		key = key_of(text, OTHERS + k);
		put_at(m[1], OTHERS + k, 1);
		store_pin(u[1], m[1], &key, 1, &r);
		assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
	}
	rig.budgets.of[RESOURCE_STORE_BYTES].owner_max =
		rig.accounts[1].budget.of[RESOURCE_STORE_BYTES].used;
	for (unsigned k = 0; k < 2; k++) {
		assert_int_equal(rig_put_begin(m[1], key_of(text, 1000), 64, 1, &o),
				 DMSG_STORE_STATUS_BUSY);
		assert_int_equal(store_totals(s).evictions, 0);
		assert_int_equal(rig.budgets.of[RESOURCE_STORE_BYTES].refused, k + 1);
	}
	/* with one of its own, those that come before go */
	key = key_of(text, OTHERS);
	store_unpin(u[1], m[1], &key, 1, &r);
	put_at(m[1], 1000, 1);
	assert_int_equal(store_totals(s).evictions, OTHERS + 1);
	assert_int_equal(rig.budgets.of[RESOURCE_STORE_BYTES].refused, 2);
	/* others have what its own limit leaves it: their objects are room for it */
	put_at(m[0], 0, 1);
	rig.budgets.of[RESOURCE_STORE_BYTES].owner_max *= 2;
	rig.budgets.of[RESOURCE_STORE_BYTES].max = rig.budgets.of[RESOURCE_STORE_BYTES].used;
	key = key_of(text, 1000);
	store_pin(u[1], m[1], &key, 1, &r);
	put_at(m[1], 1001, 1);
	for (unsigned i = 0; i < 2; i++)
		store_user_free(u[i]);
	store_rig_end(&rig);
}

static struct store_search *search(struct store *s, uint32_t most, struct dray_err *reterr)
{
	return store_search_new(s, "", "t", 0, most, false, reterr);
}

/* Objects that are there all the time are found once each, although the index doubles several times between the turns. */
static void test_search_beside_puts(void **state)
{
	enum { FIRST = 3000, STEP = 2000, MOST = 40000 };
	struct store *s = store_make(POLICY_LRU, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *u = store_user_new(s, &rig.accounts[0], &err);
	struct store_member *m = store_join(u, (struct dray_str){ "", 0 }, &err);
	static uint8_t seen[MOST];
	struct store_search *q;
	unsigned n = 0, turns = 0;
	uint32_t n_found;
	const struct store_found *v;

	(void)state;
	memset(seen, 0, sizeof(seen));
	for (; n < FIRST; n++)
		put_at(m, n, 1);
	q = search(s, MOST, &err);
	assert_non_null(q);
	while (store_search_turn(q)) {
		turns++;
		for (unsigned i = 0; i < STEP && n < 20000; i++)
			put_at(m, n++, 1);
	}
	assert_true(turns > 5);
	v = store_search_found(q, &n_found);
	for (uint32_t i = 0; i < n_found; i++) {
		char text[16];
		unsigned k;

		snprintf(text, sizeof(text), "%.*s", v[i].key_n, (const char *)v[i].key);
		assert_int_equal(sscanf(text, "key-%u", &k), 1);
		assert_int_equal(seen[k]++, 0);
	}
	for (unsigned k = 0; k < FIRST; k++)
		assert_int_equal(seen[k], 1);
	store_search_free(q);
	store_user_free(u);
	store_rig_end(&rig);
}

/* An object that comes divides one bucket at most, however many objects there are. */
static void test_index_grows_by_steps(void **state)
{
	enum { OBJECTS = 5000 };
	struct store *s = store_make(POLICY_LRU, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *u = store_user_new(s, &rig.accounts[0], &err);
	struct store_member *m = store_join(u, (struct dray_str){ "", 0 }, &err);
	const struct store_space *sp = m->space;
	char text[16];

	(void)state;
	put_at(m, 0, 1);
	for (unsigned k = 1; k < OBJECTS; k++) {
		uint32_t before = sp->n_buckets;

		put_at(m, k, 1);
		assert_in_range(sp->n_buckets, before, before + 1);
		/* the first one, the last one and one between are found at each step */
		for (unsigned i = 0; i < 3; i++)
			assert_non_null(item_find(m->space, key_of(text, k * i / 2)));
	}
	assert_int_equal(sp->n_buckets, OBJECTS);
	for (unsigned k = 0; k < OBJECTS; k++)
		assert_non_null(item_find(m->space, key_of(text, k)));
	store_user_free(u);
	store_rig_end(&rig);
}

/* Of more than it keeps, a search has the most valuable ones, in order. */
static void test_search_keeps_the_best(void **state)
{
	struct store *s = store_make(POLICY_VALUE, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *u = store_user_new(s, &rig.accounts[0], &err);
	struct store_member *m = store_join(u, (struct dray_str){ "", 0 }, &err);
	struct store_search *q;
	const struct store_found *v;
	uint32_t n;

	(void)state;
	for (unsigned k = 0; k < 1000; k++)
		put_at(m, k, 1 + k * 7919 % 1000);
	q = search(s, 10, &err);
	while (store_search_turn(q))
		;
	v = store_search_found(q, &n);
	assert_int_equal(n, 10);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(v[i].cost_us, 1000 - i);
		assert_true(v[i].in_memory && !v[i].on_disk && !v[i].held);
	}
	store_search_free(q);
	assert_null(store_search_new(s, "", "t", 7, 10, false, &err));
	assert_int_equal(err.code, DRAY_E_NOT_FOUND);
	assert_null(store_search_new(NULL, "", "t", 0, 10, false, &err));
	/* the name space goes during a search */
	q = search(s, 10, &err);
	while (store_evict(s, "", "t", 0, UINT64_MAX).more)
		;
	store_user_free(u);
	store_sweep(s);
	assert_false(store_search_turn(q));
	store_search_found(q, &n);
	assert_int_equal(n, 0);
	assert_int_equal(store_search_load(q, 1).objects, 0);
	store_search_free(q);
	store_rig_end(&rig);
}

/* An owner with few of the bytes of the store keeps what it has read while it has objects that it has never read; by LRU it does not. */
static void test_eviction_from_a_small_share(void **state)
{
	enum { OBJECTS = 64, READ = 32, EVICTED = 16 };

	(void)state;
	for (enum policy_kind kind = POLICY_LRU + 1; kind < POLICY_KIND_N; kind++) {
		struct store *s = store_make(kind, true);
		struct dray_err err = DRAY_ERR_NULL;
		struct store_user *u = store_user_new(s, &rig.accounts[0], &err);
		struct store_member *m = store_join(u, (struct dray_str){ "", 0 }, &err);
		char text[16];

		for (unsigned k = 0; k < READ; k++)
			put_at(m, k, 1);
		for (unsigned i = 0; i < 2 * READ; i++) {
			struct store_get g = { .object = NULL };

			assert_int_equal(store_get_begin(m, key_of(text, i % READ), NULL, &g),
					 DMSG_STORE_STATUS_OK);
			store_get_end(&g);
		}
		for (unsigned k = READ; k < OBJECTS; k++)
			put_at(m, k, 1);
		for (unsigned i = 0; i < EVICTED; i++)
			assert_int_equal(store_evict(s, "", "t", 0, 1).objects, 1);
		for (unsigned k = 0; k < READ; k++)
			if (!item_find(m->space, key_of(text, k)))
				fail_msg("%s evicted object %u, which was read", policy_name(kind),
					 k);
		store_user_free(u);
		store_rig_end(&rig);
	}
}

/* Begins a PUT that goes to another agent, with its bytes. */
static struct store_get forward(struct store_member *m, const char *key, bool prefers)
{
	struct store_key k = { (const uint8_t *)key, (uint32_t)strlen(key) };
	struct store_get g = { .object = NULL };
	struct store_object *o;

	assert_int_equal(rig_forward_put(m, k, 5000, 1, prefers, &o), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_forward_begin(o, &g), DMSG_STORE_STATUS_OK);
	assert_non_null(g.object);
	return g;
}

static bool has(struct store_member *m, const char *key)
{
	struct dmsg_store_result r;

	store_exists(m, &(struct store_key){ (const uint8_t *)key, (uint32_t)strlen(key) }, 1, &r);
	return r.status == DMSG_STORE_STATUS_OK;
}

/* What goes to another agent is not evicted meanwhile, and leaves nothing, unless somebody here wants it. */
static void test_forward(void **state)
{
	struct store *s = store_make(POLICY_LRU, true);
	struct store_key put = { (const uint8_t *)"put", 3 }, gone = { (const uint8_t *)"gone", 4 };
	struct dmsg_store_result r;
	struct store_get g[5], none = { .object = NULL };
	struct store_object *o, *late;
	struct store_member *m;

	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	assert_int_equal(rig_put_begin(m, put, 1, 1, &late), DMSG_STORE_STATUS_OK);
	g[0] = forward(m, "there", false);
	g[1] = forward(m, "here", false);
	g[2] = forward(m, "dropped", false);
	g[3] = forward(m, "put", false);
	g[4] = forward(m, "gone", false);
	assert_int_equal(store_evict(s, "", "t", 1, UINT64_MAX).objects, 0);
	assert_int_equal(store_totals(s).unsaved_objects, 0);
	/* another client puts one, and removes another one */
	assert_int_equal(rig_put_begin(m, put, 1, 1, &o), DMSG_STORE_STATUS_EXISTS);
	store_remove(m, &gone, 1, &r);
	/* one whose key came meanwhile */
	assert_int_equal(store_forward_begin(late, &none), DMSG_STORE_STATUS_EXISTS);
	assert_null(none.object);
	store_forward_end(&g[0], STORE_FORWARD_THERE);
	store_forward_end(&g[1], STORE_FORWARD_HERE);
	store_forward_end(&g[2], STORE_FORWARD_DROPPED);
	store_forward_end(&g[3], STORE_FORWARD_THERE);
	store_forward_end(&g[4], STORE_FORWARD_HERE);
	assert_false(has(m, "there"));
	assert_true(has(m, "here"));
	assert_false(has(m, "dropped"));
	assert_true(has(m, "put"));
	assert_false(has(m, "gone"));
	assert_int_equal(store_totals(s).objects, 2);
	assert_int_equal(store_totals(s).unsaved_objects, 2);
	assert_int_equal(store_evict(s, "", "t", 1, UINT64_MAX).objects, 2);
	assert_int_equal(rig.accounts[1].budget.of[RESOURCE_STORE_BYTES].used, 0);
	store_rig_end(&rig);
}

/* A second PUT of a key that is on its way to another agent does not keep it here. */
static void test_forward_twice(void **state)
{
	static const enum store_forwarded ends[] = { STORE_FORWARD_THERE, STORE_FORWARD_DROPPED };
	struct store *s = store_make(POLICY_LRU, true);
	struct store_key key = { (const uint8_t *)"key", 3 };
	struct store_get g, none = { .object = NULL };
	struct store_object *o, *late, *own;
	struct store_member *m;

	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(ends); i++) {
		assert_int_equal(rig_forward_put(m, key, 1, 1, false, &late), DMSG_STORE_STATUS_OK);
		g = forward(m, "key", false);
		assert_int_equal(rig_forward_put(m, key, 1, 1, false, &o), DMSG_STORE_STATUS_BUSY);
		/* the key came on its way meanwhile */
		assert_int_equal(store_forward_begin(late, &none), DMSG_STORE_STATUS_BUSY);
		assert_null(none.object);
		store_forward_end(&g, ends[i]);
		assert_false(has(m, "key"));
	}
	/* another client has put it here meanwhile */
	g = forward(m, "key", false);
	assert_int_equal(rig_put_begin(m, key, 1, 1, &own), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(rig_forward_put(m, key, 1, 1, false, &o), DMSG_STORE_STATUS_EXISTS);
	store_forward_end(&g, STORE_FORWARD_THERE);
	assert_true(has(m, "key"));
	assert_int_equal(rig_forward_put(m, key, 1, 1, false, &o), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(store_evict(s, "", "t", 1, UINT64_MAX).objects, 1);
	assert_int_equal(store_totals(s).objects, 0);
	store_rig_end(&rig);
}

/* A second PUT of a key that is on its way succeeds if the object will be here or there. */
static void test_forward_preferred(void **state)
{
	static const struct {
		bool first, second;
		enum store_forwarded end;
		bool here;
	} cases[] = {
		{ true, true, STORE_FORWARD_THERE, false },
		{ true, true, STORE_FORWARD_HERE, true },
		{ true, false, STORE_FORWARD_THERE, false },
		{ true, false, STORE_FORWARD_HERE, true },
		{ false, true, STORE_FORWARD_THERE, true },
		{ false, true, STORE_FORWARD_DROPPED, true },
	};
	struct store *s = store_make(POLICY_LRU, true);
	struct store_key key = { (const uint8_t *)"key", 3 };
	struct store_get g, none = { .object = NULL };
	struct store_object *o, *late;
	struct store_member *m;

	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		bool second = cases[i].second;

		assert_int_equal(rig_forward_put(m, key, 1, 1, second, &late),
				 DMSG_STORE_STATUS_OK);
		g = forward(m, "key", cases[i].first);
		assert_int_equal(rig_forward_put(m, key, 1, 1, second, &o),
				 DMSG_STORE_STATUS_EXISTS);
		/* the key came on its way meanwhile */
		assert_int_equal(store_forward_begin(late, &none), DMSG_STORE_STATUS_EXISTS);
		assert_null(none.object);
		store_forward_end(&g, cases[i].end);
		assert_int_equal(has(m, "key"), cases[i].here);
		store_evict(s, "", "t", 1, UINT64_MAX);
	}
	assert_int_equal(store_totals(s).objects, 0);
	assert_int_equal(rig.accounts[1].budget.of[RESOURCE_STORE_BYTES].used, 0);
	store_rig_end(&rig);
}

/* Whether the control thread has to be asked where a PUT goes, for name spaces that are there, and that come later. */
static void test_preferences(void **state)
{
	static const char *const spaces[] = { "kv=t:1", "other=t:1" };
	struct store_config cfg = store_rig_config(spaces, 2);
	struct store_member *own, *kv, *other;

	cfg.asks = cfg.lend = true;
	store_rig_make(&rig, cfg);
	store_rig_user(&rig);
	own = store_rig_join(&rig, "");
	kv = store_rig_join(&rig, "kv");
	assert_false(store_prefers(kv) || store_prefers(own));
	store_hinted(rig.store, "kv", true);
	store_hinted(rig.store, "other", true);
	store_hinted(rig.store, "unknown", true);
	store_hinted(rig.store, "", true);
	other = store_rig_join(&rig, "other");
	assert_true(store_prefers(kv) && store_prefers(other));
	assert_false(store_prefers(own));
	store_hinted(rig.store, "kv", false);
	assert_false(store_prefers(kv));
	store_prefer(rig.store, STORE_PREFERS_AGENT);
	assert_true(store_prefers(kv) && store_prefers(other));
	assert_false(store_prefers(own));
	store_prefer(rig.store, STORE_PREFERS_ITSELF);
	assert_false(store_prefers(kv) || store_prefers(other));
	store_rig_end(&rig);
}

/* Small objects take more memory than their bytes: beyond their number others are evicted, or the store is busy. */
static void test_objects_are_bounded(void **state)
{
	enum { OBJECTS = 100 };
	struct dmsg_store_result r;
	struct store_object *o;
	struct budget *all;
	char text[16];
	struct store_key key;

	(void)state;
	for (unsigned evict = 0; evict < 2; evict++) {
		struct store *s = store_make(POLICY_LRU, evict);
		struct store_member *m;

		store_rig_user(&rig);
		m = store_rig_join(&rig, "");
		all = &rig.budgets.of[RESOURCE_STORE_OBJECTS];
		all->owner_max = OBJECTS;
		for (unsigned k = 0; k < OBJECTS; k++)
			put_at(m, k, 1);
		if (evict)
			put_at(m, OBJECTS, 1);
		else
			assert_int_equal(rig_put_begin(m, key_of(text, OBJECTS), 1, 1, &o),
					 DMSG_STORE_STATUS_BUSY);
		assert_int_equal(store_totals(s).objects, OBJECTS);
		assert_int_equal(store_totals(s).evictions, evict);
		for (unsigned k = 0; k < 2; k++) {
			key = key_of(text, evict + k);
			store_remove(m, &key, 1, &r);
			assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
		}
		/* one that is being written counts as well, and one whose PUT has failed does not */
		assert_int_equal(rig_put_begin(m, key_of(text, 1000), 1, 1, &o),
				 DMSG_STORE_STATUS_OK);
		assert_int_equal(all->used, OBJECTS - 1);
		store_put_end(o, false);
		assert_int_equal(all->used, OBJECTS - 2);
		put_at(m, 1000, 1);
		put_at(m, 1001, 1);
		for (unsigned k = 0; k < 1002; k++) {
			key = key_of(text, k);
			store_pin(rig.user, m, &key, 1, &r);
		}
		assert_int_equal(rig_put_begin(m, key_of(text, 1002), 1, 1, &o),
				 DMSG_STORE_STATUS_BUSY);
		assert_int_equal(store_totals(s).objects, OBJECTS);
		store_rig_end(&rig);
		assert_int_equal(all->used, 0);
	}
}

/* An owner above its share, as after a restart with less, gets below it PUT by PUT. */
static void test_owner_above_its_share_of_objects(void **state)
{
	struct store_member *m;
	struct store *s = store_make(POLICY_LRU, true);
	struct budget *all = &rig.budgets.of[RESOURCE_STORE_OBJECTS];

	(void)state;
	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	all->owner_max = 0;
	all->max = 200;
	for (unsigned k = 0; k < 100; k++)
		put_at(m, k, 1);
	all->max = 100; /* half of it for an owner that is alone */
	for (unsigned k = 100; k < 110; k++)
		put_at(m, k, 1);
	assert_int_equal(all->used, 90);
	assert_int_equal(store_totals(s).evictions, 20);
	store_rig_end(&rig);
}

/* In a shared name space, evictions of what others have may give an owner no room: few of those go for a PUT. */
static void test_objects_of_others_stay(void **state)
{
	struct store_member *mine, *theirs;
	struct store *s = store_make(POLICY_LRU, true);
	struct dray_err err = DRAY_ERR_NULL;
	struct store_user *other;
	struct store_object *o;
	char text[16];

	(void)state;
	store_rig_user(&rig);
	other = store_user_new(s, &rig.accounts[0], &err);
	mine = store_rig_join(&rig, "both");
	theirs = store_join(other, (struct dray_str){ "both", 4 }, &err);
	rig.budgets.of[RESOURCE_STORE_OBJECTS].owner_max = 100;
	for (unsigned k = 0; k < 100; k++)
		put_at(theirs, k, 1);
	for (unsigned k = 100; k < 200; k++)
		put_at(mine, k, 1);
	assert_int_equal(rig_put_begin(mine, key_of(text, 200), 1, 1, &o), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(store_totals(s).evictions, 16);
	store_user_free(other);
	store_rig_end(&rig);
}

/* A job of the store's thread. */
static struct step_job {
	struct dray_job job;
	sem_t go_on;
	uint64_t held; /* holds that it has seen */
} blocker, looker;

static void run_until_told(struct dray_job *j)
{
	sem_wait(&dray_container_of(j, struct step_job, job)->go_on);
}

static void run_until_ending(struct dray_job *j)
{
	(void)j;
	while (!rig.store->ending)
		sched_yield();
}

static void run_look(struct dray_job *j)
{
	dray_container_of(j, struct step_job, job)->held =
		rig.budgets.of[RESOURCE_STORE_HOLDS].used;
}

static void lease(struct store_member *m, struct store_key key, enum dmsg_store_status expected)
{
	struct dmsg_store_place place;
	struct store_files files;

	store_read(rig.user, m, &key, 1, &place, &files);
	for (unsigned k = 0; k < files.n; k++)
		close(files.fd[k]);
	assert_int_equal(place.status, expected);
}

static struct store_key put_bytes(struct store_member *m, char *text, unsigned k, uint64_t bytes)
{
	struct store_key key = key_of(text, k);
	struct store_object *o;

	assert_int_equal(rig_put_begin(m, key, bytes, 1, &o), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
	return key;
}

/* Each READ of an object is one more hold. */
static void test_holds_are_bounded(void **state)
{
	enum { HOLDS = 3000 };
	struct store *s = store_make(POLICY_LRU, true);
	struct budget *all = &rig.budgets.of[RESOURCE_STORE_HOLDS];
	struct dmsg_store_result r;
	struct store_member *m;
	char text[16];
	struct store_key key = key_of(text, 0);
	uint64_t held;

	(void)state;
	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	put_at(m, 0, 1);
	all->owner_max = HOLDS;
	for (unsigned i = 0; i <= HOLDS; i++)
		lease(m, key, i < HOLDS ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_BUSY);
	store_pin(rig.user, m, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_BUSY);
	/* A session that ends frees some of them. The store's thread, which has little time when the store ends, leaves the others to that. */
	dray_jobs_add(s->jobs, &blocker.job, run_until_ending, NULL);
	store_user_free(dray_take(rig.user));
	held = all->used;
	assert_in_range(held, HOLDS - 1000, HOLDS - 1);
	dray_jobs_add(s->jobs, &looker.job, run_look, NULL);
	assert_true(store_free(s));
	rig.store = NULL;
	assert_int_equal(looker.held, held);
	assert_int_equal(all->used, 0);
	assert_int_equal(rig.budgets.of[RESOURCE_STORE_HELD_BYTES].used, 0);
	assert_int_equal(rig.accounts[1].store_kept, 0);
	assert_int_equal(kept, 0);
	store_rig_end(&rig);
}

/*
 * It is swept when its user has lost the last hold, which is after its session has ended. The store may also end before the control thread
 * is told.
 */
static void test_name_space_of_many_holds_is_swept(void **state)
{
	struct dmsg_store_result r;
	char text[16];
	struct store_key key = key_of(text, 0);

	(void)state;
	sem_init(&blocker.go_on, 0, 0);
	for (unsigned told = 0; told < 2; told++) {
		struct store *s = store_make(POLICY_LRU, true);
		struct store_member *m;

		store_rig_user(&rig);
		m = store_rig_join(&rig, "");
		put_at(m, 0, 1);
		for (unsigned i = 0; i < 2000; i++)
			lease(m, key, DMSG_STORE_STATUS_OK);
		store_remove(m, &key, 1, &r);
		assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
		dray_jobs_add(s->jobs, &blocker.job, run_until_told, NULL);
		store_user_free(dray_take(rig.user));
		store_sweep(s);
		assert_int_equal(kept, 1);
		sem_post(&blocker.go_on);
		while (store_totals(s).held_bytes)
			sched_yield();
		for (unsigned i = 0; told && i < 10000 && kept; i++)
			assert_true(sd_event_run(rig.event, 1000) >= 0);
		assert_int_equal(kept, !told);
		assert_int_equal(dray_list_empty(&s->spaces), told);
		store_rig_end(&rig);
		assert_int_equal(kept, 0);
	}
}

/* What another owner holds is released at some time. */
static void test_object_that_its_owner_may_never_hold(void **state)
{
	struct budget *held = &rig.budgets.of[RESOURCE_STORE_HELD_BYTES];
	struct dmsg_store_result r;
	struct dmsg_store_place place;
	struct store_files files;
	struct store_member *m;
	char text[16];
	struct store_key key;

	(void)state;
	store_make(POLICY_LRU, true);
	store_rig_user(&rig);
	m = store_rig_join(&rig, "");
	key = put_bytes(m, text, 0, 100000);
	held->max = 250000;
	held->owner_max = 0;
	held->used = 240000;
	lease(m, key, DMSG_STORE_STATUS_BUSY);
	store_pin(rig.user, m, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_BUSY);
	held->used = 0;
	store_pin(rig.user, m, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
	held->max = 150000;
	/* it is pinned already */
	store_pin(rig.user, m, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
	store_unpin(rig.user, m, &key, 1, &r);
	store_pin(rig.user, m, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_TOO_LARGE);
	assert_int_equal(r.length, 100000);
	assert_int_equal(r.wait_ms, 0);
	store_read(rig.user, m, &key, 1, &place, &files);
	assert_int_equal(place.status, DMSG_STORE_STATUS_TOO_LARGE);
	assert_int_equal(place.length, 100000);
	assert_int_equal(place.wait_ms, 0);
	store_rig_end(&rig);
}

enum keeping { KEEP_BY_LEASE, KEEP_BY_PIN, KEEP_BY_NUMBER, KEEPING_N };

/* Reads an object in place, and releases it. */
static void read_once(struct store_user *u, struct store_member *m, struct store_key key)
{
	struct dmsg_store_place place;
	struct store_files files;
	uint8_t wire[DMSG_STORE_LEASE_SIZE];

	store_read(u, m, &key, 1, &place, &files);
	for (unsigned i = 0; i < files.n; i++)
		close(files.fd[i]);
	if (place.status)
		return;
	dmsg_store_lease_put(wire, &(struct dmsg_store_lease){ place.lease });
	store_release(u, &(struct dray_vec){ wire, 1 }, false);
}

/*
 * Fills segments with one large object each and small ones behind it, and removes the large ones; of leases nothing stays. So the owner
 * has more memory than it is charged for.
 */
static void keep_segments(struct store_user *u, struct store_member *m, enum keeping how,
			  unsigned *k, uint64_t segment, uint64_t all)
{
	unsigned first = *k, n = how == KEEP_BY_NUMBER ? STORE_EVICTED_AT_ONCE + 1 : 1;
	struct dmsg_store_result r;
	struct store_key key;
	char text[16];

	for (uint64_t bytes = 0; bytes < all; bytes += segment) {
		key = put_bytes(m, text, (*k)++, segment - n * 64);
		if (how == KEEP_BY_LEASE)
			read_once(u, m, key);
		for (unsigned i = 0; i < n; i++)
			key = put_bytes(m, text, (*k)++, 64);
		if (how == KEEP_BY_PIN)
			store_pin(u, m, &key, 1, &r);
	}
	for (unsigned i = first; i < *k; i++) {
		key = key_of(text, i);
		if (how == KEEP_BY_LEASE || (i - first) % (n + 1) == 0)
			store_remove(m, &key, 1, &r);
	}
}

/* An owner that keeps memory from being given back leaves others their share. */
static void test_memory_that_is_kept(void **state)
{
	static const char *const spaces[] = { "both=t:*" };
	struct store_object *o;
	struct store_config cfg = store_rig_config(spaces, 1);
	struct dray_err err = DRAY_ERR_NULL;

	(void)state;
	for (unsigned how = 0; how < KEEPING_N; how++) {
		enum dmsg_store_status status = DMSG_STORE_STATUS_BUSY;
		uint64_t bytes = how == KEEP_BY_NUMBER ? 2 * MIB : 6 * MIB;
		struct store_user *a, *b;
		struct store_member *ma, *mb;
		unsigned k = 0;
		char text[16];

		cfg.bytes = how == KEEP_BY_NUMBER ? 8 * MIB : 16 * MIB;
		store_rig_make(&rig, cfg);
		rig.budgets.of[RESOURCE_STORE_BYTES].max = 16 * MIB;
		rig.budgets.of[RESOURCE_STORE_BYTES].owner_max = 0;
		a = store_user_new(rig.store, &rig.accounts[0], &err);
		b = store_user_new(rig.store, &rig.accounts[1], &err);
		ma = store_join(a, (struct dray_str){ "", 0 }, &err);
		mb = store_join(b, (struct dray_str){ "", 0 }, &err);
		keep_segments(a, ma, how, &k, 2 * MIB, 8 * MIB);
		if (how != KEEP_BY_NUMBER)
			keep_segments(a, ma, how, &k, 4 * MIB, 4 * MIB);
		assert_true(store_totals(rig.store).memory + bytes > cfg.bytes);
		/* memory arrives from the thread of the store */
		for (unsigned i = 0; status == DMSG_STORE_STATUS_BUSY && i < 1000; i++) {
			status = rig_put_begin(mb, key_of(text, 0), bytes, 1, &o);
			if (status)
				sd_event_run(rig.event, 1000);
		}
		assert_int_equal(status, DMSG_STORE_STATUS_OK);
		store_put_end(o, true);
		store_user_free(a);
		store_user_free(b);
		assert_int_equal(rig.accounts[0].store_kept, 0);
		store_rig_end(&rig);
	}
}

/* A store of one segment, full of objects of this user, of which some have been cleared. */
static struct segment *begin_to_clear(struct store_user **ret_user, struct store_member **ret_m)
{
	struct store_config cfg = store_rig_config(NULL, 0);
	struct dray_err err = DRAY_ERR_NULL;
	struct segment *g;
	char text[16];

	cfg.bytes = cfg.segment_size;
	store_rig_make(&rig, cfg);
	*ret_user = store_user_new(rig.store, &rig.accounts[0], &err);
	*ret_m = store_join(*ret_user, (struct dray_str){ "", 0 }, &err);
	for (unsigned k = 0; k < cfg.segment_size / 64; k++)
		put_bytes(*ret_m, text, k, 64);
	g = memory_clearable((*ret_m)->space);
	assert_non_null(g);
	memory_clear(g, &(struct store_effort){ 0 });
	return g;
}

/* What was cleared can be used. */
static void takes_what_was_cleared(struct store_member *m)
{
	char text[16];

	m->space->evictions = 0;
	put_bytes(m, text, 0, STORE_EVICTED_AT_ONCE * 64);
	assert_int_equal(m->space->evictions, 0);
}

/* A client keeps the segment, so that it will not be cleared. */
static void test_kept_while_it_is_cleared(void **state)
{
	struct store_user *u;
	struct store_member *m;
	struct segment *g = begin_to_clear(&u, &m);

	assert_true(memory_keep(g, m));
	takes_what_was_cleared(m);
	memory_unkeep(g);
	store_user_free(u);
	store_rig_end(&rig);
}

/* Nobody has gone on with clearing it for a while: the PUT that needed it has ended. */
static void test_left_while_it_is_cleared(void **state)
{
	struct store_user *u;
	struct store_member *m;

	begin_to_clear(&u, &m)->cleared_ns = 0;
	takes_what_was_cleared(m);
	store_user_free(u);
	store_rig_end(&rig);
}

/* What a PUT is told in the end that may evict 32 objects in each turn. */
static enum dmsg_store_status put_by_turns(struct store_member *m, struct store_key key,
					   unsigned turns, struct store_object **ret)
{
	struct store_effort e = { .max = 32 };
	enum dmsg_store_status status;

	do {
		e.done = 0;
		e.more = false;
		status = store_put_begin(m, key, 65536, 1, &e, ret);
		assert_true(turns--);
	} while (e.more);
	return status;
}

/* A PUT whose evictions are divided gets room among its own objects, before a large segment of another owner is cleared for it. */
static void test_divided_put_beside_many_small_objects(void **state)
{
	struct store_config cfg = store_rig_config(NULL, 0);
	struct dray_err err = DRAY_ERR_NULL;
	enum dmsg_store_status status;
	struct store_member *m[2];
	struct store_user *u[2];
	struct store_object *o;
	char text[16];

	(void)state;
	store_rig_make(&rig, cfg);
	rig.budgets.of[RESOURCE_STORE_BYTES].max = 64 * MIB;
	for (unsigned i = 0; i < 2; i++) {
		u[i] = store_user_new(rig.store, &rig.accounts[i], &err);
		m[i] = store_join(u[i], (struct dray_str){ "", 0 }, &err);
		for (unsigned k = 0; k < (i ? 4 : 12) * MIB / 64; k++)
			put_bytes(m[i], text, k, 64);
	}
	assert_int_equal(store_totals(rig.store).evictions, 0);
	status = put_by_turns(m[1], key_of(text, 1 << 20), 200, &o);
	assert_int_equal(status, DMSG_STORE_STATUS_OK);
	store_put_end(o, true);
	for (unsigned i = 0; i < 2; i++)
		store_user_free(u[i]);
	store_rig_end(&rig);
}

/* A PUT of an owner without objects goes on in the next turns until a segment of another owner has been cleared. */
static void test_divided_put_of_a_new_owner(void **state)
{
	struct store_config cfg = store_rig_config(NULL, 0);
	uint64_t bytes = 4096;
	struct dray_err err = DRAY_ERR_NULL;
	enum dmsg_store_status status;
	struct store_member *m[2];
	struct store_user *u[2];
	struct store_object *o;
	char text[16];

	(void)state;
	store_rig_make(&rig, cfg);
	rig.budgets.of[RESOURCE_STORE_BYTES].max = 64 * MIB;
	rig.budgets.of[RESOURCE_STORE_BYTES].owner_max = 64 * MIB;
	for (unsigned i = 0; i < 2; i++) {
		u[i] = store_user_new(rig.store, &rig.accounts[i], &err);
		m[i] = store_join(u[i], (struct dray_str){ "", 0 }, &err);
	}
	for (unsigned k = 0; k < cfg.bytes / bytes; k++)
		put_bytes(m[0], text, k, bytes);
	assert_int_equal(store_totals(rig.store).evictions, 0);
	status = put_by_turns(m[1], key_of(text, 0), 200, &o);
	assert_int_equal(m[0]->space->evictions, cfg.segment_size / bytes);
	/* memory arrives from the thread of the store */
	for (unsigned i = 0; status == DMSG_STORE_STATUS_BUSY && i < 1000; i++) {
		sd_event_run(rig.event, 1000);
		status = put_by_turns(m[1], key_of(text, 0), 200, &o);
	}
	assert_int_equal(status, DMSG_STORE_STATUS_OK);
	store_put_end(o, true);
	assert_int_equal(m[0]->space->evictions, cfg.segment_size / bytes);
	for (unsigned i = 0; i < 2; i++)
		store_user_free(u[i]);
	store_rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_divided_put_beside_many_small_objects),
		cmocka_unit_test(test_divided_put_of_a_new_owner),
		cmocka_unit_test(test_search_beside_puts),
		cmocka_unit_test(test_index_grows_by_steps),
		cmocka_unit_test(test_search_keeps_the_best),
		cmocka_unit_test(test_eviction_from_a_small_share),
		cmocka_unit_test(test_who_may_use_a_name_space),
		cmocka_unit_test(test_bytes_of_an_object),
		cmocka_unit_test(test_full_share_in_a_shared_name_space),
		cmocka_unit_test(test_forward),
		cmocka_unit_test(test_forward_twice),
		cmocka_unit_test(test_forward_preferred),
		cmocka_unit_test(test_preferences),
		cmocka_unit_test(test_memory_that_is_kept),
		cmocka_unit_test(test_kept_while_it_is_cleared),
		cmocka_unit_test(test_left_while_it_is_cleared),
		cmocka_unit_test(test_objects_are_bounded),
		cmocka_unit_test(test_owner_above_its_share_of_objects),
		cmocka_unit_test(test_objects_of_others_stay),
		cmocka_unit_test(test_holds_are_bounded),
		cmocka_unit_test(test_object_that_its_owner_may_never_hold),
		cmocka_unit_test(test_name_space_of_many_holds_is_swept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
