/* SPDX-License-Identifier: Apache-2.0 */
/* What the store lends to other agents: who gets it, what it covers, how much of it there is, and how it ends. */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cm.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/ranges.h"
#include "agent/store/internal.h"
#include "lib/crc32c.h"
#include "schema/gen/errors.h"
#include "tests/unit/exchange_peers.h"
#include "tests/unit/fake_pool.h"
#include "tests/unit/store_rig.h"

#define PEER ((dray_handle)7)
#define OTHER ((dray_handle)8)
#define BYTES_MOST 16384u /* of one answer */

static const char *const spaces[] = { "kv=t:1", "kv=u:*", "mine=t:2" };

static char no_agent[] = "";

static struct rig {
	struct store_rig s;
	struct dray_config cfg;
	struct worker_pool pool;
	struct store_member *member;
	struct exchange *x;
	struct rails *rails;
	uint64_t requests;
	/* rails */
	unsigned segments, removed;
	dray_handle segment; /* the one that was added last */
	const struct region_view *view;
	bool lends, has_keys; /* has_keys: peers get some */
	void (*removed_fn)(void *arg);
	void *removed_arg;
	unsigned fences;
	dray_handle fenced;
	uint32_t n_rails; /* of the last answer */
	struct pmsg_rail keys[4];
	/* the last answer */
	unsigned answers;
	dray_handle peer;
	uint64_t request, grant;
	uint32_t code, lease_ms, n;
	struct pmsg_store_found found[512];
	uint32_t flags;   /* of lookups */
	uint32_t n_bytes; /* of the last answer */
	uint8_t bytes[BYTES_MOST];
} rig;

void peers_send(struct peers *p, dray_handle peer, uint16_t type, uint64_t request_id,
		const union pmsg_body *body)
{
	const struct pmsg_store_lookup_reply *m = &body->store_lookup_reply;

	assert_int_equal(type, PMSG_STORE_LOOKUP_REPLY);
	rig.answers++;
	rig.peer = peer;
	rig.request = request_id;
	rig.code = 0;
	rig.grant = m->grant;
	rig.lease_ms = m->lease_ms;
	rig.n = m->found.n;
	for (uint32_t i = 0; i < m->found.n; i++)
		pmsg_store_found_get(m->found.p + (size_t)i * PMSG_STORE_FOUND_SIZE, &rig.found[i]);
	rig.n_bytes = m->bytes.n;
	if (m->bytes.n)
		memcpy(rig.bytes, m->bytes.p, m->bytes.n);
	rig.n_rails = m->rails.n;
	for (uint32_t i = 0; i < m->rails.n; i++)
		pmsg_rail_get(m->rails.p + (size_t)i * PMSG_RAIL_SIZE, &rig.keys[i]);
}

void peers_fence(struct peers *p, dray_handle peer, dray_handle grant, uint32_t code)
{
	assert_int_equal(peer, PEER);
	assert_int_equal(code, DRAY_E_REVOKED);
	rig.fences++;
	rig.fenced = grant;
}

void peers_fence_ack(struct peers *p, dray_handle peer, uint64_t grant)
{
	fail();
}

static void segment_added(struct rails *rails, const struct region_view *view, bool lends)
{
	rig.segments++;
	rig.segment = view->o.handle;
	rig.view = view;
	rig.lends = lends;
}

static void segment_removed(struct rails *rails, dray_handle segment, void (*done)(void *arg),
			    void *arg)
{
	rig.removed++;
	rig.removed_fn = done;
	rig.removed_arg = arg;
}

static unsigned segment_keys(struct rails *rails, dray_handle peer, dray_handle segment,
			     uint64_t offset, uint64_t length, uint64_t at, uint8_t *buf,
			     unsigned max)
{
	assert_true(max > 0);
	if (!rig.has_keys)
		return 0;
	pmsg_rail_put(buf, &(struct pmsg_rail){ .rail = 3,
						.rkey = (uint32_t)segment,
						.base = 0x1000 + offset,
						.offset = at,
						.length = length });
	return 1;
}

static const struct exchange_upcalls upcalls = {
	.segment_added = segment_added,
	.segment_removed = segment_removed,
	.segment_keys = segment_keys,
};

void peers_refuse(struct peers *p, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *why)
{
	rig.answers++;
	rig.peer = peer;
	rig.request = request_id;
	rig.code = code;
}

/* Nothing is asked for. */
dray_handle peers_at(struct peers *p, const char *segment, uint64_t features)
{
	return 0;
}

