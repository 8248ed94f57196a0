/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier: what is written is there after a restart, wrong bytes are never returned, and a disk that fails is survived. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/store/disk/disk.h"
#include "lib/assert.h"
#include "lib/time.h"
#include "tests/unit/cm.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"

#define N 32
#define SEGMENT_BYTES (256u << 10)
#define BYTES_MAX (300u << 10)
#define KILLS_LONG 300 /* with DRAY_LONG */
#define KILLS 12
#define DESCRIPTORS 8 /* of segments without use, where they are few */

struct item {
	struct disk_request request;
	struct disk_object object;
	char key[16];
	uint32_t bytes;
	unsigned version;
	uint8_t *buffer;
	bool busy;
};

static struct rig {
	sd_event *event;
	struct disk *disk;
	struct item items[N];
	unsigned found, strange; /* strange: found under a key that is no item's */
	enum disk_state state;
	char why[DRAY_ERR_MSG_MAX];
	bool no_memory;   /* for what is found */
	unsigned crowded; /* calls */
	uint64_t removals_when_crowded;
} rig;

/* DISK_CALL_*: the calls that fail, and how. */
static _Atomic int faults[DISK_CALL_N];

/* So many next calls of this kind stop before they begin: each posts `stopped`, waits for `go_on`, and fails with `stop_result` unless that is 0. */
static _Atomic int stop_next;
static _Atomic int stop_call, stop_result;
static sem_t stopped, go_on;
/* Before an extension fails, the file gets a part of it. */
static _Atomic bool extends_part;

/* W and R: calls of WRITE and READ, in order. */
static char order[64];
static _Atomic unsigned n_order;

static unsigned threads;

/* How long batches gather; 0: by the time of the last one. */
static int64_t gather_ns;

/* No memory for a timer. */
static bool no_timers;

int sd_event_add_time_relative(sd_event *e, sd_event_source **s, clockid_t clock, uint64_t usec,
			       uint64_t accuracy, sd_event_time_handler_t fn, void *arg)
{
	uint64_t now;

	if (no_timers)
		return -ENOMEM;
	sd_event_now(e, clock, &now);
	return sd_event_add_time(e, s, clock, now + usec, accuracy, fn, arg);
}

/* What the file system has, in blocks. */
static _Atomic uint64_t fs_used, fs_free;

int fstatvfs(int fd, struct statvfs *ret)
{
	*ret = (struct statvfs){ .f_frsize = DISK_BLOCK,
				 .f_blocks = fs_used + fs_free,
				 .f_bfree = fs_free,
				 .f_bavail = fs_free };
	return 0;
}

/* Calls of COMMIT, and how many of them do not fail; negative: none fails. */
static _Atomic int commits, good_commits;

static int fault_of_commit(void)
{
	int n = atomic_fetch_add(&commits, 1);

	return good_commits >= 0 && n >= good_commits ? -ENOSPC : 0;
}

static void let_commits_fail(int after)
{
	commits = 0;
	good_commits = after;
}

static void extend_first_segment(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 1);
	dray_assert(truncate(path, SEGMENT_BYTES / 2) == 0);
}

static bool takes_stop(void)
{
	int n = stop_next;

	while (n && !atomic_compare_exchange_weak(&stop_next, &n, n - 1))
		;
	return n;
}

static void note(enum disk_call call)
{
	unsigned at = call == DISK_CALL_WRITE || call == DISK_CALL_READ ? n_order++ : UINT32_MAX;

	if (at < sizeof(order) - 1)
		order[at] = call == DISK_CALL_WRITE ? 'W' : 'R';
}

static int fault(enum disk_call call)
{
	int r = call == DISK_CALL_COMMIT ? fault_of_commit() : 0;

	note(call);
	if (r < 0)
		return r;
	if ((int)call == stop_call && takes_stop()) {
		sem_post(&stopped);
		sem_wait(&go_on);
		if (stop_result)
			return stop_result;
	}
	if (call == DISK_CALL_EXTEND && extends_part)
		extend_first_segment();
	return atomic_load(&faults[call]);
}

static void state_changed(void *arg, enum disk_state state, const struct dray_err *why)
{
	rig.state = state;
	snprintf(rig.why, sizeof(rig.why), "%s", why->msg);
}

static void crowded(void *arg, uint64_t bytes)
{
	rig.crowded++;
	if (rig.disk)
		rig.removals_when_crowded = disk_info(rig.disk).removals;
}

/* Each event comes soon, or there is a bug. */
static void turn(void)
{
	assert_true(sd_event_run(rig.event, 60 * DRAY_NS_PER_SEC / 1000) > 0);
}

static int found(void *arg, const void *key, uint32_t n, uint64_t bytes, float cost,
		 struct disk_object **ret)
{
	*ret = NULL;
	for (unsigned i = 0; i < N; i++)
		if (n == strlen(rig.items[i].key) && !memcmp(key, rig.items[i].key, n)) {
			rig.items[i].bytes = (uint32_t)bytes;
			rig.items[i].version = (unsigned)cost;
			rig.found++;
			if (rig.no_memory)
				return -ENOMEM;
			*ret = &rig.items[i].object;
			return 0;
		}
	rig.strange++;
	return 0;
}

static int open_disk(struct dray_err *reterr)
{
	struct disk_config cfg = {
		.event = rig.event,
		.dir = cm_dir,
		.segment_bytes = SEGMENT_BYTES,
		.threads = threads,
		.retry_min_ns = DRAY_NS_PER_MS,
		.retry_max_ns = 10 * DRAY_NS_PER_MS,
		.gather_ns = gather_ns,
		.state_changed = state_changed,
		.crowded = crowded,
		.fault = fault,
	};

	rig.found = rig.strange = 0;
	for (unsigned i = 0; i < N; i++)
		rig.items[i].object.segment = NULL;
	return disk_open(&rig.disk, &cfg, found, NULL, reterr);
}

static void start(void)
{
	struct dray_err e = DRAY_ERR_NULL;

	if (open_disk(&e) < 0)
		fail_msg("%s", e.msg);
}

static int setup(void **state)
{
	rig = (struct rig){ .event = NULL };
	for (unsigned i = 0; i < DISK_CALL_N; i++)
		faults[i] = 0;
	let_commits_fail(-1);
	stop_call = DISK_CALL_WRITE;
	stop_result = 0;
	gather_ns = 0;
	threads = 3;
	fs_used = fs_free = UINT32_MAX;
	cm_dir_set_up(state);
	if (sd_event_new(&rig.event) < 0)
		return -1;
	for (unsigned i = 0; i < N; i++) {
		snprintf(rig.items[i].key, sizeof(rig.items[i].key), "key %u", i);
		rig.items[i].buffer = aligned_alloc(DISK_BLOCK, BYTES_MAX + DISK_BLOCK);
	}
	start();
	return 0;
}

static int teardown(void **state)
{
	assert_true(disk_close(dray_take(rig.disk)));
	sd_event_unref(rig.event);
	for (unsigned i = 0; i < N; i++)
		free(rig.items[i].buffer);
	return cm_dir_tear_down(state);
}

static void restart(void)
{
	assert_true(disk_close(dray_take(rig.disk)));
	start();
}

static void done(struct disk_request *r)
{
	((struct item *)r)->busy = false;
}

static void wait_for(const bool *busy)
{
	while (*busy)
		if (sd_event_run(rig.event, UINT64_MAX) < 0)
			abort();
}

