/* SPDX-License-Identifier: Apache-2.0 */
/* The store with its disk tier: what waits for the disk is bounded, and what the disk does not do harms nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "agent/store/internal.h"
#include "lib/crc32c.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"
#include "tests/unit/store_puts.h"

#define MIB (1ull << 20)
/* Longest wait for an event. */
#define LIMIT_US 60000000
#define STORE_BYTES (64 * MIB)
/* of one owner */
#define OWNER_BYTES (32 * MIB)

/* DISK_CALL_*: the calls that fail, and how. */
static _Atomic int faults[DISK_CALL_N];

/* Calls of these kinds wait until they are let through. */
static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opened = PTHREAD_COND_INITIALIZER;
static bool closed[DISK_CALL_N];
static unsigned passes[DISK_CALL_N];  /* calls that a closed gate lets through */
static unsigned at_gate[DISK_CALL_N]; /* calls that have come to it */

static int fault(enum disk_call call)
{
	pthread_mutex_lock(&gate_lock);
	at_gate[call]++;
	pthread_cond_broadcast(&gate_opened);
	while (closed[call] && !passes[call])
		pthread_cond_wait(&gate_opened, &gate_lock);
	if (closed[call])
		passes[call]--;
	pthread_mutex_unlock(&gate_lock);
	return atomic_load(&faults[call]);
}

static void gate_with(enum disk_call call, bool close, unsigned n_passes)
{
	pthread_mutex_lock(&gate_lock);
	closed[call] = close;
	passes[call] = n_passes;
	pthread_cond_broadcast(&gate_opened);
	pthread_mutex_unlock(&gate_lock);
}

static void gate(enum disk_call call, bool close)
{
	gate_with(call, close, 0);
}

/* The file system is full of the tier's objects. */
static _Atomic bool fs_crowded;

int fstatvfs(int fd, struct statvfs *ret)
{
	*ret = (struct statvfs){ .f_frsize = DISK_BLOCK,
				 .f_blocks = UINT32_MAX,
				 .f_bfree = fs_crowded ? UINT32_MAX : 0,
				 .f_bavail = UINT32_MAX };
	return 0;
}

static bool no_memory_to_move;

int __real_policy_move(struct policy *from, struct policy *to, struct policy_entry *e,
		       bool evicted);
int __wrap_policy_move(struct policy *from, struct policy *to, struct policy_entry *e,
		       bool evicted);

int __wrap_policy_move(struct policy *from, struct policy *to, struct policy_entry *e, bool evicted)
{
	return no_memory_to_move ? -ENOMEM : __real_policy_move(from, to, e, evicted);
}

/* Tests of the disk come soon. */
int sd_event_source_set_time_relative(sd_event_source *s, uint64_t usec)
{
	uint64_t now;

	sd_event_now(sd_event_source_get_event(s), CLOCK_MONOTONIC, &now);
	return sd_event_source_set_time(s, now + usec / 1000);
}

static struct rig {
	sd_event *event;
	struct budgets budgets;
	struct owner_account account, other;
	struct store *store;
	struct store_user *user;
	struct store_member *member;
	uint64_t disk_bytes, objects; /* objects: of all owners; 0: as many as bytes */
	bool write_back, lend;
	bool derived; /* the shares of owners are those that others leave */
	enum policy_kind policy;
} rig;

static void count_nothing(struct owner_account *a)
{
}

static struct owner_account *account_of(void *arg, const char *tenant, uint32_t uid)
{
	return uid ? &rig.other : &rig.account;
}

static const char *const spaces[] = { "shared=t:0", "shared=t:1" };

static void join_again(void)
{
	struct dray_err e = DRAY_ERR_NULL;

	rig.user = store_user_new(rig.store, &rig.account, &e);
	rig.member = store_join(rig.user, (struct dray_str){ "", 0 }, &e);
	assert_non_null(rig.member);
}

static void start(void)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_config cfg = {
		.bytes = STORE_BYTES,
		.segment_size = 2 * MIB,
		.policy = rig.policy,
		.evict = true,
		.keep_copies = true,
		.lend = rig.lend,
		.retry_ms = 1,
		.spaces = spaces,
		.n_spaces = DRAY_ARRAY_SIZE(spaces),
		.keep = count_nothing,
		.release = count_nothing,
		.disk = { .event = rig.event,
			  .dir = cm_dir,
			  .bytes = rig.disk_bytes,
			  .threads = 2,
			  .write_back = rig.write_back,
			  .account = account_of,
			  .fault = fault },
	};

	memset(&rig.budgets, 0, sizeof(rig.budgets));
	for (unsigned i = 0; i < RESOURCE_N; i++)
		rig.budgets.of[i].max = rig.budgets.of[i].owner_max = OWNER_BYTES;
	if (rig.objects) {
		rig.budgets.of[RESOURCE_STORE_OBJECTS].max = rig.objects;
		rig.budgets.of[RESOURCE_STORE_OBJECTS].owner_max = 0;
	}
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].max = rig.disk_bytes;
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = rig.derived ? 0 : rig.disk_bytes;
	budget_account_init(&rig.account.budget, &rig.budgets, "t", 0);
	budget_account_init(&rig.other.budget, &rig.budgets, "t", 1);
	if (store_new(&rig.store, &cfg, &e) < 0)
		fail_msg("%s", e.msg);
	join_again();
}

static void stop(void)
{
	store_user_free(dray_take(rig.user));
	assert_true(store_free(dray_take(rig.store)));
}

static int setup(void **state)
{
	rig = (struct rig){ .disk_bytes = 64 * MIB };
	for (unsigned i = 0; i < DISK_CALL_N; i++) {
		faults[i] = 0;
		fs_crowded = false;
		gate((enum disk_call)i, false);
	}
	cm_dir_set_up(state);
	if (sd_event_new(&rig.event) < 0)
		return -1;
	start();
	return 0;
}

static int teardown(void **state)
{
	stop();
	sd_event_unref(rig.event);
	return cm_dir_tear_down(state);
}

/* One turn of the control thread. */
static void turn(void)
{
	assert_true(sd_event_run(rig.event, LIMIT_US) > 0);
}

static void settle(void)
{
	while (store_totals(rig.store).disk_pending_bytes)
		turn();
}

static struct store_key key_of(char text[16], unsigned k)
{
	return (struct store_key){ (uint8_t *)text, (uint32_t)snprintf(text, 16, "key-%u", k) };
}

static void put(unsigned k, uint64_t bytes)
{
	struct store_object *o;
	char text[16];

	assert_int_equal(rig_put_begin(rig.member, key_of(text, k), bytes, 1, &o),
			 DMSG_STORE_STATUS_OK);
	memset(store_region(rig.store)->extents[0].base + store_object_offset(o), (int)k, bytes);
	assert_int_equal(store_put_end(o, true), DMSG_STORE_STATUS_OK);
}

static void drop(unsigned k)
{
	struct dmsg_store_result r;
	char text[16];
	struct store_key key = key_of(text, k);

	store_remove(rig.member, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_OK);
}

static void evict_all_of(const char *space, const char *tenant, uint32_t uid)
{
	while (store_evict(rig.store, space, tenant, uid, UINT64_MAX).more)
		;
}

static void evict_all(const char *space, const char *tenant)
{
	evict_all_of(space, tenant, 0);
}

static void leave_memory(void)
{
	settle();
	evict_all("", "t");
	assert_int_equal(store_totals(rig.store).bytes, 0);
}

struct get {
	struct store_wait wait;
	struct store_get g;
};

static enum dmsg_store_status get_begin(struct get *g, unsigned k)
{
	enum dmsg_store_status status;
	char text[16];

	*g = (struct get){ .wait = { 0 } };
	status = store_get_begin(rig.member, key_of(text, k), &g->wait, &g->g);
	if (!status && g->g.loads)
		store_get_waits(rig.store, &g->wait);
	return status;
}

