/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of sessions: requests, letters within the agent, letters to peers. */

#include "agent/control/session/internal.h"
#include "tests/unit/session_fixture.h"

static uint64_t open_box(struct client *c, const char *name, uint32_t capacity)
{
	struct dmsg_mailbox_open_reply reply;

	CLIENT_SEND(c, mailbox_open,
		    (&(struct dmsg_mailbox_open){ .capacity = capacity, .name = text(name) }));
	CLIENT_REPLY(c, mailbox_open_reply, DMSG_MAILBOX_OPEN_REPLY, &reply);
	assert_int_equal(dray_handle_kind(reply.mailbox), DMSG_HANDLE_KIND_MAILBOX);
	assert_true(reply.capacity > 0);
	return reply.mailbox;
}

static void send_post(struct client *c, const char *segment, const char *name, const void *payload,
		      uint32_t n)
{
	CLIENT_SEND(c, post,
		    (&(struct dmsg_post){ .timeout_ms = 1500,
					  .segment = text(segment),
					  .name = text(name),
					  .payload = { payload, n } }));
}

static void post(struct client *c, const char *segment, const char *name, const char *payload)
{
	send_post(c, segment, name, payload, (uint32_t)strlen(payload));
}

static struct dmsg_letter letter(struct client *c)
{
	struct dmsg_letter m;

	CLIENT_RECV(c, letter, DMSG_LETTER, &m);
	assert_int_equal(c->h.request_id, 0);
	return m;
}

/* By the agent's own segment, and without one. The sender is who the kernel says. */
static void test_local(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	uint64_t box = open_box(owner, "engine-0", 0);
	static const char *const segments[] = { "", "127.0.0.1:7411" };
	static uint8_t big[DMSG_NOTIFY_MAX];
	struct dmsg_letter m;

	for (unsigned i = 0; i < 2; i++) {
		post(user, segments[i], "engine-0", "blocks");
		client_expect(user, DMSG_POST_REPLY);
		m = letter(owner);
		assert_int_equal(m.mailbox, box);
		assert_memory_equal(m.agent_id, lab_id, 16);
		assert_int_equal(m.incarnation, 5);
		assert_int_equal(m.uid, getuid());
		assert_int_equal(m.gid, getgid());
		assert_int_equal(m.payload.n, 6);
		assert_memory_equal(m.payload.p, "blocks", 6);
	}
	post(user, "", "engine-1", "");
	client_expect_error(user, user->id, DRAY_E_NOT_FOUND);
	/* the largest payload, and to oneself */
	memset(big, 'x', sizeof(big));
	open_box(user, "mine", 1);
	send_post(user, "", "mine", big, sizeof(big));
	/* the letter goes to the worker before the reply */
	assert_int_equal(letter(user).payload.n, DMSG_NOTIFY_MAX);
	client_expect(user, DMSG_POST_REPLY);
	client_close(owner);
	client_close(user);
}

static void test_open_and_close(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *other = client_open(l, "", 0);
	uint64_t box = open_box(owner, "x", 7);
	struct dmsg_letter m;

	CLIENT_SEND(other, mailbox_open, &(struct dmsg_mailbox_open){ .name = text("x") });
	client_expect_error(other, other->id, DRAY_E_EXISTS);
	CLIENT_SEND(other, mailbox_open, &(struct dmsg_mailbox_open){ .name = text("") });
	client_expect_error(other, other->id, DRAY_E_INVALID);
	CLIENT_SEND(other, mailbox_close, &(struct dmsg_mailbox_close){ box });
	client_expect_error(other, other->id, DRAY_E_NOT_FOUND);
	CLIENT_SEND(other, mailbox_close, &(struct dmsg_mailbox_close){ other->hello.session });
	client_expect_error(other, other->id, DRAY_E_INVALID);
	post(other, "", "x", "before");
	client_expect(other, DMSG_POST_REPLY);
	CLIENT_SEND(owner, mailbox_close, &(struct dmsg_mailbox_close){ box });
	m = letter(owner);
	assert_int_equal(m.payload.n, 6);
	client_expect(owner, DMSG_MAILBOX_CLOSE_REPLY);
	post(other, "", "x", "after");
	client_expect_error(other, other->id, DRAY_E_NOT_FOUND);
	open_box(other, "x", 7);
	client_close(owner);
	client_close(other);
}

/* The death of the owner ends its mailboxes at once, and its user may open them again. */
static void test_owner_dies(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);

	open_box(owner, "x", 0);
	client_close(owner);
	lab_until(l, !mailboxes_totals(l->mailboxes).open);
	post(user, "", "x", "");
	client_expect_error(user, user->id, DRAY_E_NOT_FOUND);
	owner = client_open(l, "", 0);
	open_box(owner, "x", 0);
	post(user, "", "x", "back");
	client_expect(user, DMSG_POST_REPLY);
	assert_int_equal(letter(owner).payload.n, 4);
	client_close(owner);
	client_close(user);
}

