/* SPDX-License-Identifier: Apache-2.0 */
/* Small parts of the peer module: messages in buffers, used stream ids, MACs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/msgbuf.h"
#include "agent/control/peer/stream_table.h"
#include "agent/control/peer/timers.h"
#include "agent/model/peer_link.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* --- messages ------------------------------------------------------------------------------------- */

static void append(struct msgbuf *b, const void *p, size_t n)
{
	size_t room;
	uint8_t *to = msgbuf_room(b, n, &room);

	assert_non_null(to);
	assert_true(room >= n);
	memcpy(to, p, n);
	msgbuf_added(b, n);
}

static size_t notify(uint8_t *buf, size_t cap, uint64_t id, size_t payload)
{
	static uint8_t bytes[4096];
	struct pmsg_notify m = { .grant = 1, .id = id, .payload = { bytes, (uint32_t)payload } };
	int n = pmsg_notify_encode(buf, cap, id, &m);

	assert_true(n > 0);
	return (size_t)n;
}

static void test_messages_byte_by_byte(void **state)
{
	struct msgbuf b = MSGBUF_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_header h;
	const uint8_t *body;
	uint8_t buf[8192];
	size_t need, n;

	for (uint64_t id = 1; id <= 3; id++) {
		n = notify(buf, sizeof(buf), id, (size_t)id * 1000);
		for (size_t i = 0; i < n; i++) {
			assert_int_equal(msgbuf_next(&b, 65536, &h, &body, &need, &err), 0);
			assert_int_equal(need, i < PMSG_HEADER_SIZE ? PMSG_HEADER_SIZE - i : n - i);
			append(&b, &buf[i], 1);
		}
		assert_int_equal(msgbuf_next(&b, 65536, &h, &body, &need, &err), 1);
		assert_int_equal(h.request_id, id);
		assert_int_equal(h.length, n - PMSG_HEADER_SIZE);
		assert_memory_equal(body, buf + PMSG_HEADER_SIZE, h.length);
		msgbuf_taken(&b, n);
	}
	assert_int_equal(msgbuf_size(&b), 0);
	msgbuf_deinit(&b);
}

static void test_messages_together(void **state)
{
	struct msgbuf b = MSGBUF_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_header h;
	const uint8_t *body;
	uint8_t buf[8192];
	size_t need, n;

	for (uint64_t id = 1; id <= 50; id++) {
		n = notify(buf, sizeof(buf), id, 4000);
		append(&b, buf, n);
	}
	for (uint64_t id = 1; id <= 50; id++) {
		assert_int_equal(msgbuf_next(&b, 65536, &h, &body, &need, &err), 1);
		assert_int_equal(h.request_id, id);
		msgbuf_taken(&b, PMSG_HEADER_SIZE + h.length);
	}
	/* the memory of a burst is freed */
	assert_int_equal(b.cap, 0);
	msgbuf_deinit(&b);
}

static void test_messages_bad(void **state)
{
	struct msgbuf b = MSGBUF_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct pmsg_header h;
	const uint8_t *body;
	uint8_t buf[8192];
	size_t need, n;

	n = notify(buf, sizeof(buf), 1, 4000);
	append(&b, buf, n);
	assert_int_equal(msgbuf_next(&b, 4000, &h, &body, &need, &err), -EPROTO);
	assert_int_equal(err.code, DRAY_E_TOO_LARGE);
	msgbuf_deinit(&b);

	err = DRAY_ERR_NULL;
	memset(buf, 'x', sizeof(buf));
	append(&b, buf, 30);
	assert_int_equal(msgbuf_next(&b, 4000, &h, &body, &need, &err), -EPROTO);
	assert_int_equal(err.code, DRAY_E_BAD_MAGIC);
	msgbuf_deinit(&b);
}

/* However much is queued, to take bytes and to append others moves not much more than these. */
static void test_messages_moved(void **state)
{
	enum { RECORD = 16384, QUEUED = 64 * RECORD };
	static uint8_t bytes[QUEUED];
	struct msgbuf b = MSGBUF_NULL;
	size_t moved = 0, taken = 0;

	append(&b, bytes, QUEUED);
	for (unsigned i = 0; i < 1000; i++, taken += RECORD) {
		size_t start;

		msgbuf_taken(&b, RECORD);
		start = b.start;
		append(&b, bytes, RECORD);
		moved += b.start < start ? msgbuf_size(&b) - RECORD : 0;
		assert_true(b.cap <= 4 * QUEUED);
	}
	assert_true(moved <= 3 * taken);
	msgbuf_deinit(&b);
}

/* --- streams -------------------------------------------------------------------------------------- */

static uint64_t sid(uint64_t worker, uint64_t counter)
{
	return worker << 32 | counter;
}

static void test_stream_ids(void **state)
{
	struct stream_table t = STREAM_TABLE_NULL;

	assert_int_equal(stream_table_use(&t, sid(0, 5)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 5)), -EEXIST);
	/* out of order, and for each worker */
	assert_int_equal(stream_table_use(&t, sid(0, 3)), 0);
	assert_int_equal(stream_table_use(&t, sid(1, 5)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 3)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 4)), 0);
	/* the window moves */
	assert_int_equal(stream_table_use(&t, sid(0, 5 + 64)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 5)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 6)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 5 + STREAM_WINDOW)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 6)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 5 + 64)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 7)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 5)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 100000)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 8)), -EEXIST);
	assert_int_equal(stream_table_use(&t, sid(0, 0xffffffff)), 0);
	assert_int_equal(stream_table_use(&t, sid(0, 0xffffffff)), -EEXIST);
	for (uint64_t w = 2; w < STREAM_WINDOWS_MAX; w++)
		assert_int_equal(stream_table_use(&t, sid(w, 1)), 0);
	assert_int_equal(stream_table_use(&t, sid(STREAM_WINDOWS_MAX, 1)), -ENOSPC);
	stream_table_deinit(&t);
}

