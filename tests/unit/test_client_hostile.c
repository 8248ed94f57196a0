/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray against an agent that sends invalid messages. The client ends the session with
 * `protocol`, or accepts a message that is unusual but harmless. It ends the requests in flight,
 * leaks nothing, and does not crash.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/dray.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "tests/unit/client_fake.h"
#include "tests/unit/cm.h"

static struct fake fake;

static int setup(void **state)
{
	fake = (struct fake){ 0 };
	fake_start(&fake);
	return 0;
}

static int teardown(void **state)
{
	fake_stop(&fake);
	return 0;
}

static struct dray *connected_with(uint32_t flags)
{
	struct dray_options o = { .socket = fake.path, .request_ms = 2000, .flags = flags };
	struct dray *d = NULL;

	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	return d;
}

static struct dray *connected(void)
{
	return connected_with(DRAY_OPTION_NO_RECONNECT);
}

static void ends_with(struct dray *d, int code)
{
	struct dray_event e;

	for (;;) {
		if (dray_next_event(d, &e) == 1)
			break;
		assert_true(dray_process(d, 5000) > 0);
	}
	assert_int_equal(e.type, DRAY_EVENT_LOST);
	assert_int_equal(e.code, code);
}

static void submit_one(struct dray *d, uint64_t *ret_id)
{
	static const struct dray_op op = { 0, 0, 1 };
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ, .ops = &op, .count = 1 };

	assert_int_equal(dray_region_borrow(d, 1, &t.local), 0);
	assert_int_equal(dray_remote_borrow(d, 2, &t.remote), 0);
	assert_int_equal(dray_submit(d, &t, ret_id), 0);
}

static uint32_t *word(struct fake *f, unsigned offset)
{
	return (uint32_t *)(void *)(f->ring + offset);
}

static void lie_cq_tail(struct fake *f, void *arg)
{
	__atomic_store_n(word(f, DMSG_RING_CQ_TAIL), *(uint32_t *)arg, __ATOMIC_SEQ_CST);
	fake_ring(f);
}

static void completion_tail_is_invalid(void **state)
{
	static const uint32_t lies[] = { 2, 512, 513, 1u << 31, UINT32_MAX };
	int fds = cm_fds_count();

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct dray *d = connected();
		struct dray_completion c;
		uint32_t lie = lies[i];
		uint64_t id;

		fake.ignore_ring = true;
		submit_one(d, &id);
		fake_do(&fake, lie_cq_tail, &lie);
		ends_with(d, -DRAY_E_PROTOCOL);
		/* the agent lives, and may go on writing */
		assert_int_equal(dray_wait(d, id, -1, &c), 0);
		assert_int_equal(c.status, -DRAY_E_UNCONFIRMED);
		assert_int_equal(dray_lent(d, id), 1);
		dray_disconnect(d);
		while (fake.conn >= 0)
			usleep(100);
	}
	assert_int_equal(cm_fds_count(), fds);
}

static void lie_user_data(struct fake *f, void *arg)
{
	fake_complete(f, *(uint64_t *)arg, 0);
}

static void completion_of_an_unknown_transfer(void **state)
{
	struct dray *d = connected();
	uint64_t id, lie;

	fake.hold_transfers = true;
	submit_one(d, &id);
	lie = id + 1;
	fake_do(&fake, lie_user_data, &lie);
	ends_with(d, -DRAY_E_PROTOCOL);
	dray_disconnect(d);
}

static void lie_twice(struct fake *f, void *arg)
{
	fake_complete(f, *(uint64_t *)arg, 0);
	fake_complete(f, *(uint64_t *)arg, 0);
}

