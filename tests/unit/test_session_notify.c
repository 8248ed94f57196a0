/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications of requests, transfers and peers; rings and arenas. */

#include <sys/epoll.h>

#include "agent/control/session/internal.h"
#include "tests/unit/session_fixture.h"

static struct dmsg_notification notification(struct client *c)
{
	struct dmsg_notification m;

	CLIENT_RECV(c, notification, DMSG_NOTIFICATION, &m);
	assert_int_equal(c->h.request_id, 0);
	return m;
}

static void send_notify(struct client *c, uint64_t remote, uint64_t tag, const char *payload)
{
	struct dmsg_notify m = { .remote = remote,
				 .tag = tag,
				 .payload = { (const uint8_t *)payload,
					      (uint32_t)strlen(payload) } };

	CLIENT_SEND(c, notify, &m);
}

static uint64_t notified(struct lab *l, uint64_t *ret_refused)
{
	struct sessions_totals t = sessions_totals(l->sessions);

	*ret_refused = t.notify_refused;
	return t.notified;
}

/* Every reader of the owner's group gets it, and no other session. */
static void test_notify_local(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "engine", 0);
	struct client *reader = client_open(l, "engine", DMSG_HELLO_FLAG_NOTIFICATIONS);
	struct client *second = client_open(l, "engine", DMSG_HELLO_FLAG_NOTIFICATIONS);
	struct client *user = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS);
	uint64_t region = client_add_filled(owner, PAGE, 1), refused, first_id;
	struct token t = client_export(owner, region, 0, PAGE);
	uint64_t remote = client_import(user, &t);
	struct dmsg_notification m;

	send_notify(user, remote + 1, 0, "");
	client_expect_error(user, user->id, DRAY_E_NOT_FOUND);
	send_notify(user, remote, 0x1122334455667788u, "done");
	client_expect(user, DMSG_NOTIFY_REPLY);
	m = notification(reader);
	assert_int_equal(m.tag, 0x1122334455667788u);
	assert_int_equal(m.region, region);
	assert_int_equal(m.incarnation, 5);
	assert_memory_equal(m.agent_id, lab_id, 16);
	assert_int_equal(m.payload.n, 4);
	assert_memory_equal(m.payload.p, "done", 4);
	first_id = m.id;
	m = notification(second);
	assert_int_equal(m.id, first_id);
	send_notify(user, remote, 2, "");
	client_expect(user, DMSG_NOTIFY_REPLY);
	assert_int_not_equal(notification(reader).id, first_id);
	assert_int_equal(notified(l, &refused), 2);
	assert_int_equal(refused, 0);

	client_close(reader);
	client_close(second);
	/* only the owner remains in the group, and it does not read */
	for (unsigned i = 0; !refused; i++) {
		assert_true(i < 1000);
		send_notify(user, remote, 3, "");
		assert_true(client_recv(user) > 0);
		notified(l, &refused);
	}
	client_close(owner);
	client_close(user);
}

/* The same group name with two uids, or two empty names: these are different groups. */
static void test_groups(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0),
		      *other = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS);
	struct token t = client_export(owner, client_add_filled(owner, PAGE, 1), 0, PAGE);
	struct client *user = client_open(l, "x", 0), *mate = client_open(l, "x", 0);
	uint64_t remote = client_import(user, &t);

	send_notify(user, remote, 1, "");
	client_expect_error(user, user->id, DRAY_E_NOTIFY_REFUSED);
	/* another session of the group may use the remote, but not release it */
	send_notify(mate, remote, 1, "");
	client_expect_error(mate, mate->id, DRAY_E_NOTIFY_REFUSED);
	send_notify(other, remote, 1, "");
	client_expect_error(other, other->id, DRAY_E_NOT_FOUND);
	CLIENT_SEND(mate, remote_release, &(struct dmsg_remote_release){ .remote = remote });
	client_expect_error(mate, mate->id, DRAY_E_NOT_FOUND);
	client_close(owner);
	client_close(other);
	client_close(user);
	client_close(mate);
}

