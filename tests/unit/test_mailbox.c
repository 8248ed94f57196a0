/* SPDX-License-Identifier: Apache-2.0 */
/* Names, queues and limits of mailboxes, with fake sessions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/control/mailbox/mailbox.h"
#include "agent/control/mailbox/share.h"
#include "lib/time.h"
#include "schema/gen/errors.h"
#include "tests/unit/account.h"

#define SENT_MAX 16 /* as in mailbox.c */
#define UNREAD_PER_TURN 1024

static const uint8_t agent_a[16] = { 1 }, agent_b[16] = { 2 };

/* What the sessions were told. */
static struct {
	unsigned sent, closed;
	dray_handle session, closed_session;
	uint64_t closed_request;
	struct dmsg_letter last; /* its payload points into text */
	char text[64];
} seen;

static struct dray_config cfg;
static struct sessions *no_sessions;

static void on_send(struct sessions *sessions, dray_handle session, struct packet *p)
{
	struct dmsg_header h;

	(void)sessions;
	assert_int_equal(p->report, PACKET_REPORT_LETTER);
	assert_int_equal(dmsg_header_decode(p->data, p->length, &h, NULL), 0);
	assert_int_equal(h.type, DMSG_LETTER);
	assert_int_equal(dmsg_letter_decode(p->data + DMSG_HEADER_SIZE, h.length, &seen.last, NULL),
			 0);
	snprintf(seen.text, sizeof(seen.text), "%.*s", (int)seen.last.payload.n,
		 (const char *)seen.last.payload.p);
	seen.sent++;
	seen.session = session;
	packet_free(p);
}

static void on_closed(struct sessions *sessions, dray_handle session, uint64_t request_id)
{
	(void)sessions;
	seen.closed++;
	seen.closed_session = session;
	seen.closed_request = request_id;
}

static const struct mailboxes_upcalls up = { .send = on_send, .closed = on_closed };

static int setup(void **state)
{
	struct mailboxes *m;

	memset(&seen, 0, sizeof(seen));
	memset(&cfg, 0, sizeof(cfg));
	cfg.limits.mailboxes = 8;
	cfg.limits.mailboxes_per_owner = 4;
	cfg.limits.letters_per_mailbox = 100;
	cfg.limits.letter_bytes = 1 << 20;
	cfg.mailbox.reserve = 3600 * DRAY_NS_PER_SEC;
	assert_int_equal(mailboxes_new(&m, &(struct mailboxes_deps){ .cfg = &cfg,
								     .up = &up,
								     .sessions = &no_sessions }),
			 0);
	*state = m;
	return 0;
}

static int teardown(void **state)
{
	mailboxes_free(*state);
	return 0;
}