static void transfer_completed_twice(void **state)
{
	struct dray *d = connected();
	struct dray_completion c;
	uint64_t a, b;

	fake.hold_transfers = true;
	submit_one(d, &a);
	submit_one(d, &b);
	fake_do(&fake, lie_twice, &a);
	ends_with(d, -DRAY_E_PROTOCOL);
	assert_int_equal(dray_wait(d, a, 0, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(dray_wait(d, b, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_UNCONFIRMED);
	assert_int_equal(dray_lent(d, a), 0);
	assert_int_equal(dray_lent(d, b), 1);
	dray_disconnect(d);
}

/* --- answers of the store in the arena ------------------------------------------------------------ */

static uint64_t ask_store_for(struct dray *d, const char *key)
{
	const struct dray_store_item item = { .key = key, .key_length = 1 };
	uint64_t id;

	assert_int_equal(
		dray_store_start(d, DRAY_STORE_EXISTS,
				 &(struct dray_store_batch){ .items = &item, .items_n = 1 }, NULL,
				 &id),
		0);
	return id;
}

static uint64_t ask_store(struct dray *d)
{
	return ask_store_for(d, "k");
}

/* What the agent answers. */
struct store_lie {
	uint64_t id;     /* 0: the right one */
	uint32_t status; /* of the completion */
	uint64_t bytes;  /* 0: those of the answer */
	uint32_t results;
	bool is_other, is_bare, by_socket, twice;
};

static void lie_store(struct fake *f, void *arg)
{
	uint8_t results[2 * DMSG_STORE_RESULT_SIZE] = { 0 };
	const struct store_lie *lie = arg;
	uint64_t id = lie->id ? lie->id : f->last_message.user_data;
	uint8_t *at = f->arena + f->last_message.offset;
	struct dmsg_store_exists_reply m = { { results, lie->results } };
	uint8_t buf[256];
	int n;

	dray_assert(f->last_message_header.type == DMSG_STORE_EXISTS);
	n = lie->is_other ? dmsg_notify_reply_encode(at, 256, id, &(struct dmsg_notify_reply){}) :
			    dmsg_store_exists_reply_encode(at, 256, id, &m);
	if (lie->by_socket)
		fake_send(f, dmsg_store_exists_reply_encode(buf, sizeof(buf), id, &m), buf);
	else
		fake_complete_message(f, lie->status,
				      lie->is_bare ? 0 :
				      lie->bytes   ? lie->bytes :
						     (uint64_t)n);
	if (lie->twice)
		fake_complete_message(f, lie->status, (uint64_t)n);
}

static void wrong_answers_of_the_store(void **state)
{
	static const struct store_lie lies[] = {
		{ .results = 2 },
		{ .results = 1, .id = 99 },
		{ .results = 1, .bytes = 1 << 20 },
		{ .results = 1, .bytes = UINT64_MAX },
		{ .results = 1, .bytes = 5 },
		{ .is_other = true },
		{ .is_bare = true },
		{ .results = 1, .by_socket = true },
		{ .results = 1, .twice = true },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lies); i++) {
		struct store_lie lie = lies[i];
		struct dray_completion c;
		struct dray *d;
		uint64_t id;

		fake.features = DMSG_FEATURE_STORE_RING;
		d = connected();
		if (lie.twice)
			ask_store(d);
		id = ask_store(d);
		fake_do(&fake, lie_store, &lie);
		ends_with(d, -DRAY_E_PROTOCOL);
		assert_int_equal(dray_wait(d, id, -1, &c), 0);
		assert_int_equal(c.status, lie.twice ? 0 : -DRAY_E_PROTOCOL);
		dray_disconnect(d);
	}
}

static void refusals_of_the_store_without_a_text(void **state)
{
	struct store_lie lie = { .status = DRAY_E_DENIED, .is_bare = true };
	struct dray_completion c;
	struct dray *d;
	uint64_t id;

	fake.features = DMSG_FEATURE_STORE_RING;
	d = connected();
	id = ask_store(d);
	fake_do(&fake, lie_store, &lie);
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_DENIED);
	assert_string_equal(c.message, dray_strerror(-DRAY_E_DENIED));
	/* the ring goes on */
	id = ask_store(d);
	fake_do(&fake, lie_store, &(struct store_lie){ .results = 1 });
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.store->n, 1);
	assert_int_equal(fake_count(&fake, DMSG_STORE_EXISTS), 0);
	dray_disconnect(d);
}

/* An agent from before the feature gets messages. */
static bool answer_store(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	uint8_t results[DMSG_STORE_RESULT_SIZE] = { 0 }, buf[256];

	if (h->type != DMSG_STORE_EXISTS)
		return false;
	fake_send(
		f,
		dmsg_store_exists_reply_encode(buf, sizeof(buf), h->request_id,
					       &(struct dmsg_store_exists_reply){ { results, 1 } }),
		buf);
	return true;
}