/* Each byte depends on item, version and place. */
static uint8_t byte_at(unsigned i, unsigned version, uint32_t at)
{
	return (uint8_t)((i * 31 + version * 17 + at * 7 + (at >> 8)) ^ (at >> 16));
}

/* Odd items are at an address that O_DIRECT does not take. */
static uint8_t *buffer_of(unsigned i)
{
	return rig.items[i].buffer + (i % 2 ? 8 : 0);
}

static void prepare(unsigned i)
{
	struct item *it = &rig.items[i];

	it->busy = true;
	it->request = (struct disk_request){ .object = &it->object,
					     .key = it->key,
					     .key_bytes = (uint32_t)strlen(it->key),
					     .cost = (float)it->version,
					     .buffer = buffer_of(i),
					     .done = done };
}

static void begin_write(unsigned i, unsigned version, uint32_t bytes)
{
	struct item *it = &rig.items[i];

	it->version = version;
	it->bytes = bytes;
	for (uint32_t at = 0; at < bytes; at++)
		buffer_of(i)[at] = byte_at(i, version, at);
	prepare(i);
	disk_write(rig.disk, &it->request, bytes);
}

static enum disk_result finish(unsigned i)
{
	wait_for(&rig.items[i].busy);
	return rig.items[i].request.result;
}

static enum disk_result put(unsigned i, unsigned version, uint32_t bytes)
{
	begin_write(i, version, bytes);
	return finish(i);
}

static enum disk_result get(unsigned i)
{
	prepare(i);
	memset(rig.items[i].buffer, 0xee, BYTES_MAX + DISK_BLOCK);
	disk_read(rig.disk, &rig.items[i].request);
	return finish(i);
}

static bool right(unsigned i)
{
	for (uint32_t at = 0; at < rig.items[i].bytes; at++)
		if (buffer_of(i)[at] != byte_at(i, rig.items[i].version, at))
			return false;
	return true;
}

static void begin_drop(unsigned i)
{
	prepare(i);
	disk_remove(rig.disk, &rig.items[i].request);
}

static uint32_t bytes_of(unsigned i)
{
	static const uint32_t some[] = { 1, 4095, 4096, 4097, 100000, 65536, 300 << 10, 12288 };

	return some[i % DRAY_ARRAY_SIZE(some)];
}

static void put_all(void)
{
	for (unsigned i = 0; i < N; i++)
		begin_write(i, 1, bytes_of(i));
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(finish(i), DISK_OK);
}

static void check_all(void)
{
	for (unsigned i = 0; i < N; i++)
		if (rig.items[i].object.segment) {
			assert_int_equal(get(i), DISK_OK);
			assert_true(right(i));
		}
}

/* --- the usual ------------------------------------------------------------------------------------ */

static void test_restart(void **state)
{
	put_all();
	check_all();
	restart();
	assert_int_equal(rig.found, N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(rig.items[i].bytes, bytes_of(i));
	check_all();
}

static uint64_t blocks_used(void)
{
	char path[128];
	struct stat st;
	uint64_t n = 0;

	for (unsigned id = 1; id < 1000; id++) {
		snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, id);
		if (stat(path, &st) == 0)
			n += (uint64_t)st.st_blocks * 512;
	}
	return n;
}

static void test_remove(void **state)
{
	uint64_t before;

	put_all();
	before = disk_info(rig.disk).bytes;
	for (unsigned i = 0; i < N; i += 2)
		begin_drop(i);
	for (unsigned i = 0; i < N; i += 2)
		assert_int_equal(finish(i), DISK_OK);
	assert_in_range(disk_info(rig.disk).bytes, 1, before - 1);
	/* The file system's own blocks are counted, too. */
	assert_in_range(blocks_used(), 1, before - 1);
	restart();
	assert_int_equal(rig.found, N / 2);
	check_all();
	for (unsigned i = 1; i < N; i += 2)
		begin_drop(i);
	for (unsigned i = 1; i < N; i += 2)
		finish(i);
	restart();
	assert_int_equal(rig.found, 0);
	assert_int_equal(disk_info(rig.disk).segments, 0);
	assert_int_equal(disk_info(rig.disk).bytes, 0);
	assert_int_equal(blocks_used(), 0);
}

static uint64_t file_bytes(uint32_t segment)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, segment);
	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

/* The file has them beyond the object that was written. They are given back when the next segment begins, and at the end. */
static void test_blocks_ahead(void **state)
{
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	assert_int_equal(file_bytes(1), SEGMENT_BYTES);
	assert_int_equal(put(1, 1, 100000), DISK_OK);
	assert_int_equal(file_bytes(1), SEGMENT_BYTES);
	assert_int_equal(put(2, 1, 200000), DISK_OK);
	assert_int_equal(file_bytes(1), disk_blocks(5000) + disk_blocks(100000));
	assert_int_equal(file_bytes(2), SEGMENT_BYTES);
	check_all();
	restart();
	assert_int_equal(file_bytes(2), disk_blocks(200000));
	assert_int_equal(rig.found, 3);
	check_all();
}

static void test_blocks_ahead_of_the_last_object(void **state)
{
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	while (blocks_used())
		turn();
	assert_int_equal(put(0, 2, 5000), DISK_OK);
	check_all();
	restart();
	assert_int_equal(rig.found, 1);
	check_all();
}

static unsigned files(void)
{
	struct dirent **names;
	unsigned found = 0;
	int n = scandir(cm_dir, &names, NULL, NULL);

	assert_true(n >= 0);
	for (int i = 0; i < n; i++) {
		found += !strncmp(names[i]->d_name, "segment-", 8);
		free(names[i]);
	}
	free(names);
	return found;
}

/* A tier that has one object at a time: all of them are in one file until that is full, and what is there at the end survives. */
static void test_one_object_at_a_time(void **state)
{
	unsigned fit = SEGMENT_BYTES / disk_blocks(5000);

	for (unsigned version = 1; version < 2 * fit; version++) {
		assert_int_equal(put(version % 2, version, 5000), DISK_OK);
		assert_true(file_bytes(1 + (version - 1) / fit) > 0);
		assert_in_range(files(), 1, 2);
		begin_drop(version % 2);
		assert_int_equal(finish(version % 2), DISK_OK);
	}
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	check_all();
	restart();
	assert_int_equal(rig.found, 1);
	check_all();
}

/* Item 0 is on disk, and the write of item 1 stops. */
static void stop_a_write(int64_t gathering_ns)
{
	gather_ns = gathering_ns;
	restart();
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	stop_next = 1;
	begin_write(1, 1, 5000);
	sem_wait(&stopped);
}

static void test_writes_gather_while_others_are_in_progress(void **state)
{
	int before;

	stop_a_write(3600 * DRAY_NS_PER_SEC);
	before = commits;
	for (unsigned i = 2; i < 8; i++)
		begin_write(i, 1, 5000);
	sem_post(&go_on);
	for (unsigned i = 1; i < 8; i++)
		assert_int_equal(finish(i), DISK_OK);
	assert_int_equal(commits - before, 1);
	check_all();
}

/* It may take long, or never end. */
static void test_writes_do_not_gather_until_another_ends(void **state)
{
	stop_a_write(DRAY_NS_PER_MS);
	assert_int_equal(put(2, 1, 5000), DISK_OK);
	assert_int_equal(put(3, 1, 5000), DISK_OK);
	assert_true(rig.items[1].busy);
	sem_post(&go_on);
	assert_int_equal(finish(1), DISK_OK);
	check_all();
}