static struct dray_str str(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

static dray_handle open_box(struct mailboxes *m, struct mailbox_owner *o, const char *name,
			    uint32_t capacity)
{
	struct dray_err err = DRAY_ERR_NULL;
	dray_handle h = 0;
	uint32_t granted;

	if (mailbox_open(m, o, str(name), capacity, &h, &granted, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(granted, capacity ? capacity : 100);
	return h;
}

static struct dray_err try_open(struct mailboxes *m, struct mailbox_owner *o, const char *name,
				uint32_t capacity)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint32_t granted;
	dray_handle h;

	mailbox_open(m, o, str(name), capacity, &h, &granted, &err);
	return err;
}

/* The error code, or 0. */
static uint32_t post(struct mailboxes *m, const uint8_t agent[16], uint32_t uid, const char *name,
		     const char *text)
{
	struct mailbox_sender from = {
		.incarnation = 7, .tenant = { "t", 1 }, .uid = uid, .gid = uid + 1
	};
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_str t = str(text);
	int r;

	memcpy(from.agent_id, agent, sizeof(from.agent_id));
	r = mailbox_deliver(m, &from, str(name), (struct dray_blob){ (const uint8_t *)t.p, t.n },
			    &err);
	assert_true((r < 0) == (err.code != 0));
	return (uint32_t)err.code;
}

static struct mailbox_owner *owner(struct mailbox_owner *o, dray_handle session, uid_t uid)
{
	mailbox_owner_init(o, session, "t", uid, uid + 1, "engine", budget_account_of(&cfg, uid));
	return o;
}

struct listed {
	unsigned n;
	struct dray_dbus_mailbox boxes[16];
	char names[16][DMSG_MAILBOX_NAME_MAX + 1];
};

static void list_one(void *arg, const struct dray_dbus_mailbox *b)
{
	struct listed *l = arg;

	assert_true(l->n < 16);
	snprintf(l->names[l->n], sizeof(l->names[0]), "%s", b->name);
	l->boxes[l->n++] = *b;
}

static struct listed list(struct mailboxes *m)
{
	struct listed l = { 0 };

	mailboxes_each(m, list_one, &l);
	return l;
}

static void test_letter(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner o;
	dray_handle box = open_box(m, owner(&o, 11, 500), "engine-0", 0);
	struct mailboxes_totals t;
	struct listed l;

	assert_int_equal(post(m, agent_a, 77, "engine-0", "blocks"), 0);
	assert_int_equal(seen.sent, 1);
	assert_int_equal(seen.session, 11);
	assert_int_equal(seen.last.mailbox, box);
	assert_memory_equal(seen.last.agent_id, agent_a, 16);
	assert_int_equal(seen.last.incarnation, 7);
	assert_int_equal(seen.last.uid, 77);
	assert_int_equal(seen.last.gid, 78);
	assert_string_equal(seen.text, "blocks");
	assert_int_equal(post(m, agent_a, 77, "engine-1", ""), DRAY_E_NOT_FOUND);
	t = mailboxes_totals(m);
	assert_int_equal(t.open, 1);
	assert_int_equal(t.letters, 1);
	assert_true(t.bytes > 6);
	assert_int_equal(t.delivered, 1);
	assert_int_equal(t.refused, 1);
	l = list(m);
	assert_int_equal(l.n, 1);
	assert_string_equal(l.names[0], "engine-0");
	assert_string_equal(l.boxes[0].state, "open");
	assert_int_equal(l.boxes[0].session, 11);
	assert_int_equal(l.boxes[0].uid, 500);
	assert_int_equal(l.boxes[0].letters, 1);
	mailboxes_handle_sent(m, &o);
	assert_int_equal(mailboxes_totals(m).letters, 0);
	assert_int_equal(mailboxes_totals(m).bytes, 0);
	mailbox_owner_end(m, &o);
}

/* A few letters are with the worker; each report makes room for the next, and the order stays. */
static void test_order(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner o;
	char text[8];

	open_box(m, owner(&o, 11, 500), "x", 100);
	for (unsigned i = 0; i < SENT_MAX + 4; i++) {
		snprintf(text, sizeof(text), "%u", i);
		assert_int_equal(post(m, agent_a, 1, "x", text), 0);
	}
	assert_int_equal(seen.sent, SENT_MAX);
	for (unsigned i = SENT_MAX; i < SENT_MAX + 4; i++) {
		mailboxes_handle_sent(m, &o);
		snprintf(text, sizeof(text), "%u", i);
		assert_string_equal(seen.text, text);
		assert_int_equal(seen.sent, i + 1);
	}
	for (unsigned i = 0; i < SENT_MAX; i++)
		mailboxes_handle_sent(m, &o);
	assert_int_equal(mailboxes_totals(m).letters, 0);
	mailbox_owner_end(m, &o);
}

static void test_names(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner a, b, c;
	struct dray_err err;
	dray_handle box;

	owner(&a, 11, 500);
	owner(&b, 12, 500);
	owner(&c, 13, 600);
	box = open_box(m, &a, "x", 0);
	/* whoever has it, also the same session */
	for (unsigned i = 0; i < 3; i++) {
		err = try_open(m, i == 0 ? &a : i == 1 ? &b : &c, "x", 0);
		assert_int_equal(err.code, DRAY_E_EXISTS);
		assert_non_null(strstr(err.msg, "session 11 (engine) of uid 500"));
	}
	assert_int_equal(try_open(m, &a, "", 0).code, DRAY_E_INVALID);
	assert_int_equal(try_open(m, &a, "big", 101).code, DRAY_E_QUOTA);
	/* only its session closes it, and once */
	err = DRAY_ERR_NULL;
	assert_true(mailbox_close(m, &b, box, 1, &err) < 0);
	assert_int_equal(err.code, DRAY_E_NOT_FOUND);
	err = DRAY_ERR_NULL;
	assert_int_equal(mailbox_close(m, &a, box, 2, &err), 0);
	assert_int_equal(seen.closed, 1);
	assert_int_equal(seen.closed_session, 11);
	assert_int_equal(seen.closed_request, 2);
	assert_true(mailbox_close(m, &a, box, 3, &err) < 0);
	/* a closed name is free for everybody */
	open_box(m, &c, "x", 0);
	mailbox_owner_end(m, &a);
	mailbox_owner_end(m, &b);
	mailbox_owner_end(m, &c);
}

/* The session ends: its name waits for its uid, and no letter is taken. */
static void test_reserved(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner a, b, c;
	struct dray_err err;
	struct listed l;

	open_box(m, owner(&a, 11, 500), "x", 0);
	for (unsigned i = 0; i < SENT_MAX + 2; i++)
		post(m, agent_a, 1, "x", "lost with its reader");
	mailbox_owner_end(m, &a);
	assert_int_equal(mailboxes_totals(m).letters, 0);
	assert_int_equal(mailboxes_totals(m).bytes, 0);
	assert_int_equal(mailboxes_totals(m).open, 0);
	assert_int_equal(post(m, agent_a, 1, "x", ""), DRAY_E_NOT_FOUND);
	l = list(m);
	assert_int_equal(l.n, 1);
	assert_string_equal(l.boxes[0].state, "reserved");
	assert_int_equal(l.boxes[0].mailbox, 0);
	assert_int_equal(l.boxes[0].session, 0);
	assert_int_equal(l.boxes[0].uid, 500);
	err = try_open(m, owner(&c, 13, 600), "x", 0);
	assert_int_equal(err.code, DRAY_E_EXISTS);
	assert_non_null(strstr(err.msg, "reserved for uid 500"));
	/* its owner comes back */
	open_box(m, owner(&b, 12, 500), "x", 0);
	assert_int_equal(post(m, agent_a, 1, "x", "again"), 0);
	assert_int_equal(seen.session, 12);
	/* a reservation that has expired protects nothing */
	cfg.mailbox.reserve = 1;
	mailbox_owner_end(m, &b);
	open_box(m, &c, "x", 0);
	/* none at all */
	cfg.mailbox.reserve = 0;
	mailbox_owner_end(m, &c);
	assert_int_equal(list(m).n, 0);
}

static void test_limits(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner a, b, c;
	struct dray_err err;
	char name[8];

	owner(&a, 11, 500);
	owner(&b, 12, 600);
	owner(&c, 13, 700);
	for (unsigned i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "a%u", i);
		open_box(m, &a, name, 0);
	}
	err = try_open(m, &a, "a4", 0);
	assert_int_equal(err.code, DRAY_E_QUOTA);
	assert_non_null(strstr(err.msg, "limits.mailboxes_per_owner"));
	/* reservations give way to mailboxes of their uid */
	mailbox_owner_end(m, &a);
	assert_int_equal(list(m).n, 4);
	owner(&a, 14, 500);
	open_box(m, &a, "new", 0);
	assert_int_equal(list(m).n, 4);
	for (unsigned i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "b%u", i);
		open_box(m, &b, name, 0);
	}
	assert_int_equal(list(m).n, 8);
	/* and at the agent's limit to any */
	for (unsigned i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		open_box(m, &c, name, 0);
	}
	assert_int_equal(list(m).n, 8);
	err = try_open(m, &c, "c3", 0);
	assert_int_equal(err.code, DRAY_E_QUOTA);
	assert_non_null(strstr(err.msg, "limits.mailboxes = 8"));
	mailbox_owner_end(m, &a);
	mailbox_owner_end(m, &b);
	mailbox_owner_end(m, &c);
}