static void an_agent_without_the_feature(void **state)
{
	struct dray_completion c;
	struct dray *d;

	fake.hook = answer_store;
	d = connected();
	assert_int_equal(dray_wait(d, ask_store(d), -1, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(fake_count(&fake, DMSG_STORE_EXISTS), 1);
	dray_disconnect(d);
}

/* What the second session gets: of EXISTS the first byte of the key, of RELEASE 'r'. */
static char again[8];
static unsigned int again_n;

static bool keep_store(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		       struct dray_fds *fds)
{
	struct dmsg_store_exists m;

	if (h->type != DMSG_STORE_EXISTS && h->type != DMSG_STORE_RELEASE)
		return false;
	dray_assert(again_n < sizeof(again) - 1);
	if (h->type == DMSG_STORE_RELEASE) {
		again[again_n++] = 'r';
		return false;
	}
	dray_assert(dmsg_store_exists_decode(body, h->length, &m, NULL) == 0);
	again[again_n++] = (char)m.keys.p[1];
	return answer_store(f, h, body, fds);
}

static void hang_up(struct fake *f, void *arg)
{
	f->features = 0;
	fake_hang_up(f);
}

static void the_next_session_gets_what_was_not_taken(void **state)
{
	static const uint64_t lease = 5;
	struct dray_completion c;
	uint64_t ids[6];
	struct dray *d;

	memset(again, 0, sizeof(again));
	again_n = 0;
	fake.features = DMSG_FEATURE_STORE_RING;
	fake.hook = keep_store;
	d = connected_with(0);
	fake.ignore_ring = true;
	ids[0] = ask_store_for(d, "a");
	ids[1] = ask_store_for(d, "b");
	assert_int_equal(dray_store_release_start(d, &lease, 1, NULL, &ids[2]), 0);
	ids[3] = ask_store_for(d, "c");
	fake_do(&fake, hang_up, NULL);
	/* before and after the client notices */
	assert_int_equal(dray_store_release_start(d, &lease, 1, NULL, &ids[4]), 0);
	ids[5] = ask_store_for(d, "d");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(ids); i++) {
		assert_int_equal(dray_wait(d, ids[i], 5000, &c), 0);
		assert_int_equal(c.status, 0);
	}
	assert_string_equal(again, "abcd");
	dray_disconnect(d);
}

static void releases_between_sessions(void **state)
{
	static const uint64_t lease = 5;
	struct dray_options o = { .socket = fake.path,
				  .request_ms = 2000,
				  .reconnect_min_ms = 3600 * 1000,
				  .reconnect_max_ms = 3600 * 1000 };
	struct dray *d = NULL;

	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	fake_do(&fake, hang_up, NULL);
	ends_with(d, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_store_release(d, &lease, 1), 0);
	dray_disconnect(d);
}

static void lie_sq_head(struct fake *f, void *arg)
{
	__atomic_store_n(word(f, DMSG_RING_SQ_HEAD), 777, __ATOMIC_SEQ_CST);
}

static void submission_head_is_invalid(void **state)
{
	static const struct dray_op op = { 0, 0, 1 };
	struct dray *d = connected();
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ, .ops = &op, .count = 1 };

	fake.ignore_ring = true;
	assert_int_equal(dray_region_borrow(d, 1, &t.local), 0);
	assert_int_equal(dray_remote_borrow(d, 2, &t.remote), 0);
	/* the client notices when the ring looks full */
	for (unsigned i = 0; i < 256; i++)
		assert_int_equal(dray_submit(d, &t, NULL), 0);
	fake_do(&fake, lie_sq_head, NULL);
	assert_int_equal(dray_submit(d, &t, NULL), -DRAY_E_SESSION_CLOSED);
	ends_with(d, -DRAY_E_PROTOCOL);
	dray_disconnect(d);
}

/* The message that a hook sends instead of an answer. */
static struct {
	uint16_t to; /* type of the request that it replaces */
	uint8_t bytes[512];
	int n;
	bool right_id;
} lie;

static bool tell_lie(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		     struct dray_fds *fds)
{
	if (h->type != lie.to)
		return false;
	if (lie.right_id)
		dray_le_put64(lie.bytes + 16, h->request_id);
	send(f->conn, lie.bytes, (size_t)lie.n, MSG_NOSIGNAL);
	return true;
}

static void whole(uint16_t type, uint32_t length)
{
	dmsg_header_put(lie.bytes, &(struct dmsg_header){ DMSG_MAGIC, DMSG_MAJOR, DMSG_MINOR, type,
							  0, length, 0 });
	lie.n = DMSG_HEADER_SIZE + (int)length;
	lie.right_id = true;
}

static void magic(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.bytes[0] ^= 1;
}

static void version(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.bytes[4] = 9;
}

static void flags(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.bytes[8] = 1;
}

static void short_header(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.n = 23;
	lie.right_id = false;
}

static void cut_off(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.n -= 1;
}

static void short_body(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 19);
}

static void longer_than_said(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.n += 4;
}

static void other_type(void)
{
	whole(DMSG_TRANSFER_DONE, 28);
}

