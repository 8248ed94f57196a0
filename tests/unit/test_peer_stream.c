/* SPDX-License-Identifier: Apache-2.0 */
/* Data streams on the control thread: greeting, adoption, resets. */
#include "tests/unit/peer_rig.h"

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* Two agents that are peers; streams go from a to b. */
struct duo {
	sd_event *event;
	struct rig *a, *b;
	struct rig_import i;
};

/* prompt: a has short limits. */
static void duo_start_as(struct duo *d, bool prompt)
{
	d->event = loop();
	d->a = (prompt ? rig_start_prompt : rig_start)(d->event, 1, 10);
	d->b = rig_start(d->event, 2, 20);
	rig_connect(d->a, d->b, &d->i);
}

static void duo_start(struct duo *d)
{
	duo_start_as(d, false);
}

static void duo_end(struct duo *d)
{
	rig_kill(d->a);
	rig_kill(d->b);
	sd_event_unref(d->event);
}

static struct pmsg_stream_hello greeting(const struct duo *d, uint64_t id)
{
	struct pmsg_stream_hello h = { .magic = PMSG_MAGIC_STREAM,
				       .major = PMSG_MAJOR,
				       .class = DMSG_CLASS_LATENCY,
				       .stream_id = id,
				       .incarnation = d->a->incarnation,
				       .to_incarnation = d->b->incarnation };

	memcpy(h.agent_id, d->a->agent_id, 16);
	memcpy(h.to_agent_id, d->b->agent_id, 16);
	return h;
}

static void sign(const struct duo *d, struct pmsg_stream_hello *h)
{
	uint8_t wire[PMSG_STREAM_HELLO_SIZE];

	pmsg_stream_hello_put(wire, h);
	assert_int_equal(stream_hello_mac(d->a->link->stream_key, wire, h->mac), 0);
}

static int dial(struct rig *rig)
{
	struct dray_addr a;
	int fd;

	assert_int_equal(dray_addr_parse(peers_segment(rig->peers), &a), 0);
	fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, &a.sa, a.len), 0);
	return fd;
}

/* Sends the hello and waits for its answer. */
static int open_stream(struct duo *d, const struct pmsg_stream_hello *h,
		       struct pmsg_stream_welcome *w)
{
	uint8_t wire[PMSG_STREAM_HELLO_SIZE], answer[PMSG_STREAM_WELCOME_SIZE], mac[32];
	ssize_t n = -1;
	int fd = dial(d->b);

	pmsg_stream_hello_put(wire, h);
	assert_int_equal(send(fd, wire, sizeof(wire), MSG_NOSIGNAL), sizeof(wire));
	assert_true(rig_until(d->event, (n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) >= 0));
	assert_int_equal(n, sizeof(answer));
	pmsg_stream_welcome_get(answer, w);
	assert_int_equal(w->magic, PMSG_MAGIC_STREAM);
	assert_int_equal(w->stream_id, h->stream_id);
	if (w->status == DRAY_OK) {
		assert_int_equal(stream_welcome_mac(d->a->link->stream_key, answer, h->mac, mac),
				 0);
		assert_memory_equal(mac, w->mac, 32);
	}
	return fd;
}

static uint32_t try(struct duo *d, const struct pmsg_stream_hello *h)
{
	struct pmsg_stream_welcome w;
	int fd = open_stream(d, h, &w);

	close(fd);
	return w.status;
}

static void test_adopted(void **state)
{
	struct pmsg_stream_hello h;
	struct pmsg_stream_welcome w;
	char buf[16];
	struct duo d;
	int fd;

	duo_start(&d);
	h = greeting(&d, 1ull << 32 | 7);
	sign(&d, &h);
	fd = open_stream(&d, &h, &w);
	assert_int_equal(w.status, DRAY_OK);
	assert_int_equal(d.b->n_commands, 1);
	assert_int_equal(d.b->commands[0].type, COMMAND_STREAM_ADOPT);
	assert_int_equal(d.b->commands[0].session, d.b->link->peer);
	assert_int_equal(d.b->commands[0].id, h.stream_id);
	assert_int_equal(d.b->commands[0].class, DMSG_CLASS_LATENCY);
	/* bytes after the hello are for the worker */
	assert_int_equal(send(fd, "frame", 5, MSG_NOSIGNAL), 5);
	rig_for(d.event, 20);
	assert_int_equal(recv(d.b->commands[0].fd, buf, sizeof(buf), MSG_DONTWAIT), 5);
	assert_int_equal(d.b->peers->n_incoming, 0);
	close(fd);
	duo_end(&d);
}