/* Letters that were taken are sent before the close is answered; new ones are refused at once. */
static void test_close_with_letters(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner o;
	struct dray_err err = DRAY_ERR_NULL;
	dray_handle box = open_box(m, owner(&o, 11, 500), "x", 100);

	for (unsigned i = 0; i < SENT_MAX + 1; i++)
		assert_int_equal(post(m, agent_a, 1, "x", "a"), 0);
	assert_int_equal(mailbox_close(m, &o, box, 9, &err), 0);
	assert_int_equal(seen.closed, 0);
	assert_string_equal(list(m).boxes[0].state, "closing");
	assert_int_equal(post(m, agent_a, 1, "x", "b"), DRAY_E_NOT_FOUND);
	/* the name is free already */
	open_box(m, &o, "x", 100);
	for (unsigned i = 0; i < SENT_MAX; i++)
		mailboxes_handle_sent(m, &o);
	assert_int_equal(seen.closed, 0);
	mailboxes_handle_sent(m, &o);
	assert_int_equal(seen.closed, 1);
	assert_int_equal(seen.closed_request, 9);
	mailbox_owner_end(m, &o);
}

/* Posts until the mailbox refuses. */
static unsigned flood(struct mailboxes *m, const uint8_t agent[16], uint32_t uid, const char *name)
{
	uint32_t code;
	unsigned n = 0;

	while (!(code = post(m, agent, uid, name, "x")))
		n++;
	assert_int_equal(code, DRAY_E_MAILBOX_FULL);
	return n;
}