static void begin_get(unsigned i)
{
	prepare(i);
	disk_read(rig.disk, &rig.items[i].request);
}

/* One thread takes no writes. */
static void test_read_waits_for_no_write(void **state)
{
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	stop_next = N;
	for (unsigned i = 1; i < N; i++)
		begin_write(i, 1, 5000);
	for (unsigned i = 0; i < threads; i++)
		sem_wait(&stopped);
	begin_get(0);
	while (rig.items[0].busy)
		turn();
	assert_int_equal(rig.items[0].request.result, DISK_OK);
	stop_next = 0;
	for (unsigned i = 0; i < threads; i++)
		sem_post(&go_on);
	for (unsigned i = 1; i < N; i++)
		assert_int_equal(finish(i), DISK_OK);
	check_all();
}

/* The thread that only reads has items 0 and 2, and stands still. */
static void stop_reader(void)
{
	stop_call = DISK_CALL_READ;
	stop_next = 1;
	begin_get(0);
	sem_wait(&stopped);
	begin_get(1);
	begin_get(2);
	assert_int_equal(finish(1), DISK_OK);
}

/* Before each write go reads of as many bytes. The thread has the first two writes before there is a read. */
static void test_reads_and_writes_share_a_thread(void **state)
{
	threads = 1;
	restart();
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(put(i, 1, 2 * DISK_BLOCK), DISK_OK);
	stop_reader();
	n_order = 0;
	memset(order, 0, sizeof(order));
	for (unsigned i = 6; i < 11; i++)
		begin_write(i, 1, (i == 8 ? 4 : 2) * DISK_BLOCK);
	for (unsigned i = 3; i < 6; i++)
		begin_get(i);
	for (unsigned i = 3; i < 11; i++)
		assert_int_equal(finish(i), DISK_OK);
	assert_string_equal(order, "WWRRWRWW");
	sem_post(&go_on);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(finish(2), DISK_OK);
	check_all();
}

static void wait_for_files(unsigned n)
{
	while (files() != n)
		turn();
}

/* The tier has failed, and comes back by itself. */
static void wait_until_ok(void)
{
	while (rig.state != DISK_STATE_OK)
		turn();
}

/* Segment 2 is made when segment 1 is half full. */
static void make_next(void)
{
	assert_int_equal(put(0, 1, SEGMENT_BYTES / 4), DISK_OK);
	assert_int_equal(files(), 1);
	assert_int_equal(put(1, 1, SEGMENT_BYTES / 4), DISK_OK);
	while (files() != 2 || file_bytes(2) != SEGMENT_BYTES)
		turn();
}

static void test_next_segment(void **state)
{
	make_next();
	assert_int_equal(put(2, 1, SEGMENT_BYTES), DISK_OK);
	assert_int_equal(file_bytes(1), SEGMENT_BYTES / 2);
	wait_for_files(3);
	check_all();
	restart();
	assert_int_equal(files(), 2);
	assert_int_equal(rig.found, 3);
	check_all();
}

/* What a killed agent leaves has no objects. */
static void test_next_segment_when_killed(void **state)
{
	char path[128];

	make_next();
	assert_true(disk_close(dray_take(rig.disk)));
	assert_int_equal(files(), 1);
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 2);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(truncate(path, SEGMENT_BYTES), 0);
	start();
	assert_int_equal(files(), 1);
	assert_int_equal(rig.found, 2);
	check_all();
}

static void test_next_segment_without_objects_before_it(void **state)
{
	make_next();
	begin_drop(0);
	begin_drop(1);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(finish(1), DISK_OK);
	while (blocks_used())
		turn();
	assert_int_equal(files(), 2);
	for (unsigned i = 2; i < 6; i++)
		assert_int_equal(put(i, 1, SEGMENT_BYTES / 4), DISK_OK);
	assert_true(file_bytes(2) > 0);
	check_all();
}

static void test_next_segment_after_an_error(void **state)
{
	make_next();
	faults[DISK_CALL_WRITE] = -ENOSPC;
	assert_int_equal(put(2, 1, 5000), DISK_DOWN);
	wait_for_files(1);
	faults[DISK_CALL_WRITE] = 0;
	wait_until_ok();
	assert_int_equal(put(2, 2, 5000), DISK_OK);
	check_all();
	restart();
	assert_int_equal(rig.found, 3);
	check_all();
}

/* Others need the blocks. */
static void test_next_segment_on_a_crowded_file_system(void **state)
{
	make_next();
	fs_free = SEGMENT_BYTES / DISK_BLOCK - 1;
	assert_int_equal(put(2, 1, 5000), DISK_OK);
	wait_for_files(1);
	assert_int_equal(put(3, 1, SEGMENT_BYTES), DISK_OK);
	assert_int_equal(rig.state, DISK_STATE_OK);
	check_all();
}

/* An object needs the next segment while a call of its preparation is stopped. */
static void stop_preparation(enum disk_call call, int result)
{
	assert_int_equal(put(0, 1, SEGMENT_BYTES / 4), DISK_OK);
	stop_call = (int)call;
	stop_result = result;
	stop_next = 1;
	begin_write(1, 1, SEGMENT_BYTES / 4);
	sem_wait(&stopped);
	begin_write(2, 1, SEGMENT_BYTES);
	sem_post(&go_on);
}

static void test_next_segment_is_needed_during_its_extension(void **state)
{
	stop_preparation(DISK_CALL_EXTEND, 0);
	assert_int_equal(finish(1), DISK_OK);
	assert_int_equal(finish(2), DISK_OK);
	assert_int_equal(file_bytes(2), SEGMENT_BYTES);
	check_all();
	restart();
	assert_int_equal(rig.found, 3);
	check_all();
}

/* The kernel tells it once that the name is not on disk. */
static void test_name_of_the_next_segment_is_not_on_disk(void **state)
{
	stop_preparation(DISK_CALL_SYNC_FOLDER, -EIO);
	finish(1); /* maybe in one commit with the other one */
	assert_int_equal(finish(2), DISK_DOWN);
	wait_until_ok();
	assert_int_equal(put(2, 2, 5000), DISK_OK);
	check_all();
}

/* The preparation of the next segment is told that the name of the last one is not on disk. */
static void test_name_of_the_last_segment_is_not_on_disk(void **state)
{
	stop_call = DISK_CALL_SYNC_FOLDER;
	stop_result = -EIO;
	stop_next = 1;
	begin_write(0, 1, SEGMENT_BYTES / 4 * 3);
	sem_wait(&stopped);
	sem_post(&go_on);
	assert_int_equal(finish(0), DISK_DOWN);
	wait_until_ok();
	assert_int_equal(put(0, 2, 5000), DISK_OK);
	check_all();
}

/* A next segment without blocks is dropped, and made again when objects need it. */
static void test_no_room_for_the_next_segment(void **state)
{
	faults[DISK_CALL_EXTEND] = -ENOSPC;
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(put(i, 1, SEGMENT_BYTES / 4), DISK_OK);
	wait_for_files(2);
	assert_int_equal(rig.state, DISK_STATE_OK);
	check_all();
	restart();
	assert_int_equal(files(), 2);
	assert_int_equal(rig.found, 6);
}

