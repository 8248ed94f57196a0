/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: mailboxes, letters, reopening after a loss of the session; old agents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/assert.h"
#include "schema/gen/errors.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

/* What the fake was asked; read it after an answer. */
static struct {
	unsigned opens, closes;
	uint32_t capacity, timeout_ms;
	uint64_t closed;
	char name[200], segment[300], payload[64];
} asked;

static uint32_t refuse; /* the fake's answer to MAILBOX_OPEN; 0: the mailbox */
static bool silent;     /* it does not answer */

static void note(char *to, size_t cap, const void *p, uint32_t n)
{
	snprintf(to, cap, "%.*s", (int)n, (const char *)p);
}

static bool answers(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		    struct dray_fds *fds)
{
	struct dmsg_mailbox_open o;
	struct dmsg_mailbox_close c;
	struct dmsg_post p;
	uint8_t buf[100];
	int n;

	switch (h->type) {
	case DMSG_MAILBOX_OPEN:
		dray_assert(dmsg_mailbox_open_decode(body, h->length, &o, NULL) == 0);
		note(asked.name, sizeof(asked.name), o.name.p, o.name.n);
		asked.capacity = o.capacity;
		asked.opens++;
		if (silent)
			return true;
		if (refuse) {
			fake_send_error(f, h->request_id, refuse, "session 9 of uid 7 has it");
			return true;
		}
		n = dmsg_mailbox_open_reply_encode(
			buf, sizeof(buf), h->request_id,
			&(struct dmsg_mailbox_open_reply){ 100 + asked.opens, 16 });
		break;
	case DMSG_MAILBOX_CLOSE:
		dray_assert(dmsg_mailbox_close_decode(body, h->length, &c, NULL) == 0);
		asked.closed = c.mailbox;
		asked.closes++;
		if (silent)
			return true;
		n = dmsg_mailbox_close_reply_encode(buf, sizeof(buf), h->request_id,
						    &(struct dmsg_mailbox_close_reply){});
		break;
	case DMSG_POST:
		dray_assert(dmsg_post_decode(body, h->length, &p, NULL) == 0);
		note(asked.name, sizeof(asked.name), p.name.p, p.name.n);
		note(asked.segment, sizeof(asked.segment), p.segment.p, p.segment.n);
		note(asked.payload, sizeof(asked.payload), p.payload.p, p.payload.n);
		asked.timeout_ms = p.timeout_ms;
		if (silent)
			return true;
		if (refuse) {
			fake_send_error(f, h->request_id, refuse, "the mailbox is full");
			return true;
		}
		n = dmsg_post_reply_encode(buf, sizeof(buf), h->request_id,
					   &(struct dmsg_post_reply){});
		break;
	default:
		return false;
	}
	fake_send(f, n, buf);
	return true;
}

static int setup(void **state)
{
	memset(&asked, 0, sizeof(asked));
	refuse = 0;
	silent = false;
	client_setup(state);
	client_fake.hook = answers;
	return 0;
}

static void send_letter(struct fake *f, void *arg)
{
	struct dmsg_letter m = { .mailbox = *(uint64_t *)arg,
				 .agent_id = { 0xab },
				 .incarnation = 5,
				 .uid = 1000,
				 .gid = 100,
				 .payload = { (const uint8_t *)"blocks", 6 } };
	uint8_t buf[200];

	fake_send(f, dmsg_letter_encode(buf, sizeof(buf), 0, &m), buf);
}

static void letters(void **state)
{
	struct dray *d = client_connect(0);
	dray_mailbox box, other;
	struct dray_event e;
	uint64_t agent = 101;

	assert_int_equal(dray_mailbox_open(d, "engine-0", 7, &box), 0);
	assert_string_equal(asked.name, "engine-0");
	assert_int_equal(asked.capacity, 7);
	fake_do(&client_fake, send_letter, &agent);
	e = client_event(d, DRAY_EVENT_LETTER);
	assert_int_equal(e.mailbox.id, box.id);
	assert_int_equal(e.agent_id[0], 0xab);
	assert_int_equal(e.incarnation, 5);
	assert_int_equal(e.uid, 1000);
	assert_int_equal(e.gid, 100);
	assert_int_equal(e.length, 6);
	assert_memory_equal(e.payload, "blocks", 6);
	assert_int_equal(dray_mailbox_open(d, "engine-1", 0, &other), 0);
	agent = 102;
	fake_do(&client_fake, send_letter, &agent);
	assert_int_equal(client_event(d, DRAY_EVENT_LETTER).mailbox.id, other.id);
	assert_int_equal(dray_mailbox_close(d, box), 0);
	assert_int_equal(asked.closed, 101);
	assert_int_equal(dray_mailbox_close(d, box), -DRAY_E_NOT_FOUND);
	/* of a mailbox that is closed: it comes without one */
	agent = 101;
	fake_do(&client_fake, send_letter, &agent);
	assert_int_equal(client_event(d, DRAY_EVENT_LETTER).mailbox.id, 0);
	dray_disconnect(d);
}