static void request_type(void)
{
	whole(DMSG_REMOTE_IMPORT, 8);
}

static void other_id(void)
{
	whole(DMSG_REMOTE_IMPORT_REPLY, 20);
	lie.right_id = false;
	dray_le_put64(lie.bytes + 16, 0x1234567890);
}

static void error_cut_off(void)
{
	whole(DMSG_ERROR, 8);
	dray_le_put32(lie.bytes + 24, DRAY_E_QUOTA);
	dray_le_put32(lie.bytes + 28, 200);
}

static void text_is_binary(void)
{
	whole(DMSG_ERROR, 10);
	dray_le_put32(lie.bytes + 24, DRAY_E_QUOTA);
	dray_le_put32(lie.bytes + 28, 2);
	lie.bytes[32] = 0xff;
	lie.bytes[33] = 0x1b;
}

static void truncated_event(void)
{
	whole(DMSG_NOTIFICATION, 12);
	lie.right_id = false;
}

static void invalid_answers(void **state)
{
	static void (*const lies[])(
		void) = { magic,         version,          flags,          short_header, cut_off,
			  short_body,    longer_than_said, other_type,     request_type, other_id,
			  error_cut_off, text_is_binary,   truncated_event };
	int fds = cm_fds_count();
	struct dray_token t;

	assert_int_equal(dray_token_from_bytes("x", 1, &t), 0);
	fake.hook = tell_lie;
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct dray *d;
		dray_remote remote = { 0 };

		memset(&lie, 0, sizeof(lie));
		lies[i]();
		lie.to = DMSG_REMOTE_IMPORT;
		d = connected();
		assert_int_equal(dray_remote_import(d, &t, 0, &remote), -DRAY_E_PROTOCOL);
		assert_int_equal(remote.id, 0);
		ends_with(d, -DRAY_E_PROTOCOL);
		dray_disconnect(d);
		while (fake.conn >= 0)
			usleep(100);
	}
	assert_int_equal(cm_fds_count(), fds);
}

/* Unusual but harmless: a tail of a later version, an unknown code, an unknown event. */
static void answers_of_later_versions(void **state)
{
	struct dray *d;
	struct dray_token t;
	dray_remote remote;

	assert_int_equal(dray_token_from_bytes("x", 1, &t), 0);
	fake.hook = tell_lie;
	memset(&lie, 0, sizeof(lie));
	whole(DMSG_REMOTE_IMPORT_REPLY, 60);
	dray_le_put64(lie.bytes + 24, 5);
	dray_le_put16(lie.bytes + 42, 99); /* a transport of a later version */
	lie.to = DMSG_REMOTE_IMPORT;
	d = connected();
	assert_int_equal(dray_remote_import(d, &t, 0, &remote), 0);
	whole(DMSG_ERROR, 8);
	memset(lie.bytes + 24, 0, 8);
	dray_le_put32(lie.bytes + 24, 999);
	assert_int_equal(dray_remote_import(d, &t, 0, &remote), -999);
	assert_string_equal(dray_strerrorname(-999), "unknown");
	whole(0x4fff, 10);
	lie.right_id = false;
	lie.to = DMSG_NOTIFY;
	assert_int_equal(dray_notify_start(d, remote, 0, NULL, 0, NULL, NULL), 0);
	assert_int_equal(dray_process(d, 50), 0);
	dray_disconnect(d);
}

static bool pool_without_fd(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			    struct dray_fds *fds)
{
	uint8_t buf[128];

	if (h->type != DMSG_REGION_ADD)
		return false;
	fake_send(f,
		  dmsg_region_add_reply_encode(buf, sizeof(buf), h->request_id,
					       &(struct dmsg_region_add_reply){ 1, 4096 }),
		  buf);
	return true;
}

static int pool_fd_bytes;

static bool pool_too_small(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			   struct dray_fds *fds)
{
	uint8_t buf[128];
	int n, fd;

	if (h->type != DMSG_REGION_ADD)
		return false;
	fd = dray_memfd_new("pool", (uint64_t)pool_fd_bytes, false);
	n = dmsg_region_add_reply_encode(buf, sizeof(buf), h->request_id,
					 &(struct dmsg_region_add_reply){ 1, 8192 });
	dray_seqpacket_send(f->conn, buf, (size_t)n, &fd, 1);
	close(fd);
	return true;
}