/* The kernel allocates what a quota leaves, and then fails. */
static void test_part_of_the_blocks_ahead(void **state)
{
	faults[DISK_CALL_EXTEND] = -EDQUOT;
	extends_part = true;
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	extends_part = false;
	assert_int_equal(file_bytes(1), 2 * DISK_BLOCK);
	assert_int_equal(rig.state, DISK_STATE_OK);
	check_all();
}

static void test_room_for_a_part_of_a_segment(void **state)
{
	fs_free = 20 * 16;
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	assert_int_equal(file_bytes(1), 20 * DISK_BLOCK);
	assert_int_equal(put(1, 1, 19 * DISK_BLOCK), DISK_OK);
	assert_int_equal(file_bytes(1), 40 * DISK_BLOCK);
	check_all();
}

static void test_blocks_ahead_when_killed(void **state)
{
	char path[128];

	assert_int_equal(put(0, 1, 5000), DISK_OK);
	assert_int_equal(put(1, 1, 100000), DISK_OK);
	assert_true(disk_close(dray_take(rig.disk)));
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 1);
	assert_int_equal(truncate(path, SEGMENT_BYTES), 0);
	start();
	assert_int_equal(file_bytes(1), disk_blocks(5000) + disk_blocks(100000));
	assert_int_equal(rig.found, 2);
	check_all();
}

/* A killed agent has removed an object, and has not given its blocks back. Another one stays in the segment for ever. */
static void test_gaps_when_killed(void **state)
{
	static const uint8_t junk[60000];
	uint64_t blocks;
	char path[128];
	int fd;

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(put(i, 1, sizeof(junk)), DISK_OK);
	begin_drop(0);
	begin_drop(2);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(finish(2), DISK_OK);
	assert_true(disk_close(dray_take(rig.disk)));
	blocks = blocks_used();
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 1);
	fd = open(path, O_WRONLY);
	for (unsigned i = 0; i < 4; i += 2)
		assert_int_equal(pwrite(fd, junk, sizeof(junk),
					(off_t)(i * disk_blocks(sizeof(junk)))),
				 sizeof(junk));
	assert_int_equal(fsync(fd), 0);
	close(fd);
	assert_true(blocks_used() >= blocks + 2 * sizeof(junk));
	start();
	assert_in_range(blocks_used(), 1, blocks);
	assert_int_equal(rig.found, 2);
	check_all();
}

static void check_no_blocks_ahead(void)
{
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(put(i, 1, 50000), DISK_OK);
	assert_int_equal(file_bytes(1), 3 * disk_blocks(50000));
	assert_int_equal(rig.state, DISK_STATE_OK);
	restart();
	assert_int_equal(rig.found, 3);
	check_all();
}

static void test_file_system_without_blocks_ahead(void **state)
{
	faults[DISK_CALL_EXTEND] = -EOPNOTSUPP;
	check_no_blocks_ahead();
}

static void test_no_room_for_blocks_ahead(void **state)
{
	faults[DISK_CALL_EXTEND] = -ENOSPC;
	check_no_blocks_ahead();
}

/* An object alone is more than a sixteenth of the room. */
static void test_little_room_for_blocks_ahead(void **state)
{
	fs_free = 12 * 16;
	check_no_blocks_ahead();
}

/* They are given back at once, because nothing is appended after an error. */
static void test_blocks_ahead_of_a_failed_write(void **state)
{
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	faults[DISK_CALL_WRITE] = -EIO;
	assert_int_equal(put(1, 1, 50000), DISK_DOWN);
	faults[DISK_CALL_WRITE] = 0;
	wait_until_ok();
	assert_int_equal(file_bytes(1), disk_blocks(5000) + disk_blocks(50000));
	assert_int_equal(put(1, 2, 100), DISK_OK);
	check_all();
}

static void test_key_is_written_again(void **state)
{
	for (unsigned version = 1; version < 20; version++) {
		assert_int_equal(put(3, version, 5000 + version), DISK_OK);
		if (version % 3 == 0)
			restart();
		assert_int_equal(rig.items[3].version, version);
		assert_int_equal(get(3), DISK_OK);
		assert_true(right(3));
		begin_drop(3);
		finish(3);
	}
}

/* Item 1 is another object with the key of item 0. */
static void share_key(void)
{
	memcpy(rig.items[1].key, rig.items[0].key, sizeof(rig.items[0].key));
}

static void check_newer_is_found(void)
{
	restart();
	assert_int_equal(rig.found, 1);
	assert_int_equal(rig.items[0].version, 2);
	assert_int_equal(get(0), DISK_OK);
}

static void test_removal_of_an_older_object_spares_the_newer(void **state)
{
	share_key();
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	assert_int_equal(put(1, 2, 100), DISK_OK);
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	check_newer_is_found();
}

static void test_older_write_that_ends_later(void **state)
{
	share_key();
	stop_next = 1;
	begin_write(0, 1, 5000);
	sem_wait(&stopped);
	assert_int_equal(put(1, 2, 100), DISK_OK);
	sem_post(&go_on);
	assert_int_equal(finish(0), DISK_OK);
	check_newer_is_found();
}

/* The row of an object whose segment is missing does not count as newer than what is written after a restart. */
static void test_key_of_a_missing_segment_is_written_again(void **state)
{
	char path[128];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(put(i, 1, SEGMENT_BYTES), DISK_OK);
	assert_true(disk_close(dray_take(rig.disk)));
	for (unsigned id = 1; id <= 3; id++) {
		snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, id);
		assert_int_equal(unlink(path), 0);
	}
	start();
	assert_int_equal(rig.found, 0);
	assert_int_equal(put(2, 2, 5000), DISK_OK);
	restart();
	assert_int_equal(rig.found, 1);
	assert_int_equal(rig.items[2].version, 2);
}

static void test_objects_without_an_owner_are_removed(void **state)
{
	put_all();
	rig.items[5].key[0] = 'x';
	restart();
	assert_int_equal(rig.found, N - 1);
	assert_int_equal(rig.strange, 1);
	/* A later batch also has the removal. */
	begin_drop(6);
	finish(6);
	restart();
	assert_int_equal(rig.strange, 0);
}