/* A client does not read: its socket fills, then its queue, and then notifications are refused. */
static void test_notify_limit(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS),
		      *user = client_open(l, "", 0);
	struct token t;
	uint64_t remote;
	char big[DMSG_NOTIFY_MAX + 1];
	unsigned delivered = 0;

	l->cfg->limits.notifications_per_session = 8;
	t = client_export(owner, client_add_filled(owner, PAGE, 1), 0, PAGE);
	remote = client_import(user, &t);
	memset(big, 'x', DMSG_NOTIFY_MAX);
	big[DMSG_NOTIFY_MAX] = 0;
	for (;; delivered++) {
		send_notify(user, remote, delivered, big);
		assert_true(client_recv(user) > 0);
		if (dray_le_get16(user->buf + 6) == DMSG_ERROR)
			break;
		assert_true(delivered < 10000);
	}
	assert_true(delivered >= 8);
	/* accepted notifications arrive, in order */
	for (unsigned i = 0; i < delivered; i++)
		assert_int_equal(notification(owner).tag, i);
	send_notify(user, remote, 77, "again");
	client_expect(user, DMSG_NOTIFY_REPLY);
	assert_int_equal(notification(owner).tag, 77);
	client_close(owner);
	client_close(user);
}

static uint32_t deliver(struct lab *l, uint64_t region, uint64_t incarnation, uint64_t id)
{
	struct dmsg_notification m = { .tag = 1,
				       .region = region,
				       .incarnation = incarnation,
				       .id = id,
				       .payload = { (const uint8_t *)"hi", 2 } };

	memcpy(m.agent_id, other_id, sizeof(m.agent_id));
	return sessions_deliver(l->sessions, &m);
}

static void test_deliver(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS);
	uint64_t region = client_add_filled(c, PAGE, 1), refused;
	const uint64_t n = DEDUP_ENTRIES + 1024;

#define DELIVER(region, incarnation, id) deliver(l, region, incarnation, id)
	assert_int_equal(DELIVER(region + 1, 1, 1), DRAY_E_NOT_FOUND);
	assert_int_equal(DELIVER(region, 1, 1), DRAY_OK);
	assert_int_equal(DELIVER(region, 1, 1), DRAY_OK);
	assert_int_equal(DELIVER(region, 1, 2), DRAY_OK);
	assert_int_equal(DELIVER(region, 2, 1), DRAY_OK);
	assert_int_equal(notified(l, &refused), 3);
	assert_int_equal(notification(c).id, 1);
	assert_int_equal(notification(c).id, 2);
	assert_int_equal(notification(c).incarnation, 2);
	/* the oldest id is forgotten at some time, the newest is not */
	l->cfg->limits.notifications_per_session = 65536;
	for (uint64_t id = 10; id < 10 + n; id += 256) {
		for (uint64_t i = id; i < id + 256; i++) {
			assert_int_equal(DELIVER(region, 1, i), DRAY_OK);
			assert_int_equal(DELIVER(region, 1, i), DRAY_OK);
		}
		for (uint64_t i = id; i < id + 256; i++)
			assert_int_equal(notification(c).id, i);
	}
	assert_int_equal(DELIVER(region, 1, 10 + n - DEDUP_ENTRIES), DRAY_OK);
	assert_int_equal(notified(l, &refused), 3 + n);
	assert_int_equal(DELIVER(region, 1, 1), DRAY_OK);
	assert_int_equal(notification(c).id, 1);
	client_close(c);
}