static enum dmsg_store_status get_end(struct get *g)
{
	while (g->g.loads && !g->wait.ready)
		turn();
	return store_get_end(&g->g);
}

static enum dmsg_store_status pin(unsigned k)
{
	struct dmsg_store_result r;
	char text[16];
	struct store_key key = key_of(text, k);

	store_pin(rig.user, rig.member, &key, 1, &r);
	return r.status;
}

static struct store_member *other_member(struct store_user **ret)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_member *m;

	*ret = store_user_new(rig.store, &rig.other, &e);
	assert_non_null(*ret);
	m = store_join(*ret, (struct dray_str){ "", 0 }, &e);
	assert_non_null(m);
	return m;
}

static bool exists(unsigned k)
{
	struct dmsg_store_result r;
	char text[16];
	struct store_key key = key_of(text, k);

	store_exists(rig.member, &key, 1, &r);
	return r.status == DMSG_STORE_STATUS_OK;
}

/* --- eviction from disk ------------------------------------------------------------------------------ */

/* What was read stays on disk, although it has left memory first; and what was read from disk, although it has come back from there. */
static void test_objects_on_disk_keep_their_uses(void **state)
{
	enum { READ = 2, ON_DISK = 8, MORE = ON_DISK - 2 * READ };
	struct get g;

	stop();
	rig.disk_bytes = ON_DISK * MIB;
	rig.policy = POLICY_VALUE;
	start();
	for (unsigned k = 0; k < READ; k++) {
		put(k, MIB);
		assert_int_equal(get_begin(&g, k), DMSG_STORE_STATUS_OK);
		assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	}
	for (unsigned k = READ; k < 2 * READ; k++)
		put(k, MIB);
	leave_memory();
	for (unsigned k = READ; k < 2 * READ; k++) {
		assert_int_equal(get_begin(&g, k), DMSG_STORE_STATUS_OK);
		assert_true(g.g.loads);
		assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	}
	leave_memory();
	for (unsigned k = 2 * READ; k < ON_DISK + MORE; k++) {
		put(k, MIB);
		leave_memory();
	}
	for (unsigned k = 0; k < 2 * READ; k++)
		if (!exists(k))
			fail_msg("object %u, which was read, was evicted from disk", k);
	assert_int_equal(store_totals(rig.store).disk_evictions, MORE);
}

/* Without memory for its entry in the other policy an object on disk stays there, and one in memory is removed. */
static void test_no_memory_to_change_the_tier(void **state)
{
	struct get g;

	put(0, 5000);
	leave_memory();
	no_memory_to_move = true;
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(store_totals(rig.store).bytes, 0);
	assert_int_equal(budget_used(&rig.account.budget, RESOURCE_STORE_BYTES), 0);
	put(1, 5000);
	leave_memory();
	assert_false(exists(1));
	no_memory_to_move = false;
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	drop(0);
	while (store_totals(rig.store).disk.bytes)
		turn();
	assert_int_equal(budget_used(&rig.account.budget, RESOURCE_STORE_OBJECTS), 0);
}

/* --- what waits for the disk ------------------------------------------------------------------------- */

/* Each object takes a whole block there. */
static void test_small_objects_that_wait_are_bounded(void **state)
{
	unsigned n = STORE_BYTES / 4 / DISK_BLOCK + 100;

	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < n; k++)
		put(k, 1);
	assert_int_equal(store_totals(rig.store).disk_skipped, 100);
	assert_in_range(store_totals(rig.store).disk_pending_bytes, 1, STORE_BYTES / 4);
	gate(DISK_CALL_WRITE, false);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, n - 100);
}

/* The objects of one owner leave room for those of another one. */
static void test_objects_that_wait_beside_another_owner(void **state)
{
	unsigned n = STORE_BYTES / 4 / DISK_BLOCK + 100;
	struct store_member *own = rig.member;
	struct store_user *user;

	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < n; k++)
		put(k, 1);
	rig.member = other_member(&user);
	for (unsigned k = 0; k < 100; k++)
		put(k, 1);
	assert_int_equal(store_totals(rig.store).disk_skipped, 100);
	rig.member = own;
	put(n, 1);
	assert_int_equal(store_totals(rig.store).disk_skipped, 101);
	gate(DISK_CALL_WRITE, false);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, n);
	store_user_free(user);
}

static uint64_t waiting(void)
{
	return store_totals(rig.store).disk_pending_bytes / DISK_BLOCK;
}

/* Neither many removed objects nor a disk that cannot be written make one turn of the control thread long. */
static void check_turns(void)
{
	uint64_t before;

	while ((before = waiting())) {
		turn();
		assert_in_range(before - waiting(), 0, 512);
	}
}

static void test_turns_beside_removed_objects(void **state)
{
	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < 4000; k++)
		put(k, 1);
	for (unsigned k = 0; k < 4000; k++)
		drop(k);
	gate(DISK_CALL_WRITE, false);
	check_turns();
	/* Nobody wants them any more, so the disk tier has not refused them. */
	assert_int_equal(store_totals(rig.store).disk_skipped, 0);
	/* The end of the store waits no longer than a second for the disk. */
	while (store_totals(rig.store).disk.bytes)
		turn();
}

static void test_turns_beside_a_disk_that_fails(void **state)
{
	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < 4000; k++)
		put(k, 1);
	faults[DISK_CALL_WRITE] = -EIO;
	gate(DISK_CALL_WRITE, false);
	check_turns();
	assert_int_equal(store_totals(rig.store).disk_skipped, 4000);
}

static void test_turns_that_evict_from_disk(void **state)
{
	for (unsigned k = 0; k < 4000; k++)
		put(k, 1);
	leave_memory();
	assert_int_equal(store_totals(rig.store).disk_objects, 4000);
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = 16 * MIB;
	put(5000, 15 * MIB);
	while (waiting()) {
		uint64_t before = store_totals(rig.store).disk_evictions;

		turn();
		assert_in_range(store_totals(rig.store).disk_evictions - before, 0, 512);
	}
	/* The large one needs the room of most others. */
	assert_in_range(store_totals(rig.store).disk_objects, 1, 257);
}

/* It evicts no more before what it has evicted is removed. */
static void test_full_file_system_evicts_what_it_needs(void **state)
{
	for (unsigned k = 0; k < 4000; k++)
		put(k, 1);
	leave_memory();
	fs_crowded = true;
	faults[DISK_CALL_WRITE] = -ENOSPC;
	put(4000, 1);
	while (store_totals(rig.store).disk_evictions < 2048) {
		struct store_totals t = store_totals(rig.store);

		assert_in_range(t.disk_evictions, 0, t.disk.removals + 1024);
		turn();
	}
}

static bool wait_at_gate(enum disk_call call, unsigned before)
{
	struct timespec limit;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += LIMIT_US / 1000000;
	pthread_mutex_lock(&gate_lock);
	while (at_gate[call] == before && !r)
		r = pthread_cond_timedwait(&gate_opened, &gate_lock, &limit);
	pthread_mutex_unlock(&gate_lock);
	return !r;
}

/* Until so many calls have come to their gate. */
static void run_to_gate_n(enum disk_call call, unsigned n)
{
	struct timespec began, now;
	unsigned calls = 0;

	clock_gettime(CLOCK_MONOTONIC, &began);
	while (calls < n) {
		sd_event_run(rig.event, 1000);
		pthread_mutex_lock(&gate_lock);
		calls = at_gate[call];
		pthread_mutex_unlock(&gate_lock);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - began.tv_sec > LIMIT_US / 1000000)
			fail_msg("%u calls of %u", calls, n);
	}
}

static void run_to_gate(unsigned before)
{
	run_to_gate_n(DISK_CALL_READ, before + 1);
}