static void invalid_pools(void **state)
{
	int fds = cm_fds_count();
	dray_region region = { 0 };
	struct dray *d;

	fake.hook = pool_without_fd;
	d = connected();
	assert_int_equal(dray_region_add_pool(d, 4096, DRAY_READ, 0, &region), -DRAY_E_PROTOCOL);
	dray_disconnect(d);
	while (fake.conn >= 0)
		usleep(100);
	fake.hook = pool_too_small;
	pool_fd_bytes = 4096;
	d = connected();
	assert_int_equal(dray_region_add_pool(d, 8192, DRAY_READ, 0, &region), -DRAY_E_PROTOCOL);
	dray_disconnect(d);
	while (fake.conn >= 0)
		usleep(100);
	assert_int_equal(region.id, 0);
	assert_int_equal(cm_fds_count(), fds);
}

static int ready_fd;
static struct rlimit descriptors;

/*
 * Lowers the limit of descriptors to those that are open. While the fake answers this request it
 * opens and closes none, and the descriptors of earlier answers are closed.
 */
static bool pool_without_room(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			      struct dray_fds *fds)
{
	struct rlimit tight = descriptors;
	uint8_t buf[128];
	int n, fd;

	if (h->type != DMSG_REGION_ADD)
		return false;
	fd = dup(0);
	tight.rlim_cur = (rlim_t)fd;
	close(fd);
	dray_assert(setrlimit(RLIMIT_NOFILE, &tight) == 0);
	n = dmsg_region_add_reply_encode(buf, sizeof(buf), h->request_id,
					 &(struct dmsg_region_add_reply){ 1, 8192 });
	dray_seqpacket_send(f->conn, buf, (size_t)n, &ready_fd, 1);
	return true;
}

/*
 * There is no descriptor left for a pool: the session continues, and the client removes the pool at
 * the agent.
 */
static void out_of_descriptors(void **state)
{
	struct dray *d = connected();
	struct dray_info info;
	dray_region region;
	int rc;

	ready_fd = dray_memfd_new("pool", 8192, false);
	getrlimit(RLIMIT_NOFILE, &descriptors);
	fake.hook = pool_without_room;
	rc = dray_region_add_pool(d, 8192, DRAY_READ, 0, &region);
	setrlimit(RLIMIT_NOFILE, &descriptors);
	assert_int_equal(rc, -DRAY_E_FD_LIMIT);
	assert_int_equal(dray_process(d, 0), 0);
	assert_int_equal(fake_count(&fake, DMSG_REGION_REMOVE), 1);
	dray_get_info(d, &info);
	assert_true(info.connected);
	close(ready_fd);
	dray_disconnect(d);
}

/* Changes each byte of an answer in turn, and sends random bytes instead. */
static void answers_at_random(void **state)
{
	struct dray_token t;
	unsigned seed = 11;

	assert_int_equal(dray_token_from_bytes("x", 1, &t), 0);
	fake.hook = tell_lie;
	for (int i = 0; i < 300; i++) {
		struct dray *d;

		memset(&lie, 0, sizeof(lie));
		whole(DMSG_REMOTE_IMPORT_REPLY, 20);
		if (i < 100) {
			lie.bytes[i % 44] ^= (uint8_t)(1 + rand_r(&seed) % 255);
			lie.right_id = i % 44 < 16 || i % 44 >= 24;
		} else {
			lie.n = 1 + rand_r(&seed) % 500;
			for (int k = i % 2 ? 0 : 6; k < lie.n; k++)
				lie.bytes[k] = (uint8_t)rand_r(&seed);
			lie.right_id = i % 3;
			if (i % 2 == 0 && lie.n >= 24) {
				memset(lie.bytes + 8, 0, 4);
				dray_le_put32(lie.bytes + 12, (uint32_t)lie.n - 24);
			}
		}
		lie.to = DMSG_REMOTE_IMPORT;
		d = connected();
		(void)dray_remote_import_start(d, &t, 0, NULL, NULL);
		dray_process(d, 5);
		dray_process(d, 0);
		dray_disconnect(d);
		while (fake.conn >= 0)
			usleep(50);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(completion_tail_is_invalid),
		TEST(completion_of_an_unknown_transfer),
		TEST(transfer_completed_twice),
		TEST(wrong_answers_of_the_store),
		TEST(refusals_of_the_store_without_a_text),
		TEST(an_agent_without_the_feature),
		TEST(the_next_session_gets_what_was_not_taken),
		TEST(releases_between_sessions),
		TEST(submission_head_is_invalid),
		TEST(invalid_answers),
		TEST(answers_of_later_versions),
		TEST(invalid_pools),
		TEST(out_of_descriptors),
		TEST(answers_at_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
