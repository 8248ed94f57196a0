/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writing process is killed 200 times, and the next one continues with its database. Each time
 * the file is intact and has everything that a flush reported.
 */
#include "agent/state/state.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"
#include "tests/unit/state_rig.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"

#define ROUNDS 200
/* hints that are put repeatedly, so that pages change and are freed */
#define SCOPES 500
#define BATCH_MAX 40

static char dir[CM_DIR_BYTES];

static void put_one(struct rig *r, uint32_t i)
{
	rig_put_hint(r, i % SCOPES, i);
	if (i % 3 == 0)
		state_drop_segment(r->s, "h:1");
	state_save_segment(r->s, &(struct state_segment){ "h:1", "tcp", "", "config", 1,
							  .reason = "", .seen_ms = i });
	state_add_event(r->s, &(struct state_event){ "h:1", i, 1, 2, "because" });
	state_save_preferred(r->s, &(struct state_preferred){ "h:1", 4, i });
}

/* Reports each number from `first` when it is on disk. */
static void write_for_ever(int fd, uint32_t first, bool fresh)
{
	struct rig r = { 0 };
	unsigned seed = first + 1;

	rig_open(&r, dir);
	CHILD_CHECK(rig_on_disk(&r));
	CHILD_CHECK(fresh || r.loaded > 0);
	rig_start(&r);
	for (uint32_t i = first;;) {
		uint32_t n = 1 + (uint32_t)rand_r(&seed) % BATCH_MAX, last = i + n - 1;

		for (; i <= last; i++)
			put_one(&r, i);
		CHILD_CHECK(rig_flush(&r) == 0);
		CHILD_CHECK(write(fd, &last, sizeof(last)) == sizeof(last));
	}
}

static int64_t sql(sqlite3 *db, const char *text)
{
	sqlite3_stmt *q = NULL;
	int64_t v = -1;

	if (sqlite3_prepare_v2(db, text, -1, &q, NULL) != SQLITE_OK)
		fail_msg("%s: %s", text, sqlite3_errmsg(db));
	if (sqlite3_step(q) == SQLITE_ROW)
		v = sqlite3_column_int64(q, 0);
	assert_int_equal(sqlite3_finalize(q), SQLITE_OK);
	return v;
}

/* Returns the last number in the file. */
static uint32_t check_file(uint32_t committed)
{
	char path[128];
	sqlite3 *db;
	int64_t at;

	snprintf(path, sizeof(path), "%s/state.db", dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sql(db, "SELECT integrity_check = 'ok' FROM pragma_integrity_check"), 1);
	at = sql(db, "SELECT at_ms FROM preferred");
	assert_true(at >= committed);
	/*
	 * changes of one number can be split between two batches, even between removing a segment
	 * and putting it back
	 */
	if ((at + 1) % 3 || sql(db, "SELECT count(*) FROM segment")) {
		assert_true(sql(db, "SELECT seen_ms FROM segment") >= at - 1);
		assert_true(sql(db, "SELECT max(at_ms) FROM segment_event") >= at - 1);
	}
	assert_true(sql(db, "SELECT max(score) FROM hint") >= at);
	if (committed >= SCOPES)
		assert_true(sql(db, "SELECT min(score) FROM hint") > committed - SCOPES);
	sqlite3_close(db);
	return (uint32_t)at;
}

static uint32_t one_round(uint32_t first, unsigned *seed, bool fresh)
{
	uint32_t committed = 0, v;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		write_for_ever(fds[1], first, fresh);
	}
	close(fds[1]);
	for (int i = rand_r(seed) % 8; i >= 0; i--) {
		n = read(fds[0], &v, sizeof(v));
		if (n != sizeof(v))
			fail_msg("the writer ended by itself");
		committed = v;
	}
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	while ((n = read(fds[0], &v, sizeof(v))) == sizeof(v))
		committed = v;
	assert_int_equal(n, 0);
	close(fds[0]);
	return check_file(committed) + 1;
}

static void kill_9_in_the_middle_of_writes(void **state)
{
	uint32_t next = 1;
	unsigned seed = 9;

	cm_dir_make(dir);
	for (unsigned i = 0; i < ROUNDS; i++)
		next = one_round(next, &seed, i == 0);
	assert_true(next > ROUNDS);
	cm_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kill_9_in_the_middle_of_writes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