static void test_notify_peer(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint64_t region = client_add_filled(c, PAGE, 1), remote, first;
	struct token t = client_export(c, region, 0, PAGE);
	struct dmsg_remote_import_reply reply;
	struct dray_err ok = DRAY_ERR_NULL;

	memcpy(t.wire + 8, other_id, 16);
	client_send_import(c, &t);
	lab_until(l, l->peers.imports == 1);
	l->peers.import_fn(l->peers.import_arg, &ok, LAB_PEER,
			   &(struct pmsg_import_reply){
				   .grant = 33, .length = PAGE, .access = DMSG_ACCESS_READ },
			   NULL);
	CLIENT_REPLY(c, remote_import_reply, DMSG_REMOTE_IMPORT_REPLY, &reply);
	remote = reply.remote;

	send_notify(c, remote, 9, "abc");
	lab_until(l, l->peers.notifies == 1);
	assert_int_equal(l->peers.notify_grant, 33);
	assert_int_equal(l->peers.notify_tag, 9);
	assert_int_equal(l->peers.notify_length, 3);
	assert_memory_equal(l->peers.notify_payload, "abc", 3);
	first = l->peers.notify_id;
	l->peers.notify_fn(l->peers.notify_arg, DRAY_OK, NULL);
	client_expect(c, DMSG_NOTIFY_REPLY);
	send_notify(c, remote, 9, "abc");
	lab_until(l, l->peers.notifies == 2);
	assert_int_not_equal(l->peers.notify_id, first);
	l->peers.notify_fn(l->peers.notify_arg, DRAY_E_NOTIFY_REFUSED, NULL);
	client_expect_error(c, c->id, DRAY_E_NOTIFY_REFUSED);
	/* the answer comes after the session has ended */
	send_notify(c, remote, 9, "abc");
	lab_until(l, l->peers.notifies == 3);
	client_close(c);
	lab_until(l, l->peers.n_released == 1);
	l->peers.notify_fn(l->peers.notify_arg, DRAY_OK, NULL);
}

static void test_notify_transfer(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS),
		      *user = client_open(l, "", 0);
	uint64_t mine = client_add_filled(user, PAGE, 7), theirs, remote;
	int fd = memory_fd(PAGE, 0);
	uint8_t *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0), wire[DMSG_OP_SIZE];
	struct dmsg_transfer m = { .direction = DMSG_DIRECTION_WRITE,
				   .flags = DMSG_TRANSFER_FLAG_NOTIFY,
				   .notify_tag = 4,
				   .notify = { (const uint8_t *)"there", 5 },
				   .ops = { wire, 1 } };
	struct dmsg_transfer_done done;
	struct dmsg_notification n;
	struct token t;

	theirs = client_add(owner, fd, PAGE);
	t = client_export(owner, theirs, 0, PAGE);
	remote = client_import(user, &t);
	m.local = mine;
	m.remote = remote;
	dmsg_op_put(wire, &(struct dmsg_op){ .length = PAGE });
	CLIENT_SEND(user, transfer, &m);
	CLIENT_REPLY(user, transfer_done, DMSG_TRANSFER_DONE, &done);
	assert_int_equal(done.status, DRAY_OK);
	assert_int_equal(p[PAGE - 1], 7);
	n = notification(owner);
	assert_int_equal(n.tag, 4);
	assert_int_equal(n.region, theirs);
	assert_memory_equal(n.payload.p, "there", 5);
	munmap(p, PAGE);
	close(fd);
	client_close(owner);
	client_close(user);
}

/* --- rings ------------------------------------------------------------------------------------ */

static void refuse_ring(struct client *c, uint32_t entries, uint64_t arena, uint32_t code)
{
	CLIENT_SEND(c, ring_open,
		    (&(struct dmsg_ring_open){ .sq_entries = entries, .arena_bytes = arena }));
	client_expect_error(c, c->id, code);
}

static void test_ring_refused(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);

	refuse_ring(c, 0, 0, DRAY_E_INVALID);
	refuse_ring(c, 3, PAGE, DRAY_E_INVALID);
	refuse_ring(c, 2 * DMSG_RING_ENTRIES_MAX, PAGE, DRAY_E_INVALID);
	refuse_ring(c, 0, DMSG_ARENA_MAX + 1, DRAY_E_INVALID);
	l->cfg->limits.arena_bytes = PAGE;
	refuse_ring(c, 0, PAGE + 1, DRAY_E_QUOTA);
	sessions_drain(l->sessions, 1);
	client_expect(c, DMSG_DRAINING);
	refuse_ring(c, 8, PAGE, DRAY_E_DRAINING);
	client_close(c);
}