/* Rows of objects whose segment is missing. */
static void add_rows(unsigned n)
{
	char path[128], sql[200];
	sqlite3 *db;

	snprintf(path, sizeof(path), "%s/index.db", cm_dir);
	snprintf(sql, sizeof(sql),
		 "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT %u)"
		 " INSERT INTO object SELECT CAST('row ' || i AS BLOB), 7, 0, 1, 0, 0 FROM n",
		 n);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

static void wait_for_removals(unsigned n, unsigned most_at_once)
{
	while (disk_info(rig.disk).removals < n) {
		uint64_t before = disk_info(rig.disk).removals;

		turn();
		assert_in_range(disk_info(rig.disk).removals - before, 0, most_at_once);
	}
}

/* They come in any number: a turn ends some of them. */
static void test_many_rows_without_bytes(void **state)
{
	assert_true(disk_close(dray_take(rig.disk)));
	add_rows(3000);
	start();
	wait_for_removals(3000, 1024);
	restart();
	assert_int_equal(rig.strange, 0);
	assert_int_equal(disk_info(rig.disk).removals, 0);
}

/* Each test of a full disk commits many, in slices for which the reserve has room. */
static void test_rows_are_removed_from_a_full_disk(void **state)
{
	assert_true(disk_close(dray_take(rig.disk)));
	add_rows(200);
	faults[DISK_CALL_WRITE] = -ENOSPC;
	start();
	assert_int_equal(rig.state, DISK_STATE_FULL);
	let_commits_fail(3);
	wait_for_removals(96, 96);
	assert_int_equal(disk_info(rig.disk).removals, 96);
	let_commits_fail(4);
	wait_for_removals(200, 104);
	assert_int_equal(rig.state, DISK_STATE_FULL);
}

/* Nothing else is to be removed while their removal may make room. */
static void test_not_crowded_while_removals_wait(void **state)
{
	assert_true(disk_close(dray_take(rig.disk)));
	add_rows(3000);
	faults[DISK_CALL_WRITE] = -ENOSPC;
	fs_used = 0;
	start();
	while (!rig.crowded)
		turn();
	assert_int_equal(rig.removals_when_crowded, 3000);
}

/* It needs no room in the index. */
static void test_failed_writes_give_their_room_first(void **state)
{
	assert_true(disk_close(dray_take(rig.disk)));
	add_rows(3000);
	let_commits_fail(1);
	start();
	begin_write(0, 1, 5000);
	assert_int_equal(finish(0), DISK_DOWN);
	assert_int_equal(rig.state, DISK_STATE_FULL);
	let_commits_fail(1);
	wait_for_removals(1, 32);
	assert_int_equal(disk_info(rig.disk).bytes, 0);
}

/* --- wrong bytes ------------------------------------------------------------------------------------ */

static void change(unsigned i, uint64_t at, bool cut)
{
	char path[128];
	uint8_t byte;
	int fd;

	/* Each object of this size has a segment of its own, whose numbers begin with 1. */
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, i + 1);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 1 << at % 8;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	if (cut)
		assert_int_equal(ftruncate(fd, (off_t)at), 0);
	close(fd);
}

static void test_flipped_bits(void **state)
{
	uint32_t bytes = SEGMENT_BYTES - 100;

	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(put(i, 1, bytes), DISK_OK);
	assert_true(disk_close(dray_take(rig.disk)));
	for (unsigned i = 0; i < 32; i++)
		change(i, i < 31 ? i * 8123 : bytes - 1, false);
	start();
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(get(i), DISK_CORRUPT);
	assert_int_equal(disk_info(rig.disk).corrupt, 32);
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(put(0, 2, 100), DISK_OK);
	assert_int_equal(get(0), DISK_OK);
}

static void test_short_and_missing_segments(void **state)
{
	char path[128];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(put(i, 1, SEGMENT_BYTES), DISK_OK);
	/* While the tier is open: an error of reading. */
	change(0, 1000, true);
	assert_int_equal(get(0), DISK_FAILED);
	/* At the start: the object is gone. */
	assert_true(disk_close(dray_take(rig.disk)));
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 2);
	assert_int_equal(unlink(path), 0);
	start();
	assert_int_equal(rig.found, 1);
	check_all();
}

static void test_other_version(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;
	char path[128];
	sqlite3 *db;

	put(0, 1, 10);
	assert_true(disk_close(dray_take(rig.disk)));
	snprintf(path, sizeof(path), "%s/index.db", cm_dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 9", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	assert_true(open_disk(&e) < 0);
	assert_non_null(strstr(e.msg, "version 9"));
	assert_non_null(strstr(e.msg, "store.disk_dir"));
	/* Nothing was touched. */
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 1);
	assert_int_equal(access(path, F_OK), 0);
}

/* --- a disk that fails ------------------------------------------------------------------------------- */

static void wait_for_state(enum disk_state state)
{
	while (rig.state != state)
		turn();
}

static void check_fault(enum disk_call call, int error, enum disk_state state)
{
	put_all();
	for (unsigned i = 0; i < 8; i++) {
		begin_drop(i);
		finish(i);
	}
	faults[call] = error;
	for (unsigned i = 0; i < 8; i++)
		begin_write(i, 2, bytes_of(i));
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(finish(i), DISK_DOWN);
	assert_int_equal(rig.state, state);
	assert_true(disk_info(rig.disk).why[0]);
	/* Reads go on, writes fail at once, and a removal waits. */
	check_all();
	begin_write(0, 3, 10);
	assert_false(rig.items[0].busy);
	begin_drop(8);
	faults[call] = 0;
	wait_for_state(DISK_STATE_OK);
	assert_int_equal(finish(8), DISK_OK);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(put(i, 4, bytes_of(i)), DISK_OK);
	check_all();
	restart();
	assert_int_equal(rig.found, N);
	check_all();
}

static void test_tier_returns_without_memory_for_a_timer(void **state)
{
	no_timers = true;
	faults[DISK_CALL_SYNC] = -EIO;
	assert_int_equal(put(0, 1, 5000), DISK_DOWN);
	faults[DISK_CALL_SYNC] = 0;
	wait_until_ok();
	no_timers = false;
}

/* What it has written before may be what the disk has lost, and the kernel tells that once. */
static void test_write_that_ends_after_the_disk_has_returned(void **state)
{
	stop_next = 1;
	begin_write(1, 1, 5000);
	sem_wait(&stopped);
	faults[DISK_CALL_SYNC] = -EIO;
	assert_int_equal(put(0, 1, 5000), DISK_DOWN);
	faults[DISK_CALL_SYNC] = 0;
	wait_until_ok();
	sem_post(&go_on);
	assert_int_equal(finish(1), DISK_DOWN);
	assert_int_equal(rig.state, DISK_STATE_OK);
	/* the blocks of both return without a further request */
	for (unsigned i = 0; i < 1000 && disk_info(rig.disk).bytes; i++)
		turn();
	assert_int_equal(disk_info(rig.disk).bytes, 0);
	assert_int_equal(put(1, 2, 5000), DISK_OK);
	restart();
	assert_int_equal(rig.found, 1);
	check_all();
}

/* They leave nothing in the file of an object that is there, whichever step fails. */
static void check_blocks_of_failed_writes(enum disk_call call)
{
	uint64_t bytes = disk_info(rig.disk).bytes, blocks = blocks_used();

	faults[call] = -ENOSPC;
	for (unsigned i = 1; i < 5; i++)
		begin_write(i, 1, 50000);
	for (unsigned i = 1; i < 5; i++)
		assert_int_equal(finish(i), DISK_DOWN);
	assert_int_equal(rig.state, DISK_STATE_FULL);
	faults[call] = 0;
	for (unsigned i = 0; i < 1000 && disk_info(rig.disk).bytes != bytes; i++)
		turn();
	assert_int_equal(disk_info(rig.disk).bytes, bytes);
	/* The file system may need blocks of its own. */
	assert_in_range(blocks_used(), 1, blocks + 4 * DISK_BLOCK);
	wait_for_state(DISK_STATE_OK);
}

static void test_blocks_of_failed_writes(void **state)
{
	/* blocks ahead could hide theirs */
	faults[DISK_CALL_EXTEND] = -EOPNOTSUPP;
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	check_blocks_of_failed_writes(DISK_CALL_SYNC);
	assert_int_equal(put(5, 1, 5000), DISK_OK);
	check_blocks_of_failed_writes(DISK_CALL_COMMIT);
	check_all();
	restart();
	assert_int_equal(rig.found, 2);
}

static void test_full(void **state)
{
	check_fault(DISK_CALL_WRITE, -ENOSPC, DISK_STATE_FULL);
}