int peers_request(struct peers *p, dray_handle peer, uint16_t type, const union pmsg_body *body,
		  peer_reply_fn fn, void *arg)
{
	return -1;
}

void worker_post(struct worker *w, const struct command *cmd)
{
}

/* disk: the folder of a disk tier; NULL: there is none. */
static int set_up_with(char *disk)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct store_config cfg = store_rig_config(spaces, DRAY_ARRAY_SIZE(spaces));

	memset(&rig, 0, sizeof(rig));
	exchange_peers_reset();
	rig.cfg.store.put_at = no_agent;
	memset(fake_published, 0, sizeof(fake_published));
	cfg.lend = true;
	cfg.peer_timeout_ns = 60 * DRAY_NS_PER_SEC;
	if (disk)
		cfg.disk =
			(struct store_disk_config){ .dir = disk, .bytes = 64 * MIB, .threads = 2 };
	store_rig_make(&rig.s, cfg);
	store_rig_user(&rig.s);
	rig.member = store_rig_join(&rig.s, "kv");
	rig.cfg.limits.store_bytes = 16 * MIB;
	rig.cfg.store.lend = true;
	assert_int_equal(exchange_new(&rig.x,
				      &(struct exchange_deps){ .event = rig.s.event,
							       .cfg = &rig.cfg,
							       .pool = &rig.pool,
							       .store = rig.s.store,
							       .up = &upcalls,
							       .rails = &rig.rails },
				      &err),
			 0);
	return 0;
}

static int set_up(void **state)
{
	return set_up_with(NULL);
}

static int set_up_disk(void **state)
{
	cm_dir_set_up(state);
	return set_up_with(cm_dir);
}

static int tear_down(void **state)
{
	dray_list_for_each(&fake_drops, d, struct fake_drop, link) {
		dray_list_del(&d->link);
		free(d);
	}
	rig.x = exchange_free(rig.x);
	store_rig_end(&rig.s);
	return 0;
}

static int tear_down_disk(void **state)
{
	tear_down(state);
	return cm_dir_tear_down(state);
}

static struct store_key key_of(unsigned n)
{
	static char text[512][8];
	int bytes = snprintf(text[n], sizeof(text[n]), "k%u", n);

	return (struct store_key){ (const uint8_t *)text[n], (uint32_t)bytes };
}

static uint8_t *bytes_at(uint64_t offset)
{
	return store_region(rig.s.store)->extents[0].base + offset;
}

static void put(unsigned n, uint64_t bytes)
{
	struct store_object *o;

	assert_int_equal(rig_put_begin(rig.member, key_of(n), bytes, 77, &o), 0);
	memset(bytes_at(store_object_offset(o)), (int)n + 1, bytes);
	assert_int_equal(store_put_end(o, true), 0);
}

static bool has(unsigned n)
{
	struct dmsg_store_result r;
	struct store_key key = key_of(n);

	store_exists(rig.member, &key, 1, &r);
	return !r.status;
}

static void wait_answers(unsigned n)
{
	while (rig.answers < n)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
}

/* Sends a lookup of keys [from, to). */
static void ask(dray_handle peer, const char *space, const char *tenant, uint32_t uid,
		unsigned from, unsigned to, uint32_t lease_ms)
{
	uint8_t keys[4096];
	uint32_t at = 0;
	struct pmsg_store_lookup m = { .uid = uid,
				       .lease_ms = lease_ms,
				       .flags = rig.flags,
				       .space = { space, (uint32_t)strlen(space) },
				       .tenant = { tenant, (uint32_t)strlen(tenant) } };

	for (unsigned i = from; i < to; i++) {
		struct store_key k = key_of(i);

		keys[at++] = (uint8_t)k.n;
		memcpy(keys + at, k.p, k.n);
		at += k.n;
	}
	m.keys = (struct dray_blob){ keys, at };
	exchange_lookup(rig.x, peer, ++rig.requests, &m);
}

/* The same, with its answer. */
static void look_up(dray_handle peer, unsigned from, unsigned to, uint32_t lease_ms)
{
	unsigned before = rig.answers;

	ask(peer, "kv", "t", 1, from, to, lease_ms);
	wait_answers(before + 1);
	assert_int_equal(rig.peer, peer);
	assert_int_equal(rig.request, rig.requests);
}

static uint32_t refused(const char *space, const char *tenant, uint32_t uid)
{
	unsigned before = rig.answers;

	ask(PEER, space, tenant, uid, 0, 1, 0);
	wait_answers(before + 1);
	return rig.code;
}