static void test_loads_beside_evictions_from_a_full_disk(void **state)
{
	unsigned reads = at_gate[DISK_CALL_READ];
	struct get g;

	for (unsigned k = 0; k < 4000; k++)
		put(k, 1);
	leave_memory();
	fs_crowded = true;
	faults[DISK_CALL_WRITE] = -ENOSPC;
	put(4000, 1);
	while (!store_totals(rig.store).disk_evictions)
		turn();
	assert_int_equal(get_begin(&g, 3999), DMSG_STORE_STATUS_OK);
	for (uint64_t n = store_totals(rig.store).disk_evictions;
	     n == store_totals(rig.store).disk_evictions;)
		turn();
	assert_in_range(store_totals(rig.store).disk_evictions, 1, 1023);
	assert_true(wait_at_gate(DISK_CALL_READ, reads));
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
}

/* Also those behind many removals, which wait for the return of the disk. */
static void test_writes_end_when_the_disk_fails(void **state)
{
	for (unsigned k = 0; k < 1200; k++)
		put(k, 1);
	settle();
	gate(DISK_CALL_COMMIT, true);
	for (unsigned k = 0; k < 1200; k++)
		drop(k);
	put(1200, 1);
	faults[DISK_CALL_COMMIT] = -EIO;
	gate(DISK_CALL_COMMIT, false);
	for (unsigned i = 0; i < 1000 && waiting(); i++)
		turn();
	assert_int_equal(waiting(), 0);
	assert_int_equal(store_totals(rig.store).disk_skipped, 1);
	faults[DISK_CALL_COMMIT] = 0;
	while (store_totals(rig.store).disk.removals < 1200)
		turn();
}

static struct store_member *join_shared(struct store_user *u)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_member *m = store_join(u, (struct dray_str){ "shared", 6 }, &e);

	if (!m)
		fail_msg("%s", e.msg);
	return m;
}

/* An owner whose share is in use by objects that are in memory, too. What others have on disk would not help. */
static void test_owner_without_room_beside_others_in_its_space(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_member *own = rig.member;
	struct store_user *other = store_user_new(rig.store, &rig.other, &e);

	assert_non_null(other);
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = 8 * MIB;
	rig.member = join_shared(rig.user);
	for (unsigned k = 0; k < 1000; k++)
		put(k, 1);
	settle();
	evict_all("shared", "");
	assert_int_equal(store_totals(rig.store).bytes, 0);
	assert_int_equal(store_totals(rig.store).disk_objects, 1000);
	rig.member = join_shared(other);
	put(1000, 8 * MIB);
	settle();
	put(1001, 8 * MIB);
	settle();
	rig.member = own;
	assert_int_equal(store_totals(rig.store).disk_skipped, 1);
	assert_int_equal(store_totals(rig.store).disk_evictions, 256);
	store_user_free(other);
}

/* --- loads --------------------------------------------------------------------------------------------- */

static void test_pinned_object_that_could_not_be_read(void **state)
{
	struct get g;

	put(1, 5000);
	leave_memory();
	faults[DISK_CALL_READ] = -EIO;
	assert_int_equal(get_begin(&g, 1), DMSG_STORE_STATUS_OK);
	assert_int_equal(pin(1), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_LOST);
	faults[DISK_CALL_READ] = 0;
	assert_int_equal(get_begin(&g, 1), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_region(rig.store)->extents[0].length > 0, 1);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
}

/* They leave memory to the other objects of their owner. */
static void test_loads_beside_a_disk_that_hangs(void **state)
{
	struct get gets[16];
	unsigned n = 0;

	for (unsigned k = 0; k < 16; k++) {
		put(k, MIB);
		settle();
	}
	leave_memory();
	gate(DISK_CALL_READ, true);
	while (n < 16 && get_begin(&gets[n], n) == DMSG_STORE_STATUS_OK)
		n++;
	assert_int_equal(n, OWNER_BYTES / 4 / MIB);
	gate(DISK_CALL_READ, false);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(get_end(&gets[i]), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_begin(&gets[n], n), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&gets[n]), DMSG_STORE_STATUS_OK);
}

/* What was learned on the file system of fstatvfs(). */
static void remember_rates(unsigned read, unsigned write)
{
	char path[128], sql[200];
	sqlite3 *db;

	snprintf(path, sizeof(path), "%s/index.db", cm_dir);
	snprintf(
		sql, sizeof(sql),
		"INSERT OR REPLACE INTO rate (id, device, read, write) VALUES (1, '0-%llu', %u, %u)",
		(unsigned long long)UINT32_MAX * DISK_BLOCK, read, write);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

/* The GETs of one owner are batches of one object each. The one of another owner waits for none of those that the disk has not begun. */
static void test_loads_beside_many_batches_of_another_owner(void **state)
{
	enum { MANY = 40 };
	struct store_member *other, *own;
	struct store_user *user;
	unsigned reads;
	struct get g[MANY], of_other;

	put(0, DISK_BLOCK);
	settle();
	stop();
	remember_rates(1, 0);
	start();
	own = rig.member;
	other = other_member(&user);
	for (unsigned k = 1; k < MANY; k++)
		put(k, DISK_BLOCK);
	rig.member = other;
	put(0, DISK_BLOCK);
	settle();
	evict_all("", "t");
	evict_all_of("", "t", 1);
	gate(DISK_CALL_READ, true);
	reads = at_gate[DISK_CALL_READ];
	rig.member = own;
	for (unsigned k = 0; k < MANY; k++)
		assert_int_equal(get_begin(&g[k], k), DMSG_STORE_STATUS_OK);
	run_to_gate(reads);
	rig.member = other;
	assert_int_equal(get_begin(&of_other, 0), DMSG_STORE_STATUS_OK);
	/* the disk has two at a time, so that the third one is of the other owner */
	gate_with(DISK_CALL_READ, true, 1);
	run_to_gate_n(DISK_CALL_READ, reads + 3);
	assert_int_equal(rig.account.store_read, 2ull * DISK_BLOCK);
	gate(DISK_CALL_READ, false);
	assert_int_equal(get_end(&of_other), DMSG_STORE_STATUS_OK);
	rig.member = own;
	for (unsigned k = 0; k < MANY; k++)
		assert_int_equal(get_end(&g[k]), DMSG_STORE_STATUS_OK);
	store_user_free(user);
}

static uint64_t offset_on_disk(const struct store_member *m, unsigned k)
{
	char text[16];

	return disk_part(item_find(m->space, key_of(text, k)))->at.offset;
}

/* A PUT waits for what threads have of another owner, and for a MiB, whatever else that has put. */
static void test_writes_beside_many_of_another_owner(void **state)
{
	enum { MANY = 30, BYTES = MIB / 2 };
	unsigned calls = at_gate[DISK_CALL_WRITE];
	struct store_member *own = rig.member;
	struct store_user *user;

	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < MANY; k++)
		put(k, BYTES);
	run_to_gate_n(DISK_CALL_WRITE, calls + 2);
	rig.member = other_member(&user);
	put(0, 1);
	gate(DISK_CALL_WRITE, false);
	settle();
	assert_in_range(offset_on_disk(rig.member, 0) / BYTES, 2, 6);
	rig.member = own;
	store_user_free(user);
}

/* The object of a removed one's key comes to the disk behind its removal, although its owner has written less. */
static void test_write_behind_the_removal_of_another_owner(void **state)
{
	enum { MANY = 100 };
	struct store_user *other = store_user_new(rig.store, &rig.other, &(struct dray_err){ 0 });
	struct store_member *own = rig.member;

	assert_non_null(other);
	rig.member = join_shared(rig.user);
	put(MANY, DISK_BLOCK);
	settle();
	gate(DISK_CALL_WRITE, true);
	for (unsigned k = 0; k < MANY; k++)
		put(k, DISK_BLOCK);
	drop(MANY);
	rig.member = join_shared(other);
	put(MANY, DISK_BLOCK);
	gate(DISK_CALL_WRITE, false);
	while (rig.other.store_writing)
		turn();
	assert_int_equal(store_totals(rig.store).disk.removals, 1);
	settle();
	rig.member = own;
	store_user_free(other);
}