/* They could take what makes room for the index. */
static void test_full_disk_gets_no_writes_that_wait(void **state)
{
	stop_next = 1;
	begin_write(0, 1, 5000);
	sem_wait(&stopped);
	for (unsigned i = 1; i < N; i++)
		begin_write(i, 1, 5000);
	faults[DISK_CALL_WRITE] = -ENOSPC;
	sem_post(&go_on);
	for (unsigned i = 0; i < N; i++)
		finish(i);
	/* of three threads with two writes each */
	assert_in_range(disk_info(rig.disk).errors, 1, 6);
}

static void test_full_for_large_objects(void **state)
{
	put_all();
	faults[DISK_CALL_WRITE] = -ENOSPC;
	begin_drop(0);
	finish(0);
	assert_int_equal(put(0, 2, 300 << 10), DISK_DOWN);
	fs_free = 50;
	fs_used = 0;
	rig.crowded = 0;
	faults[DISK_CALL_WRITE] = 0;
	while (rig.crowded < 3) {
		turn();
		assert_int_equal(rig.state, DISK_STATE_FULL);
	}
	fs_free = 100;
	wait_for_state(DISK_STATE_OK);
	/* It is not remembered for ever. */
	assert_int_equal(put(0, 3, 300 << 10), DISK_OK);
	fs_free = 50;
	faults[DISK_CALL_WRITE] = -EIO;
	begin_drop(1);
	finish(1);
	assert_int_equal(put(1, 2, 10), DISK_DOWN);
	faults[DISK_CALL_WRITE] = 0;
	wait_for_state(DISK_STATE_OK);
}

/* Larger than half of what the tier could have: it is refused, and others are written. */
static void test_full_for_an_object_that_is_too_large(void **state)
{
	faults[DISK_CALL_WRITE] = -ENOSPC;
	assert_int_equal(put(0, 1, 300 << 10), DISK_DOWN);
	fs_free = 60;
	faults[DISK_CALL_WRITE] = 0;
	wait_for_state(DISK_STATE_OK);
	assert_int_equal(put(1, 1, 5000), DISK_OK);
}

static void test_write_error(void **state)
{
	check_fault(DISK_CALL_WRITE, -EIO, DISK_STATE_FAILING);
}

static void test_sync_error(void **state)
{
	check_fault(DISK_CALL_SYNC, -EIO, DISK_STATE_FAILING);
}

static void test_index_error(void **state)
{
	check_fault(DISK_CALL_COMMIT, -EROFS, DISK_STATE_READ_ONLY);
}

static enum disk_result verify(unsigned i)
{
	prepare(i);
	disk_verify(rig.disk, &rig.items[i].request);
	return finish(i);
}

/* File systems have EBADMSG for blocks of their own that are damaged: this says nothing of the object's bytes. */
static void test_read_error(void **state)
{
	static const int errors[] = { -EIO, -EBADMSG };

	assert_int_equal(put(0, 1, 5000), DISK_OK);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(errors); i++) {
		restart();
		faults[DISK_CALL_OPEN] = errors[i];
		assert_int_equal(get(0), DISK_FAILED);
		assert_int_equal(verify(0), DISK_FAILED);
		faults[DISK_CALL_OPEN] = 0;
		faults[DISK_CALL_READ] = errors[i];
		assert_int_equal(get(0), DISK_FAILED);
		assert_int_equal(verify(0), DISK_FAILED);
		faults[DISK_CALL_READ] = 0;
		assert_int_equal(disk_info(rig.disk).corrupt, 0);
		assert_int_equal(verify(0), DISK_OK);
		assert_int_equal(get(0), DISK_OK);
		assert_true(right(0));
	}
}

/* --- a folder that cannot be used at the start ---------------------------------------------------------- */

static void check_returns(void)
{
	wait_for_state(DISK_STATE_OK);
	assert_int_equal(rig.found, N);
	check_all();
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(put(0, 2, 5000), DISK_OK);
	restart();
	assert_int_equal(rig.found, N);
	assert_int_equal(rig.items[0].version, 2);
	check_all();
}

static void start_absent(void)
{
	start();
	assert_int_equal(rig.state, DISK_STATE_ABSENT);
	assert_int_equal(rig.found, 0);
	assert_int_equal(put(1, 3, 10), DISK_DOWN);
}

/* --- descriptors ------------------------------------------------------------------------------------ */

/* Descriptors of segments, or of this one if it is not 0. */
static unsigned descriptors(uint32_t segment)
{
	char path[32], name[160], wanted[160];
	unsigned n = 0;
	ssize_t r;

	snprintf(wanted, sizeof(wanted), "%s/segment-%08x", cm_dir, segment);
	for (int fd = 0; fd < 4096; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		r = readlink(path, name, sizeof(name) - 1);
		if (r < 0)
			continue;
		name[r] = '\0';
		n += segment ? !strcmp(name, wanted) : !strncmp(name, wanted, strlen(wanted) - 8);
	}
	return n;
}

static void limit_descriptors(rlim_t n)
{
	struct rlimit l;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = n ? n : l.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &l), 0);
}

static void restart_with_few_descriptors(void)
{
	limit_descriptors(8 * DESCRIPTORS);
	restart();
	limit_descriptors(0);
}

/* Each item has a segment of its own, and few of these are open. */
static void start_with_few_descriptors(void)
{
	restart_with_few_descriptors();
	for (unsigned i = 0; i < N; i++)
		begin_write(i, 1, SEGMENT_BYTES);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(finish(i), DISK_OK);
	assert_int_equal(files(), N + 1);
}

static void test_descriptors_are_bounded(void **state)
{
	start_with_few_descriptors();
	check_all();
	assert_int_equal(descriptors(0), DESCRIPTORS);
	/* Segments that are gone have none. The last one stays. */
	for (unsigned i = N - 4; i < N - 1; i++)
		begin_drop(i);
	for (unsigned i = N - 4; i < N - 1; i++)
		assert_int_equal(finish(i), DISK_OK);
	wait_for_files(N - 2);
	assert_int_equal(descriptors(0), DESCRIPTORS - 3);
	check_all();
	restart();
	assert_int_equal(rig.found, N - 3);
	check_all();
}

/* Others take all descriptors that the process may have. */
static int taken[64];
static unsigned n_taken;

static void take_descriptors(void)
{
	limit_descriptors(DRAY_ARRAY_SIZE(taken));
	while ((taken[n_taken] = dup(0)) >= 0)
		n_taken++;
	assert_int_equal(errno, EMFILE);
}

static void give_descriptors_back(void)
{
	limit_descriptors(0);
	while (n_taken)
		close(taken[--n_taken]);
}

/* The tier gives its own back that are not used. */
static void test_no_descriptor_is_free(void **state)
{
	start_with_few_descriptors();
	restart();
	assert_int_equal(get(1), DISK_OK);
	take_descriptors();
	assert_int_equal(get(0), DISK_OK);
	assert_true(right(0));
	give_descriptors_back();
}

/* The segment that objects are appended to keeps its descriptor, so that the tier can be written. */
static void test_writes_without_a_free_descriptor(void **state)
{
	start_with_few_descriptors();
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	begin_drop(1);
	assert_int_equal(finish(1), DISK_OK);
	restart_with_few_descriptors();
	assert_int_equal(put(0, 2, 5000), DISK_OK);
	assert_int_equal(get(2), DISK_OK);
	take_descriptors();
	assert_int_equal(get(3), DISK_OK);
	begin_drop(2);
	assert_int_equal(finish(2), DISK_OK);
	begin_drop(3);
	assert_int_equal(finish(3), DISK_OK);
	while (descriptors(3) || descriptors(4))
		turn();
	take_descriptors();
	assert_int_equal(put(1, 2, 5000), DISK_OK);
	assert_int_equal(get(0), DISK_OK);
	assert_int_equal(rig.state, DISK_STATE_OK);
	give_descriptors_back();
	/* Beside the next one it is closed as others are. */
	assert_int_equal(put(2, 2, SEGMENT_BYTES), DISK_OK);
	check_all();
	assert_int_equal(descriptors(0), DESCRIPTORS);
	assert_int_equal(descriptors(N + 1), 0);
	assert_int_equal(descriptors(N + 2), 1);
}