/* An owner that does not read: its socket fills, then the mailbox. No letter that was accepted is lost. */
static void test_slow_reader(void **state)
{
	struct lab *l = *state;
	struct client *owner = client_open(l, "", 0), *user = client_open(l, "", 0);
	static uint8_t big[DMSG_NOTIFY_MAX];
	unsigned delivered = 0;

	open_box(owner, "x", 8);
	for (;; delivered++) {
		big[0] = (uint8_t)delivered;
		send_post(user, "", "x", big, sizeof(big));
		assert_true(client_recv(user) > 0);
		if (dray_le_get16(user->buf + 6) == DMSG_ERROR)
			break;
		assert_true(delivered < 10000);
	}
	assert_true(delivered >= 3);
	assert_true(mailboxes_totals(l->mailboxes).letters > 0);
	for (unsigned i = 0; i < delivered; i++)
		assert_int_equal(letter(owner).payload.p[0], (uint8_t)i);
	lab_until(l, !mailboxes_totals(l->mailboxes).letters);
	post(user, "", "x", "again");
	client_expect(user, DMSG_POST_REPLY);
	assert_int_equal(letter(owner).payload.n, 5);
	/* dies with letters in its queue */
	do {
		send_post(user, "", "x", big, sizeof(big));
		assert_true(client_recv(user) > 0);
	} while (dray_le_get16(user->buf + 6) != DMSG_ERROR);
	client_close(owner);
	lab_until(l, !mailboxes_totals(l->mailboxes).letters);
	assert_int_equal(mailboxes_totals(l->mailboxes).bytes, 0);
	client_close(user);
}

/* What the peers get, and how their result becomes the answer. */
static void test_peer(void **state)
{
	struct lab *l = *state;
	struct client *user = client_open(l, "", 0);
	struct dray_err err = DRAY_ERR_NULL;
	const struct peer_post *p = &l->peers.post;

	post(user, "10.0.0.9:7411", "engine-0", "blocks");
	lab_until(l, l->peers.posts == 1);
	assert_string_equal(p->segment, "10.0.0.9:7411");
	assert_string_equal(l->peers.post_name, "engine-0");
	assert_string_equal(l->peers.post_payload, "blocks");
	assert_int_equal(p->m.uid, getuid());
	assert_int_equal(p->m.gid, getgid());
	assert_int_equal(p->timeout_ns, 1500 * DRAY_NS_PER_MS);
	p->done(p->arg, p->session, p->request_id, &err, NULL);
	client_expect(user, DMSG_POST_REPLY);
	assert_int_equal(user->h.request_id, user->id);

	post(user, "10.0.0.9:7411", "engine-0", "");
	lab_until(l, l->peers.posts == 2);
	err = dray_err_of(DRAY_E_MAILBOX_FULL, "the mailbox is full");
	p->done(p->arg, p->session, p->request_id, &err, NULL);
	client_expect_error(user, user->id, DRAY_E_MAILBOX_FULL);

	l->peers.post_code = DRAY_E_BUSY;
	post(user, "10.0.0.9:7411", "engine-0", "");
	client_expect_error(user, user->id, DRAY_E_BUSY);
	l->peers.post_code = 0;

	/* the address turns out to be this agent's */
	err = DRAY_ERR_NULL;
	post(user, "10.0.0.9:7411", "mine", "own");
	lab_until(l, l->peers.posts == 3);
	p->done(p->arg, p->session, p->request_id, &err, &p->m);
	client_expect_error(user, user->id, DRAY_E_NOT_FOUND);
	open_box(user, "mine", 0);
	post(user, "10.0.0.9:7411", "mine", "own");
	lab_until(l, l->peers.posts == 4);
	p->done(p->arg, p->session, p->request_id, &err, &p->m);
	assert_int_equal(letter(user).payload.n, 3);
	client_expect(user, DMSG_POST_REPLY);

	/* the sender dies before the answer */
	post(user, "10.0.0.9:7411", "engine-0", "");
	lab_until(l, l->peers.posts == 5);
	client_close(user);
	lab_until(l, !sessions_totals(l->sessions).open);
	p->done(p->arg, p->session, p->request_id, &err, NULL);
}

static void test_draining(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint64_t box = open_box(c, "x", 0);

	sessions_drain(l->sessions, 1000);
	client_expect(c, DMSG_DRAINING);
	post(c, "", "x", "");
	client_expect_error(c, c->id, DRAY_E_DRAINING);
	CLIENT_SEND(c, mailbox_open, &(struct dmsg_mailbox_open){ .name = text("y") });
	client_expect_error(c, c->id, DRAY_E_DRAINING);
	CLIENT_SEND(c, mailbox_close, &(struct dmsg_mailbox_close){ box });
	client_expect(c, DMSG_MAILBOX_CLOSE_REPLY);
	sessions_resume(l->sessions);
	open_box(c, "x", 0);
	client_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, lab_setup, lab_teardown)
		TEST(test_local),       TEST(test_open_and_close), TEST(test_owner_dies),
		TEST(test_slow_reader), TEST(test_peer),           TEST(test_draining),
#undef TEST
	};

	return cmocka_run_group_tests_name("session_mailbox", tests, NULL, NULL);
}