static void test_who_may_ask(void **state)
{
	put(0, 100);
	assert_int_equal(refused("kv", "t", 1), 0);
	assert_int_equal(refused("kv", "u", 5), 0);
	assert_int_equal(refused("kv", "t", 2), DRAY_E_DENIED);
	assert_int_equal(refused("kv", "x", 1), DRAY_E_DENIED);
	assert_int_equal(refused("other", "t", 1), DRAY_E_DENIED);
	assert_int_equal(refused("", "t", 1), DRAY_E_DENIED);
	/* a name space that nobody uses here has nothing */
	assert_int_equal(refused("mine", "t", 2), 0);
	assert_int_equal(rig.found[0].answer, PMSG_STORE_ANSWER_NOT_FOUND);
	exchange_lookup(rig.x, PEER, 1,
			&(struct pmsg_store_lookup){
				.space = { "kv", 2 }, .tenant = { "t", 1 }, .uid = 1 });
	assert_int_equal(rig.code, DRAY_E_INVALID);
	rig.cfg.store.lend = false;
	assert_int_equal(refused("kv", "t", 1), DRAY_E_DENIED);
}

static void test_what_is_found(void **state)
{
	const struct grant_view *g;
	uint32_t steps = 100;

	put(0, 5000);
	put(2, 70);
	look_up(PEER, 0, 3, 0);
	assert_int_equal(rig.n, 3);
	assert_int_equal(rig.lease_ms, 10000);
	assert_int_equal(rig.found[1].answer, PMSG_STORE_ANSWER_NOT_FOUND);
	for (unsigned i = 0; i < 3; i += 2) {
		const struct pmsg_store_found *f = &rig.found[i];

		assert_int_equal(f->answer, PMSG_STORE_ANSWER_FOUND);
		assert_int_equal(f->length, i ? 70 : 5000);
		assert_int_equal(f->cost_us, 77);
		assert_int_equal(f->crc, dray_crc32c(0, bytes_at(f->offset), f->length));
	}
	/* the grant is the peer's, for reading, and covers these bytes alone */
	g = (const void *)fake_last[OBJECT_GRANT];
	assert_int_equal(g->o.handle, rig.grant);
	assert_int_equal(g->peer, PEER);
	assert_int_equal(g->o.access, DMSG_ACCESS_READ);
	assert_int_equal(g->region, rig.x->region->o.handle);
	assert_true(ranges_cover(g->ranges, rig.found[0].offset, 5000, &steps));
	assert_true(ranges_cover(g->ranges, rig.found[2].offset, 70, &steps));
	assert_false(ranges_cover(g->ranges, rig.found[0].offset, 5001, &steps));
	assert_int_equal(store_totals(rig.s.store).lent, 5056 + 128);
	/* nothing but a miss is granted */
	look_up(PEER, 10, 12, 0);
	assert_int_equal(rig.grant, 0);
	assert_int_equal(fake_published[OBJECT_GRANT], 1);
}

static unsigned found(void)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < rig.n; i++)
		n += rig.found[i].answer == PMSG_STORE_ANSWER_FOUND;
	return n;
}

/* What is held for later can be lent once more, to be read. */
static void test_held_for_later(void **state)
{
	for (unsigned i = 0; i < 6; i++)
		put(i, MIB);
	rig.flags = PMSG_STORE_LOOKUP_FLAG_HOLD;
	look_up(PEER, 0, 6, 0);
	assert_int_equal(found(), 2);
	assert_int_equal(rig.found[2].answer, PMSG_STORE_ANSWER_BUSY);
	rig.flags = 0;
	look_up(PEER, 0, 2, 0);
	assert_int_equal(found(), 2);
	look_up(PEER, 2, 3, 0);
	assert_int_equal(rig.found[0].answer, PMSG_STORE_ANSWER_BUSY);
}