/* Other files are opened and closed during a read, a write, and the end of a batch. */
static void check_use(enum disk_call call, unsigned used)
{
	stop_call = (int)call;
	stop_next = 1;
	if (call == DISK_CALL_READ) {
		begin_get(used);
	} else {
		begin_write(used, 2, 5000);
	}
	while (sem_trywait(&stopped) < 0)
		sd_event_run(rig.event, 1000);
	for (unsigned i = 0; i < N; i++)
		if (i != used && rig.items[i].object.segment)
			assert_int_equal(get(i), DISK_OK);
	sem_post(&go_on);
	assert_int_equal(finish(used), DISK_OK);
	check_all();
}

static void test_files_in_use_stay_open(void **state)
{
	start_with_few_descriptors();
	check_use(DISK_CALL_READ, 3);
	begin_drop(3);
	assert_int_equal(finish(3), DISK_OK);
	begin_drop(4);
	assert_int_equal(finish(4), DISK_OK);
	check_use(DISK_CALL_WRITE, 3);
	check_use(DISK_CALL_SYNC, 4);
}

static void test_open_error(void **state)
{
	char path[128];

	start_with_few_descriptors();
	for (unsigned i = N; i--;)
		assert_int_equal(get(i), DISK_OK);
	assert_int_equal(descriptors(N - 1), 0);
	faults[DISK_CALL_OPEN] = -EIO;
	assert_int_equal(get(N - 2), DISK_FAILED);
	assert_int_equal(rig.state, DISK_STATE_OK);
	faults[DISK_CALL_OPEN] = 0;
	check_all();
	/* Somebody has removed a file: another one of that name has not got its objects. */
	assert_int_equal(descriptors(1), 0);
	snprintf(path, sizeof(path), "%s/segment-%08x", cm_dir, 1);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(get(0), DISK_FAILED);
	assert_int_equal(access(path, F_OK), -1);
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	faults[DISK_CALL_OPEN] = -EROFS;
	/* The next segment has been opened already. */
	assert_int_equal(put(0, 2, SEGMENT_BYTES), DISK_OK);
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	assert_int_equal(put(0, 3, SEGMENT_BYTES), DISK_DOWN);
	assert_int_equal(rig.state, DISK_STATE_READ_ONLY);
	faults[DISK_CALL_OPEN] = 0;
	wait_until_ok();
	check_all();
}

/* A disk was read-only for a while, and a read has opened the file meanwhile, which it still uses. */
static void test_file_that_could_only_be_read(void **state)
{
	uint64_t blocks;

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(put(i, 1, 60000), DISK_OK);
	restart();
	blocks = blocks_used();
	faults[DISK_CALL_OPEN] = -EROFS;
	stop_call = DISK_CALL_READ;
	stop_next = 1;
	begin_get(1);
	sem_wait(&stopped);
	/* It can still not be written to: the blocks stay until the next start. */
	for (unsigned i = 2; i < 4; i++) {
		begin_drop(i);
		assert_int_equal(finish(i), DISK_OK);
		assert_int_equal(blocks_used(), blocks);
		faults[DISK_CALL_OPEN] = -EIO;
	}
	faults[DISK_CALL_OPEN] = 0;
	begin_drop(0);
	assert_int_equal(finish(0), DISK_OK);
	assert_in_range(blocks_used(), 1, blocks - 60000);
	sem_post(&go_on);
	assert_int_equal(finish(1), DISK_OK);
	assert_true(right(1));
	check_all();
}

static void test_folder_that_comes_later(void **state)
{
	char away[128];

	snprintf(away, sizeof(away), "%s.away", cm_dir);
	put_all();
	assert_true(disk_close(dray_take(rig.disk)));
	assert_int_equal(rename(cm_dir, away), 0);
	start_absent();
	assert_non_null(strstr(disk_info(rig.disk).why, "make the folder"));
	assert_int_equal(rename(away, cm_dir), 0);
	check_returns();
}

static void test_folder_that_reports_errors(void **state)
{
	put_all();
	assert_true(disk_close(dray_take(rig.disk)));
	faults[DISK_CALL_OPEN] = -EIO;
	start_absent();
	faults[DISK_CALL_OPEN] = 0;
	check_returns();
}

static void damage_index(void)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/index.db", cm_dir);
	f = fopen(path, "w");
	assert_non_null(f);
	for (unsigned i = 0; i < 4096; i++)
		fputs("not a database ", f);
	fclose(f);
}

static void test_damaged_index(void **state)
{
	char path[128], away[128];

	put_all();
	assert_true(disk_close(dray_take(rig.disk)));
	snprintf(path, sizeof(path), "%s/index.db", cm_dir);
	snprintf(away, sizeof(away), "%s/away", cm_dir);
	assert_int_equal(rename(path, away), 0);
	damage_index();
	start_absent();
	assert_non_null(strstr(disk_info(rig.disk).why, "remove the files of this one"));
	assert_int_equal(rename(away, path), 0);
	check_returns();
}

static void test_reason_that_changes(void **state)
{
	char away[128];

	snprintf(away, sizeof(away), "%s.away", cm_dir);
	assert_true(disk_close(dray_take(rig.disk)));
	damage_index();
	assert_int_equal(rename(cm_dir, away), 0);
	start_absent();
	assert_non_null(strstr(rig.why, "make the folder"));
	assert_int_equal(rename(away, cm_dir), 0);
	while (!strstr(rig.why, "remove the files of this one"))
		turn();
	assert_string_equal(disk_info(rig.disk).why, rig.why);
	assert_int_equal(rig.state, DISK_STATE_ABSENT);
}

/* The index of the first folder says nothing of the second one's segments. */
static void test_another_folder_after_an_error(void **state)
{
	char away[128], first[160];

	snprintf(away, sizeof(away), "%s.away", cm_dir);
	snprintf(first, sizeof(first), "%s/first", away);
	put_all();
	assert_true(disk_close(dray_take(rig.disk)));
	assert_int_equal(rename(cm_dir, away), 0);
	assert_int_equal(mkdir(cm_dir, 0700), 0);
	faults[DISK_CALL_READ] = -EIO;
	start_absent();
	assert_int_equal(rename(cm_dir, first), 0);
	assert_int_equal(rename(away, cm_dir), 0);
	faults[DISK_CALL_READ] = 0;
	check_returns();
}

static void test_close_while_rows_are_taken(void **state)
{
	put_all();
	assert_true(disk_close(dray_take(rig.disk)));
	faults[DISK_CALL_OPEN] = -EIO;
	start_absent();
	faults[DISK_CALL_OPEN] = 0;
	/* In which turn does not matter: nothing leaks in any. */
	for (unsigned i = 0; i < 2; i++)
		turn();
	restart();
	assert_int_equal(rig.found, N);
}