/* Compares with a plain set of all ids. */
static void test_stream_ids_random(void **state)
{
	static bool used[4096];
	struct stream_table t = STREAM_TABLE_NULL;
	uint32_t high = 0;

	memset(used, 0, sizeof(used));
	srand(1);
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t near = high > 300 ? high - 300 : 0;
		uint32_t c = near + (uint32_t)rand() % 310;
		bool expect;

		if (c >= 4096)
			break;
		if (c > high)
			high = c;
		expect = !used[c] && high - c < STREAM_WINDOW;
		assert_int_equal(stream_table_use(&t, c), expect ? 0 : -EEXIST);
		used[c] = true;
	}
	stream_table_deinit(&t);
}

static void test_stream_entries(void **state)
{
	struct stream_table t = STREAM_TABLE_NULL;

	for (uint64_t i = 0; i < STREAM_TABLE_MAX; i++)
		assert_int_equal(stream_table_add(&t, i, (unsigned)i % 3), 0);
	assert_int_equal(stream_table_add(&t, 99999, 0), -ENOSPC);
	assert_int_equal(stream_table_find(&t, 500)->worker, 500 % 3);
	for (uint64_t i = 0; i < STREAM_TABLE_MAX; i += 2)
		stream_table_del(&t, stream_table_find(&t, i));
	for (uint64_t i = 0; i < STREAM_TABLE_MAX; i++)
		assert_int_equal(stream_table_find(&t, i) != NULL, i & 1);
	stream_table_deinit(&t);
}

/* --- timers --------------------------------------------------------------------------------------- */

struct timed {
	struct dray_heap_node node;
	unsigned due;
};

static unsigned n_due;

static void handle_due(struct dray_heap_node *node, int64_t now)
{
	assert_true(node->key <= now);
	dray_container_of(node, struct timed, node)->due++;
	n_due++;
}

static int count_turn(sd_event_source *s, void *userdata)
{
	++*(unsigned *)userdata;
	return 0;
}

/* Times that are not due are not looked at, and of many that are due the loop handles a few in each turn. */
static void test_timers(void **state)
{
	static struct timed early[100], late[1000];
	sd_event_source *other;
	struct timers t;
	unsigned turns = 0;
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	assert_int_equal(timers_init(&t, e, 1, SD_EVENT_PRIORITY_NORMAL, handle_due), 0);
	assert_int_equal(timers_reserve(&t, 1100), 0);
	for (unsigned i = 0; i < 1000; i++)
		timers_set(&t, &late[i].node, INT64_MAX - 1 - i);
	for (unsigned i = 0; i < 100; i++)
		timers_set(&t, &early[i].node, 1 + i);
	timers_set(&t, &early[7].node, INT64_MAX);
	/* what comes before it in the loop has its turn after each part */
	assert_true(sd_event_add_post(e, &other, count_turn, &turns) >= 0);
	while (n_due < 99)
		assert_true(sd_event_run(e, UINT64_MAX) >= 0);
	assert_in_range(turns, 99 / TIMERS_TURN, 99);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(early[i].due, i != 7);
	/* one is set again, and one is moved before it becomes due */
	timers_set(&t, &early[0].node, 1);
	timers_set(&t, &late[999].node, 2);
	while (n_due < 101)
		assert_true(sd_event_run(e, UINT64_MAX) >= 0);
	assert_int_equal(early[0].due, 2);
	assert_int_equal(late[999].due, 1);
	assert_int_equal(t.heap.n, 999);
	sd_event_source_unref(other);
	timers_deinit(&t);
	sd_event_unref(e);
}

/* --- MACs ----------------------------------------------------------------------------------------- */

static void test_macs(void **state)
{
	uint8_t key[STREAM_KEY_SIZE] = { 1 }, other[STREAM_KEY_SIZE] = { 2 };
	uint8_t hello[PMSG_STREAM_HELLO_SIZE] = { 0 }, welcome[PMSG_STREAM_WELCOME_SIZE] = { 0 };
	uint8_t a[32], b[32];

	assert_int_equal(stream_hello_mac(key, hello, a), 0);
	assert_int_equal(stream_hello_mac(other, hello, b), 0);
	assert_memory_not_equal(a, b, 32);
	/* the MAC does not cover its own bytes, but covers every other byte */
	hello[PMSG_STREAM_HELLO_SIZE - 1] = 1;
	assert_int_equal(stream_hello_mac(key, hello, b), 0);
	assert_memory_equal(a, b, 32);
	for (size_t i = 0; i < PMSG_STREAM_HELLO_SIZE - 32; i++) {
		hello[i] ^= 1;
		assert_int_equal(stream_hello_mac(key, hello, b), 0);
		assert_memory_not_equal(a, b, 32);
		hello[i] ^= 1;
	}
	assert_int_equal(stream_welcome_mac(key, welcome, a, b), 0);
	a[0] ^= 1;
	assert_int_equal(stream_welcome_mac(key, welcome, a, a), 0);
	assert_memory_not_equal(a, b, 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_messages_byte_by_byte),
		cmocka_unit_test(test_messages_together),
		cmocka_unit_test(test_messages_bad),
		cmocka_unit_test(test_messages_moved),
		cmocka_unit_test(test_stream_ids),
		cmocka_unit_test(test_stream_ids_random),
		cmocka_unit_test(test_stream_entries),
		cmocka_unit_test(test_timers),
		cmocka_unit_test(test_macs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