/* A lent object is not evicted, and one that is removed keeps its bytes until the workers have stopped serving it. */
static void test_release(void **state)
{
	uint64_t grant, at;

	put(0, MIB);
	look_up(PEER, 0, 1, 0);
	grant = rig.grant;
	at = rig.found[0].offset;
	for (unsigned i = 1; i < 20; i++)
		put(i, MIB);
	assert_true(has(0));
	assert_false(has(1));
	store_remove(rig.member, (struct store_key[]){ key_of(0) }, 1,
		     &(struct dmsg_store_result){ 0 });
	for (unsigned i = 20; i < 40; i++)
		put(i, MIB);
	assert_int_equal(bytes_at(at)[0], 1);
	assert_int_equal(bytes_at(at)[MIB - 1], 1);
	exchange_release(rig.x, OTHER, grant);
	assert_int_equal(fake_waiting(), 0);
	exchange_release(rig.x, PEER, grant);
	exchange_release(rig.x, PEER, grant);
	exchange_release(rig.x, PEER, grant + 1);
	assert_int_equal(fake_waiting(), 1);
	assert_int_equal(store_totals(rig.s.store).lent, MIB);
	fake_answer_all();
	assert_int_equal(store_totals(rig.s.store).lent, 0);
	exchange_release(rig.x, PEER, grant);
	assert_int_equal(fake_waiting(), 0);
}

static void test_expiry(void **state)
{
	put(0, 100);
	look_up(PEER, 0, 1, 1);
	assert_int_equal(rig.lease_ms, 1);
	while (!fake_waiting())
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	/* a release that crosses the end */
	exchange_release(rig.x, PEER, rig.grant);
	assert_int_equal(fake_waiting(), 1);
	fake_answer_all();
	assert_int_equal(store_totals(rig.s.store).lent, 0);
}

/* Peers have half of the store, and each of them half of what the others leave. */
static void test_share(void **state)
{
	for (unsigned i = 0; i < 9; i++)
		put(i, MIB);
	look_up(PEER, 0, 9, 0);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(rig.found[i].answer,
				 i < 4 ? PMSG_STORE_ANSWER_FOUND : PMSG_STORE_ANSWER_BUSY);
	look_up(PEER, 5, 6, 0);
	assert_int_equal(rig.found[0].answer, PMSG_STORE_ANSWER_BUSY);
	look_up(OTHER, 0, 9, 0);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(rig.found[i].answer,
				 i < 2 ? PMSG_STORE_ANSWER_FOUND : PMSG_STORE_ANSWER_BUSY);
}

static enum dmsg_store_status find(unsigned i, uint64_t *held, struct store_lent *ret)
{
	return store_find(rig.s.store, (struct dray_str){ "kv", 2 }, key_of(i), MIB, held, ret);
}