/* The hello in pieces, directly followed by the first frame. */
static void test_in_pieces(void **state)
{
	struct pmsg_stream_hello h;
	uint8_t wire[PMSG_STREAM_HELLO_SIZE + 5];
	char buf[16];
	struct duo d;
	int fd;

	duo_start(&d);
	h = greeting(&d, 3);
	sign(&d, &h);
	pmsg_stream_hello_put(wire, &h);
	memcpy(wire + PMSG_STREAM_HELLO_SIZE, "frame", 5);
	fd = dial(d.b);
	for (size_t k = 0; k + 8 < sizeof(wire); k++) {
		assert_int_equal(send(fd, wire + k, 1, MSG_NOSIGNAL), 1);
		rig_turn(d.event);
	}
	assert_int_equal(send(fd, wire + sizeof(wire) - 8, 8, MSG_NOSIGNAL), 8);
	assert_true(rig_until(d.event, d.b->n_commands));
	assert_int_equal(recv(d.b->commands[0].fd, buf, sizeof(buf), 0), 5);
	close(fd);
	duo_end(&d);
}

static void test_refused(void **state)
{
	struct pmsg_stream_hello h;
	struct duo d;

	duo_start(&d);
	/* no key, another key, a bit changed after signing */
	h = greeting(&d, 1);
	assert_int_equal(try(&d, &h), DRAY_E_PEER_DENIED);
	sign(&d, &h);
	h.mac[31] ^= 1;
	assert_int_equal(try(&d, &h), DRAY_E_PEER_DENIED);
	h.mac[31] ^= 1;
	h.class ^= 1;
	assert_int_equal(try(&d, &h), DRAY_E_PEER_DENIED);
	/* wrong sender and wrong receiver */
	h = greeting(&d, 1);
	h.to_incarnation--;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_INCARNATION);
	h = greeting(&d, 1);
	h.to_agent_id[0]++;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_INCARNATION);
	h = greeting(&d, 1);
	h.incarnation++;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_NOT_FOUND);
	h = greeting(&d, 1);
	h.agent_id[15] = 99;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_NOT_FOUND);
	h = greeting(&d, 1);
	h.major = 2;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_VERSION);
	h = greeting(&d, 1);
	h.class = 9;
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_INVALID);
	/* none of these has used up the id */
	h = greeting(&d, 1);
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_OK);
	/* a repeated hello: while the stream is open, and after it was closed */
	assert_int_equal(try(&d, &h), DRAY_E_EXISTS);
	peers_handle_stream_closed(d.b->peers, d.b->link->peer, 1);
	assert_int_equal(try(&d, &h), DRAY_E_EXISTS);
	assert_int_equal(d.b->n_commands, 1);
	assert_int_equal(d.b->peers->n_incoming, 0);
	assert_int_equal(rig_ready(d.b), 1);
	duo_end(&d);
}

/* --- resets --------------------------------------------------------------------------------------- */

static void test_our_stream_is_lost(void **state)
{
	uint64_t id = 1ull << 32 | 5;
	struct pmsg_stream_hello h;
	struct pmsg_stream_welcome w;
	struct duo d;
	int fd;

	duo_start(&d);
	h = greeting(&d, id);
	sign(&d, &h);
	fd = open_stream(&d, &h, &w);
	peers_handle_stream_lost(d.a->peers, d.i.peer, id);
	/* the other side's worker gets the request */
	assert_true(rig_until(d.event, d.b->n_commands == 2));
	assert_int_equal(d.b->commands[1].type, COMMAND_STREAM_RESET);
	assert_int_equal(d.b->commands[1].id, id);
	assert_int_equal(d.b->command_worker[1], d.b->command_worker[0]);
	rig_for(d.event, 30);
	assert_int_equal(d.a->n_commands, 0);
	/* and only its answer counts */
	peers_handle_stream_closed(d.b->peers, d.b->link->peer, id);
	assert_true(rig_until(d.event, d.a->n_commands == 1));
	assert_int_equal(d.a->commands[0].type, COMMAND_STREAM_DEAD);
	assert_int_equal(d.a->commands[0].session, d.i.peer);
	assert_int_equal(d.a->commands[0].id, id);
	assert_int_equal(d.a->command_worker[0], 1);
	close(fd);
	duo_end(&d);
}