static void posts(void **state)
{
	struct dray *d = client_connect(0);

	assert_int_equal(dray_post(d, "10.0.0.1:7411", "engine-0", "blocks", 6, 1500), 0);
	assert_string_equal(asked.segment, "10.0.0.1:7411");
	assert_string_equal(asked.name, "engine-0");
	assert_string_equal(asked.payload, "blocks");
	assert_int_equal(asked.timeout_ms, 1500);
	assert_int_equal(dray_post(d, NULL, "engine-0", NULL, 0, 0), 0);
	assert_string_equal(asked.segment, "");
	assert_string_equal(asked.payload, "");
	refuse = DRAY_E_MAILBOX_FULL;
	assert_int_equal(dray_post(d, "", "engine-0", "", 0, 0), -DRAY_E_MAILBOX_FULL);
	assert_string_equal(dray_last_error(d), "the mailbox is full");
	dray_disconnect(d);
}

static void arguments(void **state)
{
	struct dray *d = client_connect(0);
	static char longer[5000];
	dray_mailbox box;

	memset(longer, 'x', sizeof(longer) - 1);
	longer[129] = '\0';
	assert_int_equal(dray_mailbox_open(d, longer, 0, &box), -DRAY_E_TOO_LARGE);
	assert_non_null(strstr(dray_last_error(d), "129 bytes"));
	assert_int_equal(dray_mailbox_open(d, "", 0, &box), -DRAY_E_INVALID);
	assert_int_equal(dray_mailbox_open(d, NULL, 0, &box), -DRAY_E_INVALID);
	assert_int_equal(dray_post(d, "", NULL, "", 0, 0), -DRAY_E_INVALID);
	assert_int_equal(dray_post(d, "", "x\n", "", 0, 0), -DRAY_E_INVALID);
	assert_int_equal(dray_mailbox_open(d, "x\n", 0, &box), -DRAY_E_INVALID);
	longer[129] = 'x';
	longer[257] = '\0';
	assert_int_equal(dray_post(d, longer, "x", "", 0, 0), -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_post(d, "", "x", longer, DRAY_NOTIFY_MAX + 1, 0), -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_mailbox_close(d, (dray_mailbox){ 0 }), -DRAY_E_NOT_FOUND);
	/* the longest name */
	assert_int_equal(dray_mailbox_open(d, longer + 129, 0, &box), 0);
	/* one kind of handle in the place of another */
	assert_int_equal(dray_region_remove(d, (dray_region){ box.id }), -DRAY_E_INVALID);
	assert_non_null(strstr(dray_last_error(d), "is a mailbox, not a region"));
	assert_int_equal(asked.opens, 1);
	dray_disconnect(d);
}

static void refused_open(void **state)
{
	struct dray *d = client_connect(0);
	dray_mailbox box = { 99 };

	refuse = DRAY_E_EXISTS;
	assert_int_equal(dray_mailbox_open(d, "x", 0, &box), -DRAY_E_EXISTS);
	assert_string_equal(dray_last_error(d), "session 9 of uid 7 has it");
	assert_int_equal(box.id, 99);
	/* nothing of it is opened again */
	refuse = 0;
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(asked.opens, 1);
	dray_disconnect(d);
}

/* The same handle serves the next session, with the agent's new one; a mailbox that cannot be opened is reported. */
static void reopened(void **state)
{
	struct dray *d = client_connect(0);
	dray_mailbox box;
	struct dray_event e;
	uint64_t agent = 102;

	assert_int_equal(dray_mailbox_open(d, "x", 5, &box), 0);
	memset(asked.name, 0, sizeof(asked.name));
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_string_equal(asked.name, "x");
	assert_int_equal(asked.capacity, 5);
	assert_int_equal(asked.opens, 2);
	fake_do(&client_fake, send_letter, &agent);
	assert_int_equal(client_event(d, DRAY_EVENT_LETTER).mailbox.id, box.id);
	refuse = DRAY_E_EXISTS;
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	e = client_event(d, DRAY_EVENT_MAILBOX_LOST);
	assert_int_equal(e.mailbox.id, box.id);
	assert_int_equal(e.code, -DRAY_E_EXISTS);
	assert_string_equal(e.message, "session 9 of uid 7 has it");
	client_event(d, DRAY_EVENT_RESTORED);
	/* it is not tried again, and there is nothing to close at the agent */
	refuse = 0;
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(asked.opens, 3);
	assert_int_equal(dray_mailbox_close(d, box), 0);
	assert_int_equal(asked.closes, 0);
	dray_disconnect(d);
}