/* What workers send behind answers is lent as by leases: it is counted, and each peer has its share. */
static void test_share_of_finders(void **state)
{
	uint64_t held[2] = { 0 };
	struct store_lent lent[5], other;

	rig.s.budgets.of[RESOURCE_STORE_BYTES].max = 16 * MIB;
	rig.s.budgets.of[RESOURCE_STORE_BYTES].owner_max = 16 * MIB;
	for (unsigned i = 0; i < 9; i++)
		put(i, MIB);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(find(i, &held[0], &lent[i]),
				 i < 4 ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_BUSY);
	assert_int_equal(held[0], 4 * MIB);
	assert_int_equal(store_totals(rig.s.store).lent, 4 * MIB);
	look_up(OTHER, 0, 9, 0);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(rig.found[i].answer,
				 i < 2 ? PMSG_STORE_ANSWER_FOUND : PMSG_STORE_ANSWER_BUSY);
	assert_int_equal(find(5, &held[1], &other), DMSG_STORE_STATUS_OK);
	assert_int_equal(find(6, &held[1], &lent[4]), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(store_totals(rig.s.store).lent, 7 * MIB);
	store_lent_end(&other);
	for (unsigned i = 0; i < 4; i++)
		store_lent_end(&lent[i]);
	assert_int_equal(held[0] + held[1], 0);
	assert_int_equal(store_totals(rig.s.store).lent, 2 * MIB);
	exchange_release(rig.x, OTHER, rig.grant);
	fake_answer_all();
	assert_int_equal(store_totals(rig.s.store).lent, 0);
}

/* The checksum of what a worker sends is computed in turns, and known to all from then on. */
static void test_sum_of_finders(void **state)
{
	uint64_t held = 0, turn;
	struct store_lent first, second;
	unsigned n = 0;

	put(0, MIB);
	assert_int_equal(find(0, &held, &first), DMSG_STORE_STATUS_OK);
	assert_int_equal(find(0, &held, &second), DMSG_STORE_STATUS_OK);
	do {
		turn = 300000;
		n++;
	} while (!store_lent_sum(&first, &turn));
	assert_int_equal(n, MIB / 300000 + 1);
	assert_int_equal(turn, n * 300000 - MIB);
	assert_int_equal(first.sum.crc, dray_crc32c(0, first.p, MIB));
	/* it was found before the sum was known */
	turn = UINT64_MAX;
	assert_int_equal(second.sum.at, 0);
	assert_true(store_lent_sum(&second, &turn));
	assert_int_equal(second.sum.crc, first.sum.crc);
	store_lent_end(&second);
	assert_int_equal(find(0, &held, &second), DMSG_STORE_STATUS_OK);
	turn = 0;
	assert_true(store_lent_sum(&second, &turn));
	assert_int_equal(second.sum.crc, first.sum.crc);
	store_lent_end(&first);
	store_lent_end(&second);
	assert_int_equal(held, 0);
}

/* An owner works with half of its memory, whoever asks for the other half. */
static void test_share_of_owner(void **state)
{
	rig.s.budgets.of[RESOURCE_STORE_BYTES].owner_max = 4 * MIB;
	for (unsigned i = 0; i < 4; i++)
		put(i, MIB);
	look_up(PEER, 0, 1, 0);
	look_up(OTHER, 1, 4, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(rig.found[i].answer,
				 i < 1 ? PMSG_STORE_ANSWER_FOUND : PMSG_STORE_ANSWER_BUSY);
	for (unsigned i = 4; i < 12; i++)
		put(i, MIB);
	assert_int_equal(rig.s.accounts[1].store_lent, 2 * MIB);
	exchange_release(rig.x, OTHER, rig.grant);
	fake_answer_all();
	assert_int_equal(rig.s.accounts[1].store_lent, MIB);
	/* it would never be lent */
	put(12, 2 * MIB + 64);
	look_up(OTHER, 12, 13, 0);
	assert_int_equal(rig.found[0].answer, PMSG_STORE_ANSWER_NOT_FOUND);
}

static void test_in_use(void **state)
{
	assert_false(exchange_in_use(rig.x, PEER));
	look_up(PEER, 0, 1, 0);
	assert_true(exchange_in_use(rig.x, PEER));
	assert_false(exchange_in_use(rig.x, PEER));
	put(0, 64);
	look_up(PEER, 0, 1, 0);
	assert_true(exchange_in_use(rig.x, PEER));
	assert_true(exchange_in_use(rig.x, PEER));
	exchange_release(rig.x, PEER, rig.grant);
	fake_answer_all();
	assert_false(exchange_in_use(rig.x, PEER));
	assert_false(exchange_in_use(NULL, PEER));
}

static _Atomic bool may_go_on;

static void block(struct dray_job *j)
{
	while (!may_go_on)
		sched_yield();
}

/* Lookups count that have leases, and those that are not answered yet. */
static void test_many_lookups(void **state)
{
	struct dray_job job;
	unsigned n = 0;

	put(0, 64);
	put(2, SUM_HERE + 64);
	may_go_on = false;
	dray_jobs_add(rig.s.store->jobs, &job, block, NULL);
	for (; n < 32; n++)
		look_up(PEER, 0, 1, 0);
	for (; n < 64; n++)
		ask(PEER, "kv", "t", 1, 2, 3, 0);
	assert_int_equal(rig.answers, 32);
	ask(PEER, "kv", "t", 1, 0, 1, 0);
	assert_int_equal(rig.answers, 33);
	assert_int_equal(rig.code, DRAY_E_BUSY);
	may_go_on = true;
	wait_answers(33 + 32);
	assert_int_equal(rig.code, 0);
	/* another peer has its own */
	look_up(OTHER, 0, 1, 0);
	assert_int_equal(rig.code, 0);
	/* a miss takes none */
	exchange_release(rig.x, OTHER, rig.grant);
	fake_answer_all();
	for (n = 0; n < 100; n++)
		look_up(OTHER, 1, 2, 0);
}

/* Few bytes come with the answer, and nothing is leased. */
static void settle(void)
{
	while (store_totals(rig.s.store).disk_pending_bytes)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
}

/* A lookup that has found its objects, and waits for the disk or for checksums, counts as the peer's, too. */
static void test_share_beside_a_lookup_that_evicts(void **state)
{
	enum { LARGE = 8, SMALL = 256 };
	struct dray_job job;

	put(0, MIB + 64);
	settle();
	assert_int_equal(store_evict(rig.s.store, "kv", "", 0, UINT64_MAX).objects, 1);
	/* the owner has no more room, and these are evicted first */
	for (unsigned i = 0; i < SMALL; i++)
		put(1 + LARGE + i, 4 * MIB / SMALL);
	settle();
	for (unsigned i = 0; i < LARGE; i++)
		put(1 + i, MIB);
	settle();
	may_go_on = false;
	dray_jobs_add(rig.s.store->jobs, &job, block, NULL);
	ask(PEER, "kv", "t", 1, 0, 3, 0);
	assert_true(rig.s.store->lending);
	while (rig.s.store->lending)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_int_equal(rig.answers, 0);
	ask(PEER, "kv", "t", 1, 3, 7, 0);
	may_go_on = true;
	wait_answers(2);
	assert_int_equal(store_totals(rig.s.store).lent, 3 * MIB + 64);
}

static void test_bytes(void **state)
{
	rig.flags = PMSG_STORE_LOOKUP_FLAG_BYTES;
	put(0, 100);
	put(2, BYTES_MOST - 100);
	put(3, 1);
	look_up(PEER, 0, 3, 0);
	assert_int_equal(found(), 2);
	assert_int_equal(rig.found[1].answer, PMSG_STORE_ANSWER_NOT_FOUND);
	assert_int_equal(rig.grant, 0);
	assert_int_equal(rig.n_bytes, BYTES_MOST);
	for (unsigned i = 0; i < BYTES_MOST; i++)
		assert_int_equal(rig.bytes[i], i < 100 ? 1 : 3);
	assert_int_equal(rig.found[0].crc, dray_crc32c(0, rig.bytes, 100));
	assert_int_equal(rig.found[2].crc, dray_crc32c(0, rig.bytes + 100, BYTES_MOST - 100));
	assert_int_equal(store_totals(rig.s.store).lent, 0);
	assert_int_equal(rig.s.accounts[1].store_lent, 0);
	assert_int_equal(fake_published[OBJECT_GRANT], 0);
	for (unsigned i = 0; i < 100; i++)
		look_up(PEER, 0, 1, 0);
	/* one byte too many, nothing, and what is held for later */
	look_up(PEER, 0, 4, 0);
	assert_int_equal(rig.n_bytes, 0);
	assert_int_not_equal(rig.grant, 0);
	look_up(PEER, 4, 5, 0);
	assert_int_equal(rig.n_bytes, 0);
	assert_int_equal(rig.grant, 0);
	rig.flags |= PMSG_STORE_LOOKUP_FLAG_HOLD;
	look_up(PEER, 0, 1, 0);
	assert_int_equal(rig.n_bytes, 0);
	assert_int_not_equal(rig.grant, 0);
}

/*
 * The thread of the store computes checksums of many bytes alone: what is small, and what was lent before, is answered at once while it
 * is busy.
 */
static void test_answered_at_once(void **state)
{
	struct dray_job job;
	uint32_t crc;

	put(0, MIB);
	put(1, SUM_HERE);
	put(2, SUM_HERE + 1);
	look_up(PEER, 0, 1, 0);
	crc = rig.found[0].crc;
	may_go_on = false;
	dray_jobs_add(rig.s.store->jobs, &job, block, NULL);
	ask(OTHER, "kv", "t", 1, 0, 2, 0);
	assert_int_equal(rig.answers, 2);
	assert_int_equal(found(), 2);
	assert_int_equal(rig.found[0].crc, crc);
	assert_int_equal(rig.found[1].crc, dray_crc32c(0, bytes_at(rig.found[1].offset), SUM_HERE));
	assert_int_equal(store_totals(rig.s.store).lent, 2 * MIB + SUM_HERE);
	ask(OTHER, "kv", "t", 1, 2, 3, 0);
	assert_int_equal(rig.answers, 2);
	may_go_on = true;
	wait_answers(3);
	assert_int_equal(rig.found[0].crc,
			 dray_crc32c(0, bytes_at(rig.found[0].offset), SUM_HERE + 1));
	/* known now */
	ask(OTHER, "kv", "t", 1, 2, 3, 0);
	assert_int_equal(rig.answers, 4);
	assert_int_equal(found(), 1);
}

/* Before its answers, with leases, and while one of them ends. */
static void test_peer_is_gone(void **state)
{
	uint64_t first;

	put(0, 64);
	put(1, MIB);
	put(2, SUM_HERE + 64);
	look_up(PEER, 0, 1, 0);
	first = rig.grant;
	look_up(PEER, 0, 1, 0);
	look_up(OTHER, 0, 1, 0);
	exchange_release(rig.x, PEER, first);
	ask(PEER, "kv", "t", 1, 1, 2, 0);
	exchange_peer_gone(rig.x, PEER, true);
	assert_int_equal(fake_waiting(), 2);
	assert_int_equal(store_totals(rig.s.store).lent, 3 * 64 + MIB);
	fake_answer_all();
	/* the store may still look at what it would have lent for the last lookup */
	assert_int_equal(store_totals(rig.s.store).lent, 64 + MIB);
	exchange_peer_gone(rig.x, PEER, true);
	/* which has no answer; that of the next one comes after the store has looked */
	look_up(OTHER, 2, 3, 0);
	assert_int_equal(rig.answers, 4);
	assert_int_equal(store_totals(rig.s.store).lent, SUM_HERE + 2 * 64);
	assert_int_equal(rig.s.accounts[1].store_lent, SUM_HERE + 2 * 64);
}

/* --- with keys ----------------------------------------------------------------------------------------- */

/* Puts objects of which peers get keys: their segment is known to rails. */
static void put_with_keys(unsigned n, uint64_t bytes)
{
	rig.has_keys = true;
	for (unsigned i = 0; i < n; i++)
		put(i, bytes);
	while (!rig.segments)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
}

static void test_keys_of_what_is_found(void **state)
{
	uint64_t end;

	put_with_keys(3, 5000);
	assert_true(rig.lends);
	assert_int_equal(rig.view->o.length, 2 * MIB);
	assert_ptr_equal(rig.view->extents[0].base, bytes_at(0));
	store_remove(rig.member, (struct store_key[]){ key_of(0) }, 1,
		     &(struct dmsg_store_result){ 0 });
	look_up(PEER, 0, 3, 0);
	/* one piece from the first object to the last one */
	assert_int_equal(rig.n_rails, 1);
	assert_int_equal(rig.keys[0].offset, rig.found[1].offset);
	end = rig.found[2].offset + rig.found[2].length;
	assert_int_equal(rig.keys[0].length, end - rig.found[1].offset);
	assert_int_equal(rig.keys[0].base, 0x1000 + rig.found[1].offset);
	assert_int_equal(rig.keys[0].rkey, (uint32_t)rig.segment);
	/* nothing is found, or no rail reaches the peer */
	look_up(PEER, 5, 6, 0);
	assert_int_equal(rig.n_rails, 0);
	rig.has_keys = false;
	look_up(PEER, 1, 2, 0);
	assert_int_equal(rig.n_rails, 0);
}

/* The objects are free when the peer has acknowledged the fence and the workers have let go, in either order. */
static void test_fence(void **state)
{
	put_with_keys(1, 100);
	for (unsigned first = 0; first < 2; first++) {
		look_up(PEER, 0, 1, 1);
		assert_true(rig.grant);
		assert_false(exchange_fenced(rig.x, OTHER, rig.grant));
		while (rig.fences == first)
			assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
		assert_int_equal(rig.fenced, rig.grant);
		if (first)
			assert_true(exchange_fenced(rig.x, PEER, rig.grant));
		else
			fake_answer_all();
		assert_int_equal(store_totals(rig.s.store).lent, 128);
		assert_int_equal(rig.s.accounts[1].store_lent, 128);
		if (first)
			fake_answer_all();
		else
			assert_true(exchange_fenced(rig.x, PEER, rig.grant));
		assert_int_equal(store_totals(rig.s.store).lent, 0);
		assert_int_equal(rig.s.accounts[1].store_lent, 0);
		assert_false(exchange_fenced(rig.x, PEER, rig.grant));
	}
	assert_int_equal(rig.fences, 2);
	/* a release that crosses the fence is as good */
	look_up(PEER, 0, 1, 1);
	while (rig.fences == 2)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	fake_answer_all();
	exchange_release(rig.x, PEER, rig.grant);
	assert_int_equal(store_totals(rig.s.store).lent, 0);
}

/* Only the end of its queue pairs proves that a peer that is gone does not read any more. */
static void test_peer_with_keys_is_gone(void **state)
{
	put_with_keys(1, 100);
	look_up(PEER, 0, 1, 0);
	look_up(PEER, 0, 1, 1);
	while (!rig.fences)
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	look_up(OTHER, 0, 1, 0);
	exchange_peer_gone(rig.x, PEER, false);
	assert_int_equal(rig.fences, 1);
	fake_answer_all();
	assert_int_equal(store_totals(rig.s.store).lent, 3 * 128);
	exchange_peer_quiet(rig.x, PEER);
	assert_int_equal(store_totals(rig.s.store).lent, 128);
	exchange_peer_quiet(rig.x, PEER);
	exchange_peer_quiet(NULL, PEER);
	/* without queue pairs there is nothing to wait for */
	exchange_peer_gone(rig.x, OTHER, true);
	fake_answer_all();
	assert_int_equal(store_totals(rig.s.store).lent, 0);
}

/* A device has lost the registration of a segment: its leases end, so that no peer uses a key of the past. */
static void test_keys_gone(void **state)
{
	uint64_t grant;

	put_with_keys(1, 100);
	rig.has_keys = false;
	look_up(PEER, 0, 1, 0);
	rig.has_keys = true;
	look_up(PEER, 0, 1, 0);
	grant = rig.grant;
	exchange_keys_gone(rig.x, rig.segment + 1);
	assert_int_equal(rig.fences, 0);
	exchange_keys_gone(rig.x, rig.segment);
	exchange_keys_gone(rig.x, rig.segment);
	assert_int_equal(rig.fences, 1);
	assert_int_equal(rig.fenced, grant);
	fake_answer_all();
	assert_true(exchange_fenced(rig.x, PEER, grant));
	assert_int_equal(store_totals(rig.s.store).lent, 128);
}

/* A segment without objects goes back to the system after the workers and the devices. */
static void test_segment_leaves(void **state)
{
	dray_handle segment;
	uint64_t memory;

	put_with_keys(1, MIB);
	segment = rig.segment;
	memory = store_totals(rig.s.store).memory;
	store_remove(rig.member, (struct store_key[]){ key_of(0) }, 1,
		     &(struct dmsg_store_result){ 0 });
	store_user_free(rig.s.user);
	store_sweep(rig.s.store);
	while (!fake_waiting())
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	assert_true(fake_dropping(OBJECT_REGION, segment));
	assert_int_equal(rig.removed, 0);
	fake_answer_all();
	assert_int_equal(rig.removed, 1);
	assert_int_equal(store_totals(rig.s.store).memory, memory);
	rig.removed_fn(rig.removed_arg);
	while (store_totals(rig.s.store).memory)
		sched_yield();
	rig.s.user = NULL;
}

/* The agent ends with lookups and leases. */
static void test_end(void **state)
{
	put(0, MIB);
	put(1, MIB);
	look_up(PEER, 0, 1, 0);
	exchange_release(rig.x, PEER, rig.grant);
	look_up(PEER, 0, 1, 0);
	ask(OTHER, "kv", "t", 1, 1, 2, 0);
}

struct gate {
	struct dray_job job;
	sem_t open;
};

static void wait_at_gate(struct dray_job *j)
{
	sem_wait(&dray_container_of(j, struct gate, job)->open);
}

/* Lookups that the store does not answer in time are refused, and leave room for others. */
static void test_lookups_that_wait_too_long(void **state)
{
	struct gate gate;

	sem_init(&gate.open, 0, 0);
	rig.s.store->cfg.peer_timeout_ns = DRAY_NS_PER_MS;
	put(0, MIB);
	put(1, 100);
	/* as if the disk did not answer */
	dray_jobs_add(rig.s.store->jobs, &gate.job, wait_at_gate, NULL);
	for (unsigned i = 0; i < 64; i++)
		ask(PEER, "kv", "t", 1, 0, 1, 0);
	for (unsigned i = 0; rig.answers < 64 && i < 1000; i++)
		assert_true(sd_event_run(rig.s.event, 10000) >= 0);
	sem_post(&gate.open);
	assert_int_equal(rig.answers, 64);
	assert_int_equal(rig.code, DRAY_E_BUSY);
	while (store_lent_bytes(rig.s.store))
		assert_true(sd_event_run(rig.s.event, UINT64_MAX) >= 0);
	look_up(PEER, 1, 2, 0);
	assert_int_equal(rig.found[0].answer, PMSG_STORE_ANSWER_FOUND);
	sem_destroy(&gate.open);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_who_may_ask, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_is_found, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_held_for_later, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_release, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expiry, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_share, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sum_of_finders, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_share_of_finders, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_share_of_owner, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_in_use, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_lookups, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_share_beside_a_lookup_that_evicts, set_up_disk,
						tear_down_disk),
		cmocka_unit_test_setup_teardown(test_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_answered_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keys_of_what_is_found, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fence, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_peer_with_keys_is_gone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keys_gone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_segment_leaves, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_peer_is_gone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lookups_that_wait_too_long, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_end, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