/* Works go on, one after the other, and requests end. */
static void test_no_memory_for_works(void **state)
{
	struct get gets[8];

	faults[DISK_CALL_ALLOC] = -ENOMEM;
	for (unsigned k = 0; k < 8; k++)
		put(k, 5000);
	leave_memory();
	assert_int_equal(store_totals(rig.store).disk_objects, 8);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(get_begin(&gets[k], k), DMSG_STORE_STATUS_OK);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(get_end(&gets[k]), DMSG_STORE_STATUS_OK);
	for (unsigned k = 0; k < 8; k++)
		drop(k);
	while (store_totals(rig.store).disk.bytes)
		turn();
}

/* --- eviction by an operator ---------------------------------------------------------------------------- */

static void test_a_call_evicts_some(void **state)
{
	struct store_evicted e;

	for (unsigned k = 0; k < 300; k++)
		put(k, 1000);
	settle();
	assert_int_equal(pin(0), DMSG_STORE_STATUS_OK);
	e = store_evict(rig.store, "", "t", 0, 2500);
	assert_true(e.found && !e.more);
	assert_int_equal(e.objects, 3);
	assert_int_equal(e.bytes, 3000);
	assert_false(store_evict(rig.store, "", "t", 7, UINT64_MAX).found);
	e = store_evict(rig.store, "", "t", 0, UINT64_MAX);
	assert_true(e.more);
	assert_int_equal(e.objects, 256);
	e = store_evict(rig.store, "", "t", 0, UINT64_MAX);
	assert_false(e.more);
	assert_int_equal(e.objects, 40);
	assert_int_equal(store_totals(rig.store).bytes, 1000);
	assert_int_equal(store_totals(rig.store).objects, 300);
}

/* --- what is counted of a name space ---------------------------------------------------------------------- */

static void keep_info(void *arg, const struct store_space_info *i)
{
	*(struct store_space_info *)arg = *i;
}

static void test_counts_by_tier(void **state)
{
	struct store_space_info i = { .name = NULL };
	struct get g;

	for (unsigned k = 0; k < 4; k++)
		put(k, 5000);
	leave_memory();
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_begin(&g, 9), DMSG_STORE_STATUS_NOT_FOUND);
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = 32 * 1024;
	put(5, 5000);
	settle();
	store_each(rig.store, keep_info, &i);
	assert_int_equal(i.memory_objects, 2);
	assert_int_equal(i.disk_objects, 4);
	assert_int_equal(i.hits, 2);
	assert_int_equal(i.disk_hits, 1);
	assert_int_equal(i.misses, 1);
	assert_int_equal(i.evictions, 4);
	assert_int_equal(i.evicted_cost_us, 4);
	assert_int_equal(i.disk_evictions, 1);
	assert_int_equal(i.disk_evicted_cost_us, 1);
}

static void count_space(void *arg, const struct store_space_info *i)
{
	++*(unsigned *)arg;
}

static unsigned count_spaces(void)
{
	unsigned n = 0;

	store_each(rig.store, count_space, &n);
	return n;
}

/* Its last object was removed before its session ended, and leaves the disk afterwards. */
static void test_name_space_of_a_removed_object_is_swept(void **state)
{
	put(0, 100);
	settle();
	drop(0);
	store_user_free(dray_take(rig.user));
	store_sweep(rig.store);
	assert_int_equal(count_spaces(), 1);
	while (count_spaces())
		turn();
}

/* --- a folder that comes later ------------------------------------------------------------------------- */

static void start_without_folder(void)
{
	stop();
	faults[DISK_CALL_OPEN] = -EIO;
	start();
}

static void folder_comes(void)
{
	faults[DISK_CALL_OPEN] = 0;
	while (store_totals(rig.store).disk.state != DISK_STATE_OK)
		turn();
}

/* A PUT that goes to another agent, and ends so. */
static void forward(unsigned k, enum store_forwarded how)
{
	struct store_object *o;
	struct store_get g;
	char text[16];

	assert_int_equal(rig_forward_put(rig.member, key_of(text, k), 100, 1, false, &o),
			 DMSG_STORE_STATUS_OK);
	assert_int_equal(store_forward_begin(o, &g), DMSG_STORE_STATUS_OK);
	store_forward_end(&g, how);
}

/* An object on disk whose key was put elsewhere meanwhile is older than that, unless nobody has taken it. */
static void test_puts_elsewhere_before_the_folder_is_read(void **state)
{
	for (unsigned k = 0; k < 3; k++)
		put(k, 5000);
	settle();
	start_without_folder();
	forward(0, STORE_FORWARD_DROPPED);
	forward(1, STORE_FORWARD_THERE);
	forward(2, STORE_FORWARD_HERE);
	drop(2);
	folder_comes();
	assert_true(exists(0));
	assert_false(exists(1));
	assert_false(exists(2));
}

/* What was put or removed while the folder could not be read is newer than what is there. */
static void test_keys_that_change_before_the_folder_is_read(void **state)
{
	struct dmsg_store_result r;
	char text[16];
	struct store_key key = key_of(text, 2);

	for (unsigned k = 0; k < 4; k++)
		put(k, 5000);
	settle();
	start_without_folder();
	put(1, 100);
	drop(1);
	store_remove(rig.member, &key, 1, &r);
	assert_int_equal(r.status, DMSG_STORE_STATUS_NOT_FOUND);
	put(3, 200);
	evict_all("", "t");
	assert_false(exists(3));
	/* The name space is forgotten, and comes back. */
	store_user_free(dray_take(rig.user));
	store_sweep(rig.store);
	join_again();
	folder_comes();
	assert_true(exists(0));
	for (unsigned k = 1; k < 4; k++)
		assert_false(exists(k));
	/* Nor after a restart; the removals are in an earlier batch than this one. */
	put(4, 5000);
	settle();
	stop();
	start();
	assert_int_equal(store_totals(rig.store).disk_objects, 2);
}

/* A copy of an object that is on disk already does not take its place there. */
static void test_copies_before_the_folder_is_read(void **state)
{
	struct store_arrivals *a;
	struct store_object *o;
	struct store_get g[2];
	char text[16];

	put(0, 5000);
	put(1, 5000);
	settle();
	start_without_folder();
	a = store_arrivals_new(rig.store, 2);
	for (unsigned k = 0; k < 2; k++) {
		/* the second one differs, so that its bytes come to the disk again */
		assert_int_equal(rig_copy_begin(rig.member, key_of(text, k), 5000 + k, 1, &o),
				 DMSG_STORE_STATUS_OK);
		store_arrivals_add(a, o, 0, 0, &g[k]);
	}
	store_arrive(a);
	for (unsigned k = 0; k < 2; k++)
		store_get_end(&g[k]);
	folder_comes();
	assert_int_equal(store_totals(rig.store).disk_objects, 1);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 1);
	while (store_flush(rig.store))
		turn();
	leave_memory();
	stop();
	start();
	assert_true(exists(0) && exists(1));
}

/* A copy of another owner of a shared name space is written under that owner: what is on disk has the name of the former one. */
static void test_copy_of_another_owner_before_the_folder_is_read(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_arrivals *a;
	struct store_object *o;
	struct store_get g;
	struct get got;
	char text[16];

	rig.member = join_shared(rig.user);
	put(0, 5000);
	settle();
	start_without_folder();
	store_user_free(rig.user);
	rig.user = store_user_new(rig.store, &rig.other, &e);
	rig.member = join_shared(rig.user);
	a = store_arrivals_new(rig.store, 1);
	assert_int_equal(rig_copy_begin(rig.member, key_of(text, 0), 5000, 1, &o),
			 DMSG_STORE_STATUS_OK);
	store_arrivals_add(a, o, 0, 0, &g);
	store_arrive(a);
	store_get_end(&g);
	folder_comes();
	assert_int_equal(store_totals(rig.store).disk_objects, 0);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 1);
	while (store_flush(rig.store))
		turn();
	settle();
	evict_all("shared", "");
	assert_int_equal(get_begin(&got, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&got), DMSG_STORE_STATUS_OK);
}

