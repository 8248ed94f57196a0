/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of transport tcp: opening them, and closing them with their peer. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_hand.h"

#define MIB HAND_MIB

static struct lab_side *const a = &hand.lab.side[0];

/* Its only stream, which does not leave the node. */
static void expect_unpaced(const struct lab_side *s)
{
	const struct tcp *t = s->tcp;
	char algorithm[16] = "";
	socklen_t n = sizeof(algorithm);

	assert_int_equal(getsockopt(dray_list_first(&t->streams, struct tcp_stream, link)->fd,
				    IPPROTO_TCP, TCP_CONGESTION, algorithm, &n),
			 0);
	assert_string_equal(algorithm, "reno");
}

static void test_opens_on_demand(void **state)
{
	hand_own_start();
	lab_settle(&hand.lab);
	assert_int_equal(hand.lab.n_raw, 0);
	assert_true(transport_tcp.tick(&a->core, a->tcp) == INT64_MAX);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 5, 6, 7);
	hand_receive_write(hand_stream(1), 5, 6, 7);
	assert_int_equal(hand.lab.raw_id[0] >> 32, a->core.index);
	expect_unpaced(a);
	hand_own_finish();
}

static void test_unreachable(void **state)
{
	int64_t begin;
	unsigned tries = 0;

	hand_own_prepare();
	close(hand.lab.side[1].listen_fd);
	hand_own_go();
	begin = dray_now().ns;
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, 0, 0, 2 * MIB);
	while (!lab_end(a, 1)) {
		lab_turn(&hand.lab);
		lab_advance(&hand.lab, 10);
		assert_true(++tries < 100000);
	}
	hand_expect_end(1, DRAY_E_PEER_UNREACHABLE);
	hand_expect_end(2, DRAY_E_PEER_UNREACHABLE);
	/* after connect_timeout, and not much later */
	assert_true(dray_now().ns - begin + hand.lab.skew_ns >= 5 * DRAY_NS_PER_SEC);
	assert_true(dray_now().ns - begin + hand.lab.skew_ns <= 16 * DRAY_NS_PER_SEC);
	/* the next attempt begins before it fails too */
	lab_transfer1(a, 3, DMSG_DIRECTION_WRITE, 0, 0, 100);
	assert_null(lab_end(a, 3));
	lab_advance(&hand.lab, 8000);
	lab_settle(&hand.lab);
	hand_expect_end(3, DRAY_E_PEER_UNREACHABLE);
	/* no attempt while nothing waits */
	lab_advance(&hand.lab, 80000);
	lab_settle(&hand.lab);
	assert_true(transport_tcp.tick(&a->core, a->tcp) == INT64_MAX);
	hand.lab.side[1].listen_fd = socket(AF_UNIX, SOCK_STREAM, 0);
	hand_own_finish();
}