/* The session is lost with a request in flight: a mailbox is closed by that, a post may have been carried out. */
static void lost_in_flight(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_completion c;
	uint64_t open, close, post;
	dray_mailbox box;

	assert_int_equal(dray_mailbox_open(d, "x", 0, &box), 0);
	silent = true;
	assert_int_equal(dray_mailbox_open_start(d, "y", 0, &open, &open), 0);
	assert_int_equal(dray_mailbox_close_start(d, box, &close, &close), 0);
	assert_int_equal(dray_post_start(d, "a:1", "z", "", 0, 0, &post, &post), 0);
	while (fake_count(&client_fake, DMSG_POST) == 0)
		dray_process(d, 1);
	silent = false;
	fake_do(&client_fake, client_restart, NULL);
	assert_int_equal(dray_wait(d, open, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(c.request, DRAY_REQUEST_MAILBOX_OPEN);
	assert_ptr_equal(c.arg, &open);
	assert_int_equal(dray_wait(d, close, -1, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.request, DRAY_REQUEST_MAILBOX_CLOSE);
	assert_int_equal(dray_wait(d, post, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(c.request, DRAY_REQUEST_POST);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	/* neither of the two is opened again */
	assert_int_equal(asked.opens, 2);
	dray_disconnect(d);
}

static uint64_t open_request;

static bool keeps_silent(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	if (h->type != DMSG_MAILBOX_OPEN)
		return answers(f, h, body, fds);
	open_request = h->request_id;
	return true;
}

static void answer_late(struct fake *f, void *arg)
{
	uint8_t buf[100];

	fake_send(f,
		  dmsg_mailbox_open_reply_encode(buf, sizeof(buf), open_request,
						 &(struct dmsg_mailbox_open_reply){ 55, 16 }),
		  buf);
}

/* The caller has given up when the mailbox is opened: it is closed again. */
static void late_answer(void **state)
{
	struct dray_options o = client_options();
	dray_mailbox box;
	struct dray *d;

	client_fake.hook = keeps_silent;
	o.request_ms = 30;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	assert_int_equal(dray_mailbox_open(d, "x", 0, &box), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, answer_late, NULL);
	while (fake_count(&client_fake, DMSG_MAILBOX_CLOSE) == 0)
		dray_process(d, 1);
	assert_int_equal(asked.closed, 55);
	dray_disconnect(d);
}

static void bad_agent(void **state)
{
	struct dray *d;
	dray_mailbox box;
	uint64_t id;

	client_fake.hook = keeps_silent;
	d = client_connect(0);
	assert_int_equal(dray_mailbox_open_start(d, "x", 0, NULL, &id), 0);
	while (fake_count(&client_fake, DMSG_MAILBOX_OPEN) == 0)
		dray_process(d, 1);
	client_fake.hook = answers;
	{
		struct dray_completion c;
		uint8_t buf[100];
		int n = dmsg_mailbox_open_reply_encode(buf, sizeof(buf), open_request,
						       &(struct dmsg_mailbox_open_reply){ 0, 16 });

		/* a mailbox without a handle */
		assert_int_equal(send(client_fake.conn, buf, (size_t)n, 0), n);
		assert_int_equal(dray_wait(d, id, -1, &c), 0);
		assert_int_equal(c.status, -DRAY_E_PROTOCOL);
	}
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_mailbox_open(d, "x", 0, &box), 0);
	dray_disconnect(d);
}

static void old_agent(void **state)
{
	dray_mailbox box;
	struct dray *d;

	client_fake.no_gpu = true;
	d = client_connect(0);
	assert_int_equal(dray_mailbox_open(d, "x", 0, &box), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "data protocol before 1.4"));
	assert_int_equal(dray_post(d, "", "x", "", 0, 0), -DRAY_E_UNSUPPORTED);
	assert_int_equal(asked.opens, 0);
	dray_disconnect(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, client_teardown)
		TEST(letters),      TEST(posts),     TEST(arguments),
		TEST(refused_open), TEST(reopened),  TEST(lost_in_flight),
		TEST(late_answer),  TEST(bad_agent), TEST(old_agent),
#undef TEST
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