static uint64_t disk_bytes_of(const struct owner_account *a)
{
	return budget_used(&a->budget, RESOURCE_STORE_DISK_BYTES);
}

/* Owners have half of what others leave: nobody loses what it had before the start. */
static void test_shares_at_the_start(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;

	rig.derived = true;
	stop();
	start();
	for (unsigned k = 0; k < 8; k++) {
		put(k, 4 * MIB - DISK_BLOCK);
		settle();
	}
	leave_memory();
	store_user_free(rig.user);
	rig.user = store_user_new(rig.store, &rig.other, &e);
	rig.member = store_join(rig.user, (struct dray_str){ "", 0 }, &e);
	for (unsigned k = 0; k < 4; k++)
		put(k, 4 * MIB - DISK_BLOCK);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, 12);
	stop();
	start();
	assert_int_equal(store_totals(rig.store).disk_objects, 12);
	stop();
	/* the agent's limit holds, and the owner with the most loses objects until it has as much as the other one */
	rig.disk_bytes = 16 * MIB;
	start();
	assert_int_equal(store_totals(rig.store).disk_objects, 4);
	assert_int_equal(disk_bytes_of(&rig.account), 2 * (4 * MIB - DISK_BLOCK));
	assert_int_equal(disk_bytes_of(&rig.other), 2 * (4 * MIB - DISK_BLOCK));
}

/* Two owners have so many objects on disk, and both together may have 8: so many are left of each. */
static void start_with(unsigned n, unsigned n_other, unsigned left, unsigned left_other)
{
	const _Atomic uint64_t *used = &rig.account.budget.of[RESOURCE_STORE_OBJECTS].used,
			       *used_other = &rig.other.budget.of[RESOURCE_STORE_OBJECTS].used;
	struct dray_err e = DRAY_ERR_NULL;

	for (unsigned k = 0; k < n; k++)
		put(k, 100);
	store_user_free(rig.user);
	rig.user = store_user_new(rig.store, &rig.other, &e);
	rig.member = store_join(rig.user, (struct dray_str){ "", 0 }, &e);
	for (unsigned k = 0; k < n_other; k++)
		put(k, 100);
	settle();
	rig.objects = 8;
	for (unsigned i = 0; i < 2; i++) {
		stop();
		start();
		assert_int_equal(*used, left);
		assert_int_equal(*used_other, left_other);
		while (store_totals(rig.store).disk.objects > 8)
			turn();
	}
}

/* With more objects on disk than there may be, those with the most lose some, in whatever order they are found. */
static void test_owners_are_equal_at_the_start(void **state)
{
	start_with(10, 4, 4, 4);
}

static void test_owners_are_equal_in_the_other_order(void **state)
{
	start_with(3, 10, 3, 5);
}

/* Those that are only on disk count, too, and are the first to go; those that wait for their removal there do not count. */
static void test_objects_are_bounded(void **state)
{
	enum { OBJECTS = 20 };
	struct budget *all = &rig.budgets.of[RESOURCE_STORE_OBJECTS];

	all->owner_max = OBJECTS;
	for (unsigned k = 0; k < OBJECTS; k++)
		put(k, 100);
	leave_memory();
	for (unsigned k = OBJECTS; k < OBJECTS + 5; k++)
		put(k, 100);
	assert_int_equal(all->used, OBJECTS);
	assert_int_equal(store_totals(rig.store).objects, OBJECTS);
	assert_int_equal(store_totals(rig.store).disk_evictions, 5);
	settle();
	/* all are in memory and on disk */
	for (unsigned k = 0; k < OBJECTS + 5; k++) {
		struct get g;

		if (get_begin(&g, k) == DMSG_STORE_STATUS_OK)
			get_end(&g);
	}
	assert_int_equal(store_totals(rig.store).bytes, OBJECTS * 100);
	put(100, 100);
	assert_int_equal(all->used, OBJECTS);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, OBJECTS);
	stop();
	start();
	assert_int_equal(all->used, OBJECTS);
	drop(100);
	assert_int_equal(all->used, OBJECTS - 1);
}

/* A copy of another agent's object, which a GET reads. */
static void copy(unsigned k)
{
	struct store_arrivals *a = store_arrivals_new(rig.store, 1);
	struct store_object *o;
	struct store_get g;
	char text[16];

	assert_int_equal(rig_copy_begin(rig.member, key_of(text, k), 100, 1, &o),
			 DMSG_STORE_STATUS_OK);
	store_arrivals_add(a, o, 0, 0, &g);
	store_arrive(a);
	assert_int_equal(store_get_end(&g), DMSG_STORE_STATUS_OK);
}

/* At the limit of the number of objects, a copy stays only in the place of what is in memory alone. */
static void test_copies_cost_no_object_on_disk(void **state)
{
	enum { OBJECTS = 4 };
	struct budget *all = &rig.budgets.of[RESOURCE_STORE_OBJECTS];

	all->owner_max = OBJECTS;
	for (unsigned k = 0; k < OBJECTS; k++)
		put(k, 100);
	settle();
	copy(9);
	leave_memory();
	copy(9);
	assert_false(exists(9));
	assert_int_equal(all->used, OBJECTS);
	assert_int_equal(store_totals(rig.store).disk_objects, OBJECTS);
	assert_int_equal(store_totals(rig.store).bytes, 0);
	drop(0);
	copy(9);
	assert_true(exists(9));
	copy(10);
	assert_true(exists(10));
	assert_false(exists(9));
	assert_int_equal(all->used, OBJECTS);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, OBJECTS - 1);
}

/* --- what is kept for other agents -------------------------------------------------------------------------- */

/* Another agent wants an object of these bytes to be kept. turn: bytes whose checksum may be computed. */
static enum dmsg_store_status keep_begin(unsigned k, uint64_t bytes, int fill, uint64_t turn,
					 struct store_object **ret)
{
	static uint8_t buffer[MIB];
	char text[16];

	memset(buffer, fill, bytes);
	return store_keep_begin(rig.member, key_of(text, k), bytes, dray_crc32c(0, buffer, bytes),
				1, &turn, &(struct store_effort){ 0 }, ret);
}

/* They have come. */
static enum dmsg_store_status keep_end(struct store_object *o, int fill)
{
	uint8_t *p = store_region(rig.store)->extents[0].base + store_object_offset(o);
	uint64_t bytes = store_object_bytes(o);

	memset(p, fill, bytes);
	return store_keep_end(o, dray_crc32c(0, p, bytes));
}

static enum dmsg_store_status keep(unsigned k, uint64_t bytes, int fill, uint64_t turn)
{
	struct store_object *o;
	enum dmsg_store_status status = keep_begin(k, bytes, fill, turn, &o);

	return status ? status : keep_end(o, fill);
}