static void test_reset_of_no_stream(void **state)
{
	struct pmsg_stream_hello h;
	struct duo d;

	duo_start(&d);
	peers_handle_stream_lost(d.a->peers, d.i.peer, 6);
	assert_true(rig_until(d.event, d.a->n_commands == 1));
	assert_int_equal(d.a->commands[0].type, COMMAND_STREAM_DEAD);
	assert_int_equal(d.b->n_commands, 0);
	/* a late hello of a stream that was reported dead is refused */
	h = greeting(&d, 6);
	sign(&d, &h);
	assert_int_equal(try(&d, &h), DRAY_E_EXISTS);
	/* events of unknown peers and streams */
	peers_handle_stream_lost(d.a->peers, 4711, 6);
	peers_handle_stream_closed(d.a->peers, 4711, 6);
	peers_handle_stream_closed(d.a->peers, d.i.peer, 6);
	duo_end(&d);
}

static void test_reset_is_not_answered(void **state)
{
	struct pmsg_stream_hello h;
	struct pmsg_stream_welcome w;
	int64_t began;
	struct duo d;
	int fd;

	duo_start_as(&d, true);
	h = greeting(&d, 5);
	sign(&d, &h);
	fd = open_stream(&d, &h, &w);
	began = rig_now();
	peers_handle_stream_lost(d.a->peers, d.i.peer, 5);
	/* the other worker hangs: the peer is lost */
	assert_true(rig_until(d.event, d.a->lost));
	assert_true(rig_now() - began >= 300 * MS);
	rig_in_time(rig_now() - began < 600 * MS);
	assert_int_equal(d.a->lost_code, DRAY_E_PEER_LOST);
	assert_int_equal(d.a->n_commands, 0);
	close(fd);
	duo_end(&d);
}

/* A stream of the accepting side can arrive before we have read its READY: it waits. */
static void test_held_until_ready(void **state)
{
	sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_stream_hello h = { .magic = PMSG_MAGIC_STREAM,
				       .major = PMSG_MAJOR,
				       .stream_id = 1,
				       .incarnation = 20,
				       .to_incarnation = 10 };
	uint8_t wire[PMSG_STREAM_HELLO_SIZE];
	struct dray_err err = DRAY_ERR_NULL;
	struct peer *peer;
	int fd;

	h.agent_id[15] = 2;
	h.to_agent_id[15] = 1;
	/* a connection of ours that has got as far as our HELLO, without a network */
	assert_int_equal(peer_new(&peer, a->peers, h.agent_id, true, &err), 0);
	assert_true(conn_new_detached(&peer->conn, e, &peer_conn_ops, peer) >= 0);
	peer->fsm.state = PEER_STATE_HELLO;
	peer->fsm.attempt_end_ns = INT64_MAX;
	peer->fsm.silence_ns = 1000 * MS;
	peer->known = peer->hello_sent = true;
	peer->incarnation = 20;

	/*
	 * the detached connection derives its stream key differently from the test: this MAC uses
	 * the later key
	 */
	fd = dial(a);
	peer->peer_ready = false;
	pmsg_stream_hello_put(wire, &h);
	{
		struct peer_link *l;

		assert_int_equal(link_up(peer, &err), 0);
		l = dray_take(peer->link);
		assert_int_equal(stream_hello_mac(l->stream_key, wire, h.mac), 0);
		free(l);
		a->ups = 0;
	}
	pmsg_stream_hello_put(wire, &h);
	assert_int_equal(send(fd, wire, sizeof(wire), MSG_NOSIGNAL), sizeof(wire));
	rig_for(e, 50);
	assert_int_equal(a->n_commands, 0);
	assert_int_equal(a->peers->n_incoming, 1);
	peer->peer_ready = true;
	hello_settle(peer);
	assert_int_equal(a->ups, 1);
	assert_true(rig_until(e, a->n_commands == 1));
	assert_int_equal(a->commands[0].type, COMMAND_STREAM_ADOPT);
	assert_int_equal(a->peers->n_incoming, 0);
	close(fd);
	rig_kill(a);
	sd_event_unref(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_adopted),
		cmocka_unit_test(test_in_pieces),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_our_stream_is_lost),
		cmocka_unit_test(test_reset_of_no_stream),
		rig_timed_test(test_reset_is_not_answered),
		cmocka_unit_test(test_held_until_ready),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
