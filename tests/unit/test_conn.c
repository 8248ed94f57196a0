/* SPDX-License-Identifier: Apache-2.0 */
/* A control connection with much input, beside other sources of the loop. */
#include "agent/control/peer/conn.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/unit/cm.h"

#define MESSAGES (50 * 32)
#define LOW_PRIORITY 7

struct rig {
	sd_event *event;
	struct conn *conn;
	int fd;
	unsigned messages, parts, others;
	uint64_t turn; /* of the last message */
};

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct rig *r = c->owner;
	uint64_t turn;

	assert_true(sd_event_get_iteration(r->event, &turn) >= 0);
	assert_int_equal(h->request_id, r->messages);
	r->messages++;
	r->parts += turn != r->turn;
	r->turn = turn;
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	fail_msg("%s", why->msg);
}

static int on_other(sd_event_source *s, int fd, uint32_t events, void *arg)
{
	((struct rig *)arg)->others++;
	return 0;
}

static void rig_start(struct rig *r)
{
	static const struct conn_ops ops = { .message = on_message, .failed = on_failed };

	*r = (struct rig){ .fd = eventfd(1, EFD_CLOEXEC) };
	assert_true(sd_event_new(&r->event) >= 0);
	assert_int_equal(conn_new_detached(&r->conn, r->event, &ops, r), 0);
	/* the first turn of a source is older than all that follow */
	assert_true(sd_event_run(r->event, 0) >= 0);
	assert_true(sd_event_add_io(r->event, NULL, r->fd, EPOLLIN, on_other, r) >= 0);
}

static void rig_stop(struct rig *r)
{
	conn_free(r->conn);
	sd_event_unref(r->event);
	close(r->fd);
}

/* MESSAGES messages in one piece. */
static void feed(struct conn *c)
{
	static uint8_t bytes[MESSAGES * 64];
	size_t n = 0;

	for (unsigned i = 0; i < MESSAGES; i++)
		n += (size_t)pmsg_body_encode(PMSG_HEARTBEAT, bytes + n, sizeof(bytes) - n, i,
					      &(union pmsg_body){ .heartbeat = { .sequence = i } });
	conn_feed(c, bytes, n);
}

/* A source that is always ready gets every other turn while there is input. */
static void test_others_go_on(void **state)
{
	struct rig r;

	rig_start(&r);
	feed(r.conn);
	for (unsigned turns = 0; r.messages < MESSAGES; turns++) {
		assert_true(turns < 200);
		assert_true(sd_event_run(r.event, UINT64_MAX) > 0);
		assert_in_range(r.others + 2, r.parts, r.parts + 4);
	}
	assert_int_equal(r.parts, 50);
	rig_stop(&r);
}

/* A connection of lower priority, as one that has yet to prove itself, waits for all others. */
static void test_priority(void **state)
{
	struct rig r;

	rig_start(&r);
	conn_set_priority(r.conn, LOW_PRIORITY);
	feed(r.conn);
	for (unsigned turns = 0; turns < 20; turns++)
		assert_true(sd_event_run(r.event, UINT64_MAX) > 0);
	assert_int_equal(r.parts, 1);
	assert_int_equal(r.others, 20);
	conn_set_priority(r.conn, SD_EVENT_PRIORITY_NORMAL);
	while (r.messages < MESSAGES)
		assert_true(sd_event_run(r.event, UINT64_MAX) > 0);
	rig_stop(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_others_go_on),
		cmocka_unit_test(test_priority),
	};

	return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