/* No descriptor of this agent is free: that says nothing about the peer, to which transfers go as soon as there is one. */
static void test_no_descriptor(void **state)
{
	struct rlimit usual, none;

	hand_own_start();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	none = (struct rlimit){ 3, usual.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	for (unsigned i = 0; i < 2000 && !lab_end(a, 1); i++) {
		lab_turn(&hand.lab);
		lab_advance(&hand.lab, 10);
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	hand_expect_end(1, DRAY_E_NO_FDS);
	lab_advance(&hand.lab, 8000);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 5, 6, 7);
	hand_ack(hand_stream(1), hand_receive_write(hand_stream(1), 5, 6, 7).slice, 0);
	hand_expect_end(2, 0);
	hand_own_finish();
}

/* Lacks and refusals in turn: each kind is counted, so that one does not hide the other. */
static void test_lack_and_refusal(void **state)
{
	struct tcp_channel *ch;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	ch = &tcp_peer_get(a->tcp, a->link.peer)->channels[DMSG_CLASS_BULK];
	for (unsigned i = 0; i < 2; i++) {
		tcp_connect_failed(ch, -EMFILE);
		tcp_connect_failed(ch, -ECONNREFUSED);
	}
	a->core.now_ns += 5 * DRAY_NS_PER_SEC;
	assert_null(lab_end(a, 1));
	tcp_connect_failed(ch, -ECONNREFUSED);
	hand_expect_end(1, DRAY_E_PEER_UNREACHABLE);
	lab_transfer1(a, 2, DMSG_DIRECTION_WRITE, 0, 0, 100);
	tcp_connect_failed(ch, -ENOMEM);
	hand_expect_end(2, DRAY_E_NO_MEMORY);
	hand_own_finish();
}

static void test_back_after_refusal(void **state)
{
	hand_own_prepare();
	hand.lab.welcome_status = DRAY_E_BUSY;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	for (unsigned i = 0; i < 100; i++) {
		lab_turn(&hand.lab);
		lab_advance(&hand.lab, 10);
	}
	assert_null(lab_end(a, 1));
	assert_int_equal(hand.lab.n_raw, 0);
	assert_int_equal(a->lost.n, 0);
	hand.lab.welcome_status = 0;
	lab_advance(&hand.lab, 3000);
	hand_ack(hand_stream(1), hand_receive_write(hand_stream(1), 0, 0, 100).slice, 0);
	hand_expect_end(1, 0);
	hand_own_finish();
}

static void test_bad_mac(void **state)
{
	hand_own_prepare();
	hand.lab.bad_mac = true;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	for (unsigned i = 0; i < 2000 && !lab_end(a, 1); i++) {
		lab_turn(&hand.lab);
		lab_advance(&hand.lab, 10);
	}
	hand_expect_end(1, DRAY_E_PEER_UNREACHABLE);
	assert_int_equal(hand.lab.n_raw, 0);
	hand_own_finish();
}

static void test_no_welcome(void **state)
{
	hand_own_prepare();
	hand.lab.no_welcome = true;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_settle(&hand.lab);
	lab_advance(&hand.lab, 4000);
	lab_settle(&hand.lab);
	assert_int_equal(hand.lab.side[1].n_half, 1);
	/* after connect_timeout: closed, and another one opened after a pause */
	lab_advance(&hand.lab, 1100);
	lab_settle(&hand.lab);
	assert_true(recv(hand.lab.side[1].half_fd[0], hand.payload, 200, MSG_DONTWAIT) > 0 &&
		    recv(hand.lab.side[1].half_fd[0], hand.payload, 200, MSG_DONTWAIT) <= 0);
	lab_advance(&hand.lab, 200);
	lab_settle(&hand.lab);
	assert_int_equal(hand.lab.side[1].n_half, 2);
	assert_null(lab_end(a, 1));
	/* stopping a waiting transfer needs no stream */
	hand_stop(1, DRAY_E_CANCELLED, false);
	hand_expect_end(1, DRAY_E_CANCELLED);
	hand_own_finish();
}

static void down(uint32_t code)
{
	lab_peer_down(a, code);
	a->down = true;
	assert_int_equal(a->n_gone, 1);
	assert_true(dray_list_empty(&a->session.xfers));
	assert_int_equal(a->session.slices[DMSG_CLASS_BULK], 0);
	assert_int_equal(a->core.awaited, 0);
}

static void test_down_idle(void **state)
{
	hand_own_start();
	down(DRAY_E_PEER_LOST);
	/* unknown by now */
	lab_peer_down(a, DRAY_E_PEER_LOST);
	assert_int_equal(a->n_gone, 2);
	/* no channel, so the transfer fails */
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	hand_expect_end(1, DRAY_E_PEER_LOST);
	transport_tcp.peer_up(&a->core, a->tcp, &a->link);
	a->n_ended = 0;
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	hand_ack(hand_stream(1), hand_receive_write(hand_stream(1), 0, 0, 10).slice, 0);
	hand_expect_end(1, 0);
	lab_peer_down(a, DRAY_E_PEER_LOST);
	hand_own_finish();
}

static void test_down_connecting(void **state)
{
	hand_own_prepare();
	hand.lab.no_welcome = true;
	hand_own_go();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 10);
	lab_side_turn(a);
	lab_settle(&hand.lab);
	down(DRAY_E_PEER_LOST);
	hand_expect_end(1, DRAY_E_PEER_LOST);
	lab_settle(&hand.lab);
	hand_own_finish();
}

static void test_down_in_flight(void **state)
{
	int fd = hand_own_start_stuck(1);

	for (unsigned i = 0; i < 20; i++)
		lab_transfer1(a, 10 + i, i % 2 ? DMSG_DIRECTION_READ : DMSG_DIRECTION_WRITE,
			      i * 4096, i * 4096, 4096);
	lab_settle(&hand.lab);
	down(DRAY_E_PEER_LOST);
	hand_expect_end(1, DRAY_E_PEER_LOST);
	for (unsigned i = 0; i < 20; i++)
		hand_expect_end(10 + i, DRAY_E_PEER_LOST);
	lab_settle(&hand.lab);
	while (recv(fd, hand.payload, MIB, MSG_DONTWAIT) > 0)
		;
	assert_true(lab_is_closed(&hand.lab, fd));
	hand_own_finish();
}

static void test_down_lost(void **state)
{
	int fd;

	hand_own_start();
	lab_transfer1(a, 1, DMSG_DIRECTION_WRITE, 0, 0, 100);
	lab_transfer1(a, 2, DMSG_DIRECTION_READ, MIB, 0, MIB);
	fd = hand_stream(1);
	hand_receive_write(fd, 0, 0, 100);
	close(fd);
	hand.lab.raw_fd[0] = -1;
	lab_until(&hand.lab, a->lost.n == 1);
	down(DRAY_E_INCARNATION);
	hand_expect_end(1, DRAY_E_INCARNATION);
	hand_expect_end(2, DRAY_E_INCARNATION);
	hand_dead(0);
	hand_own_finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_opens_on_demand),    cmocka_unit_test(test_unreachable),
		cmocka_unit_test(test_back_after_refusal), cmocka_unit_test(test_bad_mac),
		cmocka_unit_test(test_no_welcome),         cmocka_unit_test(test_down_idle),
		cmocka_unit_test(test_down_connecting),    cmocka_unit_test(test_down_in_flight),
		cmocka_unit_test(test_down_lost),          cmocka_unit_test(test_no_descriptor),
		cmocka_unit_test(test_lack_and_refusal),
	};

	return cmocka_run_group_tests(tests, hand_set_up, NULL);
}