static void test_full(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner o;
	unsigned first, other_uid, other_agent;
	struct listed l;

	open_box(m, owner(&o, 11, 500), "one", 1);
	assert_int_equal(flood(m, agent_a, 1, "one"), 1);
	open_box(m, &o, "x", 90);
	first = flood(m, agent_a, 1, "x");
	/* another uid of the same agent, and another agent, still get through */
	other_uid = flood(m, agent_a, 2, "x");
	other_agent = flood(m, agent_b, 1, "x");
	assert_int_equal(first, 30);
	assert_int_equal(other_uid, 10);
	assert_in_range(other_agent, 16, 17);
	assert_in_range(flood(m, (const uint8_t[16]){ 3 }, 9, "x"), 1, 20);
	/* who has most is refused until his letters are read, not until some are */
	mailboxes_handle_sent(m, &o);
	mailboxes_handle_sent(m, &o);
	assert_int_equal(post(m, agent_a, 1, "x", ""), DRAY_E_MAILBOX_FULL);
	l = list(m);
	assert_int_equal(l.boxes[0].refused, 1);
	assert_true(l.boxes[1].refused >= 5);
	mailbox_owner_end(m, &o);
	assert_int_equal(mailboxes_totals(m).letters, 0);
}

/* Whatever the order, a mailbox holds at most its capacity, and a new agent always finds a place while others flood. */
static void test_many_agents(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner o;
	unsigned total = 0;

	open_box(m, owner(&o, 11, 500), "x", 100);
	for (uint8_t i = 1; i < 6; i++) {
		unsigned n = flood(m, (const uint8_t[16]){ i }, 1, "x");

		assert_true(n >= 1);
		total += n;
	}
	assert_true(total <= 100);
	assert_int_equal(mailboxes_totals(m).letters, total);
	mailbox_owner_end(m, &o);
}