static void test_arena_alone(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_ring_open_reply m;

	CLIENT_SEND(c, ring_open, (&(struct dmsg_ring_open){ .arena_bytes = PAGE + 1 }));
	CLIENT_REPLY(c, ring_open_reply, DMSG_RING_OPEN_REPLY, &m);
	assert_int_equal(m.sq_entries, 0);
	assert_int_equal(m.ring_bytes, 0);
	assert_int_equal(m.arena_bytes, 2 * PAGE);
	assert_int_equal(c->fds.n, 1);
	assert_int_equal(fcntl(c->fds.fd[0], F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
	refuse_ring(c, 8, PAGE, DRAY_E_EXISTS);
	client_close(c);
}

static uint32_t load(const uint8_t *ring, uint32_t offset)
{
	return __atomic_load_n((const uint32_t *)(const void *)(ring + offset), __ATOMIC_ACQUIRE);
}

static void store(uint8_t *ring, uint32_t offset, uint32_t v)
{
	__atomic_store_n((uint32_t *)(void *)(ring + offset), v, __ATOMIC_SEQ_CST);
}

/* One complete round: a submission in the ring, its completion, both doorbells. */
static void test_ring(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *c = client_open(l, "", 0);
	struct token t = client_export(owner, client_add_filled(owner, PAGE, 9), 0, PAGE);
	uint64_t mine = client_add_filled(c, PAGE, 0), remote = client_import(c, &t), one = 1;
	struct dmsg_ring_open_reply m;
	struct dmsg_sqe e = { .user_data = 0xabcdef,
			      .direction = DMSG_DIRECTION_READ,
			      .op_count = 1,
			      .op_length = 100 };
	struct dmsg_cqe done;
	uint8_t *ring;
	struct epoll_event rung;

	CLIENT_SEND(c, ring_open,
		    (&(struct dmsg_ring_open){ .sq_entries = 8, .arena_bytes = PAGE }));
	CLIENT_REPLY(c, ring_open_reply, DMSG_RING_OPEN_REPLY, &m);
	assert_int_equal(m.sq_entries, 8);
	assert_int_equal(m.cq_entries, 16);
	assert_int_equal(c->fds.n, 4);
	ring = mmap(NULL, m.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fds.fd[1], 0);
	assert_ptr_not_equal(ring, MAP_FAILED);
	assert_int_equal(load(ring, DMSG_RING_MAGIC), DMSG_MAGIC_RING);
	assert_int_equal(load(ring, DMSG_RING_SQ_ENTRIES), 8);
	assert_int_equal(load(ring, DMSG_RING_CQ_ENTRIES), 16);
	assert_true(load(ring, DMSG_RING_CQ_OFFSET) + 16 * DMSG_CQE_SIZE <= m.ring_bytes);

	e.local = mine;
	e.remote = remote;
	store(ring, DMSG_RING_CLIENT_SLEEPING, 1);
	dmsg_sqe_put(ring + load(ring, DMSG_RING_SQ_OFFSET), &e);
	store(ring, DMSG_RING_SQ_TAIL, 1);
	assert_int_equal(write(c->fds.fd[2], &one, sizeof(one)), sizeof(one));
	assert_int_equal(epoll_wait(c->fds.fd[3], &rung, 1, 10000), 1);
	assert_int_equal(load(ring, DMSG_RING_CQ_TAIL), 1);
	dmsg_cqe_get(ring + load(ring, DMSG_RING_CQ_OFFSET), &done);
	assert_int_equal(done.user_data, 0xabcdef);
	assert_int_equal(done.status, DRAY_OK);
	assert_int_equal(done.bytes, 100);
	munmap(ring, m.ring_bytes);
	client_close(owner);
	client_close(c);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, lab_setup, lab_teardown)
	const struct CMUnitTest tests[] = {
		T(test_notify_local), T(test_groups),      T(test_notify_limit),
		T(test_deliver),      T(test_notify_peer), T(test_notify_transfer),
		T(test_ring_refused), T(test_arena_alone), T(test_ring),
	};

	return cmocka_run_group_tests_name("session_notify", tests, NULL, NULL);
}