/* What was kept was removed at the other agent when that has another object with its key. What a client here has put stays. */
static void test_object_that_was_kept_gives_way(void **state)
{
	struct store_object *o;
	char text[16];

	assert_int_equal(keep(0, 5000, 1, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(keep(0, 5000, 1, 0), DMSG_STORE_STATUS_EXISTS);
	settle();
	assert_int_equal(keep(0, 5000, 2, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(keep(0, 5000, 2, 0), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(keep(0, 4000, 2, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(rig_put_begin(rig.member, key_of(text, 0), 4000, 1, &o),
			 DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(keep(0, 5000, 2, 0), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(keep(0, 4000, 2, 0), DMSG_STORE_STATUS_EXISTS);
	settle();
	leave_memory();
	stop();
	start();
	assert_int_equal(store_totals(rig.store).disk_objects, 1);
	assert_int_equal(store_totals(rig.store).disk_bytes, 4000);
}

/* A copy for a GET gives way, too, and is kept from then on if it has the right bytes. */
static void test_copy_gives_way_to_what_is_kept(void **state)
{
	copy(0); /* whose CRC-32C is said to be 0 */
	assert_int_equal(keep(0, 100, 1, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(keep(0, 100, 2, 0), DMSG_STORE_STATUS_OK);
	settle();
	assert_int_equal(store_totals(rig.store).disk_objects, 1);
}

/* Of two objects with one key that are on their way at once, the one stays that was put last at the other agent. */
static void test_two_are_kept_at_once(void **state)
{
	struct store_object *o[2];

	for (unsigned first = 0; first < 2; first++) {
		for (unsigned i = 0; i < 2; i++)
			assert_int_equal(keep_begin(first, 5000, (int)i, 0, &o[i]),
					 DMSG_STORE_STATUS_OK);
		assert_int_equal(keep_end(o[first], (int)first), DMSG_STORE_STATUS_OK);
		assert_int_equal(keep_end(o[!first], !first),
				 first ? DMSG_STORE_STATUS_BUSY : DMSG_STORE_STATUS_OK);
		assert_int_equal(keep(first, 5000, 1, 0), DMSG_STORE_STATUS_EXISTS);
		assert_int_equal(keep(first, 5000, 2, 0), DMSG_STORE_STATUS_OK);
	}
}

/* A copy for a GET that appears while another object is on its way gives way to it, and what a client here puts meanwhile stays. */
static void test_others_appear_while_one_is_kept(void **state)
{
	struct store_object *o;

	assert_int_equal(keep_begin(0, 100, 1, 0, &o), DMSG_STORE_STATUS_OK);
	copy(0);
	assert_int_equal(keep_end(o, 1), DMSG_STORE_STATUS_OK);
	assert_int_equal(keep(0, 100, 2, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(keep_begin(1, 100, 2, 0, &o), DMSG_STORE_STATUS_OK);
	put(1, 100);
	assert_int_equal(keep_end(o, 2), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(keep(1, 100, 2, 100), DMSG_STORE_STATUS_BUSY);
}

/* The checksum of an object that a client has put is computed, or known of the disk. */
static void test_kept_beside_a_client(void **state)
{
	put(1, 5000);
	assert_int_equal(keep(1, 5000, 1, 4999), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(keep(1, 5000, 1, 5000), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(keep(1, 5000, 2, 5000), DMSG_STORE_STATUS_BUSY);
	put(2, 5000);
	leave_memory();
	assert_int_equal(keep(2, 5000, 2, 0), DMSG_STORE_STATUS_EXISTS);
	assert_int_equal(keep(2, 5000, 3, 0), DMSG_STORE_STATUS_BUSY);
	assert_int_equal(store_totals(rig.store).disk_objects, 2);
}

/* --- the end ------------------------------------------------------------------------------------------- */

static uint64_t room_of_loan(void *arg)
{
	return 8 * MIB;
}

/* An object that another agent still holds when the store ends. */
static void test_loan_at_the_end(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_asker who = { { "shared", 6 }, { "t", 1 }, 0 };
	struct store_loan *l;
	char text[16];
	struct store_key key = key_of(text, 0);

	stop();
	rig.lend = true;
	start();
	rig.member = store_join(rig.user, (struct dray_str){ "shared", 6 }, &e);
	put(0, 100);
	settle();
	assert_int_equal(
		store_lend(rig.store, &who, &key, 1, false, room_of_loan, NULL, NULL, &l, &e), 1);
	drop(0);
	/* its removal is queued by the end alone */
	while (sd_event_run(rig.event, 0) > 0)
		;
}

static void loan_ready(void *arg)
{
	*(bool *)arg = true;
}

/* What other agents look up on disk makes no turn of the control thread long. */
static void test_lookups_evict_in_turns(void **state)
{
	enum { LARGE = 256 << 10, KEYS = 3 };
	struct dray_err e = DRAY_ERR_NULL;
	struct store_asker who = { { "shared", 6 }, { "t", 1 }, 0 };
	struct store_key keys[KEYS];
	struct store_loan *l;
	char text[KEYS][16];
	uint64_t all, before;
	bool ready = false;

	stop();
	rig.lend = true;
	start();
	rig.member = join_shared(rig.user);
	for (unsigned k = 0; k < KEYS; k++) {
		keys[k] = key_of(text[k], k);
		put(k, LARGE);
	}
	settle();
	evict_all("shared", "");
	rig.budgets.of[RESOURCE_STORE_BYTES].owner_max = 2 * MIB;
	all = store_totals(rig.store).evictions;
	for (unsigned k = KEYS; store_totals(rig.store).evictions == all; k++)
		put(k, 64);
	settle();
	all = before = store_totals(rig.store).evictions;
	assert_int_equal(store_lend(rig.store, &who, keys, 2, false, room_of_loan, loan_ready,
				    &ready, &l, &e),
			 0);
	while (!ready) {
		assert_in_range(store_totals(rig.store).evictions - before, 0, 64);
		before = store_totals(rig.store).evictions;
		turn();
	}
	assert_int_equal(store_loan_bytes(l), 2 * LARGE);
	assert_true(store_totals(rig.store).evictions - all >= 2 * LARGE / 64);
	store_loan_end(l);
	/* one that is stopped, and one that ends, evict no more */
	all = store_totals(rig.store).evictions;
	ready = false;
	assert_int_equal(store_lend(rig.store, &who, keys + 2, 1, false, room_of_loan, loan_ready,
				    &ready, &l, &e),
			 0);
	store_loan_stop(l);
	while (!ready)
		turn();
	store_loan_end(l);
	assert_int_equal(store_lend(rig.store, &who, keys + 2, 1, false, room_of_loan, loan_ready,
				    &ready, &l, &e),
			 0);
	store_loan_end(l);
	while (sd_event_run(rig.event, 0) > 0)
		;
	assert_in_range(store_totals(rig.store).evictions - all, 0, 128);
	assert_int_equal(store_lent_bytes(rig.store), 0);
}

/* What a lookup that goes on in the next turns has read for another owner, and does not hold, is removed meanwhile, and the owner is gone. */
static void test_owner_that_leaves_during_a_lookup(void **state)
{
	enum { LARGE = 256 << 10, KEYS = 7 };
	struct dray_err e = DRAY_ERR_NULL;
	struct store_asker who = { { "shared", 6 }, { "t", 1 }, 0 };
	struct store_user *other;
	struct store_member *own;
	struct store_key keys[KEYS];
	struct store_loan *l;
	char text[KEYS][16];
	bool ready = false;
	uint64_t all;

	stop();
	rig.lend = true;
	start();
	own = join_shared(rig.user);
	other = store_user_new(rig.store, &rig.other, &e);
	rig.member = join_shared(other);
	for (unsigned k = 0; k < KEYS; k++) {
		keys[k] = key_of(text[k], k);
		put(k, k ? LARGE : 64);
		rig.member = own;
	}
	settle();
	evict_all("shared", "");
	rig.budgets.of[RESOURCE_STORE_BYTES].owner_max = 2 * MIB;
	all = store_totals(rig.store).evictions;
	for (unsigned k = KEYS; store_totals(rig.store).evictions == all; k++)
		put(k, 64);
	settle();
	assert_int_equal(store_lend(rig.store, &who, keys, KEYS, true, room_of_loan, loan_ready,
				    &ready, &l, &e),
			 0);
	drop(0);
	store_user_free(other);
	while (!ready)
		turn();
	store_loan_end(l);
	assert_int_equal(store_lent_bytes(rig.store), 0);
}

/* A call looks at a part of the index; there may be nothing to wait for. */
static void flush(void)
{
	while (store_flush(rig.store))
		assert_true(sd_event_run(rig.event, 0) >= 0);
}

static void test_flush(void **state)
{
	stop();
	rig.write_back = true;
	start();
	for (unsigned k = 0; k < 3000; k++)
		put(k, 1 + k % 5000);
	assert_int_equal(store_totals(rig.store).disk_objects, 0);
	flush();
	assert_int_equal(store_totals(rig.store).disk_objects, 3000);
	stop();
	start();
	assert_int_equal(store_totals(rig.store).disk_objects, 3000);
	/* What is put afterwards is written by the next flush. */
	put(3000, 100);
	store_flush_again(rig.store);
	flush();
	assert_int_equal(store_totals(rig.store).disk_objects, 3001);
}

static void test_flush_to_a_disk_that_fails(void **state)
{
	faults[DISK_CALL_SYNC] = -EIO;
	for (unsigned k = 0; k < 10; k++)
		put(k, 5000);
	flush();
	assert_int_equal(store_totals(rig.store).disk_objects, 0);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 10);
	assert_int_equal(store_totals(rig.store).unsaved_bytes, 50000);
}

/* It may return, and takes what it has not taken before. */
static void test_flush_to_a_full_disk(void **state)
{
	stop();
	rig.write_back = true;
	start();
	for (unsigned k = 0; k < 10; k++)
		put(k, 5000);
	faults[DISK_CALL_WRITE] = -ENOSPC;
	while (store_totals(rig.store).disk.state != DISK_STATE_FULL) {
		assert_true(store_flush(rig.store));
		turn();
	}
	settle();
	assert_true(store_flush(rig.store));
	faults[DISK_CALL_WRITE] = 0;
	flush();
	assert_int_equal(store_totals(rig.store).disk_objects, 10);
}

/* What is lost at the end of the agent is counted, whatever has become of the other objects. */
static void test_objects_that_are_only_in_memory(void **state)
{
	struct get g;

	for (unsigned k = 0; k < 4; k++)
		put(k, 5000);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 4);
	leave_memory();
	assert_int_equal(store_totals(rig.store).unsaved_objects, 0);
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	drop(0);
	drop(1);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 0);
	/* The disk has no room for it. */
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = 16 * 1024;
	put(4, 20000);
	put(5, 4000);
	put(6, 3000);
	drop(6);
	flush();
	assert_int_equal(store_totals(rig.store).unsaved_objects, 1);
	assert_int_equal(store_totals(rig.store).unsaved_bytes, 20000);
	stop();
	start();
	assert_int_equal(store_totals(rig.store).unsaved_objects, 0);
}

/* --- verifications ---------------------------------------------------------------------------------- */

#define NO_LIMIT (1ull << 50)

static struct store_verify *verify_at(uint64_t rate)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_verify *v;

	if (store_verify_new(&v, rig.store, "", "t", 0, rate, &e) < 0)
		fail_msg("%s", e.msg);
	return v;
}

static struct store_verified verify_end(struct store_verify *v)
{
	struct store_verified f;

	while (store_verify_found(v).more)
		turn();
	f = store_verify_found(v);
	store_verify_free(v);
	return f;
}

static struct store_verified verify(void)
{
	return verify_end(verify_at(NO_LIMIT));
}

/* The first segment has the objects in the order of their writes. */
static void flip(uint64_t at)
{
	char path[200];
	uint8_t byte;
	int fd;

	snprintf(path, sizeof(path), "%s/segment-00000001", cm_dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 4;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

static void put_one_by_one(unsigned n, uint64_t bytes)
{
	for (unsigned k = 0; k < n; k++) {
		put(k, bytes);
		settle();
	}
}

static void check_found(const struct store_verified *f, uint64_t good, uint64_t damaged,
			uint64_t unreadable, uint64_t bytes)
{
	assert_int_equal(f->good.objects, good);
	assert_int_equal(f->good.bytes, good * bytes);
	assert_int_equal(f->damaged.objects, damaged);
	assert_int_equal(f->damaged.bytes, damaged * bytes);
	assert_int_equal(f->unreadable.objects, unreadable);
	assert_int_equal(f->unreadable.bytes, unreadable * bytes);
}

/* Objects of one block and of some pieces; those in memory, too. */
static void test_verify(void **state)
{
	static const uint64_t sizes[] = { 1, 5000, DISK_PIECE, 3 * DISK_PIECE + 1 };
	struct store_verified f;
	uint64_t sum = 0;

	for (unsigned k = 0; k < 8; k++) {
		put(k, sizes[k / 2]);
		sum += sizes[k / 2];
	}
	settle();
	f = verify();
	assert_int_equal(f.good.objects, 8);
	assert_int_equal(f.good.bytes, sum);
	leave_memory();
	f = verify();
	assert_int_equal(f.good.objects, 8);
	assert_int_equal(f.damaged.objects + f.unreadable.objects, 0);
	assert_int_equal(store_totals(rig.store).disk.reads, 0);
}

/* In 4,096 buckets, so that there are many turns. */
static void test_verify_many(void **state)
{
	struct store_verified f;

	for (unsigned k = 0; k < 3000; k++)
		put(k, 1);
	leave_memory();
	f = verify();
	check_found(&f, 3000, 0, 0, 1);
}

static void test_verify_damaged_objects(void **state)
{
	const uint64_t bytes = 2 * DISK_PIECE + 100, blocks = 2 * DISK_PIECE + DISK_BLOCK;
	struct store_verified f;
	struct get g;

	put_one_by_one(4, bytes);
	leave_memory();
	flip(1);
	flip(2 * blocks + bytes - 1);
	f = verify();
	check_found(&f, 2, 2, 0, bytes);
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(get_begin(&g, 2), DMSG_STORE_STATUS_NOT_FOUND);
	assert_int_equal(get_begin(&g, 1), DMSG_STORE_STATUS_OK);
	assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	assert_int_equal(store_totals(rig.store).disk.corrupt, 2);
	f = verify();
	check_found(&f, 2, 0, 0, bytes);
}

/* Its bytes are in memory: it stays, and is written again. */
static void test_verify_a_damaged_object_that_is_in_memory(void **state)
{
	struct store_verified f;
	struct get g;

	put_one_by_one(3, 9000);
	assert_int_equal(pin(1), DMSG_STORE_STATUS_OK);
	flip(3ull * DISK_BLOCK);
	f = verify();
	check_found(&f, 2, 1, 0, 9000);
	while (store_totals(rig.store).disk_objects < 3)
		turn();
	assert_int_equal(store_totals(rig.store).disk.writes, 4);
	assert_int_equal(store_totals(rig.store).unsaved_objects, 0);
	f = verify();
	check_found(&f, 3, 0, 0, 9000);
	stop();
	start();
	for (unsigned k = 0; k < 3; k++) {
		assert_int_equal(get_begin(&g, k), DMSG_STORE_STATUS_OK);
		assert_int_equal(get_end(&g), DMSG_STORE_STATUS_OK);
	}
}

static void test_verify_a_disk_that_does_not_read(void **state)
{
	struct store_verified f;

	put_one_by_one(3, 9000);
	leave_memory();
	faults[DISK_CALL_READ] = -EIO;
	f = verify();
	check_found(&f, 0, 0, 3, 9000);
	assert_int_equal(store_totals(rig.store).disk_objects, 3);
	faults[DISK_CALL_READ] = 0;
	f = verify();
	check_found(&f, 3, 0, 0, 9000);
}

/* What is removed while it is being read does not count, and its blocks are given back. */
static void test_verify_beside_removals(void **state)
{
	unsigned before = at_gate[DISK_CALL_READ];
	struct store_verified f;
	struct store_verify *v;

	put_one_by_one(1, 3 * DISK_PIECE);
	leave_memory();
	gate(DISK_CALL_READ, true);
	v = verify_at(NO_LIMIT);
	run_to_gate(before);
	drop(0);
	while (store_totals(rig.store).disk.removals < 1)
		turn();
	gate(DISK_CALL_READ, false);
	f = verify_end(v);
	check_found(&f, 0, 0, 0, 1);
	assert_int_equal(store_totals(rig.store).disk.corrupt, 0);
	assert_int_equal(store_totals(rig.store).disk.bytes, 0);
}

/* The order of eviction from disk stays as it was. */
static void test_verify_does_not_use_objects(void **state)
{
	struct get g;

	put_one_by_one(8, 4000);
	leave_memory();
	verify();
	rig.budgets.of[RESOURCE_STORE_DISK_BYTES].owner_max = 8ull * DISK_BLOCK;
	put(8, 4000);
	settle();
	assert_int_equal(store_totals(rig.store).disk_evictions, 1);
	assert_int_equal(get_begin(&g, 0), DMSG_STORE_STATUS_NOT_FOUND);
}

/* Loads that wait for a thread go first. */
static void test_verify_behind_loads(void **state)
{
	enum { LOADS = 20 };
	unsigned before = at_gate[DISK_CALL_READ], ready = 0;
	struct store_verify *v;
	struct get g[LOADS];

	put_one_by_one(LOADS + 1, 4000);
	leave_memory();
	gate(DISK_CALL_READ, true);
	for (unsigned k = 0; k < LOADS; k++)
		assert_int_equal(get_begin(&g[k], k), DMSG_STORE_STATUS_OK);
	run_to_gate(before);
	v = verify_at(NO_LIMIT);
	gate(DISK_CALL_READ, false);
	while (!store_verify_found(v).good.objects)
		turn();
	for (unsigned k = 0; k < LOADS; k++)
		ready += g[k].wait.ready;
	/* the last ones may be read beside the first piece: two threads have at most two each */
	assert_in_range(ready, LOADS - 4, LOADS);
	for (unsigned k = 0; k < LOADS; k++)
		assert_int_equal(get_end(&g[k]), DMSG_STORE_STATUS_OK);
	assert_int_equal(verify_end(v).good.objects, LOADS + 1);
}

static void refuse_to_verify(const char *space, unsigned code)
{
	struct dray_err e = DRAY_ERR_NULL;
	struct store_verify *v;

	assert_true(store_verify_new(&v, rig.store, space, "t", 0, NO_LIMIT, &e) < 0);
	assert_int_equal(e.code, code);
}

/* Nobody waits for it any more, while the disk hangs. */
static void test_verify_that_is_ended(void **state)
{
	unsigned before = at_gate[DISK_CALL_READ];
	struct store_verified f;
	struct store_verify *v;

	put_one_by_one(3, 9000);
	gate(DISK_CALL_READ, true);
	v = verify_at(NO_LIMIT);
	refuse_to_verify("", DRAY_E_BUSY);
	run_to_gate(before);
	store_verify_free(v);
	refuse_to_verify("", DRAY_E_BUSY);
	refuse_to_verify("shared", DRAY_E_BUSY);
	gate(DISK_CALL_READ, false);
	turn();
	refuse_to_verify("shared", DRAY_E_NOT_FOUND);
	f = verify();
	check_found(&f, 3, 0, 0, 9000);
	/* and the end of the store */
	gate(DISK_CALL_READ, true);
	before = at_gate[DISK_CALL_READ];
	v = verify_at(NO_LIMIT);
	run_to_gate(before);
	store_verify_free(v);
	gate(DISK_CALL_READ, false);
	stop();
	start();
}

/* A piece for each turn of a timer. */
static void test_verify_at_a_rate(void **state)
{
	struct store_verify *v;

	put_one_by_one(3, 9000);
	leave_memory();
	/* the next piece is due in some hours */
	v = verify_at(1);
	while (!store_verify_found(v).good.objects)
		turn();
	put(3, 9000);
	settle();
	assert_int_equal(store_verify_found(v).good.objects, 1);
	assert_true(store_verify_found(v).more);
	store_verify_free(v);
}

/* Were they limited by a rate that is measured until they are durable, slow commits would lower the limit again and again. */
static void test_writes_do_not_wait_for_commits(void **state)
{
	unsigned before;

	put(0, DISK_BLOCK);
	settle();
	stop();
	remember_rates(0, 1000);
	start();
	put(1, DISK_BLOCK);
	settle();
	assert_int_equal(store_totals(rig.store).disk.write_rate, 1000);
	gate(DISK_CALL_COMMIT, true);
	before = at_gate[DISK_CALL_WRITE];
	for (unsigned k = 2; k < 18; k++)
		put(k, DISK_BLOCK);
	run_to_gate_n(DISK_CALL_WRITE, before + 16);
	gate(DISK_CALL_COMMIT, false);
	settle();
	assert_int_equal(store_totals(rig.store).disk.objects, 18);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_objects_on_disk_keep_their_uses),
		TEST(test_no_memory_to_change_the_tier),
		TEST(test_small_objects_that_wait_are_bounded),
		TEST(test_objects_that_wait_beside_another_owner),
		TEST(test_turns_beside_removed_objects),
		TEST(test_turns_beside_a_disk_that_fails),
		TEST(test_turns_that_evict_from_disk),
		TEST(test_full_file_system_evicts_what_it_needs),
		TEST(test_loads_beside_evictions_from_a_full_disk),
		TEST(test_writes_end_when_the_disk_fails),
		TEST(test_owner_without_room_beside_others_in_its_space),
		TEST(test_pinned_object_that_could_not_be_read),
		TEST(test_loads_beside_a_disk_that_hangs),
		TEST(test_loads_beside_many_batches_of_another_owner),
		TEST(test_keys_that_change_before_the_folder_is_read),
		TEST(test_a_call_evicts_some),
		TEST(test_counts_by_tier),
		TEST(test_name_space_of_a_removed_object_is_swept),
		TEST(test_writes_beside_many_of_another_owner),
		TEST(test_write_behind_the_removal_of_another_owner),
		TEST(test_no_memory_for_works),
		TEST(test_puts_elsewhere_before_the_folder_is_read),
		TEST(test_copies_before_the_folder_is_read),
		TEST(test_copy_of_another_owner_before_the_folder_is_read),
		TEST(test_shares_at_the_start),
		TEST(test_owners_are_equal_at_the_start),
		TEST(test_owners_are_equal_in_the_other_order),
		TEST(test_objects_are_bounded),
		TEST(test_copies_cost_no_object_on_disk),
		TEST(test_object_that_was_kept_gives_way),
		TEST(test_copy_gives_way_to_what_is_kept),
		TEST(test_two_are_kept_at_once),
		TEST(test_others_appear_while_one_is_kept),
		TEST(test_kept_beside_a_client),
		TEST(test_loan_at_the_end),
		TEST(test_lookups_evict_in_turns),
		TEST(test_owner_that_leaves_during_a_lookup),
		TEST(test_writes_do_not_wait_for_commits),
		TEST(test_flush),
		TEST(test_flush_to_a_disk_that_fails),
		TEST(test_flush_to_a_full_disk),
		TEST(test_objects_that_are_only_in_memory),
		TEST(test_verify),
		TEST(test_verify_many),
		TEST(test_verify_damaged_objects),
		TEST(test_verify_a_damaged_object_that_is_in_memory),
		TEST(test_verify_a_disk_that_does_not_read),
		TEST(test_verify_beside_removals),
		TEST(test_verify_does_not_use_objects),
		TEST(test_verify_behind_loads),
		TEST(test_verify_that_is_ended),
		TEST(test_verify_at_a_rate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