/* The owner of mailboxes that nobody reads leaves memory for the letters of other owners. */
static void test_memory(void **state)
{
	struct mailboxes *m = *state;
	struct mailbox_owner a, b;
	char big[DMSG_NOTIFY_MAX + 1];
	struct mailboxes_totals t;
	unsigned n = 0;

	cfg.limits.letter_bytes = 64 << 10;
	memset(big, 'x', DMSG_NOTIFY_MAX);
	big[DMSG_NOTIFY_MAX] = 0;
	open_box(m, owner(&a, 11, 500), "a", 100);
	open_box(m, owner(&b, 12, 600), "b", 100);
	for (uint8_t i = 1; i < 40; i++)
		n += post(m, (const uint8_t[16]){ i }, 1, "a", big) == 0;
	assert_in_range(n, 6, 8); /* half of it */
	assert_int_equal(post(m, agent_a, 1, "b", big), 0);
	t = mailboxes_totals(m);
	assert_true(t.bytes <= 64 << 10);
	/* a limit that was lowered refuses, and does not underflow */
	cfg.limits.letter_bytes = 4096;
	assert_int_equal(post(m, agent_b, 1, "b", ""), DRAY_E_MAILBOX_FULL);
	mailbox_owner_end(m, &a);
	mailbox_owner_end(m, &b);
	assert_int_equal(mailboxes_totals(m).bytes, 0);
}

/* Many letters of a session that ends are freed in several turns of the loop, whatever becomes of their mailboxes. */
static void test_many_unread(void **state)
{
	const unsigned n = 2 * UNREAD_PER_TURN + 2;
	struct mailboxes *m;
	struct mailbox_owner o;
	dray_handle closing;
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	cfg.limits.letters_per_mailbox = 16 * (int64_t)n;
	cfg.limits.letter_bytes = 1 << 30;
	assert_int_equal(mailboxes_new(&m, &(struct mailboxes_deps){ .event = e,
								     .cfg = &cfg,
								     .up = &up,
								     .sessions = &no_sessions }),
			 0);
	closing = open_box(m, owner(&o, 11, 500), "closing", 16 * n);
	open_box(m, &o, "kept", 16 * n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(post(m, agent_a, 1, i % 2 ? "kept" : "closing", ""), 0);
	assert_int_equal(mailbox_close(m, &o, closing, 1, NULL), 0);
	mailbox_owner_end(m, &o);
	/* the name is used again while letters of its former mailbox are freed */
	open_box(m, owner(&o, 12, 500), "kept", 16 * n);
	assert_int_equal(post(m, agent_a, 1, "kept", "new"), 0);
	for (uint64_t left = n + 1, before; left > 1;) {
		before = left;
		left = mailboxes_totals(m).letters;
		assert_in_range(before - left, 0, UNREAD_PER_TURN);
		if (left > 1)
			assert_true(sd_event_run(e, 10000000) >= 0);
	}
	assert_string_equal(seen.text, "new");
	mailbox_owner_end(m, &o);
	assert_int_equal(mailboxes_totals(m).bytes, 0);
	/* those that are left at the end of the agent */
	open_box(m, owner(&o, 13, 500), "kept", 16 * n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(post(m, agent_a, 1, "kept", ""), 0);
	mailbox_owner_end(m, &o);
	mailboxes_free(m);
	sd_event_unref(e);
}

static void test_share(void **state)
{
	(void)state;
	assert_true(dray_share_fits(1, 0, 1));
	assert_false(dray_share_fits(0, 0, 1));
	assert_false(dray_share_fits(10, 0, 11));
	assert_true(dray_share_fits(2, 1, 1));
	assert_false(dray_share_fits(1, 1, 1));
	assert_false(dray_share_fits(5, 5, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		TEST(test_letter),
		TEST(test_order),
		TEST(test_names),
		TEST(test_reserved),
		TEST(test_limits),
		TEST(test_close_with_letters),
		TEST(test_full),
		TEST(test_many_agents),
		TEST(test_memory),
		TEST(test_many_unread),
		cmocka_unit_test(test_share),
#undef TEST
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