/* A request of its own, which outlives the test with its thread. */
static void test_close_beside_a_call_that_does_not_return(void **state)
{
	static uint8_t bytes[5000];
	static struct item hung = { .key = "hung", .buffer = bytes };

	hung.request = (struct disk_request){ .object = &hung.object,
					      .key = hung.key,
					      .key_bytes = 4,
					      .buffer = bytes,
					      .done = done };
	stop_next = 1;
	disk_write(rig.disk, &hung.request, sizeof(bytes));
	sem_wait(&stopped);
	assert_false(disk_close(dray_take(rig.disk)));
	sem_post(&go_on);
	/* it goes on with the memory of the tier */
	while (!blocks_used())
		;
}

/* --- kill -9 ------------------------------------------------------------------------------------------ */

struct report {
	uint32_t item, version; /* version 0: removed */
};

/* Reports each change when it is complete, and each removal also before. */
static void write_for_ever(int fd, unsigned seed)
{
	alarm(60);
	CHILD_CHECK(sd_event_new(&rig.event) >= 0);
	start();
	for (unsigned step = 1;; step++) {
		unsigned first = (unsigned)rand_r(&seed) % N;

		for (unsigned k = 0; k < 6; k++) {
			unsigned i = (first + k) % N;
			struct report r = { i, 0 };

			if (rig.items[i].object.segment) {
				CHILD_CHECK(write(fd, &r, sizeof(r)) == sizeof(r));
				begin_drop(i);
			} else {
				begin_write(i, rig.items[i].version % 1000 + 1,
					    1 + (uint32_t)rand_r(&seed) % 60000);
			}
		}
		for (unsigned k = 0; k < 6; k++) {
			unsigned i = (first + k) % N;
			struct report r = { i, rig.items[i].version };

			CHILD_CHECK(finish(i) == DISK_OK);
			if (!rig.items[i].request.removes)
				CHILD_CHECK(write(fd, &r, sizeof(r)) == sizeof(r));
		}
	}
}

/* Takes what the child has completed; at least `least` reports, so that it has come so far when it is killed. */
static void read_reports(int fd, uint32_t versions[N], unsigned least)
{
	struct report r;

	while (least-- && read(fd, &r, sizeof(r)) == sizeof(r))
		versions[r.item] = r.version;
}

static void test_kill(void **state)
{
	uint32_t versions[N] = { 0 };
	unsigned seed = 1, kills = getenv("DRAY_LONG") ? KILLS_LONG : KILLS;

	assert_true(disk_close(dray_take(rig.disk)));
	sd_event_unref(dray_take(rig.event));
	for (; kills; kills--) {
		int fds[2];
		pid_t pid;

		assert_int_equal(pipe(fds), 0);
		pid = fork();
		if (pid == 0)
			write_for_ever(fds[1], seed + kills);
		close(fds[1]);
		read_reports(fds[0], versions, (unsigned)rand_r(&seed) % 40);
		kill(pid, SIGKILL);
		read_reports(fds[0], versions, UINT32_MAX);
		close(fds[0]);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		assert_int_equal(sd_event_new(&rig.event) < 0, 0);
		start();
		for (unsigned i = 0; i < N; i++)
			if (versions[i]) {
				assert_non_null(rig.items[i].object.segment);
				assert_int_equal(rig.items[i].version, versions[i]);
			}
		check_all();
		for (unsigned i = 0; i < N; i++)
			versions[i] = rig.items[i].object.segment ? rig.items[i].version : 0;
		assert_true(disk_close(dray_take(rig.disk)));
		sd_event_unref(dray_take(rig.event));
	}
	assert_int_equal(sd_event_new(&rig.event) < 0, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* What there is no memory for stays on disk. */
static void test_no_memory_at_the_start(void **state)
{
	assert_int_equal(put(0, 1, 5000), DISK_OK);
	rig.no_memory = true;
	restart();
	rig.no_memory = false;
	/* its segment stays, too */
	assert_int_equal(put(1, 1, 5000), DISK_OK);
	begin_drop(1);
	assert_int_equal(finish(1), DISK_OK);
	restart();
	assert_int_equal(rig.found, 1);
	rig.items[0].version = 1;
	rig.items[0].bytes = 5000;
	assert_int_equal(get(0), DISK_OK);
	assert_true(right(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_restart),
		TEST(test_remove),
		TEST(test_blocks_ahead),
		TEST(test_blocks_ahead_of_the_last_object),
		TEST(test_one_object_at_a_time),
		TEST(test_writes_gather_while_others_are_in_progress),
		TEST(test_writes_do_not_gather_until_another_ends),
		TEST(test_read_waits_for_no_write),
		TEST(test_reads_and_writes_share_a_thread),
		TEST(test_next_segment),
		TEST(test_next_segment_when_killed),
		TEST(test_next_segment_without_objects_before_it),
		TEST(test_next_segment_after_an_error),
		TEST(test_next_segment_on_a_crowded_file_system),
		TEST(test_next_segment_is_needed_during_its_extension),
		TEST(test_name_of_the_next_segment_is_not_on_disk),
		TEST(test_name_of_the_last_segment_is_not_on_disk),
		TEST(test_no_room_for_the_next_segment),
		TEST(test_part_of_the_blocks_ahead),
		TEST(test_room_for_a_part_of_a_segment),
		TEST(test_blocks_ahead_when_killed),
		TEST(test_gaps_when_killed),
		TEST(test_file_system_without_blocks_ahead),
		TEST(test_no_room_for_blocks_ahead),
		TEST(test_little_room_for_blocks_ahead),
		TEST(test_blocks_ahead_of_a_failed_write),
		TEST(test_key_is_written_again),
		TEST(test_removal_of_an_older_object_spares_the_newer),
		TEST(test_older_write_that_ends_later),
		TEST(test_key_of_a_missing_segment_is_written_again),
		TEST(test_objects_without_an_owner_are_removed),
		TEST(test_many_rows_without_bytes),
		TEST(test_rows_are_removed_from_a_full_disk),
		TEST(test_not_crowded_while_removals_wait),
		TEST(test_failed_writes_give_their_room_first),
		TEST(test_flipped_bits),
		TEST(test_short_and_missing_segments),
		TEST(test_other_version),
		TEST(test_tier_returns_without_memory_for_a_timer),
		TEST(test_write_that_ends_after_the_disk_has_returned),
		TEST(test_blocks_of_failed_writes),
		TEST(test_full),
		TEST(test_full_disk_gets_no_writes_that_wait),
		TEST(test_full_for_large_objects),
		TEST(test_full_for_an_object_that_is_too_large),
		TEST(test_write_error),
		TEST(test_sync_error),
		TEST(test_index_error),
		TEST(test_read_error),
		TEST(test_descriptors_are_bounded),
		TEST(test_no_descriptor_is_free),
		TEST(test_writes_without_a_free_descriptor),
		TEST(test_files_in_use_stay_open),
		TEST(test_open_error),
		TEST(test_file_that_could_only_be_read),
		TEST(test_folder_that_comes_later),
		TEST(test_folder_that_reports_errors),
		TEST(test_damaged_index),
		TEST(test_reason_that_changes),
		TEST(test_another_folder_after_an_error),
		TEST(test_close_while_rows_are_taken),
		TEST(test_close_beside_a_call_that_does_not_return),
		TEST(test_no_memory_at_the_start),
		TEST(test_kill),
	};

	sem_init(&stopped, 0, 0);
	sem_init(&go_on, 0, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
